//! Agents and entries that nothing stands for. Planning is pure; see [`banlieue_spire::sweep`] for its guard.

use std::collections::{BTreeMap, BTreeSet};

use banlieue_protocol::names::{self, Cluster, Named, Writer};
use banlieue_spire::{
    agents::Agent,
    entries::{Entry, is_of},
    sweep::{Plan, Record, plan},
};
use jiff::{SignedDuration, Timestamp};

/// How long something must have been missing: longer than any watch lags behind what it watches.
pub const MISSING_FOR: SignedDuration = SignedDuration::from_secs(30);

/// What exists, by uid: from complete stores.
#[derive(Debug, Clone, Default)]
pub struct Living {
    /// Members.
    pub members: BTreeSet<String>,
    /// Claims that grant something.
    pub claims: BTreeSet<String>,
    /// Claims that exist but are over: their entries are expected to go.
    pub claims_over: BTreeSet<String>,
}

/// What to do with SPIRE's records of this cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweeping {
    /// Entries, by id.
    pub entries: Plan,
    /// Agents to ban, by path: theirs is no member, and they are not banned.
    pub ban: Plan,
    /// Agent records to delete, by path: banned, and no SVID of theirs is valid any more.
    pub delete: Vec<String>,
}

impl Sweeping {
    /// Whether nothing is to be done or told.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = |plan: &Plan| *plan == Plan::Remove(Vec::new());
        idle(&self.entries) && idle(&self.ban) && self.delete.is_empty()
    }
}

/// Remembers since when something has been missing.
#[derive(Debug, Default)]
pub struct Missing {
    since: BTreeMap<String, Timestamp>,
}

impl Missing {
    /// Notes what is missing now; gives what has been for long enough.
    pub fn note(&mut self, missing: BTreeSet<String>, now: Timestamp) -> BTreeSet<String> {
        self.since.retain(|key, _| missing.contains(key));
        for key in missing {
            self.since.entry(key).or_insert(now);
        }
        let long = |since: &Timestamp| now.duration_since(*since) >= MISSING_FOR;
        self.since.iter().filter(|(_, since)| long(since)).map(|(key, _)| key.clone()).collect()
    }
}

/// Plans a sweep from complete lists.
pub fn sweep(
    entries: &[Entry],
    agents: &[Agent],
    living: &Living,
    missing: &mut Missing,
    cluster: &Cluster,
    keep_agents: SignedDuration,
    now: Timestamp,
) -> Sweeping {
    let entries = entry_records(entries, cluster, living);
    let agents: Vec<_> = agents.iter().filter_map(|agent| Some((agent, member_of(agent, cluster)?))).collect();

    let named = entries.iter().map(|record| &record.stands_for);
    let named = named.chain(agents.iter().map(|(_, member)| member));
    let gone = |uid: &&String| !living.members.contains(*uid) && !living.claims.contains(*uid);
    let gone = missing.note(named.filter(gone).cloned().collect(), now);
    // Whatever is not missing for long counts as living.
    let alive: BTreeSet<String> = entries
        .iter()
        .map(|record| &record.stands_for)
        .chain(agents.iter().map(|(_, member)| member))
        .filter(|uid| !gone.contains(*uid))
        .cloned()
        .collect();

    let loose: Vec<Record> = agents
        .iter()
        .map(|(agent, member)| Record { id: agent.path.clone(), stands_for: member.clone(), expected: false })
        .filter(|record| agents.iter().any(|(agent, _)| agent.path == record.id && !agent.banned))
        .collect();
    let expired = |agent: &Agent| {
        let until = Timestamp::from_second(agent.expires_at).ok().and_then(|at| at.checked_add(keep_agents).ok());
        until.is_some_and(|until| now >= until)
    };
    let delete = agents
        .iter()
        .filter(|(agent, member)| agent.banned && gone.contains(member) && expired(agent))
        .map(|(agent, _)| agent.path.clone())
        .collect();
    Sweeping { entries: plan(&entries, &alive), ban: plan(&loose, &alive), delete }
}

/// The entries of this cluster that our two writers made, with what each stands for.
fn entry_records(entries: &[Entry], cluster: &Cluster, living: &Living) -> Vec<Record> {
    entries
        .iter()
        .filter_map(|entry| {
            let ours = is_of(&entry.id, cluster, Writer::Attestor) || is_of(&entry.id, cluster, Writer::Mediatore);
            let stands_for = match names::read_path(&entry.path)? {
                Named::Node(uid) | Named::Egress(uid) | Named::Claim(uid) => uid.to_string(),
                Named::Agent { .. } => return None,
            };
            let expected = living.claims_over.contains(&stands_for);
            ours.then(|| Record { id: entry.id.clone(), stands_for, expected })
        })
        .collect()
}

fn member_of(agent: &Agent, cluster: &Cluster) -> Option<String> {
    match names::read_path(&agent.path)? {
        Named::Agent { cluster: of, member, .. } if of == *cluster => Some(member.to_string()),
        _ => None,
    }
}
