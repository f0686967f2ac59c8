//! Modules that a Go program is made of, as its linker wrote them into section `.go.buildinfo` (`debug/buildinfo` of Go's
//! library describes the format).

use std::collections::BTreeSet;
use std::path::Path;

use object::{Object, ObjectSection};

use super::{Error, Part, escape};

const MAGIC: &[u8] = b"\xff Go buildinf:";
/// The strings follow this header.
const HEADER: usize = 32;
/// Flag for strings that follow the header, as since Go 1.18.
const INLINE: u8 = 2;
/// The module list stands between two of these.
const SENTINEL: usize = 16;

/// The modules of a program, and the Go that built it.
///
/// # Errors
/// It is no Go program, or an old one.
pub fn modules(program: &Path) -> Result<BTreeSet<Part>, Error> {
    let wrong = |why| Error::Modules(program.to_owned(), why);
    let bytes = std::fs::read(program).map_err(|error| Error::Read(program.to_owned(), error))?;
    let file = object::File::parse(&*bytes).map_err(|_| wrong("it is not a program"))?;
    let section = file.section_by_name(".go.buildinfo").ok_or_else(|| wrong("it has no section .go.buildinfo"))?;
    let data = section.data().map_err(|_| wrong("its section .go.buildinfo cannot be read"))?;
    let (go, list) = read(data).ok_or_else(|| wrong("its section .go.buildinfo is not as Go writes it"))?;
    Ok(parts(&go, &list))
}

/// The Go version and the module list.
fn read(data: &[u8]) -> Option<(String, String)> {
    let flags = data.strip_prefix(MAGIC)?.get(1)?;
    if flags & INLINE == 0 {
        return None;
    }
    let (go, rest) = string(data.get(HEADER..)?)?;
    let (list, _) = string(rest)?;
    let list = list.get(SENTINEL..list.len().checked_sub(SENTINEL)?)?;
    Some((String::from_utf8(go.to_vec()).ok()?, String::from_utf8(list.to_vec()).ok()?))
}

/// A string behind its length, which is an unsigned LEB128 number.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0_usize;
    for (at, byte) in data.iter().enumerate().take(4) {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return data.get(at + 1..)?.split_at_checked(length);
        }
    }
    None
}

/// Lines `dep NAME VERSION HASH` or `mod …`, separated by tabs; `=>` below a line is what took its place.
fn parts(go: &str, list: &str) -> BTreeSet<Part> {
    let mut found: Vec<Part> = Vec::new();
    for line in list.lines() {
        let words: Vec<_> = line.split('\t').collect();
        let [kind @ ("mod" | "dep" | "=>"), name, version, ..] = words.as_slice() else { continue };
        if *kind == "=>" {
            found.pop();
        }
        found.push(part(name, version));
    }
    let go = go.split(' ').next().unwrap_or(go);
    found.push(part("std", go.strip_prefix("go").unwrap_or(go)));
    found.into_iter().collect()
}

fn part(name: &str, version: &str) -> Part {
    // Package URLs of this kind are in lower case, and have the module's path in segments.
    let path = name.to_lowercase().split('/').map(escape).collect::<Vec<_>>().join("/");
    Part { purl: format!("pkg:golang/{path}@{}", escape(version)), name: name.to_owned(), version: version.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(list: &str) -> Vec<u8> {
        let mut data = MAGIC.to_vec();
        data.extend([8, INLINE]);
        data.resize(HEADER, 0);
        data.push(8);
        data.extend(b"go1.26.0");
        let length = list.len() + 2 * SENTINEL;
        data.extend([u8::try_from(length & 0x7f).unwrap() | 0x80, u8::try_from(length >> 7).unwrap()]);
        data.extend([7; SENTINEL]);
        data.extend(list.as_bytes());
        data.extend([9; SENTINEL]);
        data
    }

    const LIST: &str = "path\tgithub.com/spiffe/spire/cmd/spire-agent\n\
        dep\tgithub.com/spiffe/spire\tv1.13.3\th1:a=\n\
        dep\tgithub.com/Old/one\tv1.0.0\n=>\tgithub.com/New/one\tv1.0.1+incompatible\th1:b=\n\
        build\t-trimpath=true\n";

    #[test]
    fn modules_and_what_replaced_them() {
        let (go, list) = read(&section(LIST)).unwrap();
        let purls: Vec<_> = parts(&go, &list).into_iter().map(|part| part.purl).collect();
        assert_eq!(
            purls,
            [
                "pkg:golang/github.com/new/one@v1.0.1%2Bincompatible",
                "pkg:golang/github.com/spiffe/spire@v1.13.3",
                "pkg:golang/std@1.26.0",
            ]
        );
    }

    #[test]
    fn anything_else_is_refused() {
        let whole = section(LIST);
        for cut in [0, 10, 15, HEADER, HEADER + 5, HEADER + 10, whole.len() - 1] {
            assert_eq!(read(&whole[..cut]), None, "cut at {cut}");
        }
        let mut old = whole.clone();
        old[MAGIC.len() + 1] = 0;
        assert_eq!(read(&old), None, "before Go 1.18");
        assert!(matches!(modules(&std::env::current_exe().unwrap()), Err(Error::Modules(..))));
    }
}
