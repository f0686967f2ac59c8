//! Slots: what makes `maxClaimsPerSubject` strict under any number of parallel requests to any number of replicas. Pure.
//!
//! A slot is a Lease `slot-<pool>-<subject key>-<n>` whose holder is a claim's name. Creating it is the atomic step; no
//! count is taken that another request could change meanwhile. A slot is taken before its claim is made and freed after
//! the claim's member is gone.
//!
//! **Freeing must not race with taking.** A retried request takes the slot that its earlier attempt left, by a write,
//! which gives the Lease a new resource version. The claim notes the version that it took. So a slot is freed at once
//! only for a claim that is over, under exactly the version that this claim noted; any other slot that no claim justifies
//! must stay so, unchanged, for longer than a request may take.
//!
//! **Whose it is, the Lease says**, which mediatore alone writes, and where a claim came to hold two, its sealed grant.
//! What a claim notes in its annotation is a hint that its owner can change: it never makes a slot somebody else's, and
//! never one that a living claim holds free.

use std::{collections::BTreeMap, time::Duration};

use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::{Path, SubjectKey};

use super::record::{SLOT, annotation, subject_key};

/// How long a slot must have stood unjustified before it is swept. Longer than any request may take.
pub const UNUSED_FOR: Duration = Duration::from_secs(60);

/// Longest name of an object, in bytes.
const NAME_LIMIT: usize = 253;

/// Name of a slot, unless the pool's name leaves no room for it.
#[must_use]
pub fn name(pool: &str, subject: &SubjectKey, index: u32) -> Option<String> {
    let name = format!("{}{index}", prefix(pool, subject));
    (name.len() <= NAME_LIMIT).then_some(name)
}

fn prefix(pool: &str, subject: &SubjectKey) -> String {
    format!("slot-{pool}-{subject}-")
}

/// Index of a slot of this pool and subject.
#[must_use]
pub fn index(name: &str, pool: &str, subject: &SubjectKey) -> Option<u32> {
    let digits = name.strip_prefix(&prefix(pool, subject))?;
    let index: u32 = digits.parse().ok()?;
    // One name for one number.
    (index.to_string() == digits).then_some(index)
}

/// Which slots to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// An earlier attempt of the same request holds this one.
    Reuse(u32),
    /// One after another, until one is free.
    Try(Vec<u32>),
    /// None is free.
    Full,
}

/// Which slots a request may try, given what is held as far as this replica knows.
///
/// Agents have a share: the lowest indices. People may have all and begin at the highest, which agents cannot have.
#[must_use]
pub fn plan(limit: u32, agent_share_percent: u32, path: Path, held: &BTreeMap<u32, String>, claim: &str) -> Plan {
    if let Some((index, _)) = held.iter().find(|(_, holder)| holder.as_str() == claim) {
        return Plan::Reuse(*index);
    }
    // Also those beyond a limit that was lowered since.
    if held.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
        return Plan::Full;
    }
    let free = |index: &u32| !held.contains_key(index);
    let try_in_order: Vec<u32> = if path == Path::AgentForPerson {
        let share = u64::from(limit) * u64::from(agent_share_percent.min(100)) / 100;
        (0..u32::try_from(share).unwrap_or(limit)).filter(free).collect()
    } else {
        (0..limit).rev().filter(free).collect()
    };
    if try_in_order.is_empty() { Plan::Full } else { Plan::Try(try_in_order) }
}

/// A slot as it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Name of the Lease.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resource version when it was taken.
    pub version: String,
}

impl Taken {
    /// As the claim notes it.
    #[must_use]
    pub fn note(&self) -> String {
        format!("{}/{}/{}", self.name, self.uid, self.version)
    }

    /// What a claim noted.
    #[must_use]
    pub fn noted(claim: &VirtualMachineClaim) -> Option<Self> {
        let mut parts = annotation(claim, SLOT)?.split('/').map(ToOwned::to_owned);
        let taken = Self { name: parts.next()?, uid: parts.next()?, version: parts.next()? };
        parts.next().is_none().then_some(taken)
    }
}

