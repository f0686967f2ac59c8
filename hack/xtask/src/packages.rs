//! Debian packages that building and running need.
//!
//! As root they are installed, with the progress of apt in view; otherwise one sentence names the command that does.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, bail};

use crate::stages::Kept;

/// What a package is needed for; a command asks only for what it will use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Compilers and libraries to link against.
    Build,
    /// The measured image and the machines that boot it.
    Machines,
    /// What tests do as a person would.
    Tests,
    /// npm, where no other one is in the PATH.
    Npm,
}

/// Debian's npm.
const NPM: &str = "/usr/bin/npm";

/// (package, a file that shows it is there, purpose)
const PACKAGES: &[(&str, &str, Purpose)] = &[
    ("gcc", "/usr/bin/gcc", Purpose::Build),
    ("cmake", "/usr/bin/cmake", Purpose::Build),
    ("pkg-config", "/usr/bin/pkg-config", Purpose::Build),
    ("libtss2-dev", "/usr/include/tss2/tss2_esys.h", Purpose::Build),
    ("binutils", "/usr/bin/strip", Purpose::Build),
    ("qemu-system-x86", "/usr/bin/qemu-system-x86_64", Purpose::Machines),
    ("qemu-utils", "/usr/bin/qemu-img", Purpose::Machines),
    ("ovmf", "/usr/share/OVMF/OVMF_CODE_4M.fd", Purpose::Machines),
    ("swtpm", "/usr/bin/swtpm", Purpose::Machines),
    ("swtpm-tools", "/usr/bin/swtpm_setup", Purpose::Machines),
    ("tpm2-tools", "/usr/bin/tpm2", Purpose::Machines),
    ("systemd-boot-efi", "/usr/lib/systemd/boot/efi/linuxx64.efi.stub", Purpose::Machines),
    ("mtools", "/usr/bin/mcopy", Purpose::Machines),
    ("dosfstools", "/usr/sbin/mkfs.vfat", Purpose::Machines),
    ("gdisk", "/usr/sbin/sgdisk", Purpose::Machines),
    ("xorriso", "/usr/bin/xorriso", Purpose::Machines),
    ("cpio", "/usr/bin/cpio", Purpose::Machines),
    ("zstd", "/usr/bin/zstd", Purpose::Machines),
    ("busybox-static", "/bin/busybox", Purpose::Machines),
    ("iproute2", "/usr/sbin/ip", Purpose::Machines),
    ("curl", "/usr/bin/curl", Purpose::Tests),
    ("npm", NPM, Purpose::Npm),
];

/// Packages of these purposes whose file is not there.
fn missing(purposes: &[Purpose], present: impl Fn(&str) -> bool) -> BTreeSet<&'static str> {
    PACKAGES
        .iter()
        .filter(|(_, file, purpose)| purposes.contains(purpose) && !present(file))
        .map(|(package, _, _)| *package)
        .collect()
}

/// Installs what is missing, or says which command does.
pub fn ensure(purposes: &[Purpose]) -> anyhow::Result<Kept> {
    let wanted = missing(purposes, present);
    if wanted.is_empty() {
        return Ok(Kept::All);
    }
    let list = wanted.iter().copied().collect::<Vec<_>>().join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!(
            "Debian packages are missing: run 'sudo apt-get update && sudo apt-get install --no-install-recommends \
             {list}', then this again"
        );
    }
    println!("installing Debian packages: {list}");
    // Package lists may be old or absent on a fresh machine; without them the install finds nothing.
    apt(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(wanted.iter().copied());
    apt(&arguments)?;
    let left = missing(purposes, present);
    if !left.is_empty() {
        bail!("apt-get ended well, yet these packages did not bring the files they are needed for: {left:?}");
    }
    Ok(Kept::Made(format!("installed {list}")))
}

/// npm may come from elsewhere; everything else is looked for where Debian puts it.
fn present(file: &str) -> bool {
    let in_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    std::path::Path::new(file).exists() || file == NPM && in_path("npm")
}

fn apt(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(std::process::Stdio::null())
        .status()
        .context(
            "starting apt-get; on a system without it, install the packages listed in hack/xtask/src/packages.rs",
        )?;
    if !status.success() {
        bail!("'apt-get {}' failed ({status})", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_purpose_needs_is_missing() {
        let bare = missing(&[Purpose::Build], |_| false);
        assert!(bare.contains("libtss2-dev") && !bare.contains("ovmf"));
        assert!(missing(&[Purpose::Build, Purpose::Machines], |_| true).is_empty());
        let one = missing(&[Purpose::Machines], |file| file != "/usr/bin/swtpm");
        assert_eq!(one.into_iter().collect::<Vec<_>>(), ["swtpm"]);
    }
}
