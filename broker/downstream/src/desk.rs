//! Who waits for whom: one sandbox for each claim, one orchestrator for each sandbox. No I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use banlieue_identity::{Caller, Path};
use banlieue_protocol::names::Uid;
use tokio::sync::oneshot;

use crate::sandbox::Sandbox;

/// Sandboxes that wait at once.
const MOST: usize = 1024;

/// Why a sandbox may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// One of the same claim waits or talks already.
    Twice,
    /// Too many wait.
    Full,
}

/// The sandboxes that are here. `T` is what an orchestrator brings to the one that it meets.
#[derive(Debug)]
pub struct Desk<T>(Arc<Mutex<HashMap<Uid, Here<T>>>>);

#[derive(Debug)]
struct Here<T> {
    sandbox: Sandbox,
    /// Gone once an orchestrator has come.
    bell: Option<oneshot::Sender<T>>,
}

/// A sandbox's place; it is free again when this is dropped.
#[derive(Debug)]
pub struct Place<T> {
    desk: Desk<T>,
    claim: Uid,
    /// What the orchestrator brings, once.
    pub met: oneshot::Receiver<T>,
}

impl<T> Clone for Desk<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Desk<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Desk<T> {
    fn with<R>(&self, act: impl FnOnce(&mut HashMap<Uid, Here<T>>) -> R) -> R {
        // No code panics while it holds the lock.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A sandbox comes and waits.
    ///
    /// # Errors
    /// When it may not.
    pub fn wait(&self, sandbox: Sandbox) -> Result<Place<T>, Turned> {
        let (bell, met) = oneshot::channel();
        let claim = sandbox.claim.clone();
        self.with(|here| {
            if here.contains_key(&claim) {
                return Err(Turned::Twice);
            }
            if here.len() >= MOST {
                return Err(Turned::Full);
            }
            here.insert(claim.clone(), Here { sandbox, bell: Some(bell) });
            Ok(())
        })?;
        Ok(Place { desk: self.clone(), claim, met })
    }

    /// An orchestrator comes for the sandbox of a claim: with `bring`, if that sandbox is here, alone, and acts for the
    /// one who asks. Which of these it is not, nobody is told. Returns whom it met.
    pub fn meet(&self, claim: &Uid, caller: &Caller, bring: T) -> Option<Sandbox> {
        let (sandbox, bell) = self.with(|here| {
            let here = here.get_mut(claim).filter(|here| is_for(&here.sandbox, caller))?;
            Some((here.sandbox.clone(), here.bell.take()?))
        })?;
        bell.send(bring).ok()?;
        Some(sandbox)
    }

    /// How many are here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.with(|here| here.len())
    }

    /// Whether nobody is here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether a sandbox works for this caller: the person meets all of its sandboxes, an agent those that it asked for.
#[must_use]
pub fn is_for(sandbox: &Sandbox, caller: &Caller) -> bool {
    sandbox.subject == caller.key && (caller.path != Path::AgentForPerson || caller.azp == sandbox.agent)
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        self.desk.with(|here| here.remove(&self.claim));
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use banlieue_identity::SubjectKey;
    use rstest::rstest;

    use super::*;

    const CLAIM: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";

    fn sandbox(agent: Option<&str>) -> Sandbox {
        Sandbox {
            claim: Uid::parse(CLAIM).unwrap(),
            subject: SubjectKey::of("https://idp", "ada"),
            upstream_issuer: "https://idp".into(),
            upstream_id: "ada".into(),
            agent: agent.map(str::to_owned),
            expires_at: 1000,
        }
    }

    fn caller(id: &str, agent: Option<&str>) -> Caller {
        Caller {
            issuer_name: "idp".into(),
            issuer: "https://idp".into(),
            id: id.into(),
            display: None,
            path: if agent.is_some() { Path::AgentForPerson } else { Path::Person },
            client: agent.unwrap_or("cli").into(),
            azp: agent.map(str::to_owned),
            key: SubjectKey::of("https://idp", id),
            not_after: SystemTime::now(),
        }
    }

    #[rstest]
    #[case::the_person(None, caller("ada", None), true)]
    #[case::somebody_else(None, caller("eve", None), false)]
    #[case::the_person_of_an_agents_sandbox(Some("bot"), caller("ada", None), true)]
    #[case::the_agent(Some("bot"), caller("ada", Some("bot")), true)]
    #[case::another_agent(Some("bot"), caller("ada", Some("tob")), false)]
    #[case::an_agent_of_the_persons_own(None, caller("ada", Some("bot")), false)]
    fn a_sandbox_meets_whom_it_works_for(#[case] agent: Option<&str>, #[case] caller: Caller, #[case] meets: bool) {
        let desk = Desk::default();
        let _place = desk.wait(sandbox(agent)).unwrap();
        assert_eq!(desk.meet(&Uid::parse(CLAIM).unwrap(), &caller, ()).is_some(), meets);
    }

    #[test]
    fn one_sandbox_and_one_orchestrator_for_each_claim() {
        let desk = Desk::default();
        let (claim, ada) = (Uid::parse(CLAIM).unwrap(), caller("ada", None));
        assert!(desk.meet(&claim, &ada, 1).is_none(), "nobody is here");
        let mut place = desk.wait(sandbox(None)).unwrap();
        assert_eq!(desk.wait(sandbox(None)).unwrap_err(), Turned::Twice);
        assert!(desk.meet(&claim, &ada, 2).is_some());
        assert_eq!(place.met.try_recv(), Ok(2));
        assert!(desk.meet(&claim, &ada, 3).is_none(), "it talks to one already");
        drop(place);
        assert!(desk.is_empty() && desk.wait(sandbox(None)).is_ok());
    }

    #[test]
    fn nobody_is_met_who_has_gone() {
        let desk = Desk::default();
        let mut place = desk.wait(sandbox(None)).unwrap();
        place.met.close();
        assert!(desk.meet(&Uid::parse(CLAIM).unwrap(), &caller("ada", None), ()).is_none());
    }
}
