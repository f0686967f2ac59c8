//! The image's bill of materials: what is in it, by name and exact version, as CycloneDX 1.6.
//!
//! - [`debian`]: the kernel, the stub and the libraries. - [`rust`]: the crates of our programs. - [`go`]: the modules of
//!   SPIRE's agent. Same image, same bytes here too: no time, no random number, and parts in a fixed order.

pub mod debian;
pub mod go;
pub mod rust;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use thiserror::Error;

use crate::{libraries, tree};

/// Why parts could not be listed.
#[derive(Debug, Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// A program failed.
    #[error("cannot {act}: {detail}")]
    Ask {
        /// What was being done.
        act: String,
        /// What the program said.
        detail: String,
    },
    /// A library is none of Debian's.
    #[error("no Debian package has {0}, so nothing says which version it is: install it from a package")]
    Unowned(PathBuf),
    /// The agent's modules are not in it.
    #[error("cannot tell which modules {0} is made of: {1}. It must be built with Go 1.18 or later")]
    Modules(PathBuf, &'static str),
    /// See [`libraries::Error`].
    #[error(transparent)]
    Libraries(#[from] libraries::Error),
}

/// One part, in order of its reference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Package URL (<https://github.com/package-url/purl-spec>), unique for each name and version.
    pub purl: String,
    /// Its name where it comes from.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// What an image is made from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Programs that go in.
    pub programs: tree::Programs,
    /// The kernel's package.
    pub kernel_package: PathBuf,
    /// systemd's EFI stub.
    pub stub: PathBuf,
    /// The Rust workspace that our programs were built in.
    pub workspace: PathBuf,
}

/// Every part of an image made from `sources`.
///
/// # Errors
/// A part whose version cannot be told: a list that lacks it would be worse than none.
pub fn parts(sources: &Sources) -> Result<BTreeSet<Part>, Error> {
    let tree::Programs { spire_agent, guest, attestor_guest } = &sources.programs;
    let linked = [guest.as_path(), attestor_guest.as_path(), spire_agent.as_path()];
    let mut parts = BTreeSet::from([debian::of_archive(&sources.kernel_package)?, debian::owner(&sources.stub)?]);
    for file in libraries::closure(&linked, tree::OPENED)?.values() {
        parts.insert(debian::owner(file)?);
    }
    parts.extend(rust::crates(&sources.workspace, &["banlieue-guest", "banlieue-attestor-guest"])?);
    parts.extend(go::modules(spire_agent)?);
    Ok(parts)
}

/// The document about an image: its name, version and SHA-256 (64 hexadecimal digits), and its parts.
pub fn document(name: &str, version: &str, digest: &str, parts: &BTreeSet<Part>) -> Value {
    let components = parts.iter().map(|Part { purl, name, version }| {
        json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl })
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": {
            "type": "operating-system", "bom-ref": "image", "name": name, "version": version,
            "hashes": [{ "alg": "SHA-256", "content": digest }],
        } },
        "components": components.collect::<Vec<_>>(),
        "dependencies": [{ "ref": "image", "dependsOn": parts.iter().map(|part| &part.purl).collect::<Vec<_>>() }],
    })
}

/// A value inside a package URL.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// What a program prints.
fn ask(act: impl Into<String>, command: &mut std::process::Command) -> Result<String, Error> {
    let failed = |detail: String| Error::Ask { act: act.into(), detail };
    match command.output() {
        Ok(out) if out.status.success() => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        Ok(out) => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str) -> Part {
        Part { purl: format!("pkg:cargo/{name}@1.0.0"), name: name.into(), version: "1.0.0".into() }
    }

    #[test]
    fn the_document_has_each_part_once_in_one_order() {
        let (one, other) = ([part("b"), part("a"), part("b")], [part("a"), part("b")]);
        let [one, other] =
            [BTreeSet::from(one), BTreeSet::from(other)].map(|parts| document("guest", "1", "ab", &parts));
        assert_eq!(one.to_string(), other.to_string());
        let names: Vec<_> = one["components"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(one["metadata"]["component"]["hashes"][0]["content"], "ab");
        assert_eq!(one["dependencies"][0]["dependsOn"][1], "pkg:cargo/b@1.0.0");
    }

    #[test]
    fn versions_are_escaped() {
        assert_eq!(escape("1:2.36-9+deb12u14~x"), "1%3A2.36-9%2Bdeb12u14~x");
    }
}
