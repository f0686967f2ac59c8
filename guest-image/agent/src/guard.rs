//! The first process after boot: it starts the guest agent as a process of its own and expects a heartbeat from it. An
//! agent that ended, hangs or was stopped is dead, and a guest without its agent must not live.
//!
//! ```text
//! first process ── starts ──▶ guest agent ── starts ──▶ spire-agent ── starts ──▶ attestation plugin
//!      ▲                          │ one byte a second, from its event loop
//!      └──────────── pipe ────────┘                 silent for [`PATIENCE`] looks, or ended: power-off
//! ```

use std::{
    io::{PipeReader, Read},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::Duration,
};

use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use thiserror::Error;

use crate::console;

/// The argument that makes this program the guest agent. Its standard input is then the pipe it beats on.
pub const AGENT: &str = "agent";
/// Time between two beats.
pub const BEAT: Duration = Duration::from_secs(1);
/// The longest wait for a beat before the look counts as an empty one.
const LOOK: Duration = Duration::from_secs(3);
/// Empty looks in a row that mean death. Many short ones in place of one long one: a machine that was held for a while
/// wakes with its timers expired, and its agent shall have the time to beat again.
const PATIENCE: u32 = 10;
/// An agent's pipe closes a moment before its end can be collected.
const SETTLE: Duration = Duration::from_millis(200);

/// Why the guest agent could not be started.
#[derive(Debug, Error)]
pub enum Error {
    /// No pipe, or no process.
    #[error("cannot start the guest agent: {0}")]
    Start(std::io::Error),
}

/// How a process ended, for the console.
pub fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// Starts the guest agent and returns, with the reason, when the guest must end.
///
/// # Errors
/// The agent cannot be started.
pub fn keep() -> Result<String, Error> {
    let (beats, beat) = std::io::pipe().map_err(Error::Start)?;
    // The same file: SPIRE names the program by path and hash.
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg(AGENT).stdin(Stdio::from(beat)).spawn().map_err(Error::Start)?;
    // The command holds our copy of the pipe's other end; with it, the agent's end would not close the pipe.
    drop(command);
    let agent = Pid::from_child(&child);
    console::say(format_args!("the guest agent is process {}", agent.as_raw_nonzero()));
    Ok(watch(&listen(beats), || reap(agent), LOOK, PATIENCE))
}

/// Collects every process that ended, orphans too, as the first process must. How the agent ended, if it did.
fn reap(agent: Pid) -> Option<String> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == agent {
            ended = Some(describe(status));
        }
    }
    ended
}

/// Beats as messages: a wait for one of these can end by time. The channel closes with the pipe.
fn listen(mut beats: PipeReader) -> Receiver<()> {
    // One is as good as many: a full channel drops the rest.
    let (send, receive) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(1..) = beats.read(&mut bytes) {
            if let Err(mpsc::TrySendError::Disconnected(())) = send.try_send(()) {
                return;
            }
        }
    });
    receive
}

/// Looks until the agent is dead, and says how it is known.
fn watch(beats: &Receiver<()>, mut ended: impl FnMut() -> Option<String>, look: Duration, patience: u32) -> String {
    let mut empty = 0;
    loop {
        let seen = beats.recv_timeout(look);
        if seen == Err(RecvTimeoutError::Disconnected) {
            std::thread::sleep(SETTLE);
        }
        if let Some(how) = ended() {
            return format!("the guest agent ended ({how})");
        }
        match seen {
            Ok(()) => empty = 0,
            Err(RecvTimeoutError::Disconnected) => return "the guest agent closed its heartbeat".to_owned(),
            Err(RecvTimeoutError::Timeout) => empty += 1,
        }
        if empty >= patience {
            let silent = look.saturating_mul(empty).as_secs();
            return format!("the guest agent gave no sign of life for {silent} s");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Child;

    use super::*;

    const LOOK: Duration = Duration::from_millis(200);

    /// A process that beats as an agent does: on its standard input.
    fn agent(script: &str) -> (Child, Receiver<()>) {
        let (beats, beat) = std::io::pipe().unwrap();
        let child = Command::new("sh").args(["-c", script]).stdin(Stdio::from(beat)).spawn().unwrap();
        (child, listen(beats))
    }

    fn how(child: &mut Child) -> Option<String> {
        child.try_wait().unwrap().map(|status| status.to_string())
    }

    #[test]
    fn an_agent_that_ends_is_dead_at_once() {
        for (script, word) in [("printf . >&0; exit 3", "3"), ("printf . >&0; kill -KILL $$", "signal: 9")] {
            let (mut child, beats) = agent(script);
            let why = watch(&beats, || how(&mut child), Duration::from_secs(600), 1);
            assert!(why.contains("ended") && why.contains(word), "{why}");
        }
    }

    #[test]
    fn an_agent_that_is_stopped_is_dead() {
        let (mut child, beats) = agent("printf . >&0; kill -STOP $$");
        let why = watch(&beats, || how(&mut child), LOOK, 3);
        assert!(why.contains("no sign of life"), "{why}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_agent_that_closes_its_heart_is_dead() {
        let (mut child, beats) = agent("exec 0</dev/null; exec sleep 600");
        let why = watch(&beats, || how(&mut child), Duration::from_secs(600), 1);
        assert!(why.contains("closed"), "{why}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_silence_without_a_break_counts() {
        let (send, beats) = mpsc::sync_channel(1);
        let mut looks = 0;
        let ended = || {
            looks += 1;
            // A beat after every second empty look: three in a row never come.
            if looks % 3 == 2 && looks < 12 {
                let _ = send.try_send(());
            }
            None
        };
        let why = watch(&beats, ended, Duration::from_millis(1), 3);
        assert!(why.contains("no sign of life"), "{why}");
        assert!(looks >= 12, "after {looks} looks");
    }
}
