//! Rules for one PCR, and matching its events against them.

use banlieue_tpm::eventlog::{Event, EventKind};

use crate::digest::Digest;

/// What one PCR must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// Exactly this value.
    Digest(Digest),
    /// Never extended.
    Zero,
    /// PCR 10 only: extended once, by the kernel's IMA, with its aggregate of the quoted PCRs 0 to 9.
    BootAggregate,
    /// PCR 15 only: untouched, or extended once with the claim's latch.
    Latch,
    /// Exactly events that these patterns describe, in their order.
    Events(Vec<Pattern>),
}

/// What one event, or a run of alike events, must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Event type.
    pub kind: EventKind,
    /// How the event is recognised.
    pub matcher: Matcher,
    /// Whether it may be absent.
    pub optional: bool,
    /// Whether it may come more than once in a row.
    pub repeated: bool,
}

/// How an event is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matcher {
    /// Its digest is one of these.
    Digests(Vec<Digest>),
    /// Its measured data is a UEFI variable of this name, with any content.
    Variable(String),
    /// Its measured data is this text.
    Text(String),
}

impl Matcher {
    /// Whether it reads event data, which only types with measured data allow.
    pub fn reads_data(&self) -> bool {
        !matches!(self, Self::Digests(_))
    }
}

impl Pattern {
    /// Whether this one event is allowed here.
    pub fn matches(&self, event: &Event) -> bool {
        if event.kind != self.kind {
            return false;
        }
        match &self.matcher {
            Matcher::Digests(digests) => digests.contains(&Digest(event.digest)),
            Matcher::Variable(name) => event.variable_if_measured().is_some_and(|variable| variable.name == *name),
            Matcher::Text(text) => event.data_if_measured() == Some(text.as_bytes()),
        }
    }
}

/// One step through the patterns: consumes an event and stays (`looping`) or goes on; an optional one may be skipped.
struct Step<'a> {
    pattern: &'a Pattern,
    optional: bool,
    looping: bool,
}

fn steps(patterns: &[Pattern]) -> Vec<Step<'_>> {
    let mut steps = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        if !(pattern.optional && pattern.repeated) {
            steps.push(Step { pattern, optional: pattern.optional, looping: false });
        }
        if pattern.repeated {
            steps.push(Step { pattern, optional: true, looping: true });
        }
    }
    steps
}

/// Whether the events are exactly what the patterns describe; else the index of the first event that no way of matching
/// gets past (the number of events when some are missing).
pub fn match_events(patterns: &[Pattern], events: &[&Event]) -> Result<(), usize> {
    let steps = steps(patterns);
    // All ways of matching at once: `reached[i]` says whether step i may come next. No backtracking, so the cost is
    // bounded by events times patterns whatever a log holds.
    let mut reached = vec![false; steps.len().saturating_add(1)];
    mark(&steps, &mut reached, 0);
    for (at, event) in events.iter().enumerate() {
        let mut next = vec![false; reached.len()];
        for (index, step) in steps.iter().enumerate() {
            if reached.get(index) == Some(&true) && step.pattern.matches(event) {
                mark(&steps, &mut next, if step.looping { index } else { index.saturating_add(1) });
            }
        }
        if !next.contains(&true) {
            return Err(at);
        }
        reached = next;
    }
    if reached.last() == Some(&true) { Ok(()) } else { Err(events.len()) }
}

/// Marks a step as reached, and those behind it as far as optional ones allow.
fn mark(steps: &[Step<'_>], reached: &mut [bool], from: usize) {
    for (index, slot) in reached.iter_mut().enumerate().skip(from) {
        *slot = true;
        if !steps.get(index).is_some_and(|step| step.optional) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &str) -> Event {
        let digest = banlieue_tpm::hash::sha256(&[data.as_bytes()]);
        Event { pcr: 4, kind: EventKind::EFI_ACTION, digest, data: data.as_bytes().to_vec() }
    }

    fn pattern(text: &str, suffix: &str) -> Pattern {
        Pattern {
            kind: EventKind::EFI_ACTION,
            matcher: Matcher::Text(text.into()),
            optional: suffix == "?" || suffix == "*",
            repeated: suffix == "+" || suffix == "*",
        }
    }

    /// Patterns as in regular expressions (`a`, `b?`, `c+`, `d*`), events as letters.
    fn run(patterns: &str, events: &str) -> Result<(), usize> {
        let patterns: Vec<_> =
            patterns.split(' ').filter(|p| !p.is_empty()).map(|p| pattern(&p[..1], &p[1..])).collect();
        let events: Vec<_> = events.chars().map(|c| event(&c.to_string())).collect();
        match_events(&patterns, &events.iter().collect::<Vec<_>>())
    }

    #[test]
    fn events_match_in_order_and_completely() {
        assert_eq!(run("a b c", "abc"), Ok(()));
        assert_eq!(run("a b c", "ab"), Err(2));
        assert_eq!(run("a b c", "abcd"), Err(3));
        assert_eq!(run("a b c", "acb"), Err(1));
        assert_eq!(run("", ""), Ok(()));
        assert_eq!(run("", "a"), Err(0));
        assert_eq!(run("a", ""), Err(0));
    }

    #[test]
    fn optional_and_repeated_patterns() {
        for (patterns, good, bad) in [
            ("a b? c", vec!["ac", "abc"], vec!["abbc", "a", "bc"]),
            ("a b+ c", vec!["abc", "abbbc"], vec!["ac", "ab"]),
            ("a b* c", vec!["ac", "abc", "abbbc"], vec!["a", "abcb"]),
            ("a* a", vec!["a", "aa", "aaa"], vec!["", "b"]),
            ("a? a? a a", vec!["aa", "aaa", "aaaa"], vec!["a", "aaaaa"]),
            ("a* b*", vec!["", "a", "b", "aabb"], vec!["ba"]),
        ] {
            for events in good {
                assert_eq!(run(patterns, events), Ok(()), "{patterns} against {events}");
            }
            for events in bad {
                assert!(run(patterns, events).is_err(), "{patterns} against {events}");
            }
        }
    }

    #[test]
    fn data_counts_only_when_it_is_what_was_measured() {
        let mut edited = event("Calling EFI Application from Boot Option");
        edited.digest = [9; 32];
        assert!(!pattern("Calling EFI Application from Boot Option", "").matches(&edited));
        // A type whose digest is not defined as the hash of the data: even true data decides nothing.
        let mut ipl = event("x");
        ipl.kind = EventKind::IPL;
        let of_ipl = Pattern { kind: EventKind::IPL, ..pattern("x", "") };
        assert!(!of_ipl.matches(&ipl));
        let by_digest = Pattern { matcher: Matcher::Digests(vec![Digest(ipl.digest)]), ..of_ipl };
        assert!(by_digest.matches(&ipl));
    }
}
