//! QEMU's machine protocol: commands to a running machine, and what it tells of its own accord.

use std::path::Path;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::socket;

/// Why QEMU could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket is not there, or QEMU ended.
    #[error("QEMU's control socket: {0}")]
    Io(#[from] std::io::Error),
    /// QEMU closed the connection.
    #[error("QEMU closed its control socket")]
    Closed,
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's words.
        reason: String,
    },
}

/// What a machine tells that matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The machine stops for good.
    Shutdown {
        /// The guest asked for it (power-off or, where resets end the machine, a reset).
        by_guest: bool,
        /// QEMU's word, for example `guest-shutdown`, `guest-panic`, `host-signal`.
        reason: String,
    },
    /// The guest reset itself.
    Reset,
    /// The processor is stopped, for example after an internal error of KVM.
    Stopped,
    /// Anything else.
    Other(String),
}

/// A connection to one machine.
#[derive(Debug)]
pub struct Qmp {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    /// Events that came while an answer was awaited.
    pending: Vec<Event>,
}

impl Qmp {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// QEMU is not there.
    pub async fn connect(path: &Path) -> Result<Self, Error> {
        let (read, write) = socket::connect(path).await?.into_split();
        let mut qmp = Self { lines: BufReader::new(read).lines(), write, pending: Vec::new() };
        qmp.message().await?; // greeting
        qmp.execute("qmp_capabilities").await?;
        Ok(qmp)
    }

    /// Runs a command without arguments and gives its return value.
    ///
    /// # Errors
    /// QEMU refused it or went away.
    pub async fn execute(&mut self, command: &str) -> Result<Value, Error> {
        let line = format!("{}\n", json!({ "execute": command }));
        self.write.write_all(line.as_bytes()).await?;
        loop {
            let mut message = self.message().await?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given").to_owned();
                return Err(Error::Refused { command: command.to_owned(), reason });
            }
            self.pending.extend(event(&message));
        }
    }

    /// The machine's state in QEMU's words (`running`, `internal-error`, `shutdown`, …).
    ///
    /// # Errors
    /// QEMU went away.
    pub async fn state(&mut self) -> Result<String, Error> {
        let status = self.execute("query-status").await?;
        Ok(status.get("status").and_then(Value::as_str).unwrap_or_default().to_owned())
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// QEMU went away.
    pub async fn event(&mut self) -> Result<Event, Error> {
        loop {
            if !self.pending.is_empty() {
                return Ok(self.pending.remove(0));
            }
            let message = self.message().await?;
            self.pending.extend(event(&message));
        }
    }

    async fn message(&mut self) -> Result<Value, Error> {
        let line = self.lines.next_line().await?.ok_or(Error::Closed)?;
        serde_json::from_str(&line).map_err(|error| Error::Io(error.into()))
    }
}

fn event(message: &Value) -> Option<Event> {
    let name = message.get("event")?.as_str()?;
    let data = |key: &str| message.get("data").and_then(|data| data.get(key));
    Some(match name {
        "SHUTDOWN" => Event::Shutdown {
            by_guest: data("guest").and_then(Value::as_bool).unwrap_or(false),
            reason: data("reason").and_then(Value::as_str).unwrap_or_default().to_owned(),
        },
        "RESET" => Event::Reset,
        "STOP" => Event::Stopped,
        other => Event::Other(other.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_before_an_answer_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let qemu = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (read, mut write) = stream.into_split();
            let mut lines = BufReader::new(read).lines();
            write.write_all(b"{\"QMP\": {}}\r\n").await.unwrap();
            lines.next_line().await.unwrap();
            write.write_all(b"{\"return\": {}}\r\n").await.unwrap();
            lines.next_line().await.unwrap();
            write
                .write_all(b"{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": \"guest-shutdown\"}}\n{\"return\": {\"status\": \"shutdown\"}}\n")
                .await
                .unwrap();
            lines.next_line().await.unwrap();
            write.write_all(b"{\"error\": {\"desc\": \"not now\"}}\n").await.unwrap();
        });
        let mut qmp = Qmp::connect(&path).await.unwrap();
        assert_eq!(qmp.state().await.unwrap(), "shutdown");
        assert_eq!(qmp.event().await.unwrap(), Event::Shutdown { by_guest: true, reason: "guest-shutdown".into() });
        assert_eq!(qmp.execute("cont").await.unwrap_err().to_string(), "QEMU refused cont: not now");
        assert!(matches!(qmp.event().await, Err(Error::Closed)));
        qemu.await.unwrap();
    }
}
