//! Kernel modules: the few the guest uses, with what they depend on, in the order they must be loaded.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use object::{Object, ObjectSection};
use thiserror::Error;

/// What the guest needs. The TPM drivers, the RTC and ISO9660's character sets are built in.
///
/// virtio for disks, network and randomness; isofs for the seed volume; button and evdev for the power button.
pub const WANTED: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "isofs", "button", "evdev"];

/// Why the modules could not be collected.
#[derive(Debug, Error)]
pub enum Error {
    /// The kernel has no such module.
    #[error("the kernel has no module {0}")]
    Missing(String),
    /// The file is not a kernel module.
    #[error("cannot read module {0}: {1}")]
    Unreadable(PathBuf, String),
    /// Modules depend on each other in a circle.
    #[error("module {0} depends on itself")]
    Circular(String),
}

/// A module to load: its name (dashes as underscores) and file.
pub type Module = (String, PathBuf);

fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    Some(file.strip_suffix(".ko")?.replace('-', "_"))
}

fn collect(dir: &Path, into: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, into)?;
        } else if let Some(name) = name_of(&path) {
            into.insert(name, path);
        }
    }
    Ok(())
}

/// What a module names in its `.modinfo` section as `depends=`.
///
/// The package carries no `modules.dep` (depmod writes it at installation), so the modules themselves are asked.
fn depends(path: &Path) -> Result<Vec<String>, Error> {
    let unreadable = |e: String| Error::Unreadable(path.to_owned(), e);
    let bytes = std::fs::read(path).map_err(|e| unreadable(e.to_string()))?;
    let elf = object::File::parse(&*bytes).map_err(|e| unreadable(e.to_string()))?;
    let info = elf.section_by_name(".modinfo").ok_or_else(|| unreadable("no .modinfo section".to_owned()))?;
    let info = info.data().map_err(|e| unreadable(e.to_string()))?;
    let line = info.split(|b| *b == 0).find_map(|l| l.strip_prefix(b"depends="));
    let line = line.map(String::from_utf8_lossy).unwrap_or_default();
    Ok(line.split(',').filter(|n| !n.is_empty()).map(|n| n.replace('-', "_")).collect())
}

/// `wanted` and everything below it, each after what it depends on.
pub fn resolve(modules: &Path, wanted: &[&str]) -> Result<Vec<Module>, Error> {
    let mut all = BTreeMap::new();
    collect(&modules.join("kernel"), &mut all).map_err(|e| Error::Unreadable(modules.to_owned(), e.to_string()))?;
    let mut order = Vec::new();
    for name in wanted {
        visit(name, &all, &mut order, &mut Vec::new())?;
    }
    Ok(order)
}

fn visit(
    name: &str,
    all: &BTreeMap<String, PathBuf>,
    order: &mut Vec<Module>,
    path: &mut Vec<String>,
) -> Result<(), Error> {
    if order.iter().any(|(n, _)| n == name) {
        return Ok(());
    }
    if path.iter().any(|n| n == name) {
        return Err(Error::Circular(name.to_owned()));
    }
    let file = all.get(name).ok_or_else(|| Error::Missing(name.to_owned()))?;
    path.push(name.to_owned());
    for below in depends(file)? {
        visit(&below, all, order, path)?;
    }
    path.pop();
    order.push((name.to_owned(), file.clone()));
    Ok(())
}
