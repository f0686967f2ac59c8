//! KVM or emulation: which of the two works here.
//!
//! `/dev/kvm` may open and still break guests (nested virtualisation that emulates too little), so KVM is used only after
//! it has booted an image once. The answer is kept in the image store for as long as the host is up, so that golden boots
//! and instances run on the same kind of processor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::golden::{self, Golden};
use crate::machine::Accelerator;

/// Under KVM a measured boot takes 2 to 5 s; one that hangs is given up after this.
const PROBE: Duration = Duration::from_secs(45);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// `/proc/sys/kernel/random/boot_id`: another boot of the host may answer otherwise.
    boot_id: String,
    accelerator: Accelerator,
    /// For people.
    because: String,
}

/// Decides how machines with this disk run on this host.
///
/// # Errors
/// Never for a KVM that does not work: that is an answer.
pub async fn choose(disk: &Path) -> std::io::Result<Accelerator> {
    let kept = kept_at(disk);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    if let Some(answer) = read(&kept).filter(|answer| answer.boot_id == boot_id) {
        return Ok(answer.accelerator);
    }
    let (accelerator, because) = match probe(disk).await {
        Ok(()) => (Accelerator::Kvm, "a boot under KVM ran to its end".to_owned()),
        Err(why) => (Accelerator::Tcg, why),
    };
    tracing::info!(?accelerator, because, "chose how machines run on this host");
    let text = serde_json::to_vec(&Answer { boot_id, accelerator, because })?;
    // Two probes at once (a golden boot and a hypervisor) write whole answers, never halves.
    let staging = kept.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&staging, text)?;
    std::fs::rename(&staging, &kept)?;
    Ok(accelerator)
}

/// Beside the folders of the images: one answer for all of a store, given by the first that boots, which is a golden boot
/// of an honest image.
fn kept_at(disk: &Path) -> PathBuf {
    let folder = disk.parent().unwrap_or(disk);
    folder.parent().unwrap_or(folder).join("accelerator.json")
}

fn read(path: &Path) -> Option<Answer> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

async fn probe(disk: &Path) -> Result<(), String> {
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Err(format!("/dev/kvm: {error}"));
    }
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let boot = Golden {
        disk: disk.to_owned(),
        seed: golden::record_measurements(),
        memory_mib: 512,
        vcpus: 1,
        console: folder.path().join("console.log"),
        accelerator: Accelerator::Kvm,
    };
    golden::run_to_poweroff(&boot, PROBE).await.map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_holds_for_one_boot_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("image/disk.raw");
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
        let answer = |boot_id: &str| {
            serde_json::to_vec(&Answer {
                boot_id: boot_id.into(),
                accelerator: Accelerator::Kvm,
                because: String::new(),
            })
            .unwrap()
        };
        std::fs::write(kept_at(&disk), answer(&boot_id)).unwrap();
        assert_eq!(choose(&disk).await.unwrap(), Accelerator::Kvm);
        // The disk does not exist, so a fresh probe can only fail.
        std::fs::write(kept_at(&disk), answer("another boot")).unwrap();
        assert_eq!(choose(&disk).await.unwrap(), Accelerator::Tcg);
        assert_eq!(read(&kept_at(&disk)).unwrap().boot_id, boot_id);
    }
}
