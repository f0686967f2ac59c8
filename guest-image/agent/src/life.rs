//! The guest's life after boot, as a pure machine: an event and the time in, what to do out.
//!
//! ```text
//!            StartAgent            identity held
//! (boot) ──▶ Waiting ────────────▶ Holding
//!               ▲    identity lost    │
//!               └─────────────────────┘      Waiting longer than the agent's TTL, or the power button: PowerOff
//! ```
//! The agent's process has its own small state beside it: it runs, or it is down until a moment to start it again.

use std::time::{Duration, Instant};

/// What happens to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The SPIRE agent's process ended; how, for the console.
    AgentEnded(String),
    /// Our node SVID came (true) or went.
    Identity(bool),
    /// Somebody pressed the power button.
    PowerButton,
    /// A moment asked for with [`Life::wake_at`] has come.
    Time,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Start a SPIRE agent.
    StartAgent,
    /// Tell the console.
    Say(String),
    /// End the guest, with the reason.
    PowerOff(String),
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// An agent that ran this long was healthy: its end starts the pauses over.
const HEALTHY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Identity {
    Waiting { since: Instant },
    Holding,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Agent {
    Running { since: Instant },
    Down { until: Instant },
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Life {
    identity: Identity,
    agent: Agent,
    pause: Duration,
    agent_ttl: Duration,
}

impl Life {
    /// A guest that is about to start its first agent. It lives without identity for `agent_ttl`, the life of agents'
    /// SVIDs, and no longer: after that nobody would accept it anyway.
    pub fn new(now: Instant, agent_ttl: Duration) -> Self {
        let (identity, agent) = (Identity::Waiting { since: now }, Agent::Down { until: now });
        Self { identity, agent, pause: FIRST_PAUSE, agent_ttl }
    }

    /// When to send [`Event::Time`] at the latest.
    pub fn wake_at(&self) -> Option<Instant> {
        let identity = match self.identity {
            Identity::Waiting { since } => Some(since + self.agent_ttl),
            Identity::Holding => None,
        };
        let agent = match self.agent {
            Agent::Down { until } => Some(until),
            Agent::Running { .. } => None,
        };
        identity.into_iter().chain(agent).min()
    }

    /// One step.
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        match event {
            Event::PowerButton => return vec![Act::PowerOff("the power button was pressed".to_owned())],
            Event::AgentEnded(how) => {
                if let Agent::Running { since } = self.agent {
                    if now.saturating_duration_since(since) >= HEALTHY {
                        self.pause = FIRST_PAUSE;
                    }
                    acts.push(Act::Say(format!("the SPIRE agent ended ({how}); again in {:?}", self.pause)));
                    self.agent = Agent::Down { until: now + self.pause };
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                }
            }
            Event::Identity(true) => {
                if self.identity != Identity::Holding {
                    acts.push(Act::Say("node identity issued".to_owned()));
                }
                self.identity = Identity::Holding;
            }
            Event::Identity(false) => {
                if self.identity == Identity::Holding {
                    acts.push(Act::Say("node identity lost".to_owned()));
                    self.identity = Identity::Waiting { since: now };
                }
            }
            Event::Time => {}
        }
        match self.identity {
            Identity::Waiting { since } if now.saturating_duration_since(since) >= self.agent_ttl => {
                acts.push(Act::PowerOff(format!("no node identity for {} s", self.agent_ttl.as_secs())));
                return acts;
            }
            _ => {}
        }
        match self.agent {
            Agent::Down { until } if until <= now => {
                self.agent = Agent::Running { since: now };
                acts.push(Act::StartAgent);
            }
            _ => {}
        }
        acts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const AGENT_TTL: Duration = Duration::from_secs(600);

    fn started() -> (Life, Instant) {
        let now = Instant::now();
        let mut life = Life::new(now, AGENT_TTL);
        assert_eq!(life.step(Event::Time, now), [Act::StartAgent]);
        (life, now)
    }

    fn powers_off(acts: &[Act]) -> bool {
        acts.iter().any(|a| matches!(a, Act::PowerOff(_)))
    }

    #[test]
    fn the_agent_is_always_started_again_with_growing_pauses() {
        let (mut life, mut now) = started();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            life.step(Event::AgentEnded("exit 1".into()), now);
            let again = life.wake_at().unwrap();
            pauses.push(again - now);
            assert_eq!(life.step(Event::Time, again - Duration::from_millis(1)), []);
            assert_eq!(life.step(Event::Time, again), [Act::StartAgent]);
            now = again;
        }
        assert!(pauses.windows(2).all(|p| p[0] <= p[1]), "{pauses:?}");
        assert_eq!(*pauses.last().unwrap(), LONGEST_PAUSE);
        // A healthy run starts the pauses over.
        life.step(Event::AgentEnded("exit 1".into()), now + HEALTHY);
        assert_eq!(life.wake_at().unwrap() - (now + HEALTHY), FIRST_PAUSE);
    }

    #[test]
    fn identity_that_does_not_come_back_ends_the_guest() {
        let (mut life, start) = started();
        life.step(Event::Identity(true), start + SECOND);
        assert_eq!(life.wake_at(), None, "nothing to wait for while the identity is held");
        life.step(Event::Identity(false), start + 100 * SECOND);
        assert!(!powers_off(&life.step(Event::Time, start + 100 * SECOND + AGENT_TTL - SECOND)));
        assert!(powers_off(&life.step(Event::Time, start + 100 * SECOND + AGENT_TTL)));
    }

    #[test]
    fn identity_that_comes_back_in_time_does_not() {
        let (mut life, start) = started();
        life.step(Event::Identity(true), start);
        life.step(Event::Identity(false), start + SECOND);
        life.step(Event::Identity(true), start + 2 * SECOND);
        assert!(!powers_off(&life.step(Event::Time, start + 10 * AGENT_TTL)));
    }

    #[test]
    fn identity_that_never_comes_ends_the_guest_whatever_the_agent_does() {
        let (mut life, start) = started();
        let mut now = start;
        loop {
            if powers_off(&life.step(Event::AgentEnded("exit 1".into()), now)) {
                break;
            }
            now = life.wake_at().unwrap();
            if powers_off(&life.step(Event::Time, now)) {
                break;
            }
        }
        assert_eq!(now - start, AGENT_TTL);
    }

    #[test]
    fn the_power_button_ends_it_at_once() {
        let (mut life, start) = started();
        assert!(powers_off(&life.step(Event::PowerButton, start)));
    }
}
