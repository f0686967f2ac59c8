//! What one member needs, from what is seen. Pure: a snapshot and the time in, intents out.

use std::collections::BTreeSet;

use banlieue_crds::conditions::{MemberCondition, MemberReason, Status};
use banlieue_policy::document::Programs;
use banlieue_protocol::{
    names::{self, Cluster, Namespace, SpiffeId, TrustDomain, Uid},
    reason::Reason,
};
use banlieue_spire::entries::NewEntry;
use jiff::{SignedDuration, Timestamp};

use crate::plugin::session::STREAM_LIMIT;

/// What clocks of plugin and controller may differ by, and what SPIRE may take from our answer to its record.
const RECORD_SLACK: SignedDuration = SignedDuration::from_secs(5);
/// Until SPIRE shows an agent whose evidence was just recorded.
const SOON: SignedDuration = SignedDuration::from_millis(250);

/// The reason of both members of one key.
pub const DUPLICATE: &str = Reason::DuplicateEndorsementKey.as_str();

/// A member, and what stands around it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its uid.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: Namespace,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Whether it was made to prove itself. Its own record says so, for its pool may say anything by now.
    pub needs_evidence: bool,
    /// After which its evidence is stale: what it was made with.
    pub max_age: SignedDuration,
    /// It will never be lent though its deletion was not asked for: why, and in which words.
    pub dead: Option<(MemberReason, String)>,
    /// Its claim's uid, if it was ever bound.
    pub claim: Option<Uid>,
    /// Accepted evidence: when, and by which policy.
    pub record: Option<Record>,
    /// The newest refusal of its own evidence: when, and the words.
    pub refusal: Option<Refused>,
    /// Another living member with the same key.
    pub duplicate: Option<String>,
    /// Its pool, unless that is gone.
    pub pool: Option<Pool>,
    /// Its programs, once the policy was found.
    pub programs: Option<Programs>,
    /// The conditions of ours that stand on it: type to status and reason.
    pub attested: Option<Stands>,
    /// As `attested`, for `IdentityRevoked`.
    pub revoked: Option<Stands>,
    /// SPIRE's side.
    pub spire: Spire,
}

/// A condition as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stands {
    /// Whether its status is `True`.
    pub holds: bool,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// Accepted evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub verified_at: Timestamp,
    /// Digest of the document that judged it.
    pub policy: String,
    /// Digest of the image in that document, without prefix.
    pub image: Option<String>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// When.
    pub at: Timestamp,
    /// The check that refused.
    pub reason: String,
    /// What differs.
    pub message: String,
}

/// What of a pool concerns members that exist: all else they carry themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Revoked digests, with why.
    pub revoked: Vec<(String, String)>,
}

/// What SPIRE holds about the member. Unknown until asked in this pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spire {
    /// Ids of its entries that surely exist; `None` when nothing is known.
    pub entries: Option<BTreeSet<String>>,
    /// Its agent.
    pub agent: Agent,
}

/// An agent as SPIRE showed it in this pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Agent {
    /// Not asked yet.
    #[default]
    Unknown,
    /// None of that id.
    Absent,
    /// Admitted.
    Present,
    /// Banned.
    Banned,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Make these entries.
    CreateEntries(Vec<NewEntry>),
    /// Delete these entries.
    DeleteEntries(Vec<String>),
    /// Ask SPIRE for the agent.
    ReadAgent(SpiffeId),
    /// Ban the agent.
    Ban(SpiffeId),
    /// Put this condition on the member.
    Say(MemberCondition, Status, String, String),
    /// Look again then.
    Wake(Timestamp),
}

/// Where and how identities are made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Trust domain.
    pub trust_domain: TrustDomain,
    /// Cluster.
    pub cluster: Cluster,
    /// Life of workload SVIDs in seconds.
    pub svid_ttl: i32,
}

