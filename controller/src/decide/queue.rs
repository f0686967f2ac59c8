//! Who is served first.

use banlieue_crds::claim::Subject;
use jiff::Timestamp;

/// A waiting claim, as far as its place matters.
#[derive(Debug, Clone)]
pub struct Waiting<'a, K> {
    /// Whatever names it.
    pub key: K,
    /// Its priority, already clamped to the pool's.
    pub priority: u32,
    /// For whom.
    pub subject: &'a Subject,
    /// When it was created.
    pub created: Timestamp,
    /// A tie-breaker that never changes.
    pub uid: &'a str,
}

/// The queue: priority first, then round-robin over subjects, then age. Answers the keys in order, each with whether
/// a younger claim of somebody else stands before it because its subject has others waiting.
pub fn order<K: Clone>(waiting: &[Waiting<'_, K>]) -> Vec<(K, bool)> {
    // Round r holds the r-th oldest claim of each subject (within one priority).
    let mut by_age: Vec<&Waiting<'_, K>> = waiting.iter().collect();
    by_age.sort_by(|a, b| (a.created, a.uid).cmp(&(b.created, b.uid)));
    let mut rounds: std::collections::BTreeMap<(u32, &str, &str), u32> = std::collections::BTreeMap::new();
    let mut placed: Vec<(u32, &Waiting<'_, K>)> = Vec::with_capacity(by_age.len());
    for claim in by_age {
        let round = rounds.entry((claim.priority, &claim.subject.issuer, &claim.subject.id)).or_default();
        placed.push((*round, claim));
        *round += 1;
    }
    placed.sort_by(|(round_a, a), (round_b, b)| {
        b.priority
            .cmp(&a.priority)
            .then(round_a.cmp(round_b))
            .then(a.created.cmp(&b.created))
            .then_with(|| a.uid.cmp(b.uid))
    });
    let mut youngest_before: Option<(u32, Timestamp)> = None;
    placed
        .into_iter()
        .map(|(round, claim)| {
            let overtaken = round > 0
                && youngest_before.is_some_and(|(priority, at)| priority == claim.priority && at > claim.created);
            youngest_before = match youngest_before {
                Some((priority, at)) if priority == claim.priority => Some((priority, at.max(claim.created))),
                _ => Some((claim.priority, claim.created)),
            };
            (claim.key.clone(), overtaken)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_then_round_robin_then_age() {
        let subject = |id: &str| Subject { issuer: "i".into(), id: id.into(), ..Subject::default() };
        let (greedy, modest) = (subject("greedy"), subject("modest"));
        let claim = |key: &'static str, priority, subject, second| Waiting {
            key,
            priority,
            subject,
            created: Timestamp::from_second(second).unwrap(),
            uid: key,
        };
        let waiting = [
            claim("g1", 0, &greedy, 1),
            claim("g2", 0, &greedy, 2),
            claim("g3", 0, &greedy, 3),
            claim("m1", 0, &modest, 4),
            claim("urgent", 5, &greedy, 9),
        ];
        let order = order(&waiting);
        assert_eq!(order, [("urgent", false), ("g1", false), ("m1", false), ("g2", true), ("g3", true)]);
    }
}
