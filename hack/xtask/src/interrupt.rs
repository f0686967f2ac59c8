//! Ctrl-C: says at once that the run ends, ends what was started here, and leaves when nothing of it is left.
//!
//! A cluster is in a session of its own, so the signal does not reach it: it ends with its lifeline, when the one who
//! holds that drops it or ends. This process adopts the orphans of its children, so the keeper of a cluster whose test
//! program is gone is waited for like any other child.

use std::process::ExitCode;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit code once it was asked for: 128 and the signal's number, as shells count.
static ASKED: LazyLock<watch::Sender<Option<u8>>> = LazyLock::new(|| watch::Sender::new(None));

/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for what was started here. Keepers need a second at most.
const LIMIT: Duration = Duration::from_secs(30);
/// After this a child that was asked to end is killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// The keeper of a cluster, as the kernel shortens its name. It ends by itself, and cleans up before it does.
const KEEPER: &str = "banlieue-superv";

/// From now on SIGINT and SIGTERM end the run instead of this process.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn listen() -> anyhow::Result<()> {
    set_child_subreaper(Some(getpid())).context("adopting the orphans of children")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("listening for Ctrl-C")?;
    let _inside = runtime.enter();
    let mut int = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let mut term = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    std::thread::spawn(move || {
        let code = runtime.block_on(async {
            tokio::select! { _ = int.recv() => 130, _ = term.recv() => 143 }
        });
        ASKED.send_replace(Some(code));
        eprintln!(
            "\ninterrupted: ending what was started here, clusters included; once more leaves it to end by itself"
        );
        std::thread::spawn(move || end_children(code));
        runtime.block_on(async {
            tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
        });
        std::process::exit(code.into());
    });
    Ok(())
}

/// Whether the run is to end.
pub fn asked() -> bool {
    ASKED.borrow().is_some()
}

/// What `work` makes of it, unless the run is to end first: then `work` is dropped, and with it the cluster it holds.
///
/// # Errors
/// Those of `work`, and that the run is to end.
pub async fn or<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut asked = ASKED.subscribe();
    tokio::select! {
        done = work => done,
        _ = asked.wait_for(Option::is_some) => bail!("interrupted"),
    }
}

/// The exit code of an interrupted run, once nothing that was started here is left; none for any other run.
pub fn finish() -> Option<ExitCode> {
    let code = (*ASKED.borrow())?;
    let begun = Instant::now();
    loop {
        // An error says that there are no children any more.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let left = children();
        if left.is_empty() {
            eprintln!("ended; nothing is left running");
            return Some(ExitCode::from(code));
        }
        if begun.elapsed() > LIMIT {
            let left: Vec<String> = left.iter().map(|(pid, name)| format!("{name} ({pid})")).collect();
            eprintln!("after {} s these still run: {}", LIMIT.as_secs(), left.join(", "));
            return Some(ExitCode::from(code));
        }
        sleep(LOOK);
    }
}

/// Asks children to end, and orphans as they come, for a signal may have been meant for this process alone. Whoever waits
/// for a child then goes on; should nobody come to [`finish`], since it waits for something else, there is an end too.
fn end_children(code: u8) {
    let begun = Instant::now();
    let mut alone = Instant::now();
    loop {
        let left = children();
        let signal = if begun.elapsed() > PATIENCE { Signal::KILL } else { Signal::TERM };
        for (pid, name) in &left {
            // One that is gone in the meantime is what we want.
            let _ = if name == KEEPER { Ok(()) } else { kill_process(*pid, signal) };
        }
        if !left.is_empty() {
            alone = Instant::now();
        } else if alone.elapsed() > PATIENCE {
            std::process::exit(code.into());
        }
        sleep(LOOK);
    }
}

/// Living children of this process, with their names.
fn children() -> Vec<(Pid, String)> {
    let mine = getpid().as_raw_nonzero().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| child_of(&mine, &std::fs::read_to_string(entry.path().join("stat")).ok()?)).collect()
}

/// `/proc/PID/stat`: "PID (name) state parent …", where the name may hold anything.
fn child_of(parent: &str, stat: &str) -> Option<(Pid, String)> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let (state, of) = (fields.next()?, fields.next()?);
    let living = of == parent && !matches!(state, "Z" | "X");
    living.then_some((Pid::from_raw(pid.parse().ok()?)?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_read_from_what_the_kernel_says() {
        let child = |stat| child_of("7", stat).map(|(pid, name)| (pid.as_raw_nonzero().get(), name));
        assert_eq!(child("12 (cargo) S 7 7 0 0"), Some((12, "cargo".into())));
        assert_eq!(child("12 (a) S 1 (b) R 7 7 0 0"), Some((12, "a) S 1 (b".into())));
        assert_eq!(child("12 (cargo) Z 7 7 0 0"), None);
        assert_eq!(child("12 (cargo) S 77 7 0 0"), None);
        let mut real = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&real);
        assert!(children().iter().any(|(child, name)| *child == pid && name.starts_with("sleep")));
        real.kill().unwrap();
        real.wait().unwrap();
        assert!(!children().iter().any(|(child, _)| *child == pid));
    }
}
