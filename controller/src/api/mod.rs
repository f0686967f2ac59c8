//! The one door to the API server: every read and write of the controller is a [`Request`] through [`Api`].
//!
//! A single narrow trait has two uses: the simulation runs the real `act` code against a deterministic server,
//! and every write is counted by verb and kind in one place. Watches do not pass here (see `store::watch`).

mod error;
mod kubernetes;
mod typed;

use async_trait::async_trait;
use serde_json::Value;

pub use error::{ApiError, Refusal};
pub(crate) use kubernetes::chain;
pub use kubernetes::{Kubernetes, connect};
pub use typed::{Typed, created_by_selector};

/// The kinds the controller reads or writes, with where each lives in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `virtualmachinepools.banlieue.io`
    Pool,
    /// `poolmembers.banlieue.io`
    Member,
    /// `virtualmachineclaims.banlieue.io`
    Claim,
    /// `virtualmachineinstances.kubevirt.io`
    Instance,
    /// Core `secrets`
    Secret,
    /// Core `configmaps`
    ConfigMap,
    /// Core `pods`
    Pod,
    /// `networkpolicies.networking.k8s.io`
    NetworkPolicy,
    /// `events.events.k8s.io`
    Event,
    /// Core `namespaces`, which are in no namespace themselves
    Namespace,
}

impl Kind {
    /// `(prefix of the URL, plural)`, for instance `("apis/banlieue.io/v1alpha1", "poolmembers")`.
    pub fn path(self) -> (&'static str, &'static str) {
        match self {
            Kind::Pool => ("apis/banlieue.io/v1alpha1", "virtualmachinepools"),
            Kind::Member => ("apis/banlieue.io/v1alpha1", "poolmembers"),
            Kind::Claim => ("apis/banlieue.io/v1alpha1", "virtualmachineclaims"),
            Kind::Instance => ("apis/kubevirt.io/v1", "virtualmachineinstances"),
            Kind::Secret => ("api/v1", "secrets"),
            Kind::ConfigMap => ("api/v1", "configmaps"),
            Kind::Pod => ("api/v1", "pods"),
            Kind::NetworkPolicy => ("apis/networking.k8s.io/v1", "networkpolicies"),
            Kind::Event => ("apis/events.k8s.io/v1", "events"),
            Kind::Namespace => ("api/v1", "namespaces"),
        }
    }

    /// The plural, which is also the metric label.
    pub fn plural(self) -> &'static str {
        self.path().1
    }

    /// `(apiVersion, kind)` as they stand in an object.
    pub fn type_meta(self) -> (&'static str, &'static str) {
        match self {
            Kind::Pool => ("banlieue.io/v1alpha1", "VirtualMachinePool"),
            Kind::Member => ("banlieue.io/v1alpha1", "PoolMember"),
            Kind::Claim => ("banlieue.io/v1alpha1", "VirtualMachineClaim"),
            Kind::Instance => ("kubevirt.io/v1", "VirtualMachineInstance"),
            Kind::Secret => ("v1", "Secret"),
            Kind::ConfigMap => ("v1", "ConfigMap"),
            Kind::Pod => ("v1", "Pod"),
            Kind::NetworkPolicy => ("networking.k8s.io/v1", "NetworkPolicy"),
            Kind::Event => ("events.k8s.io/v1", "Event"),
            Kind::Namespace => ("v1", "Namespace"),
        }
    }
}

/// What to do to the named object.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Read one object.
    Get,
    /// Read all objects of the namespace with these labels (the name is ignored).
    List {
        /// A label selector in Kubernetes' syntax.
        labels: String,
    },
    /// Create from the body. `dry_run` runs validation and webhooks and stores nothing.
    Create {
        /// Validate only.
        dry_run: bool,
        /// Field manager.
        manager: &'static str,
    },
    /// Server-side apply of the body, forced, to the object or its status. A `metadata.resourceVersion` in the
    /// body makes it conditional.
    Apply {
        /// Field manager.
        manager: &'static str,
        /// Write the status subresource.
        status: bool,
    },
    /// Merge patch with the body. A `metadata.resourceVersion` in the body makes it conditional.
    Merge {
        /// Field manager.
        manager: &'static str,
        /// Write the status subresource.
        status: bool,
    },
    /// Delete with preconditions.
    Delete {
        /// The uid that must still hold.
        uid: String,
        /// The resourceVersion that must still hold, when the delete must lose against any other write.
        resource_version: Option<String>,
    },
}

impl Operation {
    /// The verb for metrics and the audit log: get, list, create, patch, delete.
    pub fn verb(&self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::List { .. } => "list",
            Operation::Create { .. } => "create",
            Operation::Apply { .. } | Operation::Merge { .. } => "patch",
            Operation::Delete { .. } => "delete",
        }
    }

    /// Whether the call may change the store.
    pub fn is_write(&self) -> bool {
        !matches!(self, Operation::Get | Operation::List { .. } | Operation::Create { dry_run: true, .. })
    }
}

/// One call to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Kind of the object.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name; empty for a list or a generated name.
    pub name: String,
    /// What to do.
    pub operation: Operation,
    /// The object or patch, where the operation has one.
    pub body: Option<Value>,
}

/// An API server. Answers are the response body as JSON text.
///
/// An error for which [`ApiError::outcome_unknown`] is true says nothing about whether the write happened; callers
/// must either repeat the same guarded write or read the object.
#[async_trait]
pub trait Api: Send + Sync {
    /// Performs one call, without any retry of its own.
    async fn call(&self, request: Request) -> Result<String, ApiError>;
}
