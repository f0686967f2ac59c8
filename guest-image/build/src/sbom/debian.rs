//! Debian packages: which one a file comes from, and its version.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Error, Part, ask, escape};

fn part(name: &str, version: &str, architecture: &str) -> Part {
    let purl = format!("pkg:deb/debian/{}@{}?arch={}", escape(name), escape(version), escape(architecture));
    Part { purl, name: name.to_owned(), version: version.to_owned() }
}

/// The package in a `.deb` file.
///
/// # Errors
/// It is no such file.
pub fn of_archive(archive: &Path) -> Result<Part, Error> {
    let act = format!("read the control fields of {}", archive.display());
    let mut command = Command::new("dpkg-deb");
    command.arg("--showformat=${Package}\n${Version}\n${Architecture}\n").arg("--show").arg(archive);
    read(act, &mut command)
}

/// The installed package that `file` belongs to.
///
/// # Errors
/// None has it.
pub fn owner(file: &Path) -> Result<Part, Error> {
    // A library is named by a link that its package owns, as often as not under the path from before /usr was merged.
    let unmerged = Path::new("/").join(file.strip_prefix("/usr").unwrap_or(file));
    let names = [file.to_owned(), unmerged];
    let package = names.iter().find_map(|name| owning(name)).ok_or_else(|| Error::Unowned(PathBuf::from(file)))?;
    let mut command = Command::new("dpkg-query");
    command.args(["--showformat=${Package}\n${Version}\n${Architecture}\n", "--show", &package]);
    read(format!("ask for the version of {package}"), &mut command)
}

/// `libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6`, of which the first part is wanted. Not found is an error of dpkg's.
fn owning(name: &Path) -> Option<String> {
    let said = ask("ask for a package", Command::new("dpkg-query").arg("--search").arg(name)).ok()?;
    let (packages, path) = said.lines().next()?.split_once(": ")?;
    (Path::new(path) == name).then(|| packages.split(", ").next().unwrap_or(packages).to_owned())
}

fn read(act: String, command: &mut Command) -> Result<Part, Error> {
    let said = ask(act.clone(), command)?;
    match said.lines().collect::<Vec<_>>().as_slice() {
        [name, version, architecture] => Ok(part(name, version, architecture)),
        _ => Err(Error::Ask { act, detail: format!("not a name, a version and an architecture: {said:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lead_to_their_packages_under_either_path() {
        for file in ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"] {
            let found = owner(Path::new(file)).unwrap();
            assert_eq!(found.name, "libc6", "{file}");
            assert!(
                found.purl.starts_with("pkg:deb/debian/libc6@2.") && found.purl.ends_with("?arch=amd64"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn what_no_package_has_is_an_error() {
        let own = std::env::current_exe().unwrap();
        assert!(matches!(owner(&own), Err(Error::Unowned(path)) if path == own));
        assert!(of_archive(&own).is_err());
    }
}
