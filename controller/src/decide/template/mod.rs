//! The template's allow-list (`api.md`, "The template is an allow-list").
//!
//! Whoever may create a pool must not gain the namespace's secrets or the node. So nothing is forbidden by name:
//! what is not listed here is refused, with its path. Here the pool around it; [`kubevirt`] has the machine, [`value`] the
//! shapes of values.

mod kubevirt;
#[cfg(test)]
mod tests;
mod value;

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::names::{self, annotations, labels};
use banlieue_crds::pool::{AttestationMode, RuntimeKind};
use kube::ResourceExt;
use thiserror::Error;

/// What is wrong with a template: the field, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {message}")]
pub struct TemplateFault {
    /// Path of the field below `spec`.
    pub field: String,
    /// A sentence.
    pub message: String,
}

/// KubeVirt's judgement of a revision's instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateVerdict {
    /// Its webhooks accept it.
    Accepted,
    /// They refuse it, in these words.
    Refused {
        /// KubeVirt's words.
        message: String,
        /// When to ask again: what the refusal is about may be outside the pool.
        ask_again: jiff::Timestamp,
    },
}

/// State of a pool's measurements document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyState {
    /// The immutable copy is there and has the right content.
    Copied,
    /// Why it is not.
    Missing {
        /// A sentence.
        message: String,
        /// `PoolSnapshot::measurements_version` when it was looked at.
        looked_at: String,
    },
}

type Check = Result<(), TemplateFault>;

/// What an operator adds to the allow-list, for every pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// What keys of labels and annotations may begin with, besides `app.kubernetes.io/`.
    pub key_prefixes: Vec<String>,
    /// PriorityClasses that members may have.
    pub priority_classes: Vec<String>,
}

/// Judges a pool's template without asking anybody.
pub fn check_template(pool: &VirtualMachinePool, allowed: &Allowed) -> Check {
    let spec = &pool.spec;
    if spec.attestation.mode == AttestationMode::None
        && pool.annotations().get(annotations::ALLOW_UNATTESTED).map(String::as_str) != Some("true")
    {
        return fault(
            "attestation.mode",
            format!("mode None needs the pool annotation {}: \"true\"", annotations::ALLOW_UNATTESTED),
        );
    }
    match spec.template.runtime() {
        Some(RuntimeKind::KubeVirt) => {}
        Some(RuntimeKind::Kata) => {
            return fault("template.kata", "Kata members are not supported yet: use template.kubeVirt");
        }
        None => return fault("template", "exactly one of kubeVirt and kata must be set"),
    }
    if spec.attestation.mode == AttestationMode::Pod {
        return fault("attestation.mode", "mode Pod is for Kata templates: use VTPM");
    }
    for key in spec.template.metadata.labels.keys() {
        metadata_key("template.metadata.labels", key, allowed)?;
    }
    for key in spec.template.metadata.annotations.keys() {
        metadata_key("template.metadata.annotations", key, allowed)?;
    }
    match &spec.template.kube_virt {
        Some(template) => kubevirt::spec(&template.spec, allowed),
        None => Ok(()),
    }
}

/// Keys that say only what something is. They reach the launcher pod, where any other may steer a network plugin, a
/// container runtime or an injector, and nobody can list those.
const DESCRIBING: &str = "app.kubernetes.io/";

fn metadata_key(field: &str, key: &str, allowed: &Allowed) -> Check {
    if key == labels::MANAGED_BY || key.starts_with(names::KEY_PREFIX) {
        return fault(field, format!("the key {key} is the controller's: remove it"));
    }
    let mut prefixes = allowed.key_prefixes.iter().map(String::as_str).chain([DESCRIBING]);
    if prefixes.any(|prefix| key.starts_with(prefix)) {
        return Ok(());
    }
    fault(
        field,
        format!(
            "the key {key} is not allowed: remove it, use one under {DESCRIBING}, or have the operator of the controller \
             allow it with --allow-template-key-prefix"
        ),
    )
}

fn fault(field: impl Into<String>, message: impl Into<String>) -> Check {
    Err(TemplateFault { field: field.into(), message: message.into() })
}
