//! Nothing survives: every way a supervisor can end, with processes that do their best to stay.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use banlieue_supervisor::{Client, Launch, Signal, Spec, State, Supervisor};

const PROGRAM: &str = env!("CARGO_BIN_EXE_banlieue-supervisor");

/// A directory for one cluster, and a number that no other process has among its arguments.
struct Place {
    dir: PathBuf,
    tag: String,
    _parent: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let parent = tempfile::Builder::new().prefix("sv-").tempdir_in("/tmp").unwrap();
        let unique: u32 =
            parent.path().to_str().unwrap().bytes().fold(7, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        let tag = format!("3600.{:010}{}", unique, std::process::id());
        Self { dir: parent.path().join("c"), tag, _parent: parent }
    }

    async fn launch(&self) -> Supervisor {
        let launch = Launch { program: PROGRAM.into(), dir: self.dir.clone(), lifeline: true, keep_logs: false };
        launch.start().await.unwrap()
    }

    /// A process with a child, a daemonized grandchild without our mark in its environment, and one that ignores
    /// signals.
    fn stubborn(&self, name: &str) -> Spec {
        let tag = &self.tag;
        let script = format!(
            "trap '' TERM INT HUP\nsleep {tag} &\nsetsid sh -c 'setsid sleep {tag} & env -i setsid /bin/sleep {tag} &' \nwhile :; do sleep {tag}; done"
        );
        Spec {
            name: name.into(),
            argv: ["sh", "-c", &script].map(Into::into).into(),
            log: self.dir.join("stubborn.log"),
            ..Spec::default()
        }
    }

    /// Processes of this place, as seen by the whole machine.
    fn living(&self) -> Vec<String> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter(|it| it.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()));
        pids.filter_map(|entry| {
            let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
            let text = String::from_utf8_lossy(&arguments).replace('\0', " ");
            (text.contains(&self.tag) || text.contains(self.dir.to_str()?)).then_some(text)
        })
        .collect()
    }

    async fn wait_for_sleepers(&self, count: usize) {
        let sleepers = || self.living().iter().filter(|it| it.contains("sleep 3600") && !it.contains("-c")).count();
        until(&format!("{count} sleepers"), || sleepers() >= count).await;
    }

    async fn expect_nothing(&self) {
        until("nothing left", || self.living().is_empty() && !self.dir.exists()).await;
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "never saw: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_end_of_the_lifeline_ends_everything() {
    let place = Place::new();
    let supervisor = place.launch().await;
    supervisor.client().spawn(place.stubborn("a")).await.unwrap();
    place.wait_for_sleepers(4).await;
    drop(supervisor);
    // Already when drop returns, not eventually.
    assert_eq!(place.living(), Vec::<String>::new());
    assert!(!place.dir.exists());
}

