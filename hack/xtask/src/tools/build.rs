//! `go build` of one program.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::go::{read_go_mod, required_version};
use super::manifest::{Manifest, Program};
use super::stamp::{collect_sources, stamp};
use super::store::{Store, remove_if_there};
use super::{SHOWN, last_lines, rough};

/// More compilers than this at once gain little and cost about 0.5 GB each.
const PARALLEL: usize = 4;

/// One program, with all that decides what comes out of its build.
pub struct Build<'a> {
    /// What is built.
    pub program: &'a Program,
    folder: PathBuf,
    version: Option<String>,
    arguments: Vec<String>,
    /// Digest of all that.
    pub stamp: String,
}

impl<'a> Build<'a> {
    /// Reads everything that the build will.
    pub fn plan(root: &Path, manifest: &Manifest, program: &'a Program, go_version: &str) -> anyhow::Result<Self> {
        let folder = root.join("hack/tools").join(&program.module);
        let go_mod = read_go_mod(&folder)?;
        let version = required_version(&go_mod, &program.package).map(str::to_owned);
        // What the environment says in GOFLAGS still holds; these win where both speak.
        let arguments = [
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-ldflags",
            &manifest.linker_flags(program, version.as_deref())?,
            &program.package,
        ]
        .map(str::to_owned)
        .to_vec();
        let mut files = BTreeMap::new();
        collect_sources(&folder, Path::new(""), &mut files)?;
        let stamp = stamp(&files, &arguments, program.cgo, go_version);
        Ok(Self { program, folder, version, arguments, stamp })
    }

    /// Builds it. The old one stays until the new one is whole.
    pub fn run(&self, store: &Store) -> anyhow::Result<()> {
        let name = &self.program.name;
        let version = self.version.as_deref().map(|v| format!(" {v}")).unwrap_or_default();
        println!("building {name}{version} (about {} cold) …", rough(Duration::from_secs(self.program.seconds)));
        let started = Instant::now();
        let (log, partial) = (store.log(name), store.partial(name));
        let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("sharing {}", log.display()))?;
        let parallel = std::thread::available_parallelism().map_or(1, usize::from).min(PARALLEL);
        let (verb, rest) = self.arguments.split_first().context("a build without arguments")?;
        let status = Command::new("go")
            .arg(verb)
            .args(["-p", &parallel.to_string(), "-o"])
            .arg(&partial)
            .args(rest)
            .current_dir(&self.folder)
            .env("CGO_ENABLED", if self.program.cgo { "1" } else { "0" })
            .env("GOWORK", "off") // a workspace file in a folder above would replace the pinned versions
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .status()
            .context("starting go")?;
        if !status.success() {
            // What was linked so far is of no use, and nothing to report on.
            let _ = fs::remove_file(&partial);
            let text = fs::read(&log).unwrap_or_default();
            bail!(
                "building {name}{version} failed ({status}); the whole output is in {}, its last lines are:\n{}",
                log.display(),
                last_lines(&String::from_utf8_lossy(&text), SHOWN)
            );
        }
        remove_if_there(&store.stamp(name))?;
        let binary = store.bin().join(name);
        fs::rename(&partial, &binary).with_context(|| format!("moving {name} to {}", binary.display()))?;
        fs::write(store.stamp(name), &self.stamp).with_context(|| format!("recording the stamp of {name}"))?;
        println!("built {name}{version} in {:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}