/// Whether a claim is over: its member, if it had one, is verified gone.
#[must_use]
pub fn is_over(claim: &VirtualMachineClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase).is_some_and(|phase| phase.is_terminal())
}

/// Whether a slot is one of this claim's pool and subject.
fn fits(claim: &VirtualMachineClaim, slot: &str) -> bool {
    index(slot, &claim.spec.pool_ref.name, &subject_key(claim)).is_some()
}

/// Whether this slot, as it is and with this holder, may be freed at once now that the claim is over or gone.
#[must_use]
pub fn is_freed_by(claim: &VirtualMachineClaim, slot: &Taken, holder: &str) -> bool {
    fits(claim, &slot.name)
        && claim.metadata.name.as_deref() == Some(holder)
        && Taken::noted(claim).is_some_and(|noted| noted == *slot)
}

/// Whether the claim that is found under a slot's holder justifies that slot. `granted` is the slot that the claim's
/// grant names, where it came to hold more than one.
#[must_use]
pub fn justifies(claim: Option<&VirtualMachineClaim>, slot: &str, granted: Option<&str>) -> bool {
    claim.is_some_and(|claim| !is_over(claim) && fits(claim, slot) && granted.is_none_or(|granted| granted == slot))
}

#[cfg(test)]
mod tests {
    use banlieue_crds::claim::ClaimPhase;
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::claims::record;

    fn held(indices: &[u32]) -> BTreeMap<u32, String> {
        indices.iter().map(|index| (*index, format!("c-{index}"))).collect()
    }

    #[rstest]
    #[case::first(3, 50, Path::Person, &[], Plan::Try(vec![2, 1, 0]))]
    #[case::one_left(3, 50, Path::Person, &[2, 0], Plan::Try(vec![1]))]
    #[case::full(3, 50, Path::Person, &[0, 1, 2], Plan::Full)]
    #[case::lowered_limit(1, 50, Path::Person, &[4], Plan::Full)]
    #[case::agent(4, 50, Path::AgentForPerson, &[], Plan::Try(vec![0, 1]))]
    #[case::agent_out_of_share(4, 50, Path::AgentForPerson, &[0, 1], Plan::Full)]
    #[case::person_beside_agents(4, 50, Path::Person, &[0, 1], Plan::Try(vec![3, 2]))]
    #[case::agents_not_at_all(4, 0, Path::AgentForPerson, &[], Plan::Full)]
    #[case::service(2, 0, Path::Service, &[], Plan::Try(vec![1, 0]))]
    fn plans(
        #[case] limit: u32,
        #[case] share: u32,
        #[case] path: Path,
        #[case] taken: &[u32],
        #[case] expected: Plan,
    ) {
        assert_eq!(plan(limit, share, path, &held(taken), "c-new"), expected);
    }

    #[test]
    fn a_retry_takes_what_its_first_attempt_left() {
        assert_eq!(plan(2, 50, Path::Person, &held(&[0, 1]), "c-1"), Plan::Reuse(1));
    }

    #[test]
    fn names_read_back() {
        let alice = SubjectKey::of("i", "alice");
        let slot = name("pool-a", &alice, 12).unwrap();
        assert_eq!(slot, format!("slot-pool-a-{alice}-12"));
        assert_eq!(index(&slot, "pool-a", &alice), Some(12));
        assert_eq!(index(&slot, "pool", &alice), None);
        assert_eq!(index(&format!("slot-pool-a-{alice}-012"), "pool-a", &alice), None);
        assert_eq!(index(&slot, "pool-a", &SubjectKey::of("i", "bob")), None);
        assert_eq!(name(&"p".repeat(250), &alice, 0), None);
    }

