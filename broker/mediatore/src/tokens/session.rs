//! Refreshing the one session that a subject has, step by step. Pure: [`Run`] says what to do next, whoever drives it
//! does it and says how it went.
//!
//! The provider replaces the refresh token at each use and at each login, and an old one is refused. So a run writes
//! only over the version that it read, and a refusal counts only when the refused material is still the stored one: the
//! session is deleted on exactly that version, and whoever loses against another write reads again. What a person
//! brings after a login is newer than whatever is stored, so it alone is written over any version.
//!
//! A lock keeps two replicas from using one refresh token at once; which material is the newest, versions alone decide.
//! A process that dies between the provider's answer and the write leaves a token that the provider refuses: the next
//! run ends the session. Rights are lost then, never kept.

/// What is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<T> {
    /// Which write of it this is.
    pub version: String,
    /// The refresh token.
    pub material: T,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<T> {
    /// Read what is stored; answered by [`Event::Read`] or [`Event::Unknown`].
    Read,
    /// Ask the provider; answered by [`Event::Refreshed`], [`Event::Refused`] or [`Event::Unknown`].
    Refresh(T),
    /// Replace exactly this version, or store where nothing is; answered by [`Event::Done`], [`Event::Lost`] or
    /// [`Event::Unknown`].
    Write {
        /// The version that was read, if anything was.
        over: Option<String>,
        /// The new refresh token.
        material: T,
    },
    /// Delete exactly this version; answered as a write is.
    Delete(String),
    /// Nothing more.
    End(Outcome),
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// What is stored, if anything.
    Read(Option<Stored<T>>),
    /// The provider gave this in place of what it was asked with.
    Refreshed(T),
    /// The provider will never take this material again.
    Refused,
    /// It was done.
    Done,
    /// Another write came first.
    Lost,
    /// Nobody knows, or the provider is out of order.
    Unknown,
}

/// What a run found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The provider confirmed the session during this run, and its newest material is stored.
    Alive,
    /// There is no session: its claims are released.
    Ended,
    /// Nobody can tell: no token now, and nothing is released.
    Unavailable,
}

/// Times that a run reads. Each further one means that somebody else wrote, or that a call had no answer.
const READS: u8 = 4;

#[derive(Debug)]
enum At {
    Offering,
    Reading,
    Refreshing(String),
    Writing,
    Deleting,
    Ended,
}

/// What the provider gave and nobody knows to be stored.
#[derive(Debug)]
struct Given<T> {
    material: T,
    /// The version that it is to replace; nothing when it is newer than any.
    over: Option<String>,
}

/// One run.
#[derive(Debug)]
pub struct Run<T> {
    at: At,
    given: Option<Given<T>>,
    reads: u8,
}

impl<T: Clone + PartialEq> Run<T> {
    /// Begins with what is stored; gives the first thing to do.
    #[must_use]
    pub fn of_stored() -> (Self, Action<T>) {
        (Self { at: At::Reading, given: None, reads: 1 }, Action::Read)
    }

    /// Begins with what a person brought. If the provider refuses that, what is stored counts: an earlier attempt of the
    /// same request may have used it up.
    #[must_use]
    pub fn of_brought(material: T) -> (Self, Action<T>) {
        (Self { at: At::Offering, given: None, reads: 0 }, Action::Refresh(material))
    }

    /// The next thing to do. An event that is no answer to the last one ends the run without a token.
    pub fn step(&mut self, event: Event<T>) -> Action<T> {
        match (std::mem::replace(&mut self.at, At::Ended), event) {
            (At::Offering, Event::Refreshed(material)) => {
                self.given = Some(Given { material, over: None });
                self.read()
            }
            (At::Offering, Event::Refused) => self.read(),
            (At::Reading, Event::Read(stored)) => self.judge(stored),
            (At::Refreshing(over), Event::Refreshed(material)) => {
                self.given = Some(Given { material: material.clone(), over: Some(over.clone()) });
                self.write(Some(over), material)
            }
            (At::Refreshing(version), Event::Refused) => {
                self.at = At::Deleting;
                Action::Delete(version)
            }
            (At::Writing, Event::Done) => Action::End(Outcome::Alive),
            (At::Writing, Event::Lost) => {
                // Somebody's login or run was newer, unless ours is a login.
                self.given = self.given.take().filter(|given| given.over.is_none());
                self.read()
            }
            (At::Writing, Event::Unknown) | (At::Deleting, Event::Lost) => self.read(),
            (At::Deleting, Event::Done) => Action::End(Outcome::Ended),
            _ => Action::End(Outcome::Unavailable),
        }
    }

    fn judge(&mut self, stored: Option<Stored<T>>) -> Action<T> {
        match (self.given.take(), stored) {
            (Some(ours), Some(stored)) if ours.material == stored.material => Action::End(Outcome::Alive),
            (Some(ours), stored) if ours.over.is_none() => {
                let material = ours.material.clone();
                self.given = Some(ours);
                self.write(stored.map(|stored| stored.version), material)
            }
            (Some(ours), Some(stored)) if ours.over.as_ref() == Some(&stored.version) => {
                let material = ours.material.clone();
                self.given = Some(ours);
                self.write(Some(stored.version), material)
            }
            (_, Some(stored)) => {
                self.at = At::Refreshing(stored.version);
                Action::Refresh(stored.material)
            }
            (_, None) => Action::End(Outcome::Ended),
        }
    }

    fn write(&mut self, over: Option<String>, material: T) -> Action<T> {
        self.at = At::Writing;
        Action::Write { over, material }
    }

    fn read(&mut self) -> Action<T> {
        if self.reads >= READS {
            return Action::End(Outcome::Unavailable);
        }
        self.reads += 1;
        self.at = At::Reading;
        Action::Read
    }
}

#[cfg(test)]
mod tests;