#[tokio::test]
async fn mounts_are_let_go_and_what_was_mounted_stays() {
    let place = Place::new();
    let foreign = place.dir.with_extension("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("kept"), "somebody else's").unwrap();
    let supervisor = place.launch().await;
    let script = "mkdir a b && mount --bind \"$0\" a && mount --bind \"$0\" a && mount -t tmpfs tmpfs b && touch b/c d && \
                  mount --bind \"$0/kept\" d";
    let spec = Spec {
        name: "mounts".into(),
        argv: ["sh", "-c", script, foreign.to_str().unwrap()].map(Into::into).into(),
        log: place.dir.join("mounts.log"),
        ..Spec::default()
    };
    supervisor.client().spawn(spec).await.unwrap();
    let ended = supervisor.client().wait("mounts").await.unwrap();
    assert_eq!(ended.state, State::Exited { code: 0 }, "{:?}", std::fs::read_to_string(place.dir.join("mounts.log")));
    drop(supervisor);
    assert!(!place.dir.exists());
    assert!(foreign.join("kept").exists());
}

#[tokio::test]
async fn killing_the_starter_ends_everything() {
    let place = Place::new();
    let fifo = place.dir.with_extension("fifo");
    let script = r#"mkfifo "$2"; "$1" run --dir "$3" <"$2" & exec 3>"$2"; exec sleep 3600"#;
    let mut starter = Command::new("sh")
        .args(["-c", script, "starter", PROGRAM, fifo.to_str().unwrap(), place.dir.to_str().unwrap()])
        .process_group(0)
        .spawn()
        .unwrap();
    until("the control socket", || place.dir.join("supervisor.sock").exists()).await;
    let client = Client::connect(&place.dir).await.unwrap();
    client.spawn(place.stubborn("a")).await.unwrap();
    place.wait_for_sleepers(4).await;
    starter.kill().unwrap();
    starter.wait().unwrap();
    place.expect_nothing().await;
}

#[tokio::test]
async fn killing_the_keeper_ends_every_process() {
    let place = Place::new();
    let supervisor = place.launch().await;
    supervisor.client().spawn(place.stubborn("a")).await.unwrap();
    place.wait_for_sleepers(4).await;
    let pid = rustix::process::Pid::from_raw(supervisor.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("no process", || place.living().is_empty()).await;
    // Nobody was left to remove it.
    assert!(place.dir.exists());
}

#[tokio::test]
async fn killing_init_ends_everything() {
    let place = Place::new();
    let supervisor = place.launch().await;
    supervisor.client().spawn(place.stubborn("a")).await.unwrap();
    place.wait_for_sleepers(4).await;
    let keeper = supervisor.pid();
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let init = rustix::process::Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    place.expect_nothing().await;
}

#[tokio::test]
async fn a_request_ends_one_without_a_lifeline() {
    let place = Place::new();
    let launch = Launch { program: PROGRAM.into(), dir: place.dir.clone(), lifeline: false, keep_logs: false };
    let supervisor = launch.start().await.unwrap();
    let client = supervisor.client().clone();
    drop(supervisor);
    client.spawn(place.stubborn("a")).await.unwrap();
    place.wait_for_sleepers(4).await;
    client.shutdown().await.unwrap();
    place.expect_nothing().await;
}

#[tokio::test]
async fn a_detached_one_outlives_its_lifeline_until_it_is_told_to_end() {
    let place = Place::new();
    let supervisor = place.launch().await;
    let pid = supervisor.pid();
    supervisor.client().spawn(place.stubborn("a")).await.unwrap();
    let client = supervisor.detach().await.unwrap();
    // The keeper has seen the end of its lifeline when it waits for init alone.
    until("the keeper to let go", || {
        std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|it| it.split(' ').nth(2) == Some("0x1"))
    })
    .await;
    assert_eq!(client.status("a").await.unwrap().state, State::Running);
    client.shutdown().await.unwrap();
    place.expect_nothing().await;
}

#[tokio::test]
async fn a_stopped_process_takes_its_detached_children_along_and_no_others() {
    let place = Place::new();
    let supervisor = place.launch().await;
    let client = supervisor.client();
    client.spawn(Spec { argv: place.sleeper(), ..place.stubborn("other") }).await.unwrap();
    let script = format!("setsid sh -c 'setsid sleep {} &'; exec sleep 3600", place.tag);
    let argv = ["sh", "-c", &script].map(Into::into).into();
    client.spawn(Spec { argv, ..place.stubborn("a") }).await.unwrap();
    place.wait_for_sleepers(2).await;
    let status = client.stop("a", Signal::Term, Duration::from_secs(60)).await.unwrap();
    assert_eq!(status.state, State::Killed { signal: 15 });
    let left = place.living().iter().filter(|it| it.starts_with("sleep 3600.")).count();
    assert_eq!(left, 1, "only the other process may be left: {:?}", place.living());
    assert_eq!(client.status("other").await.unwrap().state, State::Running);
}

impl Place {
    fn sleeper(&self) -> Vec<String> {
        vec!["sleep".into(), self.tag.clone()]
    }
}

#[tokio::test]
async fn logs_survive_when_asked() {
    let place = Place::new();
    let supervisor = place.launch().await;
    let argv = ["sh", "-c", "echo said; echo data > data.bin; mkdir empty"].map(Into::into).into();
    let log = place.dir.join("log/a.log");
    supervisor.client().spawn(Spec { argv, log: log.clone(), ..place.stubborn("a") }).await.unwrap();
    assert_eq!(supervisor.client().wait("a").await.unwrap().state, State::Exited { code: 0 });
    supervisor.client().keep_logs().await.unwrap();
    drop(supervisor);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "said\n");
    let mut left: Vec<_> = std::fs::read_dir(&place.dir).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["log", "supervisor.log"]);
}

#[tokio::test]
async fn a_directory_with_files_in_it_is_refused_and_untouched() {
    let place = Place::new();
    std::fs::create_dir_all(&place.dir).unwrap();
    std::fs::write(place.dir.join("precious"), "x").unwrap();
    let launch = Launch { program: PROGRAM.into(), dir: place.dir.clone(), lifeline: true, keep_logs: false };
    let error = launch.start().await.unwrap_err();
    assert!(error.to_string().contains("must be empty"), "{error}");
    assert!(Path::new(&place.dir.join("precious")).exists());
}

#[test]
fn someone_who_is_not_root_gets_the_same() {
    if !rustix::process::getuid().is_root() {
        return; // Then every other test of this file shows it.
    }
    let place = Place::new();
    let parent = place.dir.parent().unwrap();
    std::os::unix::fs::chown(parent, Some(65534), Some(65534)).unwrap();
    // Where the build lies may be closed to other users.
    let program = parent.join("supervisor");
    std::fs::copy(PROGRAM, &program).unwrap();
    let mut child = Command::new(&program)
        .args(["run", "--dir", place.dir.to_str().unwrap()])
        .uid(65534)
        .gid(65534)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = place.dir.join("supervisor.sock");
        until("the control socket, or an end", || socket.exists() || child.try_wait().unwrap().is_some()).await;
        let client = Client::connect(&place.dir).await.unwrap();
        client.spawn(place.stubborn("a")).await.unwrap();
        place.wait_for_sleepers(4).await;
        child.stdin.take().unwrap().flush().unwrap();
        place.expect_nothing().await;
    });
    child.wait().unwrap();
}
