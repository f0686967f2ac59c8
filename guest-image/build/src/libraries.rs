//! Shared libraries: what a program's ELF header asks for, and what those ask for in turn.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use object::{
    elf::{DT_NEEDED, FileHeader64},
    endian::LittleEndian,
    read::elf::{Dyn, FileHeader, ProgramHeader},
};
use thiserror::Error;

/// Why a program's libraries could not be listed.
#[derive(Debug, Error)]
pub enum Error {
    /// Not a little-endian ELF64 file, or cut short.
    #[error("cannot read {0} as a program: {1}")]
    Unreadable(PathBuf, String),
    /// No folder of the search path has it.
    #[error("{needed_by} needs {name}, which is in none of the library folders: install the package that has it")]
    Missing {
        /// The library's name.
        name: String,
        /// The file that asks for it.
        needed_by: PathBuf,
    },
}

/// Where this Debian keeps its libraries; the same paths are used in the image.
const FOLDERS: &[&str] = &["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"];

/// What one ELF file names: its interpreter, if any, and its libraries.
fn needs(path: &Path) -> Result<(Option<String>, Vec<String>), Error> {
    let unreadable = |e: String| Error::Unreadable(path.to_owned(), e);
    let bytes = std::fs::read(path).map_err(|e| unreadable(e.to_string()))?;
    let data = bytes.as_slice();
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(|e| unreadable(e.to_string()))?;
    let endian = LittleEndian;
    let segments = header.program_headers(endian, data).map_err(|e| unreadable(e.to_string()))?;
    let mut interpreter = None;
    let mut offsets = Vec::new();
    for segment in segments {
        if let Ok(Some(name)) = segment.interpreter(endian, data) {
            interpreter = Some(String::from_utf8_lossy(name).into_owned());
        }
        if let Ok(Some(entries)) = segment.dynamic(endian, data) {
            let needed = entries.iter().filter(|d| d.d_tag(endian) == DT_NEEDED);
            offsets.extend(needed.map(|d| d.d_val(endian)));
        }
    }
    if offsets.is_empty() {
        return Ok((interpreter, Vec::new()));
    }
    let sections = header.sections(endian, data).map_err(|e| unreadable(e.to_string()))?;
    let (_, strings) = sections
        .dynamic(endian, data)
        .map_err(|e| unreadable(e.to_string()))?
        .ok_or_else(|| unreadable("no dynamic section".to_owned()))?;
    let strings = sections.strings(endian, data, strings).map_err(|e| unreadable(e.to_string()))?;
    let names = offsets.iter().map(|at| {
        let at = u32::try_from(*at).map_err(|e| unreadable(e.to_string()))?;
        let name = strings.get(at).map_err(|()| unreadable("bad library name".to_owned()))?;
        Ok(String::from_utf8_lossy(name).into_owned())
    });
    Ok((interpreter, names.collect::<Result<_, Error>>()?))
}

fn locate(name: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|f| Path::new(f).join(name)).find(|p| p.is_file())
}

/// Every library that `programs` and the libraries named in `opened` (found at run time by dlopen) need.
///
/// The keys are the paths in the image, the values the files on this machine.
pub fn closure(programs: &[&Path], opened: &[&str]) -> Result<BTreeMap<String, PathBuf>, Error> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut queue: Vec<PathBuf> = programs.iter().map(|p| p.to_path_buf()).collect();
    let image = Path::new("the image");
    let add = |name: &str, by: &Path, found: &mut BTreeMap<String, PathBuf>| {
        let path = locate(name).ok_or_else(|| Error::Missing { name: name.to_owned(), needed_by: by.to_owned() })?;
        found.insert(format!("usr/lib/x86_64-linux-gnu/{name}"), path.clone());
        Ok::<_, Error>(path)
    };
    for name in opened {
        queue.push(add(name, image, &mut found)?);
    }
    while let Some(file) = queue.pop() {
        if !seen.insert(file.clone()) {
            continue;
        }
        let (interpreter, names) = needs(&file)?;
        if let Some(interpreter) = interpreter {
            // Programs name it as /lib64/ld-linux-x86-64.so.2; in the image /lib64 is a link to /usr/lib64.
            let name = interpreter.trim_start_matches('/');
            found.insert(format!("usr/{}", name.trim_start_matches("usr/")), PathBuf::from(&interpreter));
        }
        for name in names.iter().filter(|n| !n.starts_with("ld-linux")) {
            queue.push(add(name, &file, &mut found)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_ldd_finds() {
        let program = Path::new("/usr/bin/tpm2");
        let ours = closure(&[program], &[]).unwrap();
        let ldd = std::process::Command::new("ldd").arg(program).output().unwrap();
        let ldd = String::from_utf8(ldd.stdout).unwrap();
        let theirs: BTreeSet<&str> = ldd
            .lines()
            .filter_map(|l| l.split_whitespace().next())
            .map(|n| n.rsplit('/').next().unwrap())
            .filter(|n| n.contains(".so") && !n.starts_with("linux-vdso"))
            .collect();
        let ours: BTreeSet<&str> = ours.keys().map(|n| n.rsplit('/').next().unwrap()).collect();
        assert_eq!(ours, theirs);
        assert!(ours.contains("libtss2-esys.so.0"), "{ours:?}");
    }
}