    proptest! {
        /// Whatever the order in which requests get their turn, each seeing only part of what is held: the limit holds.
        #[test]
        fn the_limit_holds_under_stale_views(
            limit in 1_u32..6, share in 0_u32..=100,
            requests in proptest::collection::vec((any::<bool>(), any::<u64>()), 1..40),
        ) {
            let mut leases: BTreeMap<u32, String> = BTreeMap::new();
            let mut agents = 0;
            for (n, (agent, mask)) in requests.iter().enumerate() {
                let view: BTreeMap<u32, String> =
                    leases.iter().filter(|(index, _)| mask >> (*index % 64) & 1 == 1).map(|(i, h)| (*i, h.clone())).collect();
                let path = if *agent { Path::AgentForPerson } else { Path::Person };
                let claim = format!("c{n}");
                if let Plan::Try(indices) = plan(limit, share, path, &view, &claim)
                    && let Some(free) = indices.iter().find(|index| !leases.contains_key(index))
                {
                    // The API server lets one of each name exist.
                    leases.insert(*free, claim);
                    agents += u32::from(*agent);
                }
            }
            prop_assert!(leases.len() <= limit as usize);
            prop_assert!(agents <= limit * share / 100);
        }
    }

    #[test]
    fn what_justifies_a_slot() {
        let mut claim = record::claim("c-1", &record::tests::wanted(), record::tests::alice(), "");
        let key = subject_key(&claim);
        let (own, second) = (name("pool-a", &key, 3).unwrap(), name("pool-a", &key, 4).unwrap());
        let others = name("pool-a", &SubjectKey::of("i", "bob"), 3).unwrap();
        assert!(!justifies(None, &own, None));
        // Whatever its owner wrote into the annotation: a living claim keeps its slot.
        for note in ["", "slot-x/u/7", &format!("{second}/u/7")] {
            claim.metadata.annotations.as_mut().unwrap().insert(SLOT.into(), note.into());
            assert!(justifies(Some(&claim), &own, None), "{note}");
        }
        assert!(!justifies(Some(&claim), &others, None));
        assert!(!justifies(Some(&claim), &name("pool-b", &key, 3).unwrap(), None));
        // Of two slots one is the claim's.
        assert!(justifies(Some(&claim), &own, Some(&own)));
        assert!(!justifies(Some(&claim), &second, Some(&own)));
        for (phase, over) in [
            (ClaimPhase::Pending, false),
            (ClaimPhase::Bound, false),
            (ClaimPhase::Releasing, false),
            (ClaimPhase::Released, true),
            (ClaimPhase::Failed, true),
        ] {
            claim.status.get_or_insert_default().phase = Some(phase);
            assert_eq!(is_over(&claim), over, "{phase:?}");
            assert_eq!(justifies(Some(&claim), &own, None), !over, "{phase:?}");
        }
    }

    #[test]
    fn what_is_freed_at_once() {
        let mut claim = record::claim("c-1", &record::tests::wanted(), record::tests::alice(), "");
        let own =
            Taken { name: name("pool-a", &subject_key(&claim), 3).unwrap(), uid: "u".into(), version: "7".into() };
        let mut note = |text: &str| {
            claim.metadata.annotations.as_mut().unwrap().insert(SLOT.into(), text.into());
            claim.clone()
        };
        let noted = note(&own.note());
        assert_eq!(Taken::noted(&noted).as_ref(), Some(&own));
        assert!(is_freed_by(&noted, &own, "c-1"));
        // A slot that another living claim of the same subject holds, whatever this one notes.
        assert!(!is_freed_by(&noted, &own, "c-2"));
        assert!(!is_freed_by(&noted, &Taken { version: "8".into(), ..own.clone() }, "c-1"), "taken again since");
        let others = Taken { name: name("pool-a", &SubjectKey::of("i", "bob"), 3).unwrap(), ..own.clone() };
        assert!(!is_freed_by(&note(&others.note()), &others, "c-1"));
        for text in ["kube-scheduler/u/7", "slot-x", &format!("{}/8", own.note()), ""] {
            assert!(!is_freed_by(&note(text), &own, "c-1"), "{text}");
        }
    }
}
