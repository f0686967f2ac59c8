//! The sessions of people at providers whose refresh tokens change with each use: one per subject, refreshed before a
//! token is given. Does what [`session`](super::session) plans.
//!
//! **Time.** A run has the lock of its subject. Nobody takes a lock over before it stood unchanged for [`LOCKED_FOR`], by
//! the watcher's own clock. A refresh begins in the first [`BEGIN_WITHIN`] only, so that its answer and the write after
//! it fall into the lock's time.
//!
//! **A caller that goes away** must not take a refresh with it whose answer is the only token there is: runs are tasks
//! of their own, and requests wait for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::{Path, SubjectKey};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    backends::{Upstream, takes_refresh_token},
    endpoint::{LONGEST, Tokens},
    material::Material,
    objects::{Lock, name},
    session::{Action, Event, Outcome, Run, Stored},
    upstream::Meaning,
};
use crate::{
    broker::Broker,
    claims::{cluster::CallError, lend, record::subject_key},
};

/// How long a lock stands unchanged before others may take it.
const LOCKED_FOR: Duration = Duration::from_secs(60);
/// Until when, after the lock was taken, a refresh may begin: what is left of the lock is longer than an answer and a
/// write take.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
const _: () = assert!(LOCKED_FOR.as_secs() - BEGIN_WITHIN.as_secs() > LONGEST.as_secs() + 10);
/// Longest wait for a lock that somebody has.
const WAIT: Duration = Duration::from_secs(10);
/// Pause between looks at a lock that somebody has.
const LOOK: Duration = Duration::from_millis(100);
/// How long a session must have been without a claim, untouched, before it is deleted: longer than a request takes from
/// storing it to making its claim.
const UNUSED_FOR: Duration = Duration::from_secs(60);
/// Pause between sweeps.
const SWEEP: Duration = Duration::from_secs(15);

/// Why a session confirms nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// There is none, or the provider ended it.
    Ended,
    /// Nobody can tell.
    Unavailable,
    /// What was brought is the session of somebody else.
    Foreign,
    /// The provider's newest ID token would not be accepted from this person: a group was taken away, for example.
    Refused,
}

/// The last run of a subject: when it began and what it found.
type Last = Option<(Instant, Result<(), Lack>)>;

/// What this process knows of sessions: who waits for whom, and since when locks stand as they do.
pub struct Sessions {
    /// This process, as a holder of locks.
    holder: String,
    seats: Mutex<BTreeMap<[u8; 32], Arc<tokio::sync::Mutex<Last>>>>,
    seen: Mutex<BTreeMap<String, (String, Instant)>>,
}

impl Sessions {
    /// For a process with this random name.
    #[must_use]
    pub fn new(random: [u8; 16]) -> Self {
        Self { holder: hex::encode(random), seats: Mutex::default(), seen: Mutex::default() }
    }

    fn seat(&self, subject: &SubjectKey) -> Arc<tokio::sync::Mutex<Last>> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.entry(*subject.as_bytes()).or_default().clone()
    }

    /// Whether a lock has stood in this state for so long that its holder must be gone.
    fn is_abandoned(&self, lock: &Lock) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = seen.entry(lock.name.clone()).or_insert_with(|| (lock.version.clone(), Instant::now()));
        if entry.0 != lock.version {
            *entry = (lock.version.clone(), Instant::now());
        }
        entry.1.elapsed() > LOCKED_FOR
    }

    /// Forgets whom nobody waits for, and locks that are gone.
    fn tidy(&self, locks: &[Lock]) {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, seat| Arc::strong_count(seat) > 1);
        let names: BTreeSet<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).retain(|name, _| names.contains(name.as_str()));
    }
}

/// What a seal of a session is bound to: the subject, and that it is no grant and no claim's refresh token.
fn bound_to(subject: &SubjectKey) -> Vec<u8> {
    format!("session of subject {subject}").into_bytes()
}

/// Has the provider confirm a subject's session now, first with what the person brought, if anything.
///
/// # Errors
/// [`Lack`].
pub async fn confirm(
    broker: &Arc<Broker>,
    upstream: &Arc<Upstream>,
    subject: SubjectKey,
    brought: Option<Material>,
) -> Result<(), Lack> {
    let asked = Instant::now();
    let (broker, upstream) = (broker.clone(), upstream.clone());
    let task = tokio::spawn(async move {
        let seat = broker.upstreams.sessions.seat(&subject);
        let mut last = seat.lock().await;
        // A run that began after we asked answers us too.
        if let (None, Some((began, found))) = (&brought, *last)
            && began >= asked
        {
            return found;
        }
        let began = Instant::now();
        let found = locked(&broker, &upstream, &subject, brought).await;
        *last = Some((began, found));
        found
    });
    task.await.unwrap_or(Err(Lack::Unavailable))
}

