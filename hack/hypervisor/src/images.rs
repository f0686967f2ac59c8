//! The local store of container disks: one folder for each image reference.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::weight::Weight;

/// Where images lie: `<root>/<reference with every character outside [A-Za-z0-9._-] replaced by '_'>/`.
#[derive(Clone, Debug)]
pub struct Images {
    root: PathBuf,
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store lacks what this weight of instance needs.
    #[error("image {reference} has no {file} in the local store: {path} is missing")]
    Missing {
        /// The image's reference.
        reference: String,
        /// `disk.raw` or `light.json`.
        file: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The recording of a light image cannot be read.
    #[error("image {reference}: {path} cannot be read: {reason}")]
    Recording {
        /// The image's reference.
        reference: String,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// What a boot of the image measured, for light instances (`light.json`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recording {
    /// The firmware's event log, in the image's folder.
    pub event_log: PathBuf,
    /// Extensions that the log does not have, made after it, in order (the kernel's IMA extends PCR 10).
    #[serde(default)]
    pub extend: Vec<Extension>,
}

/// One extension of a PCR of the SHA-256 bank.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extension {
    /// The PCR, 0 to 15.
    pub pcr: u8,
    /// The digest, 64 hexadecimal digits.
    #[serde(deserialize_with = "digest")]
    pub digest: [u8; 32],
}

fn digest<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
    let text = String::deserialize(from)?;
    let mut digest = [0; 32];
    hex::decode_to_slice(text, &mut digest).map_err(serde::de::Error::custom)?;
    Ok(digest)
}

impl Images {
    /// A store in this folder.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn folder(&self, reference: &str) -> PathBuf {
        let keep = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
        // A reference of dots alone would leave the store.
        let name: String = reference.chars().map(keep).collect();
        self.root.join(if name.chars().all(|c| c == '.') { "_".to_owned() } else { name })
    }

    /// Checks that an image can be run at a weight.
    ///
    /// # Errors
    /// It is not in the store.
    pub fn check(&self, reference: &str, weight: Weight) -> Result<(), Error> {
        match weight {
            Weight::Full => self.disk(reference).map(drop),
            Weight::Light => self.recording(reference).map(drop),
            Weight::Weightless => Ok(()),
        }
    }

    /// The raw disk of an image.
    ///
    /// # Errors
    /// It is not in the store.
    pub fn disk(&self, reference: &str) -> Result<PathBuf, Error> {
        self.file(reference, "disk.raw")
    }

    /// The recording of an image, with the event log's absolute path.
    ///
    /// # Errors
    /// It is not in the store or malformed.
    pub fn recording(&self, reference: &str) -> Result<Recording, Error> {
        let path = self.file(reference, "light.json")?;
        let bad = |reason: String| Error::Recording { reference: reference.to_owned(), path: path.clone(), reason };
        let text = std::fs::read(&path).map_err(|error| bad(error.to_string()))?;
        let mut recording: Recording = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        recording.event_log = path.with_file_name(&recording.event_log);
        if let Some(wrong) = recording.extend.iter().find(|extension| extension.pcr > 15) {
            return Err(bad(format!("PCR {} is not one of 0 to 15", wrong.pcr)));
        }
        Ok(recording)
    }

    fn file(&self, reference: &str, file: &'static str) -> Result<PathBuf, Error> {
        let path = absolute(&self.folder(reference).join(file));
        if path.is_file() { Ok(path) } else { Err(Error::Missing { reference: reference.to_owned(), file, path }) }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_stay_inside_the_store() {
        let store = Images::new("/store".into());
        let name = |reference| store.folder(reference).display().to_string();
        assert_eq!(name("registry.local/banlieue/guest:dev"), "/store/registry.local_banlieue_guest_dev");
        assert_eq!(name(".."), "/store/_");
        assert_eq!(name("../x"), "/store/.._x");
    }

    #[test]
    fn a_recording_is_read_strictly() {
        let root = tempfile::tempdir().unwrap();
        let store = Images::new(root.path().to_owned());
        std::fs::create_dir(root.path().join("a_b")).unwrap();
        assert!(matches!(store.check("a:b", Weight::Light), Err(Error::Missing { file: "light.json", .. })));
        let write = |text: &str| std::fs::write(root.path().join("a_b/light.json"), text).unwrap();
        let digest = "ab".repeat(32);
        write(&format!(r#"{{"eventLog": "log.bin", "extend": [{{"pcr": 10, "digest": "{digest}"}}]}}"#));
        let recording = store.recording("a:b").unwrap();
        assert_eq!(recording.event_log, root.path().join("a_b/log.bin"));
        assert_eq!(recording.extend, [Extension { pcr: 10, digest: [0xab; 32] }]);
        for wrong in [
            "{}",
            r#"{"eventLog": "x", "more": 1}"#,
            &format!(r#"{{"eventLog": "x", "extend": [{{"pcr": 16, "digest": "{digest}"}}]}}"#),
        ] {
            write(wrong);
            assert!(matches!(store.recording("a:b"), Err(Error::Recording { .. })), "{wrong}");
        }
    }
}
