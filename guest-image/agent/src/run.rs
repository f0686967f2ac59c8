//! Carries out what [`crate::life`] decides: starts agents, reaps processes, listens for events.

use std::time::Instant;

use banlieue_protocol::names::SpiffeId;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    agent,
    boot::Error,
    console, identity,
    life::{Act, Event, Life},
    power,
};

/// Lives until there is a reason to power off, which is returned. `own` is the guest agent's SPIFFE id.
pub fn live(own: SpiffeId, life: Life) -> Result<String, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Loop)?;
    runtime.block_on(run(own, life))
}

async fn run(own: SpiffeId, mut life: Life) -> Result<String, Error> {
    // Before the first child: a SIGCHLD that nobody listens for would be lost.
    let mut child = signal(SignalKind::child()).map_err(Error::Loop)?;
    let (send, mut events) = mpsc::channel(16);
    listen_for_buttons(&send);
    tokio::spawn(identity::watch(own, send));

    let mut agent: Option<Pid> = None;
    let mut event = Event::Time;
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

/// Collects every process that ended, orphans too, as the first process must. How the agent ended, if it did.
fn reap(agent: Option<Pid>) -> Option<String> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if Some(pid) == agent {
            ended = Some(describe(status));
        }
    }
    ended
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
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
