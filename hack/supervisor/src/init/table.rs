//! Every process that was started, by name; starting, signalling and reaping them.
//!
//! One lock covers fork, kill and wait: a process cannot be reaped between the look at its id and the signal to it, nor
//! before its record exists.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitOptions, WaitStatus, kill_process, kill_process_group, wait};
use tokio::sync::watch;

use crate::wire::Refusal;
use crate::{Signal, Spec, State, Status, TMP};

/// Set in the environment of each process and so of all it forks, whatever session or parent they choose.
const MARK: &str = "BANLIEUE_COMPONENT";
/// Passed on from the supervisor's own environment.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// A refusal with its sentence.
#[derive(Debug)]
pub(super) struct Refused {
    pub kind: Refusal,
    pub message: String,
}

fn refused<T>(kind: Refusal, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { kind, message: message.into() })
}

struct Process {
    pid: Pid,
    log: PathBuf,
    state: watch::Sender<State>,
}

/// The processes of one cluster.
pub(super) struct Table {
    dir: PathBuf,
    processes: Mutex<BTreeMap<String, Process>>,
}

impl Table {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), processes: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn spawn(&self, spec: &Spec) -> Result<i32, Refused> {
        check(spec)?;
        let mut processes = self.lock();
        if processes.get(&spec.name).is_some_and(|it| it.state.borrow().is_running()) {
            return refused(Refusal::NameTaken, format!("a process called {} is running", spec.name));
        }
        let pid = self.start(spec).map_err(|error| Refused {
            kind: Refusal::Failed,
            message: format!("cannot start {}: {error}", spec.name),
        })?;
        tracing::info!(name = spec.name, pid = pid.as_raw_pid(), program = spec.argv.first(), "started");
        let state = watch::Sender::new(State::Running);
        processes.insert(spec.name.clone(), Process { pid, log: spec.log.clone(), state });
        Ok(pid.as_raw_pid())
    }

    fn start(&self, spec: &Spec) -> io::Result<Pid> {
        if let Some(folder) = spec.log.parent() {
            fs::create_dir_all(folder)?;
        }
        let log = OpenOptions::new().create(true).append(true).open(&spec.log)?;
        // The shim reads what to become from its standard input, and opens an empty one for the program.
        let mut command = Command::new("/proc/self/exe");
        command.arg("exec").stdin(Stdio::from(unlinked(&self.dir, &serde_json::to_vec(spec)?)?));
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        command.env_clear().process_group(0).current_dir(spec.cwd.as_deref().unwrap_or(&self.dir));
        for name in INHERITED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        // What a killed process leaves in its temporary folder goes with the cluster, and numbers of processes, which
        // some programs make names of, are unique only inside it.
        command.env("TMPDIR", self.dir.join(TMP));
        command.envs(&spec.env).env(MARK, &spec.name);
        // Not waited for here: `reap` collects every child of this process.
        Ok(Pid::from_child(&command.spawn()?))
    }

    pub fn signal(&self, name: &str, signal: Signal) -> Result<(), Refused> {
        let processes = self.lock();
        let process = find(&processes, name)?;
        let state = *process.state.borrow();
        if !state.is_running() {
            return refused(Refusal::NotRunning, format!("{name} is not running: it {state}"));
        }
        // Freezing or killing concerns all that belongs to it; anything else is for its main process to act on.
        let result = match signal {
            Signal::Kill | Signal::Stop | Signal::Cont => kill_process_group(process.pid, signal.raw()),
            _ => kill_process(process.pid, signal.raw()),
        };
        match result {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => refused(Refusal::Failed, format!("cannot signal {name}: {error}")),
        }
    }

    /// Waits until a process has ended.
    pub async fn ended(&self, name: &str) -> Result<Status, Refused> {
        let mut state = find(&self.lock(), name)?.state.subscribe();
        // The sender lives in the table; it can only be dropped for a process that has ended.
        let _ = state.wait_for(|it| !it.is_running()).await;
        let state = *state.borrow();
        Ok(Status { state, ..self.status(name)? })
    }

    pub fn status(&self, name: &str) -> Result<Status, Refused> {
        Ok(status(name, find(&self.lock(), name)?))
    }

    pub fn list(&self) -> Vec<Status> {
        self.lock().iter().map(|(name, process)| status(name, process)).collect()
    }

    pub fn forget(&self, name: &str) -> Result<(), Refused> {
        let mut processes = self.lock();
        if find(&processes, name)?.state.borrow().is_running() {
            return refused(Refusal::Invalid, format!("{name} is running: stop it first"));
        }
        processes.remove(name);
        Ok(())
    }

    /// Leaves a word for the keeper, which looks when init or the lifeline has ended.
    pub fn tell_keeper(&self, word: &str) -> Result<(), Refused> {
        let path = self.dir.join(word);
        fs::write(&path, "")
            .or_else(|error| refused(Refusal::Failed, format!("cannot write {}: {error}", path.display())))
    }

    /// Collects every child that has ended: those we started, and orphans that the namespace gave us.
    pub fn reap(&self) {
        let processes = self.lock();
        loop {
            let (pid, ended) = match wait(WaitOptions::NOHANG) {
                Ok(Some(it)) => it,
                Err(rustix::io::Errno::INTR) => continue,
                Ok(None) | Err(_) => return,
            };
            let Some(state) = ending(ended) else { continue };
            let is_it = |process: &Process| process.pid == pid && process.state.borrow().is_running();
            let Some((name, process)) = processes.iter().find(|(_, it)| is_it(it)) else {
                continue;
            };
            tracing::info!(name, pid = pid.as_raw_pid(), "{state}");
            // A process ends as a container does: whole.
            let _ = kill_process_group(pid, rustix::process::Signal::KILL);
            kill_marked(name);
            process.state.send_replace(state);
        }
    }
}

