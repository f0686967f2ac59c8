//! What the kernel leaves to the first process: file systems and modules.

use std::{fs::File, path::Path};

use rustix::mount::{MountFlags, mount};
use thiserror::Error;

/// Why the system could not be set up.
#[derive(Debug, Error)]
pub enum Error {
    /// A file system could not be mounted.
    #[error("cannot mount {0}: {1}")]
    Mount(&'static str, rustix::io::Errno),
    /// The list of modules is missing from the image.
    #[error("cannot read {LOAD}: {0}")]
    List(std::io::Error),
    /// A module was refused.
    #[error("cannot load module {0}: {1}")]
    Module(String, std::io::Error),
}

const MODULES: &str = "/usr/lib/modules";
/// Module files below [`MODULES`], one a line, in the order to load them; the image build wrote it.
const LOAD: &str = "/usr/lib/modules/load";

/// Mounts what the guest works with. Nothing is executable or a device where it need not be.
pub fn mount_all() -> Result<(), Error> {
    let strict = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let table: [(&'static str, &str, MountFlags, &std::ffi::CStr); 6] = [
        ("/proc", "proc", strict, c""),
        ("/sys", "sysfs", strict, c""),
        ("/dev", "devtmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c""),
        ("/sys/kernel/security", "securityfs", strict, c""),
        ("/run", "tmpfs", strict, c"mode=0755,size=64m"),
        ("/tmp", "tmpfs", strict, c"mode=1777,size=16m"),
    ];
    for (at, kind, flags, options) in table {
        mount(kind, at, kind, flags, options).map_err(|e| Error::Mount(at, e))?;
    }
    Ok(())
}

/// Loads the image's modules; gives how many.
pub fn load_modules() -> Result<usize, Error> {
    let list = std::fs::read_to_string(LOAD).map_err(Error::List)?;
    let mut loaded = 0;
    for name in list.lines().filter(|l| !l.is_empty()) {
        let fail = |e: std::io::Error| Error::Module(name.to_owned(), e);
        let file = File::open(Path::new(MODULES).join(name)).map_err(fail)?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => loaded += 1,
            Err(e) => return Err(fail(e.into())),
        }
    }
    Ok(loaded)
}
