//! One long poll for each member: a newer one ends the older, so that a guest holds one place here, however often it asks.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use banlieue_protocol::names::Uid;
use tokio_util::sync::CancellationToken;

/// Who waits.
#[derive(Default)]
pub struct Polls {
    waiting: Mutex<HashMap<Uid, Place>>,
}

struct Place {
    number: u64,
    ended: CancellationToken,
}

/// A member's place, until it is dropped.
pub struct Poll<'a> {
    polls: &'a Polls,
    member: Uid,
    number: u64,
    ended: CancellationToken,
}

impl Polls {
    /// Takes a member's place, from its older poll if there is one.
    pub fn enter(&self, member: &Uid) -> Poll<'_> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let number = waiting.get(member).map_or(0, |older| {
            older.ended.cancel();
            older.number.wrapping_add(1)
        });
        let ended = CancellationToken::new();
        waiting.insert(member.clone(), Place { number, ended: ended.clone() });
        Poll { polls: self, member: member.clone(), number, ended }
    }
}

impl Poll<'_> {
    /// Ends when a newer poll took the place.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Whether a newer poll took the place.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.is_cancelled()
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        let mut waiting = self.polls.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // The place may be a newer poll's by now.
        if waiting.get(&self.member).is_some_and(|place| place.number == self.number) {
            waiting.remove(&self.member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(last: char) -> Uid {
        Uid::parse(&format!("0b7a3a3e-8a8f-4f0e-9a0b-0123456789a{last}")).unwrap()
    }

    #[tokio::test]
    async fn a_newer_poll_ends_the_older_and_nobody_elses() {
        let polls = Polls::default();
        let (first, other) = (polls.enter(&uid('a')), polls.enter(&uid('b')));
        let second = polls.enter(&uid('a'));
        first.ended().await;
        assert!(first.is_over() && !second.is_over() && !other.is_over());
        drop(first);
        let third = polls.enter(&uid('a'));
        assert!(second.is_over() && !third.is_over(), "the older one's end took nothing from the newer");
        drop((second, third, other));
        assert!(polls.waiting.lock().unwrap().is_empty(), "nothing is remembered of who left");
    }
}
