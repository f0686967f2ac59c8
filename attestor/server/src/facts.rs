//! What the verifier knows about a member when it decides: plain values, read once, judged by pure code.

use banlieue_crds::pool::Endorsement;
use banlieue_policy::{Digest, Measurements};
use banlieue_protocol::{names::Uid, seed::EnrolmentSecret};
use jiff::Timestamp;
use std::sync::Arc;

/// Everything a decision rests on.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The member.
    pub member: Member,
    /// Its claim, if it has a claimRef.
    pub claim: Claim,
    /// Its instance, as it is under the recorded name now.
    pub instance: Option<Instance>,
    /// Its pool.
    pub pool: Option<Pool>,
    /// The document it is judged by, once its digest is known and its copy was found and compared.
    pub policy: Option<Arc<Policy>>,
    /// What nodes say about its instance.
    pub reports: Vec<Report>,
    /// Its enrolment; absent once the Secret is gone.
    pub enrolment: Option<Enrolment>,
    /// Who else has to do with the endorsement key of M1.
    pub key_elsewhere: KeyElsewhere,
}

/// A member as stored.
#[derive(Debug, Clone)]
pub struct Member {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Version of the object that all this was read from; the write is guarded by it.
    pub resource_version: String,
    /// Name of its pool.
    pub pool: String,
    /// Whether it was made to prove itself.
    pub needs_evidence: bool,
    /// Who must vouch for its endorsement key.
    pub endorsement: Endorsement,
    /// Why it is on its way out: deleted, failed, quarantined.
    pub ending: Option<&'static str>,
    /// Name and uid of its instance, once recorded.
    pub instance: Option<(String, String)>,
    /// Digest of the seed that its instance got.
    pub seed_digest: Option<Digest>,
    /// When its enrolment secret stops counting.
    pub enrolment_expires: Option<Timestamp>,
    /// Whether the enrolment was used.
    pub enrolment_consumed: bool,
    /// The pinned key.
    pub pin: Option<Pin>,
    /// The newest accepted evidence.
    pub record: Option<Record>,
}

/// A pinned endorsement key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Who vouched for it.
    pub source: Endorsement,
    /// SHA-256 of its SubjectPublicKeyInfo.
    pub ek: Digest,
}

/// Accepted evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub verified_at: Timestamp,
    /// Document it was judged by.
    pub policy: Digest,
    /// TPM reset count.
    pub reset_count: u32,
    /// TPM restart count.
    pub restart_count: u32,
    /// TPM clock, milliseconds.
    pub clock: u64,
    /// Whether the latch was seen.
    pub latched: bool,
}

/// The claim of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The member has no claimRef.
    None,
    /// It serves this claim.
    Serving(Uid),
    /// Its claim ends, ended, is gone or names another member.
    Ending(&'static str),
}

/// An instance as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Uid.
    pub uid: String,
    /// Whether its phase is Running.
    pub running: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Node it runs on.
    pub node: Option<String>,
}

/// What of a pool concerns members that exist: all else they carry themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Digests of policies and images that no longer count, without a prefix.
    pub revoked: Vec<String>,
}

/// A measurements document with its digest.
#[derive(Debug)]
pub struct Policy {
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// The document.
    pub document: Measurements,
}

/// A node's report about the member's instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The node that says so.
    pub node: String,
    /// Keys it names.
    pub keys: Vec<Digest>,
    /// Whether the instance ended.
    pub ended: bool,
}

/// A member's enrolment Secret.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// The secret.
    pub secret: EnrolmentSecret,
    /// Digest of the seed the Secret holds now.
    pub seed_digest: Digest,
    /// Uid of the member it was made for.
    pub member: Uid,
    /// When it stops counting.
    pub expires_at: Timestamp,
}

/// Other uses of the endorsement key of M1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyElsewhere {
    /// Another living member it is pinned to, as `namespace/name`.
    pub pinned_to: Option<String>,
    /// A member that ends, or a report of an instance that ended, names it; in words.
    pub tombstone: Option<String>,
}
