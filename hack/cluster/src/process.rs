//! Starting components through the supervisor and waiting until they are ready.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use banlieue_supervisor::{Client, Signal, Spec};

use crate::error::{Error, Result};
use crate::ports::Ports;
use crate::progress::Progress;

/// Longest time a component may take. Generous: a full machine is no error.
const PATIENCE: Duration = Duration::from_secs(240);
/// How often readiness is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Extra arguments and environment for one component.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

/// Starts and restarts the processes of one cluster.
pub(crate) struct Processes {
    pub dir: PathBuf,
    pub supervisor: Client,
    pub ports: Ports,
    pub extra: BTreeMap<String, Extra>,
    pub progress: Box<dyn Fn(&Progress) + Send + Sync>,
    started: Mutex<BTreeMap<String, Spec>>,
}

impl Processes {
    pub fn new(
        dir: PathBuf,
        supervisor: Client,
        extra: BTreeMap<String, Extra>,
        progress: Box<dyn Fn(&Progress) + Send + Sync>,
    ) -> Self {
        Self { dir, supervisor, ports: Ports::new(), extra, progress, started: Mutex::default() }
    }

    /// A component's log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }

    /// What to run as `name`, with what the caller of the builder wants added.
    pub fn spec<S: Into<String>>(&self, name: &str, program: &Path, args: impl IntoIterator<Item = S>) -> Spec {
        let mut argv = vec![program.display().to_string()];
        argv.extend(args.into_iter().map(Into::into));
        let extra = self.extra.get(name).cloned().unwrap_or_default();
        argv.extend(extra.args);
        Spec { name: name.to_owned(), argv, env: extra.env, log: self.log(name), ..Spec::default() }
    }

    /// Starts a component and waits until `ready` says so.
    pub async fn start(&self, spec: Spec, ready: impl AsyncFn() -> bool) -> Result<()> {
        let name = spec.name.clone();
        self.step(&name, async || {
            self.supervisor.spawn(spec.clone()).await?;
            self.started.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), spec.clone());
            self.until_ready(&name, &ready).await
        })
        .await
    }

    /// Starts a component that listens on one port, and returns the port. `spec` and `ready` are asked again with
    /// another one when a stranger took it first.
    pub async fn start_on_port(
        &self,
        spec: impl Fn(u16) -> Result<Spec>,
        ready: impl AsyncFn(u16) -> bool,
    ) -> Result<u16> {
        let mut attempts = 0;
        loop {
            let port = self.ports.take()?;
            match self.start(spec(port)?, async || ready(port).await).await {
                Ok(()) => return Ok(port),
                Err(Error::Component { tail, .. }) if attempts < 3 && tail.contains("address already in use") => {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a process is one of the cluster's own.
    pub fn is_component(&self, name: &str) -> bool {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// The value that a component was given for one of its flags.
    pub fn flag(&self, name: &str, flag: &str) -> Option<String> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let argv = &started.get(name)?.argv;
        let at = argv.iter().position(|it| it == flag)?;
        argv.get(at + 1).cloned()
    }

    /// Reports a step's beginning and, when it went well, its end.
    pub async fn step<T>(&self, name: &str, act: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        (self.progress)(&Progress::Starting { component: name.to_owned() });
        let result = act().await?;
        (self.progress)(&Progress::Ready { component: name.to_owned(), took: begun.elapsed() });
        Ok(result)
    }

    /// Waits until a running component is ready, or fails as soon as it ends.
    async fn until_ready(&self, name: &str, ready: &impl AsyncFn() -> bool) -> Result<()> {
        let log = self.log(name);
        let looking = async {
            while !ready().await {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            biased;
            ended = self.supervisor.wait(name) => Err(Error::component(name, format!("{} before it was ready", ended?.state), &log)),
            () = looking => Ok(()),
            () = tokio::time::sleep(PATIENCE) => {
                Err(Error::component(name, format!("was not ready after {} s", PATIENCE.as_secs()), &log))
            }
        }
    }

    /// Runs a program to its end inside the cluster and returns what it printed.
    pub async fn run<S: Into<String>>(
        &self,
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        let spec = self.spec(name, program, args);
        let log = spec.log.clone();
        let _ = std::fs::remove_file(&log);
        self.supervisor.spawn(spec).await?;
        let status = self.supervisor.wait(name).await?;
        if status.state != (banlieue_supervisor::State::Exited { code: 0 }) {
            return Err(Error::component(name, status.state.to_string(), &log));
        }
        self.supervisor.forget(name).await?;
        std::fs::read_to_string(&log).map_err(|source| Error::File { path: log, source })
    }

    /// Sends a signal to a component; SIGKILL returns when it is gone.
    pub async fn kill(&self, name: &str, signal: Signal) -> Result<()> {
        if signal == Signal::Kill {
            self.supervisor.stop(name, signal, PATIENCE).await?;
        } else {
            self.supervisor.signal(name, signal).await?;
        }
        Ok(())
    }

    /// Ends a component if it runs, and starts it again as it was.
    pub async fn restart(&self, name: &str) -> Result<()> {
        let spec = self.started.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let Some(spec) = spec else {
            return Err(Error::Missing(format!("no component called {name} was started in this cluster")));
        };
        self.supervisor.stop(name, Signal::Term, Duration::from_secs(10)).await?;
        self.supervisor.spawn(spec).await?;
        Ok(())
    }
}

/// Polls until `done`, or fails with a sentence that says what was waited for.
pub(crate) async fn until(what: &str, done: impl AsyncFn() -> bool) -> Result<()> {
    let looking = async {
        while !done().await {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.map_err(|_| Error::Waited(what.to_owned()))
}
