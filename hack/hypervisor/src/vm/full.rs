//! Full instances: QEMU, OVMF, swtpm.

use std::path::Path;
use std::time::Duration;

use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_supervisor::Spec;

use super::home::absent;
use super::{Error, Part, Vm};
use crate::plan::{self, Material, Plan, file};
use crate::{firmware, iso, swtpm};

impl Vm {
    pub(super) async fn start_full(&self, instance: &VirtualMachineInstance) -> Result<(), Error> {
        let disk = self.shared.host.images.disk(plan::boot_image(instance)?)?;
        let accelerator = self.accelerator(&disk).await?;
        let plan = plan::plan(instance, &self.shared.host, accelerator, self.log_console())?;
        self.clear(Part::Qemu).await?;
        self.clear(Part::Tpm).await?;
        self.home.create(&self.id)?;
        if plan.machine.tpm.is_some() {
            self.endorse().await?;
        }
        self.materialize(&plan).await?;
        if plan.machine.tpm.is_some() {
            self.serve_tpm(swtpm::machine_arguments(Path::new(file::TPM), Path::new(file::TPM_SOCKET))).await?;
        }
        let argv = std::iter::once("qemu-system-x86_64".to_owned())
            .chain(plan.machine.arguments().iter().map(|argument| argument.to_string_lossy().into_owned()))
            .collect();
        self.spawn(Part::Qemu, argv).await
    }

    fn log_console(&self) -> std::path::PathBuf {
        self.home.log("console")
    }

    async fn materialize(&self, plan: &Plan) -> Result<(), Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source }
        };
        firmware::copy_variables(&self.home.path(file::VARIABLES))?;
        for socket in [self.home.qmp(), self.home.path(file::TPM_SOCKET)] {
            absent(std::fs::remove_file(&socket)).map_err(failed(&socket))?;
        }
        for material in &plan.materials {
            match material {
                Material::Secret { file, secret, label } => {
                    let path = self.home.folder().join(file);
                    absent(std::fs::remove_file(&path)).map_err(failed(&path))?;
                    iso::make(&path, label, &self.secret(secret).await?).await?;
                }
                Material::Scratch { file, bytes } => {
                    let path = self.home.folder().join(file);
                    let made = std::fs::File::create(&path).and_then(|file| file.set_len(*bytes));
                    made.map_err(failed(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Starts swtpm and waits until its socket is there.
    pub(super) async fn serve_tpm(&self, arguments: Vec<String>) -> Result<(), Error> {
        let argv = std::iter::once("swtpm".to_owned()).chain(arguments).collect();
        self.spawn(Part::Tpm, argv).await?;
        let socket = self.home.path(file::TPM_SOCKET);
        while !socket.exists() {
            self.check_alive(Part::Tpm).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Starts a process in the machine's folder.
    pub(super) async fn spawn(&self, part: Part, argv: Vec<String>) -> Result<(), Error> {
        let folder = self.home.folder().to_owned();
        let spec = Spec {
            name: self.process(part),
            argv,
            // QEMU's forgotten writes go to unlinked files there.
            env: [("TMPDIR".to_owned(), folder.display().to_string())].into(),
            cwd: Some(folder),
            log: self.log(part),
            ..Spec::default()
        };
        self.shared.supervisor.spawn(spec).await?;
        self.check_alive(part).await
    }
}