fn find<'a>(processes: &'a BTreeMap<String, Process>, name: &str) -> Result<&'a Process, Refused> {
    processes
        .get(name)
        .ok_or_else(|| Refused { kind: Refusal::NotFound, message: format!("no process called {name} is known") })
}

fn status(name: &str, process: &Process) -> Status {
    let state = *process.state.borrow();
    Status { name: name.to_owned(), pid: process.pid.as_raw_pid(), state, log: process.log.clone() }
}

fn ending(status: WaitStatus) -> Option<State> {
    let exited = status.exit_status().map(|code| State::Exited { code });
    exited.or_else(|| status.terminating_signal().map(|signal| State::Killed { signal }))
}

/// Kills whatever carries the mark of `name`, until a look finds nothing: a process may fork between look and kill.
fn kill_marked(name: &str) {
    let mark = format!("{MARK}={name}");
    for _ in 0..100 {
        let found = marked(mark.as_bytes());
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill_process(pid, rustix::process::Signal::KILL);
        }
        std::thread::yield_now();
    }
    tracing::warn!(name, "processes that it forked keep coming back");
}

/// Living processes with that variable in the environment they were started with. Zombies have none to read.
fn marked(mark: &[u8]) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark)
    })
    .filter_map(Pid::from_raw)
    .collect()
}

/// Refuses early, with a sentence, what would otherwise fail in the shim with only a line in a log.
fn check(spec: &Spec) -> Result<(), Refused> {
    let name = &spec.name;
    let wrong = |message: String| refused(Refusal::Invalid, message);
    if name.is_empty() || name.chars().any(|it| it.is_control() || it == '/') {
        return wrong(format!("{name:?} is no name for a process"));
    }
    let Some(program) = spec.argv.first() else {
        return wrong(format!("{name} has no program"));
    };
    if !runnable(program, spec) {
        return wrong(format!("{name}: there is no program {program}"));
    }
    if !spec.log.is_absolute() {
        return wrong(format!("{name}: the log's path {} is not absolute", spec.log.display()));
    }
    if let Some(cwd) = spec.cwd.as_ref().filter(|it| !it.is_dir()) {
        return wrong(format!("{name}: there is no directory {}", cwd.display()));
    }
    for bind in &spec.binds {
        for path in [&bind.source, &bind.target] {
            if !path.exists() {
                return wrong(format!("{name}: cannot mount {}, it does not exist", path.display()));
            }
        }
    }
    Ok(())
}

fn runnable(program: &str, spec: &Spec) -> bool {
    let executable =
        |path: &Path| fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    if program.contains('/') {
        return executable(&spec.cwd.as_deref().unwrap_or(Path::new("/")).join(program));
    }
    let path = spec.env.get("PATH").map(Into::into).or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    std::env::split_paths(&path).any(|folder| executable(&folder.join(program)))
}

/// A file with this content and no name, ready to be read from its start.
fn unlinked(dir: &Path, content: &[u8]) -> io::Result<File> {
    let path = dir.join("exec.json");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    file.write_all(content)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
