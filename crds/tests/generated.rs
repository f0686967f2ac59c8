//! The generated files are current, and what they install is what the types say.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_crds::reference::mutability;
use banlieue_crds::{generate, schema};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use std::path::Path;

#[test]
fn generated_files_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for file in generate::files().unwrap() {
        let found = std::fs::read_to_string(root.join(&file.path)).unwrap_or_default();
        assert!(
            found == file.content,
            "{} is stale: run `cargo run -p banlieue-crds --bin crdgen` and commit the result",
            file.path
        );
    }
}

#[test]
fn the_yaml_reads_back_as_the_definition() {
    let crds = schema::crds().unwrap();
    for (crd, file) in crds.iter().zip(generate::files().unwrap()) {
        let read: CustomResourceDefinition = serde_saphyr::from_str(&file.content).unwrap();
        assert_eq!(&read, crd, "{}", file.path);
    }
}

/// The rules of <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>
/// that a derived schema breaks easily, and our own: everything is bounded, everything is described.
#[test]
fn schemas_are_structural_bounded_and_described() {
    for crd in schema::crds().unwrap() {
        let value = serde_json::to_value(&crd).unwrap();
        let root = value.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap();
        for part in ["spec", "status"] {
            let schema = root.pointer(&format!("/properties/{part}")).unwrap();
            walk(&format!("{}.{part}", crd.spec.names.kind), schema, true);
        }
    }
}

fn walk(path: &str, schema: &Value, described: bool) {
    let object = schema.as_object().unwrap_or_else(|| panic!("{path} is not a schema: {schema}"));
    for word in
        ["oneOf", "anyOf", "allOf", "not", "nullable", "$ref", "uniqueItems", "x-kubernetes-preserve-unknown-fields"]
    {
        assert!(!object.contains_key(word), "{path} has {word}");
    }
    if object.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        return;
    }
    let type_ = object.get("type").and_then(Value::as_str).unwrap_or_else(|| panic!("{path} has no type"));
    assert!(!described || object.contains_key("description"), "{path} is not described");
    match type_ {
        "string" => assert!(
            object.contains_key("maxLength") || object.contains_key("enum") || object.get("format").is_some(),
            "{path} has no bound"
        ),
        "array" => {
            assert!(object.contains_key("maxItems"), "{path} has no bound");
            assert!(object.contains_key("x-kubernetes-list-type"), "{path} has no list type");
            walk(&format!("{path}[]"), &schema["items"], false);
        }
        "integer" => {
            assert!(["int32", "int64"].contains(&schema["format"].as_str().unwrap()), "{path}: {schema}");
        }
        "object" => {
            if let Some(values) = object.get("additionalProperties") {
                assert!(object.contains_key("maxProperties"), "{path} has no bound");
                walk(&format!("{path}{{}}"), values, false);
            } else {
                let properties = object.get("properties").and_then(Value::as_object);
                // An object without any keeps nothing: the API server drops what is in it.
                for (name, property) in properties.into_iter().flatten() {
                    walk(&format!("{path}.{name}"), property, true);
                }
            }
        }
        "boolean" => {}
        other => panic!("{path} is {other}"),
    }
}

#[test]
fn every_rule_says_what_to_change_and_points_somewhere() {
    use banlieue_crds::{claim, member, pool, report};
    for rule in [pool::RULES, member::RULES, claim::RULES, report::RULES].concat() {
        assert!(rule.message.len() > 30 && rule.message.len() < 300, "{}", rule.message);
        assert!(!rule.message.ends_with('.'), "the API server goes on after: {}", rule.message);
    }
}

#[test]
fn every_mutability_exception_names_a_field() {
    for crd in schema::crds().unwrap() {
        let kind = crd.spec.names.kind.clone();
        let value = serde_json::to_value(&crd).unwrap();
        let root = value.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap();
        for (of, path, _) in mutability::EXCEPTIONS.iter().filter(|(of, _, _)| *of == kind) {
            let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
            assert!(root.pointer(&pointer).is_some(), "{of} has no {path}");
        }
    }
}
