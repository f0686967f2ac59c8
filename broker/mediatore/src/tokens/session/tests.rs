use proptest::prelude::*;

use super::*;

/// Provider and Secret. A token that is not the provider's newest is refused.
#[derive(Default)]
struct World {
    provider: Option<u32>,
    stored: Option<Stored<u32>>,
    counter: u32,
    lock: Option<usize>,
}

impl World {
    fn count(&mut self) -> u32 {
        self.counter += 1;
        self.counter
    }

    fn store(&mut self, material: u32) {
        self.stored = Some(Stored { version: self.count().to_string(), material });
    }

    /// The person logs in, which ends the token before.
    fn login(&mut self) -> u32 {
        let token = self.count();
        self.provider = Some(token);
        token
    }

    fn is_at(&self, version: Option<&str>) -> bool {
        self.stored.as_ref().map(|stored| stored.version.as_str()) == version
    }

    /// Does it; `silent` does it without an answer.
    fn act(&mut self, action: &Action<u32>, silent: bool) -> Event<u32> {
        match action {
            Action::Read => Event::Read(self.stored.clone()),
            Action::Refresh(token) if self.provider == Some(*token) => {
                let new = self.count();
                self.provider = Some(new);
                Event::Refreshed(new)
            }
            Action::Refresh(_) => Event::Refused,
            Action::Write { over, material } if self.is_at(over.as_deref()) => {
                self.store(*material);
                if silent { Event::Unknown } else { Event::Done }
            }
            Action::Delete(version) if self.is_at(Some(version)) => {
                self.stored = None;
                Event::Done
            }
            Action::Write { .. } | Action::Delete(_) => Event::Lost,
            Action::End(_) => unreachable!("nothing follows the end"),
        }
    }
}

struct Actor {
    run: Run<u32>,
    action: Action<u32>,
    revoked_before: bool,
}

proptest! {
    /// Under the lock, in any order of steps of four replicas, with answers lost and people who log in again and bring
    /// what they got: a session ends only when the provider ended it, and none is alive that had ended before.
    #[test]
    fn only_a_revoked_session_ends(
        steps in proptest::collection::vec((0_usize..4, any::<bool>(), 0_u8..4), 1..200),
        revoke_at in proptest::option::of(0_usize..200),
    ) {
        let mut world = World::default();
        let first = world.login();
        world.store(first);
        let mut revoked = false;
        let mut actors: [Option<Actor>; 4] = [None, None, None, None];
        for (at, (who, silent, how)) in steps.into_iter().enumerate() {
            if revoke_at == Some(at) {
                world.provider = None;
                revoked = true;
            }
            if world.lock.is_some_and(|holder| holder != who) {
                continue;
            }
            world.lock = Some(who);
            if actors[who].is_none() {
                let (run, action) = if how == 0 && !revoked {
                    let brought = world.login();
                    Run::of_brought(brought)
                } else {
                    Run::of_stored()
                };
                actors[who] = Some(Actor { run, action, revoked_before: revoked });
            }
            let actor = actors[who].as_mut().unwrap();
            let event = world.act(&actor.action, silent);
            actor.action = actor.run.step(event);
            if let Action::End(outcome) = actor.action {
                prop_assert!(revoked || outcome == Outcome::Alive, "{outcome:?} while the person may");
                prop_assert!(!actor.revoked_before || outcome != Outcome::Alive, "alive after the revocation");
                if !revoked {
                    prop_assert_eq!(world.stored.as_ref().map(|stored| stored.material), world.provider);
                }
                actors[who] = None;
                world.lock = None;
            }
        }
    }

    /// Without the lock, whatever happens: no session outlives its end at the provider, and every run ends.
    #[test]
    fn even_without_the_lock_nothing_outlives_its_end(
        steps in proptest::collection::vec((0_usize..4, any::<bool>(), 0_u8..4), 1..200),
        revoke_at in 0_usize..100,
    ) {
        let mut world = World::default();
        let first = world.login();
        world.store(first);
        let mut actors: [Option<(Actor, u8)>; 4] = [None, None, None, None];
        for (at, (who, silent, how)) in steps.into_iter().enumerate() {
            if at == revoke_at {
                world.provider = None;
            }
            let revoked = at >= revoke_at;
            let (actor, count) = actors[who].get_or_insert_with(|| {
                let (run, action) = if how == 0 && !revoked {
                    let brought = world.login();
                    Run::of_brought(brought)
                } else {
                    Run::of_stored()
                };
                (Actor { run, action, revoked_before: revoked }, 0)
            });
            let event = world.act(&actor.action, silent);
            actor.action = actor.run.step(event);
            *count += 1;
            prop_assert!(*count < 20, "it never ends");
            if let Action::End(outcome) = actor.action {
                prop_assert!(!actor.revoked_before || outcome != Outcome::Alive, "alive after the revocation");
                actors[who] = None;
            }
        }
    }
}

fn stored(version: &str, material: u32) -> Event<u32> {
    Event::Read(Some(Stored { version: version.into(), material }))
}

#[test]
fn an_outage_ends_nothing() {
    let (mut run, _) = Run::of_stored();
    run.step(stored("1", 7));
    assert_eq!(run.step(Event::Unknown), Action::End(Outcome::Unavailable));
    let (mut run, _) = Run::<u32>::of_stored();
    assert_eq!(run.step(Event::Unknown), Action::End(Outcome::Unavailable));
    let (mut run, _) = Run::of_brought(7);
    assert_eq!(run.step(Event::Unknown), Action::End(Outcome::Unavailable));
}

#[test]
fn a_refusal_of_older_material_ends_nothing() {
    let (mut run, _) = Run::of_stored();
    assert_eq!(run.step(stored("1", 7)), Action::Refresh(7));
    assert_eq!(run.step(Event::Refused), Action::Delete("1".into()));
    assert_eq!(run.step(Event::Lost), Action::Read);
    assert_eq!(run.step(stored("2", 8)), Action::Refresh(8));
}

#[test]
fn a_login_replaces_what_is_stored() {
    let (mut run, first) = Run::of_brought(7);
    assert_eq!(first, Action::Refresh(7));
    assert_eq!(run.step(Event::Refreshed(8)), Action::Read);
    assert_eq!(run.step(stored("1", 3)), Action::Write { over: Some("1".into()), material: 8 });
    assert_eq!(run.step(Event::Lost), Action::Read);
    assert_eq!(run.step(Event::Read(None)), Action::Write { over: None, material: 8 });
    assert_eq!(run.step(Event::Unknown), Action::Read);
    assert_eq!(run.step(stored("2", 8)), Action::End(Outcome::Alive), "the write was done after all");
}

#[test]
fn a_brought_token_that_was_used_up_leaves_the_stored_session() {
    let (mut run, _) = Run::of_brought(7);
    assert_eq!(run.step(Event::Refused), Action::Read);
    assert_eq!(run.step(stored("1", 8)), Action::Refresh(8));
    let (mut run, _) = Run::of_brought(7);
    run.step(Event::Refused);
    assert_eq!(run.step(Event::Read(None)), Action::End(Outcome::Ended));
}
