//! A pool's members, sorted into what counts.

use banlieue_crds::member::MemberPhase;
use jiff::Timestamp;
use kube::ResourceExt;

use super::gate::{NotLendable, lendable};
use super::{Tuning, after, plus, sooner};
use crate::store::{MemberSnapshot, PoolSnapshot};

/// Why the API server refused a new member for lack of room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Its words.
    pub message: String,
}

/// One pool's living members and the creates in flight.
#[derive(Debug, Default)]
pub struct Population<'a> {
    /// Everything that lives, creates in flight included: what `maxReplicas` caps.
    pub living: usize,
    /// Deletion asked for.
    pub terminating: usize,
    /// With a claimRef, not terminating.
    pub bound: usize,
    /// Failed or quarantined, not terminating.
    pub failed: Vec<&'a MemberSnapshot>,
    /// May be lent now; oldest Ready first.
    pub warm: Vec<&'a MemberSnapshot>,
    /// In phase Ready, but not to be lent for now: stale evidence, or a node that goes.
    pub resting: Vec<&'a MemberSnapshot>,
    /// On their way.
    pub provisioning: Vec<&'a MemberSnapshot>,
    /// Of those, in phase Attesting.
    pub attesting: usize,
    /// Creates in flight.
    pub expected: usize,
    /// Members among `warm`, `resting` and `provisioning` that should be replaced, with why.
    pub replaceable: Vec<(&'a MemberSnapshot, &'static str)>,
    /// When one of them becomes replaceable, or stops to count as warm.
    pub wake: Option<Timestamp>,
}

impl<'a> Population<'a> {
    /// Sorts a pool's members. `replaces_old` says whether members of older revisions are to be replaced.
    pub fn of(snapshot: &'a PoolSnapshot, revision: &str, replaces_old: bool, now: Timestamp, tuning: &Tuning) -> Self {
        let mut population =
            Self { living: snapshot.members.len() + snapshot.expected, expected: snapshot.expected, ..Self::default() };
        for member in &snapshot.members {
            let phase = member.member.status.as_ref().and_then(|status| status.phase);
            if member.is_deleting() {
                population.terminating += 1;
                continue;
            }
            if member.is_bound() {
                population.bound += 1;
                continue;
            }
            match phase {
                Some(MemberPhase::Failed | MemberPhase::Quarantined) => {
                    population.failed.push(member);
                    continue;
                }
                Some(MemberPhase::Ready) => match lendable(member, now) {
                    Ok(()) => population.warm.push(member),
                    Err(why) => {
                        population.resting.push(member);
                        if why == NotLendable::Node
                            && let Some(node) = &member.node
                        {
                            let ends = plus(node.since, tuning.node_grace);
                            population.replace_at(member, ends, "its node is unavailable", now);
                        } else if why == NotLendable::Node {
                            population.replaceable.push((member, "its node is gone"));
                        }
                    }
                },
                _ => {
                    population.attesting += usize::from(phase == Some(MemberPhase::Attesting));
                    population.provisioning.push(member);
                }
            }
            if member.member.spec.revision != revision {
                if replaces_old {
                    population.replaceable.push((member, "its revision was replaced"));
                }
            } else if let Some(ready) = ready_at(member) {
                let ends = after(ready, snapshot.pool.spec.max_idle_seconds);
                population.replace_at(member, ends, "it was idle for too long", now);
            }
        }
        population.warm.sort_by_key(|member| (ready_at(member), member.member.name_any()));
        population
    }

    fn replace_at(&mut self, member: &'a MemberSnapshot, at: Timestamp, why: &'static str, now: Timestamp) {
        if at <= now {
            self.replaceable.push((member, why));
        } else {
            self.wake = sooner(self.wake, Some(at));
        }
    }

    /// Whether a member is to be replaced.
    pub fn is_replaceable(&self, member: &MemberSnapshot) -> bool {
        self.replaceable.iter().any(|(other, _)| other.key == member.key)
    }

    /// Unbound members that are warm or may become so and need no replacement, creates in flight included.
    pub fn supply(&self) -> usize {
        let lasting = |list: &[&MemberSnapshot]| list.iter().filter(|member| !self.is_replaceable(member)).count();
        lasting(&self.warm) + lasting(&self.resting) + lasting(&self.provisioning) + self.expected
    }
}

/// When a member became Ready.
pub(super) fn ready_at(member: &MemberSnapshot) -> Option<Timestamp> {
    member.member.status.as_ref()?.phase_times.as_ref()?.ready.as_ref().map(|time| time.0)
}
