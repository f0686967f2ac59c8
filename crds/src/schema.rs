//! The CustomResourceDefinitions as they are installed: kube's derived schema, made strict, with our CEL rules.
//!
//! `VirtualMachinePool::crd()` and its kin give the derived schema alone; what is installed comes from [`crds`].

use crate::rule::Rule;
use crate::{claim, member, pool, report};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

/// Why a schema could not be made. These are defects of this crate, found by its tests.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rule names a path that the schema does not have.
    #[error("rule on `{at}` of {kind}: there is no such object in the schema; correct the rule's path")]
    NoSuchPath {
        /// The kind.
        kind: String,
        /// The rule's path.
        at: String,
    },
    /// The definition does not convert to or from JSON.
    #[error("the definition of {kind} does not convert to JSON")]
    Json {
        /// The kind.
        kind: String,
        /// Why.
        source: serde_json::Error,
    },
}

/// Every definition, in the order pool, member, claim, report.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, Error> {
    Ok(vec![
        finish(crate::VirtualMachinePool::crd(), pool::RULES)?,
        finish(crate::PoolMember::crd(), member::RULES)?,
        finish(crate::VirtualMachineClaim::crd(), claim::RULES)?,
        finish(crate::EndorsementReport::crd(), report::RULES)?,
    ])
}

fn finish(crd: CustomResourceDefinition, rules: &[Rule]) -> Result<CustomResourceDefinition, Error> {
    let kind = crd.spec.names.kind.clone();
    let json_error = |source| Error::Json { kind: kind.clone(), source };
    let mut value = serde_json::to_value(&crd).map_err(json_error)?;
    let root = value
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .ok_or_else(|| Error::NoSuchPath { kind: kind.clone(), at: String::new() })?;
    strict(root);
    for rule in rules {
        let mut target = &mut *root;
        for step in rule.at.split('.').filter(|step| !step.is_empty()) {
            target = target
                .get_mut("properties")
                .and_then(|properties| properties.get_mut(step))
                .ok_or_else(|| Error::NoSuchPath { kind: kind.clone(), at: rule.at.into() })?;
        }
        let mut entry = json!({ "rule": rule.expression(), "message": rule.message });
        if let (false, Some(entry)) = (rule.field.is_empty(), entry.as_object_mut()) {
            entry.insert("fieldPath".into(), rule.field.into());
        }
        let list = target.as_object_mut().map(|object| object.entry("x-kubernetes-validations").or_insert(json!([])));
        if let Some(Value::Array(list)) = list {
            list.push(entry);
        }
    }
    serde_json::from_value(value).map_err(json_error)
}

/// Removes what schemars writes and Kubernetes does not want.
///
/// `nullable` goes everywhere: without it the API server drops an explicit null before defaulting and before the rules
/// run, so that `has()` means "has a value" and a null can neither hide from nor undo a write-once field.
/// Unsigned formats become `int64`, which the API server knows; their lower bound stays.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("nullable").is_some_and(Value::is_boolean) {
                object.remove("nullable");
            }
            if object.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                object.insert("format".into(), "int64".into());
            }
            object.values_mut().for_each(strict);
        }
        Value::Array(items) => items.iter_mut().for_each(strict),
        _ => {}
    }
}
