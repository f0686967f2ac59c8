//! The kernel: Debian's cloud kernel, taken from its package without installing it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use thiserror::Error;

/// An unpacked kernel package.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Release, such as `6.1.0-57-cloud-amd64`.
    pub release: String,
    /// The compressed kernel image (a PE executable by its EFI stub).
    pub image: PathBuf,
    /// The folder of its modules (`…/lib/modules/<release>`).
    pub modules: PathBuf,
}

/// Why there is no kernel.
#[derive(Debug, Error)]
pub enum Error {
    /// apt, apt-cache or dpkg-deb failed.
    #[error("cannot {act}: {detail}. On Debian, run `apt-get update` and try again, or give --kernel-package")]
    Package {
        /// What was being done.
        act: String,
        /// What the program said.
        detail: String,
    },
    /// The package is not a kernel package.
    #[error("{0} holds no boot/vmlinuz-* with lib/modules beside it: give a linux-image package")]
    NotAKernel(PathBuf),
    /// A folder could not be made, read or renamed.
    #[error("cannot prepare {0}: {1}")]
    Io(PathBuf, std::io::Error),
}

/// Debian's meta package: it depends on the one concrete kernel that is current.
const META: &str = "linux-image-cloud-amd64";

fn run(act: &str, command: &mut Command) -> Result<String, Error> {
    let fail = |detail: String| Error::Package { act: act.to_owned(), detail };
    let out = command.output().map_err(|e| fail(e.to_string()))?;
    if !out.status.success() {
        return Err(fail(String::from_utf8_lossy(&out.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Downloads the current cloud kernel's package into `cache`, or finds it there.
///
/// It is never installed: its hooks would rebuild this machine's own boot files.
pub fn download(cache: &Path) -> Result<PathBuf, Error> {
    let depends = run("look up the cloud kernel", Command::new("apt-cache").args(["depends", META]))?;
    let name = depends
        .lines()
        .filter_map(|l| l.trim().strip_prefix("Depends: "))
        .find(|n| n.starts_with("linux-image-"))
        .ok_or_else(|| Error::Package {
            act: format!("find what {META} depends on"),
            detail: "apt knows no such package".to_owned(),
        })?
        .to_owned();
    std::fs::create_dir_all(cache).map_err(|e| Error::Io(cache.to_owned(), e))?;
    let found = || -> Result<Option<PathBuf>, Error> {
        let listing = std::fs::read_dir(cache).map_err(|e| Error::Io(cache.to_owned(), e))?;
        let mut packages: Vec<PathBuf> = listing
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|x| x == "deb"))
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{name}_"))))
            .collect();
        packages.sort();
        Ok(packages.pop())
    };
    if let Some(package) = found()? {
        return Ok(package);
    }
    // Into a folder of its own first, so that a download cut short is never taken for a package.
    let part = tempfile::tempdir_in(cache).map_err(|e| Error::Io(cache.to_owned(), e))?;
    run(&format!("download {name}"), Command::new("apt-get").args(["download", &name]).current_dir(part.path()))?;
    let listing = std::fs::read_dir(part.path()).map_err(|e| Error::Io(part.path().to_owned(), e))?;
    for entry in listing.filter_map(Result::ok) {
        let to = cache.join(entry.file_name());
        std::fs::rename(entry.path(), &to).map_err(|e| Error::Io(to, e))?;
    }
    found()?.ok_or_else(|| Error::Package { act: format!("download {name}"), detail: "apt left no file".to_owned() })
}

/// Unpacks `package` into `cache`, keyed by the package's content, and finds the kernel in it.
pub fn unpack(package: &Path, cache: &Path) -> Result<Kernel, Error> {
    let io = |p: &Path| {
        let p = p.to_owned();
        move |e| Error::Io(p, e)
    };
    let bytes = std::fs::read(package).map_err(io(package))?;
    let key = crate::sha256_hex(&bytes);
    let dir = cache.join(key.get(..16).unwrap_or(&key));
    if !dir.is_dir() {
        std::fs::create_dir_all(cache).map_err(io(cache))?;
        let part = tempfile::tempdir_in(cache).map_err(io(cache))?;
        let act = format!("unpack {}", package.display());
        run(&act, Command::new("dpkg-deb").arg("-x").arg(package).arg(part.path()))?;
        if let Err(e) = std::fs::rename(part.path(), &dir)
            && !dir.is_dir()
        {
            return Err(Error::Io(dir, e));
        }
    }
    find(&dir).ok_or_else(|| Error::NotAKernel(package.to_owned()))
}

fn find(dir: &Path) -> Option<Kernel> {
    let mut images: Vec<PathBuf> = std::fs::read_dir(dir.join("boot"))
        .ok()?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-")))
        .collect();
    images.sort();
    let image = images.pop()?;
    let release = image.file_name()?.to_string_lossy().strip_prefix("vmlinuz-")?.to_owned();
    let modules = ["lib/modules", "usr/lib/modules"].iter().map(|m| dir.join(m).join(&release)).find(|m| m.is_dir())?;
    Some(Kernel { release, image, modules })
}