async fn locked(
    broker: &Broker,
    upstream: &Upstream,
    subject: &SubjectKey,
    brought: Option<Material>,
) -> Result<(), Lack> {
    let Some(namespace) = broker.store.namespaces().next() else { return Err(Lack::Unavailable) };
    let unavailable = |error: CallError| {
        tracing::warn!(%error, %subject, "a session cannot be refreshed now");
        Lack::Unavailable
    };
    let began = Instant::now();
    let lock = loop {
        // Measured from before the write: the lock's time begins no earlier for anybody else.
        let asked = Instant::now();
        if let Some(lock) = take(broker, namespace, subject).await.map_err(unavailable)? {
            break (lock, asked);
        }
        if began.elapsed() > WAIT {
            tracing::warn!(%subject, "the lock of a session is held for long; another replica refreshes it, or died doing so");
            return Err(Lack::Unavailable);
        }
        tokio::time::sleep(LOOK).await;
    };
    let (lock, since) = lock;
    let work = Work { broker, upstream, subject, namespace, since };
    let found = work.run(brought).await;
    // Held locks end by themselves, only later.
    let freed = broker.cluster.write_session_lock(namespace, &lock.name, Some(&lock), None).await;
    tracing::debug!(?freed, %subject, "the lock of a session is given back");
    match found? {
        None => Ok(()),
        Some(id_token) => judge(broker, subject, &id_token).await.map(drop),
    }
}

async fn take(broker: &Broker, namespace: &str, subject: &SubjectKey) -> Result<Option<Lock>, CallError> {
    let (sessions, name) = (&broker.upstreams.sessions, name(subject));
    let found = broker.cluster.session_lock(namespace, &name).await?;
    if found.as_ref().is_some_and(|lock| lock.holder.is_some() && !sessions.is_abandoned(lock)) {
        return Ok(None);
    }
    broker.cluster.write_session_lock(namespace, &name, found.as_ref(), Some(&sessions.holder)).await
}

/// Whether an ID token that the provider gave now would be accepted from this subject.
async fn judge(broker: &Broker, subject: &SubjectKey, id_token: &Material) -> Result<(), Lack> {
    match broker.issuers.validate(id_token.reveal(), SystemTime::now()).await {
        Ok(caller) if caller.key != *subject => Err(Lack::Foreign),
        Ok(caller) if caller.path == Path::Person => Ok(()),
        Err(refusal) if refusal.code == banlieue_identity::Code::Unavailable => Err(Lack::Unavailable),
        Ok(_) => Err(Lack::Refused),
        Err(refusal) => {
            tracing::warn!(%subject, reason = refusal.reason.as_str(), "the ID token of a refreshed session is refused");
            Err(Lack::Refused)
        }
    }
}

/// One run under the lock.
struct Work<'a> {
    broker: &'a Broker,
    upstream: &'a Upstream,
    subject: &'a SubjectKey,
    namespace: &'a str,
    since: Instant,
}

