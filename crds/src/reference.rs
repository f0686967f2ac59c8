//! The API reference in Markdown, made from the schemas: field, type, default, bounds, mutability, meaning.

use crate::conditions::{ClaimCondition, ClaimReason, MemberCondition, MemberReason, PoolCondition, PoolReason};
use crate::{claim, member, pool, report};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use std::fmt::Write;

pub mod mutability;
use mutability::mutability;

/// The whole reference.
pub fn markdown(crds: &[CustomResourceDefinition]) -> String {
    let mut out = String::from(HEADER);
    for crd in crds {
        kind(&mut out, crd);
    }
    words(&mut out);
    out.push_str(WRITERS);
    out
}

const HEADER: &str = "<!-- Generated from the types in crds/ by `cargo run -p banlieue-crds --bin crdgen`. Do not edit. -->
# API reference

Group `banlieue.io`, version `v1alpha1`, all namespaced. A default is filled in by the API server. *Changes* says who may
change a field when: **yes**, at any time; **no**, never after creation; **once**, set once, then never changed or removed;
**grows**, only upwards; **forward**, along its order; **status**, written by our programs only.
Times are RFC 3339 in UTC. Digests are lower-case hex. An explicit `null` counts as not set.
";

const WRITERS: &str = "
## Who writes what

Several programs write one object, each its own part, so no write takes another's away. The admission policies hold them
to it (`charts/banlieue/files/3*.yaml`).

| object, part | writer | field manager, how |
|---|---|---|
| member, instance, Secret, network policy | controller | `banlieue-controller`: create, server-side apply |
| member `spec.claimRef` with the label `banlieue.io/state=bound` | controller | `banlieue-binder`: one patch with resourceVersion |
| member `status`: phase, instanceRef, nodeName, addresses, seed, phaseTimes, Provisioned, Ready, Destroyed | controller | `banlieue-status`: status apply |
| member `status`: endorsement, attestation, enrolment.consumedAt | server plugin | `banlieue-attestor`: status patch with resourceVersion |
| member `status`: Attested, IdentityRevoked | attestor controller | `banlieue-attestor-controller`: status apply |
| pool `status` | controller | status apply |
| pool `status`: AttestorReachable | attestor controller | status apply |
| claim `status`: phase, memberRef, instanceRef, addresses, times, queuePosition, terminationReason, Bound, Destroyed | controller | status patch with resourceVersion |
| claim `status`: workload, spiffeId, IdentityReady, WorkloadRunning | mediatore | `mediatore`: status apply |
| claim: create, release | mediatore | create with the finalizer set, delete |
| claim: missing finalizer, its removal, deletion after retention | controller | patch, delete |
| report; its status | node reporter; attestor controller | create; status apply |
";

fn kind(out: &mut String, crd: &CustomResourceDefinition) {
    let names = &crd.spec.names;
    let _ = writeln!(
        out,
        "\n## {} (`{}`)\n",
        names.kind,
        names.short_names.iter().flatten().cloned().collect::<Vec<_>>().join("`, `")
    );
    let Some(version) = crd.spec.versions.first() else { return };
    let Some(root) = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()) else { return };
    let _ = writeln!(out, "{}", root.description.as_deref().unwrap_or_default());
    let _ = writeln!(out, "`kubectl get {}.{}`", names.plural, crd.spec.group);
    if let Some(scale) = version.subresources.as_ref().and_then(|subresources| subresources.scale.as_ref()) {
        let _ = writeln!(
            out,
            "\nThe scale subresource writes `{}` and reads `{}` with the selector in `{}`.",
            scale.spec_replicas_path.trim_start_matches('.'),
            scale.status_replicas_path.trim_start_matches('.'),
            scale.label_selector_path.as_deref().unwrap_or_default().trim_start_matches('.')
        );
    }
    for part in ["spec", "status"] {
        let Some(schema) = root.properties.as_ref().and_then(|properties| properties.get(part)) else { continue };
        let _ = writeln!(
            out,
            "\n### {} {part}\n\n| field | type | default | changes | meaning |\n|---|---|---|---|---|",
            names.kind
        );
        rows(out, &names.kind, part, schema);
    }
    let _ = writeln!(out, "\n### {} rules\n\nWhat the API server refuses, and what it says then:\n", names.kind);
    for rule in rules(&names.kind) {
        let path = rule.path();
        let at = if path.is_empty() { "the whole object" } else { &path };
        let _ = writeln!(out, "- `{at}`: {}", rule.message);
    }
}

