//! Starting a supervisor, and holding its lifeline.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{Client, Error, LOG};

/// How to start a supervisor.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The `banlieue-supervisor` binary.
    pub program: PathBuf,
    /// The cluster's directory: absolute, short (at most 60 bytes), absent or empty. Removed at the end.
    pub dir: PathBuf,
    /// True: everything ends when the [`Supervisor`] is dropped or this process ends, however it ends. False: it
    /// outlives both, until [`Client::shutdown`].
    pub lifeline: bool,
    /// Leaves `*.log` files when the rest of the directory is removed.
    pub keep_logs: bool,
}

impl Launch {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Launch`] with the supervisor's own words when it ends instead.
    pub async fn start(self) -> Result<Supervisor, Error> {
        let failed = |what: String| move |error: std::io::Error| Error::Launch(format!("{what}: {error}"));
        fs::create_dir_all(&self.dir).map_err(failed(self.dir.display().to_string()))?;
        let path = self.dir.join(LOG);
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(failed(path.display().to_string()))?;
        let mut command = Command::new(&self.program);
        command.arg("run").arg("--dir").arg(&self.dir).stdout(Stdio::null()).stderr(log);
        if self.lifeline {
            command.stdin(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).arg("--no-lifeline");
        }
        if self.keep_logs {
            command.arg("--keep-logs");
        }
        let mut keeper = command.spawn().map_err(failed(self.program.display().to_string()))?;
        loop {
            match Client::connect(&self.dir).await {
                Ok(client) => return Ok(Supervisor { client, keeper, owned: self.lifeline }),
                Err(_) => {
                    if let Ok(Some(status)) = keeper.try_wait() {
                        let said = fs::read_to_string(&path).unwrap_or_default();
                        return Err(Error::Launch(format!("it ended with {status}: {}", said.trim())));
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }
}

/// A running supervisor. When it was launched with a lifeline, dropping this ends everything it owns and returns when
/// that is done.
#[derive(Debug)]
pub struct Supervisor {
    client: Client,
    keeper: Child,
    owned: bool,
}

impl Supervisor {
    /// The way to talk to it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Lets everything outlive this process. Afterwards only [`Client::shutdown`] ends it.
    ///
    /// # Errors
    /// When it could not be told; then it ends now.
    pub async fn detach(mut self) -> Result<Client, Error> {
        self.client.detach().await?;
        self.owned = false;
        Ok(self.client.clone())
    }

    /// The keeper's process id, as seen from here.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.keeper.id()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.owned {
            drop(self.keeper.stdin.take());
            let _ = self.keeper.wait();
        }
    }
}
