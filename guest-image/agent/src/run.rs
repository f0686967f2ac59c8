//! The guest agent's process: carries out what [`crate::life`] decides, starts SPIRE agents, listens for events, and beats.

use std::{
    fs::File,
    io::Write,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use banlieue_protocol::names::{self, SpiffeId};
use rustix::{
    fs::{OFlags, fcntl_setfl},
    process::{Pid, WaitOptions, wait},
};
use thiserror::Error;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use crate::{
    agent, console,
    guard::{self, describe},
    identity,
    life::{Act, Event, Life},
    power, seed_volume,
};

/// Why a guest agent cannot go on. Always fatal.
#[derive(Debug, Error)]
pub enum Error {
    /// See [`seed_volume::Error`].
    #[error(transparent)]
    Seed(#[from] seed_volume::Error),
    /// See [`agent::Error`].
    #[error(transparent)]
    Agent(#[from] agent::Error),
    /// The event loop could not be made.
    #[error("cannot start the event loop: {0}")]
    Loop(std::io::Error),
    /// The pipe to the first process cannot be used.
    #[error("cannot beat: {0}")]
    Heart(std::io::Error),
}

/// Lives until there is a reason to power off, which is returned.
///
/// # Errors
/// What the agent needs is not there.
pub fn live() -> Result<String, Error> {
    let heart = heart()?;
    let seed = seed_volume::kept()?;
    let own = names::node(&seed.trust_domain, &seed.uid);
    let life = Life::new(Instant::now(), Duration::from_secs(seed.agent_ttl_seconds.into()));
    drop(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Loop)?;
    runtime.block_on(run(own, life, heart))
}

/// The pipe that the first process listens on. A beat that finds it full is not waited for.
fn heart() -> Result<File, Error> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::Heart)?;
    fcntl_setfl(&stdin, OFlags::NONBLOCK).map_err(|e| Error::Heart(e.into()))?;
    Ok(stdin.into())
}

async fn run(own: SpiffeId, mut life: Life, mut heart: File) -> Result<String, Error> {
    // Before the first child: a SIGCHLD that nobody listens for would be lost.
    let mut child = signal(SignalKind::child()).map_err(Error::Loop)?;
    let (send, mut events) = mpsc::channel(16);
    listen_for_buttons(&send);
    tokio::spawn(identity::watch(own, send));

    let mut agent: Option<Pid> = None;
    let mut event = Event::Time;
    // In the loop that decides, so that an agent that hangs does not beat.
    let mut beat = interval(guard::BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        for act in life.step(event, Instant::now()) {
            match act {
                Act::Say(line) => console::say(line),
                Act::PowerOff(why) => return Ok(why),
                Act::StartAgent => {
                    console::say("starting the SPIRE agent");
                    agent = Some(agent::start()?);
                }
            }
        }
        event = loop {
            let wake = life.wake_at().map(tokio::time::Instant::from_std);
            let far = tokio::time::Instant::now() + std::time::Duration::from_secs(3600);
            tokio::select! {
                Some(event) = events.recv() => break event,
                _ = beat.tick() => {
                    // A full pipe holds beats that nobody has read yet; a closed one means that the kernel has panicked.
                    let _ = heart.write(b".");
                }
                _ = child.recv() => {
                    if let Some(how) = reap(agent) {
                        agent = None;
                        break Event::AgentEnded(how);
                    }
                }
                () = tokio::time::sleep_until(wake.unwrap_or(far)) => break Event::Time,
            }
        };
    }
}

/// Collects every process of ours that ended. How the SPIRE agent ended, if it did.
fn reap(agent: Option<Pid>) -> Option<String> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if Some(pid) == agent {
            ended = Some(describe(status));
        }
    }
    ended
}

fn listen_for_buttons(events: &mpsc::Sender<Event>) {
    let buttons = power::buttons();
    if buttons.is_empty() {
        console::say("no power button was found");
    }
    for button in buttons {
        let events = events.clone();
        std::thread::spawn(move || match power::wait_for_press(&button) {
            Ok(()) => drop(events.blocking_send(Event::PowerButton)),
            Err(e) => console::say(format_args!("cannot read {}: {e}", button.display())),
        });
    }
}
