//! The guest image, its golden boot, and the local image store that the hypervisor reads container disks from.
//!
//! The store is `target/images/<reference, other characters as _>/` with `disk.raw` (a full machine) or `light.json`
//! (a recorded event log) and the `measurements.yaml` that a pool names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use aws_lc_rs::digest::{Context as Digest, SHA256};

use crate::packages::{self, Purpose};
use crate::stages::Kept;
use crate::{product, tools};

/// The honest image of the demo and the tests, as a template names it.
pub const HONEST: &str = "registry.local/banlieue/guest:dev";
/// The same with one byte of a file in its initrd changed.
pub const TAMPERED: &str = "registry.local/banlieue/guest:tampered";
/// The honest image beside which a credential file lies where the stub looks for one.
pub const CREDENTIAL: &str = "registry.local/banlieue/guest:credential";
/// The recorded event log of the honest image, for members without a boot.
pub const LIGHT: &str = "registry.local/banlieue/guest:light";

/// Machine shape of the golden boot: PCR 0 and 1 follow memory, vCPUs and devices, so pools must use the same.
const MEMORY_MIB: &str = "512";
const VCPUS: &str = "1";

/// `xtask image`: builds what is missing and says where it is.
pub fn command(root: &Path) -> anyhow::Result<()> {
    packages::ensure(&[Purpose::Build, Purpose::Machines])?;
    product::build(root)?;
    ensure(root)?;
    println!("images are in {}", root.join("target/images").display());
    Ok(())
}

/// Folder of one image in the store.
pub fn folder(store: &Path, reference: &str) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    store.join(reference.chars().map(safe).collect::<String>())
}

/// Builds image, golden record and variants unless `target/images` holds them for the same inputs.
pub fn ensure(root: &Path) -> anyhow::Result<Kept> {
    let bin = product::folder();
    let agent = tools::ensure(root, &["spire-agent"])?.join("spire-agent");
    let store = root.join("target/images");
    let inputs = [
        bin.join("banlieue-image"),
        bin.join("banlieue-guest"),
        bin.join("banlieue-attestor-guest"),
        bin.join("banlieue-attestor"),
        bin.join("banlieue-hypervisor"),
        agent.clone(),
        PathBuf::from("/usr/share/OVMF/OVMF_CODE_4M.fd"),
        PathBuf::from("/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ];
    let key = fingerprint(&inputs)?;
    let lock = root.join("target/images.lock");
    let lock = fs::File::create(&lock).with_context(|| format!("creating {}", lock.display()))?;
    // Two runs side by side: the second waits, then finds what the first has built.
    lock.lock().context("waiting for another build of the images")?;
    let current = |store: &Path| fs::read_to_string(store.join("stamp")).is_ok_and(|have| have == key);
    if current(&store) {
        return Ok(Kept::All);
    }
    // Built beside the store and renamed: a store is whole or absent, and clusters that read the old one keep its files.
    let (fresh, old) = (root.join("target/images.new"), root.join("target/images.old"));
    clear(&fresh)?;
    clear(&old)?;
    let work = fresh.join("work");
    fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
    build(&bin, &agent, &fresh, &work)?;
    clear(&work)?;
    fs::write(fresh.join("stamp"), &key).with_context(|| format!("writing the stamp in {}", fresh.display()))?;
    if store.exists() {
        fs::rename(&store, &old).with_context(|| format!("moving {} away", store.display()))?;
    }
    fs::rename(&fresh, &store).with_context(|| format!("moving the images to {}", store.display()))?;
    clear(&old)?;
    Ok(Kept::Made("built and booted once".into()))
}

fn clear(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("clearing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn build(bin: &Path, agent: &Path, store: &Path, work: &Path) -> anyhow::Result<()> {
    println!("building the guest image");
    let image = bin.join("banlieue-image");
    run(Command::new(&image)
        .arg("build")
        .arg("--spire-agent")
        .arg(agent)
        .arg("--guest")
        .arg(bin.join("banlieue-guest"))
        .arg("--attestor-guest")
        .arg(bin.join("banlieue-attestor-guest"))
        .arg("--out")
        .arg(work))?;
    let disk = work.join("disk.raw");

    println!("golden boot: the honest image on this machine's firmware and machine shape");
    let console = work.join("golden-console.log");
    run(Command::new(bin.join("banlieue-hypervisor"))
        .arg("golden")
        .arg("--image")
        .arg(&disk)
        .args(["--memory", MEMORY_MIB, "--vcpus", VCPUS])
        .arg("--console")
        .arg(&console))?;
    let measurements = output(
        Command::new(bin.join("banlieue-attestor"))
            .arg("golden")
            .arg("--evidence")
            .arg(&console)
            .arg("--predictions")
            .arg(work.join("predictions.yaml")),
    )?;

    let honest = folder(store, HONEST);
    fs::create_dir_all(&honest)?;
    fs::rename(&disk, honest.join("disk.raw"))?;
    fs::write(honest.join("measurements.yaml"), &measurements)?;

    println!("variants that must be refused, and the light form");
    for (reference, flag) in [(TAMPERED, None), (CREDENTIAL, Some("--lay-credential"))] {
        let place = folder(store, reference);
        fs::create_dir_all(&place)?;
        let mut command = Command::new(&image);
        command.arg("tamper").arg("--disk").arg(honest.join("disk.raw")).arg("--out").arg(place.join("disk.raw"));
        run(command.args(flag))?;
    }
    let light = folder(store, LIGHT);
    fs::create_dir_all(&light)?;
    run(Command::new(&image)
        .arg("light")
        .arg("--evidence")
        .arg(&console)
        .arg("--measurements")
        .arg(honest.join("measurements.yaml"))
        .arg("--out")
        .arg(&light))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{command:?} failed ({status}); its output is above");
    }
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let done = command.stderr(std::process::Stdio::inherit()).output();
    let done = done.with_context(|| format!("starting {}", command.get_program().display()))?;
    if !done.status.success() {
        bail!("{command:?} failed ({}); its output is above", done.status);
    }
    Ok(done.stdout)
}

/// SHA-256 over the contents of the inputs: a rebuilt but equal program boots nothing anew.
fn fingerprint(inputs: &[PathBuf]) -> anyhow::Result<String> {
    let mut all = Digest::new(&SHA256);
    for path in inputs {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        all.update(aws_lc_rs::digest::digest(&SHA256, &bytes).as_ref());
    }
    Ok(hex::encode(all.finish().as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_become_folder_names() {
        assert_eq!(folder(Path::new("s"), HONEST), Path::new("s/registry.local_banlieue_guest_dev"));
    }
}
