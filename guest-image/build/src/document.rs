//! `predictions.yaml`: the part of a measurements document that follows from the image alone.
//!
//! Same version, shape and words as the whole document, which `banlieue-attestor golden` makes of this and of what a
//! boot on the cluster recorded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `apiVersion` of measurements documents.
pub const API_VERSION: &str = "measurements.banlieue.io/v1";

/// The predictions of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Predictions {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Which image.
    pub image: Image,
    /// PCR index to its predicted value.
    pub pcrs: BTreeMap<u8, Rule>,
    /// Programs that get identities, by role.
    pub programs: BTreeMap<String, Program>,
}

/// An image's name and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Variant, such as `guest`.
    pub name: String,
    /// Version of the build.
    pub version: String,
    /// `sha256:` and the hash of `disk.raw`.
    pub digest: String,
}

/// An exact value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// SHA-256 bank, lower-case hexadecimal.
    pub digest: String,
}

/// How SPIRE recognises a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Absolute path.
    pub path: String,
    /// Hash of the file.
    pub sha256: String,
    /// User it runs as.
    pub uid: u32,
}
