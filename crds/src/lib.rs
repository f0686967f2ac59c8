//! The Kubernetes types of banlieue: pool, member, claim, endorsement report.
//!
//! | module | what lives there |
//! |---|---|
//! | [`pool`], [`member`], [`claim`], [`report`] | one kind each: spec, status, and the CEL rules of that kind |
//! | [`conditions`] | condition types, reasons, and the few operations on condition lists |
//! | [`names`] | labels, annotations, finalizers, field managers, service accounts, derived object names |
//! | [`kubevirt`] | the fields of KubeVirt's VirtualMachineInstance that we read or write |
//! | [`received`] | objects as lists and watches bring them: one that cannot be read spoils no other |
//! | [`schema`] | the CustomResourceDefinitions as they are installed: derived schema plus rules |
//! | [`reference`](mod@reference), [`generate`] | the API reference, made from the same schemas; every generated file |
//!
//! These types are the source: `crdgen` writes `charts/banlieue-crds/crds/*.yaml` and `docs/reference/api.md` from them,
//! and a test fails when the files are stale. Nothing here talks to a cluster.
// Columns of one type are not duplicates of each other.
#![allow(clippy::duplicated_attributes)]

pub mod claim;
pub mod conditions;
pub mod generate;
pub mod kubevirt;
pub mod member;
pub mod names;
pub mod pool;
pub mod received;
pub mod reference;
pub mod report;
pub mod rule;
pub mod schema;
mod shared;

pub use claim::{VirtualMachineClaim, VirtualMachineClaimSpec, VirtualMachineClaimStatus};
pub use member::{PoolMember, PoolMemberSpec, PoolMemberStatus};
pub use pool::{VirtualMachinePool, VirtualMachinePoolSpec, VirtualMachinePoolStatus};
pub use report::{EndorsementReport, EndorsementReportSpec, EndorsementReportStatus};
pub use shared::{Address, NameRef, ObjectRef, Timestamp};
