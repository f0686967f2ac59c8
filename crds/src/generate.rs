//! The files that are generated from the types, as paths relative to the repository and their content.

use crate::{reference, schema};
use serde_json::{Value, json};

/// First lines of every generated YAML file.
const YAML_HEADER: &str =
    "# Generated from the types in crds/ by `cargo run -p banlieue-crds --bin crdgen`. Do not edit.\n";

/// One generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path below the repository's root.
    pub path: String,
    /// Whole content.
    pub content: String,
}

/// Why a file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A schema could not be made.
    #[error(transparent)]
    Schema(#[from] schema::Error),
    /// A definition could not be written as YAML.
    #[error("{kind} cannot be written as YAML: {reason}")]
    Yaml {
        /// The kind.
        kind: String,
        /// The serialiser's words.
        reason: String,
    },
}

/// Every generated file: one definition each, and the reference.
pub fn files() -> Result<Vec<File>, Error> {
    let crds = schema::crds()?;
    let mut files = vec![];
    for crd in &crds {
        let kind = crd.spec.names.kind.clone();
        let yaml_error = |reason: String| Error::Yaml { kind: kind.clone(), reason };
        let mut value = serde_json::to_value(crd).map_err(|error| yaml_error(error.to_string()))?;
        trim(&mut value);
        let yaml = serde_saphyr::to_string(&value).map_err(|error| yaml_error(error.to_string()))?;
        files.push(File {
            path: format!("charts/banlieue-crds/crds/{}.banlieue.io.yaml", crd.spec.names.plural),
            content: format!("{YAML_HEADER}{yaml}"),
        });
    }
    files.push(File { path: "docs/reference/api.md".into(), content: reference::markdown(&crds) });
    Ok(files)
}

/// Writes whole bounds as integers, for k8s-openapi holds them as floats: files say 1 and not 1.0.
fn trim(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for key in ["minimum", "maximum"] {
                if let Some(bound) = object.get(key).and_then(Value::as_f64)
                    && bound.fract() == 0.0
                    && bound.abs() < 9e15
                {
                    object.insert(key.into(), json!(bound as i64));
                }
            }
            object.values_mut().for_each(trim);
        }
        Value::Array(items) => items.iter_mut().for_each(trim),
        _ => {}
    }
}