impl Work<'_> {
    /// Gives the newest ID token, unless it was judged already.
    async fn run(&self, brought: Option<Material>) -> Result<Option<Material>, Lack> {
        let mut offering = brought.is_some();
        let mut newest = None;
        let (mut run, mut action) = brought.map_or_else(Run::of_stored, Run::of_brought);
        loop {
            let event = match action {
                Action::End(Outcome::Alive) => return Ok(newest),
                Action::End(Outcome::Ended) => return Err(Lack::Ended),
                Action::End(Outcome::Unavailable) => return Err(Lack::Unavailable),
                Action::Read => self.read().await,
                Action::Refresh(material) => match self.refresh(&material).await {
                    Ok(tokens) => {
                        let id_token = tokens.id_token.ok_or(Lack::Refused)?;
                        if offering {
                            // Somebody else's session is not stored under this name.
                            judge(self.broker, self.subject, &id_token).await?;
                        } else {
                            newest = Some(id_token);
                        }
                        // A provider that replaces none keeps the old one good.
                        Event::Refreshed(tokens.refresh_token.unwrap_or(material))
                    }
                    Err(event) => event,
                },
                Action::Write { over, material } => self.write(over.as_deref(), &material).await,
                Action::Delete(version) => {
                    let name = name(self.subject);
                    self.told(self.broker.cluster.delete_session(self.namespace, &name, &version).await)
                }
            };
            offering = false;
            action = run.step(event);
        }
    }

    async fn refresh(&self, material: &Material) -> Result<Tokens, Event<Material>> {
        // What cannot be opened is stored as nothing, and is no reason to end anybody's session.
        if material.reveal().is_empty() || self.since.elapsed() > BEGIN_WITHIN {
            return Err(Event::Unknown);
        }
        let grant = [("grant_type", "refresh_token"), ("refresh_token", material.reveal())];
        self.upstream.endpoint.ask(&self.broker.issuers, &grant).await.map_err(|trouble| match trouble.meaning {
            Meaning::Refused => {
                tracing::info!(%trouble, subject = %self.subject, "a session ended at its provider");
                Event::Refused
            }
            Meaning::Outage => {
                tracing::warn!(%trouble, subject = %self.subject, "a session cannot be refreshed now");
                Event::Unknown
            }
            Meaning::Misconfigured => {
                tracing::error!(%trouble, "the provider does not take mediatore's client; look at upstreams");
                Event::Unknown
            }
        })
    }

    async fn read(&self) -> Event<Material> {
        match self.broker.cluster.session(self.namespace, &name(self.subject)).await {
            Ok(found) => Event::Read(found.map(|sealed| {
                let opened = self.broker.upstreams.sealing.get().open_text(&bound_to(self.subject), &sealed.bytes);
                let text = opened.ok().and_then(|text| std::str::from_utf8(&text).ok().map(ToOwned::to_owned));
                if text.is_none() {
                    tracing::error!(subject = %self.subject, "a stored session does not open; look at sealing_keys");
                }
                Stored { version: sealed.version, material: Material::from(text.unwrap_or_default()) }
            })),
            Err(error) => self.told(Err(error)),
        }
    }

    async fn write(&self, over: Option<&str>, material: &Material) -> Event<Material> {
        let text = Zeroizing::new(material.reveal().as_bytes().to_vec());
        match self.broker.upstreams.sealing.get().seal_text(&bound_to(self.subject), text) {
            Ok(sealed) => {
                let name = name(self.subject);
                self.told(self.broker.cluster.write_session(self.namespace, &name, over, sealed).await)
            }
            Err(error) => {
                tracing::error!(%error, "a session cannot be sealed");
                Event::Unknown
            }
        }
    }

    fn told(&self, outcome: Result<bool, CallError>) -> Event<Material> {
        match outcome {
            Ok(true) => Event::Done,
            Ok(false) => Event::Lost,
            Err(error) => {
                tracing::warn!(%error, subject = %self.subject, "a session's Secret");
                Event::Unknown
            }
        }
    }
}

/// Deletes sessions that no living claim needs, until `stop`.
pub async fn sweep(broker: Arc<Broker>, stop: CancellationToken) {
    let mut unused: BTreeMap<Lock, Instant> = BTreeMap::new();
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
        let Some(namespace) = broker.store.namespaces().next() else { return };
        if broker.store.unfilled().is_some() {
            continue;
        }
        let locks = match broker.cluster.session_locks(namespace).await {
            Ok(locks) => locks,
            Err(error) => {
                tracing::warn!(%error, "sessions are not swept yet");
                continue;
            }
        };
        broker.upstreams.sessions.tidy(&locks);
        let needed = needed(&broker);
        let now: BTreeSet<Lock> = locks.into_iter().filter(|lock| !needed.contains(&lock.name)).collect();
        unused.retain(|lock, _| now.contains(lock));
        for lock in now {
            // Each use writes the lock, so it stands here since when it was last used.
            let since = *unused.entry(lock.clone()).or_insert_with(Instant::now);
            if since.elapsed() > UNUSED_FOR
                && let Err(error) = delete(&broker, namespace, &lock).await
            {
                tracing::warn!(%error, lock = lock.name, "a session that nobody needs is not deleted yet");
            }
        }
    }
}

/// Names of the sessions that living claims need.
fn needed(broker: &Broker) -> BTreeSet<String> {
    let claims = broker.store.claims();
    let by_session = |claim: &VirtualMachineClaim| takes_refresh_token(&broker.config, &claim.spec.audiences);
    let living = claims.iter().filter(|claim| !lend::is_ending(claim) && by_session(claim));
    living.map(|claim| name(&subject_key(claim))).collect()
}

async fn delete(broker: &Broker, namespace: &str, lock: &Lock) -> Result<(), CallError> {
    let (cluster, holder) = (&broker.cluster, broker.upstreams.sessions.holder.as_str());
    // Taken in exactly the state that was judged, so that no run begins meanwhile.
    let Some(held) = cluster.write_session_lock(namespace, &lock.name, Some(lock), Some(holder)).await? else {
        return Ok(());
    };
    if let Some(sealed) = cluster.session(namespace, &lock.name).await? {
        cluster.delete_session(namespace, &lock.name, &sealed.version).await?;
        broker.metrics.kept("session_deleted");
    }
    cluster.delete_session_lock(namespace, &held).await
}