/// Decides for one member. Acting on the intents changes the snapshot's `spire`; then decide again, until nothing asks
/// SPIRE any more.
#[must_use]
pub fn decide(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Vec<Intent> {
    if !snapshot.needs_evidence {
        let message = "it was made without having to prove itself";
        return say(snapshot, MemberCondition::Attested, false, MemberReason::NotRequired, message)
            .into_iter()
            .collect();
    }
    if snapshot.deleting {
        return revoke(snapshot, settings, now);
    }
    // A pool outlives its members. One that is not seen yet says nothing about what is revoked.
    if snapshot.pool.is_none() {
        return Vec::new();
    }
    let mut intents = attest(snapshot, settings, now);
    if snapshot.dead.is_some() {
        intents.extend(disown(snapshot, settings, now));
    }
    intents
}

/// A living member: its entries, and whether it counts as attested.
fn attest(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Vec<Intent> {
    let mut intents = Vec::new();
    let wanted = snapshot.programs.as_ref().map(|programs| entries(snapshot, programs, settings)).unwrap_or_default();
    let known = snapshot.spire.entries.clone().unwrap_or_default();
    let missing: Vec<_> = wanted.iter().filter(|entry| !known.contains(&entry.id)).cloned().collect();
    let complete = snapshot.programs.is_some() && missing.is_empty();
    if !missing.is_empty() && snapshot.dead.is_none() {
        intents.push(Intent::CreateEntries(missing));
    }

    let verdict = judge(snapshot, complete, now);
    match verdict {
        Verdict::Ask => intents.push(Intent::ReadAgent(agent_id(snapshot, settings))),
        Verdict::No { reason, message, again } => {
            intents.extend(say(snapshot, MemberCondition::Attested, false, reason, &message));
            intents.extend(again.map(Intent::Wake));
        }
        Verdict::Yes { until } => {
            let message = "evidence accepted, agent and entries exist";
            intents.extend(say(snapshot, MemberCondition::Attested, true, MemberReason::Verified.as_str(), message));
            intents.push(Intent::Wake(until));
        }
    }
    intents
}

enum Verdict {
    Ask,
    No { reason: &'static str, message: String, again: Option<Timestamp> },
    Yes { until: Timestamp },
}

fn judge(snapshot: &Snapshot, entries_complete: bool, now: Timestamp) -> Verdict {
    let no = |reason: &'static str, message: String| Verdict::No { reason, message, again: None };
    if let Some(other) = &snapshot.duplicate {
        let message = format!("its endorsement key is also pinned to living member {other}");
        return no(DUPLICATE, message);
    }
    // Nobody can tell which of two is the copy, so it does not pass when one of them goes.
    if let Some(stands) = snapshot.attested.as_ref().filter(|stands| stands.reason == DUPLICATE) {
        return no(DUPLICATE, stands.message.clone());
    }
    if let Some(refusal) = &snapshot.refusal {
        let newer = snapshot.record.as_ref().is_none_or(|record| refusal.at > record.verified_at);
        if newer {
            return match refusal.reason == DUPLICATE {
                true => no(DUPLICATE, refusal.message.clone()),
                false => {
                    let words = format!("{}: {}", refusal.reason, refusal.message);
                    no(MemberReason::AttestationRefused.as_str(), words)
                }
            };
        }
    }
    let pool = snapshot.pool.as_ref();
    let names = |record: &Record, digest: &String| *digest == record.policy || record.image.as_ref() == Some(digest);
    let revoked = snapshot
        .record
        .as_ref()
        .zip(pool)
        .and_then(|(record, pool)| pool.revoked.iter().find(|(digest, _)| names(record, digest)));
    if let Some((digest, why)) = revoked {
        return no(MemberReason::PolicyRevoked.as_str(), format!("{digest} is revoked: {why}"));
    }
    // After what its evidence says: that is why it is dead, and the more telling word.
    if let Some((reason, message)) = &snapshot.dead {
        return no(reason.as_str(), message.clone());
    }
    let Some(record) = &snapshot.record else {
        return no(MemberReason::Attesting.as_str(), "no evidence was accepted yet".to_owned());
    };
    let until = record.verified_at.checked_add(snapshot.max_age).unwrap_or(record.verified_at);
    if now >= until {
        return no(
            MemberReason::AttestationStale.as_str(),
            format!("the evidence of {} is too old", record.verified_at),
        );
    }
    match snapshot.spire.agent {
        Agent::Unknown => Verdict::Ask,
        Agent::Banned => no(MemberReason::AttestationRefused.as_str(), "SPIRE has the agent banned".to_owned()),
        Agent::Absent => Verdict::No {
            reason: MemberReason::Attesting.as_str(),
            message: "evidence accepted, SPIRE does not show the agent yet".to_owned(),
            again: soon(now),
        },
        Agent::Present if !entries_complete => Verdict::No {
            reason: MemberReason::Attesting.as_str(),
            message: "evidence accepted, the member's entries are not there yet".to_owned(),
            again: soon(now),
        },
        Agent::Present => Verdict::Yes { until },
    }
}

/// A dead member is kept to be looked at, perhaps for long, and its VM may run on. Nothing needs its identity any more, so
/// that ends now; what its deletion waits for is seen to by [`revoke`].
fn disown(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Vec<Intent> {
    let mut intents = Vec::new();
    if !snapshot.spire.entries.as_ref().is_some_and(BTreeSet::is_empty) {
        intents.push(Intent::DeleteEntries(entry_ids(snapshot, settings)));
    }
    let agent = agent_id(snapshot, settings);
    match snapshot.spire.agent {
        Agent::Unknown => intents.push(Intent::ReadAgent(agent)),
        Agent::Present => intents.push(Intent::Ban(agent)),
        // As at the end: one that was in flight may overwrite the ban.
        Agent::Banned | Agent::Absent => intents.extend(settled(snapshot).filter(|at| now < *at).map(Intent::Wake)),
    }
    intents
}

/// When no attestation can be in flight any more.
///
/// The plugin answers SPIRE only after its guarded write, and that write fails once the member is being deleted or is dead.
/// So the last admission that SPIRE may still be recording is the recorded one, and it is over this long after.
fn settled(snapshot: &Snapshot) -> Option<Timestamp> {
    let record = snapshot.record.as_ref()?;
    let stream = SignedDuration::try_from(STREAM_LIMIT).unwrap_or(SignedDuration::from_secs(30));
    record.verified_at.checked_add(stream).ok()?.checked_add(RECORD_SLACK).ok()
}

/// An ending member: entries deleted, agent banned for good.
fn revoke(snapshot: &Snapshot, settings: &Settings, now: Timestamp) -> Vec<Intent> {
    if snapshot.revoked.as_ref().is_some_and(|stands| stands.holds) {
        return Vec::new();
    }
    let ids = entry_ids(snapshot, settings);
    let entries_gone = snapshot.spire.entries.as_ref().is_some_and(BTreeSet::is_empty);
    let mut intents = Vec::new();
    if !entries_gone {
        intents.push(Intent::DeleteEntries(ids));
    }
    let agent = agent_id(snapshot, settings);
    let settled = settled(snapshot);
    let still_open = settled.is_some_and(|settled| now < settled);
    let (done, reason, message) = match snapshot.spire.agent {
        Agent::Unknown => {
            intents.push(Intent::ReadAgent(agent));
            return intents;
        }
        Agent::Present => {
            intents.push(Intent::Ban(agent));
            return intents;
        }
        // A re-attestation that SPIRE had begun before the ban overwrites it, so a ban counts once it held longer.
        Agent::Banned | Agent::Absent if still_open => {
            (false, MemberReason::Ending, "waiting until no attestation can be in flight any more")
        }
        Agent::Banned => (true, MemberReason::Revoked, "the agent is banned, the entries are deleted"),
        Agent::Absent if snapshot.record.is_some() => {
            (true, MemberReason::Revoked, "SPIRE has no such agent, the entries are deleted")
        }
        Agent::Absent => (true, MemberReason::NeverAttested, "it never attested, there is nothing to revoke"),
    };
    if !entries_gone {
        return intents;
    }
    intents.extend(say(snapshot, MemberCondition::IdentityRevoked, done, reason.as_str(), message));
    if snapshot.attested.as_ref().is_some_and(|stands| stands.holds) {
        intents.extend(say(snapshot, MemberCondition::Attested, false, MemberReason::Ending, "the member ends"));
    }
    if !done {
        intents.extend(settled.map(Intent::Wake));
    }
    intents
}

fn soon(now: Timestamp) -> Option<Timestamp> {
    now.checked_add(SOON).ok()
}

fn say(
    snapshot: &Snapshot,
    kind: MemberCondition,
    holds: bool,
    reason: impl AsRef<str>,
    message: &str,
) -> Option<Intent> {
    let stands = match kind {
        MemberCondition::IdentityRevoked => &snapshot.revoked,
        _ => &snapshot.attested,
    };
    let new = Stands { holds, reason: reason.as_ref().to_owned(), message: message.to_owned() };
    (stands.as_ref() != Some(&new)).then(|| Intent::Say(kind, holds.into(), new.reason, new.message))
}

/// The id that the member's agent has or will have.
#[must_use]
pub fn agent_id(snapshot: &Snapshot, settings: &Settings) -> SpiffeId {
    names::agent(&settings.trust_domain, &settings.cluster, &snapshot.namespace, &snapshot.uid)
}

/// Both entries of a member. They exist before the VM does: the agent's id follows from the member's uid.
#[must_use]
pub fn entries(snapshot: &Snapshot, programs: &Programs, settings: &Settings) -> Vec<NewEntry> {
    let (cluster, domain, uid) = (&settings.cluster, &settings.trust_domain, &snapshot.uid);
    let node = (names::node_entry(cluster, uid), names::node(domain, uid), Some(&programs.node));
    let egress = (names::egress_entry(cluster, uid), names::egress(domain, uid), programs.egress.as_ref());
    let make = |(id, spiffe_id, program): (String, SpiffeId, Option<&banlieue_policy::document::Program>)| {
        let program = program?;
        let unix = |kind: &str, value: String| ("unix".to_owned(), format!("{kind}:{value}"));
        Some(NewEntry {
            id,
            spiffe_id,
            parent: agent_id(snapshot, settings),
            selectors: vec![
                unix("uid", program.uid.to_string()),
                unix("path", program.path.clone()),
                unix("sha256", program.sha256.to_string()),
            ],
            x509_svid_ttl: settings.svid_ttl,
            expires_at: 0,
        })
    };
    [node, egress].into_iter().filter_map(make).collect()
}

/// Every entry that may exist for an ending member: its own two, and its claim's.
fn entry_ids(snapshot: &Snapshot, settings: &Settings) -> Vec<String> {
    let own =
        [names::node_entry(&settings.cluster, &snapshot.uid), names::egress_entry(&settings.cluster, &snapshot.uid)];
    let claim = snapshot.claim.as_ref().map(|claim| names::claim_entry(&settings.cluster, claim));
    own.into_iter().chain(claim).collect()
}