/// The CEL rules of a kind.
pub(crate) fn rules(kind: &str) -> &'static [crate::rule::Rule] {
    match kind {
        "VirtualMachinePool" => pool::RULES,
        "PoolMember" => member::RULES,
        "VirtualMachineClaim" => claim::RULES,
        "EndorsementReport" => report::RULES,
        _ => &[],
    }
}

fn rows(out: &mut String, kind: &str, path: &str, schema: &JSONSchemaProps) {
    let required = schema.required.clone().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let default = match &field.default {
            Some(default) => format!("`{}`", default.0),
            None if required.contains(name) => "required".into(),
            None => String::new(),
        };
        let meaning = field.description.as_deref().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        let _ =
            writeln!(out, "| `{path}` | {} | {default} | {} | {meaning} |", type_of(field), mutability(kind, &path));
        match (&field.properties, items(field)) {
            _ if name == "conditions" => {}
            // Said where the whole allow-list is said: docs/define-a-pool.md.
            _ if path.ends_with(".kubeVirt.spec") => {}
            (Some(_), _) => rows(out, kind, &path, field),
            (None, Some(item)) if item.properties.is_some() => rows(out, kind, &format!("{path}[]"), item),
            _ => {}
        }
    }
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => Some(item),
        _ => None,
    }
}

/// Type and bounds in one cell.
fn type_of(schema: &JSONSchemaProps) -> String {
    if let Some(words) = &schema.enum_ {
        return words
            .iter()
            .map(|word| format!("`{}`", word.0.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let mut text = match schema.type_.as_deref() {
        Some("array") => format!("list of {}", items(schema).map(type_of).unwrap_or_default()),
        Some("object") => match &schema.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(value)) => format!("map of {}", type_of(value)),
            _ => "object".into(),
        },
        Some("string") if schema.format.as_deref() == Some("date-time") => "time".into(),
        Some(other) => other.into(),
        None => "any".into(),
    };
    match (schema.minimum, schema.maximum) {
        (Some(low), Some(high)) => text += &format!(" {low} to {high}"),
        (Some(low), None) => text += &format!(" from {low}"),
        (None, Some(high)) => text += &format!(" to {high}"),
        (None, None) => {}
    }
    if let Some(limit) = schema.max_length {
        text += &format!(", at most {limit} characters");
    }
    if let Some(limit) = schema.max_items {
        text += &format!(", at most {limit} items");
    }
    if let Some(limit) = schema.max_properties {
        text += &format!(", at most {limit} entries");
    }
    text
}

fn words(out: &mut String) {
    let list = |words: Vec<&str>| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "\n## Conditions and reasons\n\n| kind | conditions | reasons |\n|---|---|---|");
    for (kind, conditions, reasons) in [
        (
            "VirtualMachinePool",
            list(PoolCondition::ALL.iter().map(|word| word.as_str()).collect()),
            list(PoolReason::ALL.iter().map(|word| word.as_str()).collect()),
        ),
        (
            "PoolMember",
            list(MemberCondition::ALL.iter().map(|word| word.as_str()).collect()),
            list(MemberReason::ALL.iter().map(|word| word.as_str()).collect()),
        ),
        (
            "VirtualMachineClaim",
            list(ClaimCondition::ALL.iter().map(|word| word.as_str()).collect()),
            list(ClaimReason::ALL.iter().map(|word| word.as_str()).collect()),
        ),
    ] {
        let _ = writeln!(out, "| {kind} | {conditions} | {reasons} |");
    }
}
