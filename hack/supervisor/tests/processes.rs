//! What a process is started with, and what is said about it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::path::PathBuf;
use std::time::Duration;

use banlieue_supervisor::{Bind, Launch, Signal, Spec, State, Supervisor};

struct Place {
    supervisor: Supervisor,
    dir: PathBuf,
    // After the supervisor: dropped in this order.
    _parent: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        let parent = tempfile::Builder::new().prefix("sv-").tempdir_in("/tmp").unwrap();
        let dir = parent.path().join("c");
        let program = env!("CARGO_BIN_EXE_banlieue-supervisor").into();
        let launch = Launch { program, dir: dir.clone(), lifeline: true, keep_logs: false };
        Self { supervisor: launch.start().await.unwrap(), dir, _parent: parent }
    }

    fn shell(&self, name: &str, script: &str) -> Spec {
        Spec {
            name: name.into(),
            argv: ["sh", "-c", script].map(Into::into).into(),
            log: self.dir.join(format!("{name}.log")),
            ..Spec::default()
        }
    }

    async fn output(&self, spec: Spec) -> String {
        let (name, log) = (spec.name.clone(), spec.log.clone());
        self.supervisor.client().spawn(spec).await.unwrap();
        let status = self.supervisor.client().wait(&name).await.unwrap();
        let text = std::fs::read_to_string(log).unwrap();
        assert_eq!(status.state, State::Exited { code: 0 }, "{text}");
        text
    }
}

#[tokio::test]
async fn the_environment_is_explicit() {
    let place = Place::new().await;
    let mut spec = place.shell("a", "env");
    spec.env.insert("GIVEN".into(), "1".into());
    let output = place.output(spec).await;
    assert!(output.contains(&format!("TMPDIR={}/tmp", place.dir.display())), "{output}");
    let mut names: Vec<_> = output.lines().filter_map(|line| line.split('=').next()).collect();
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_", "HOME"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["BANLIEUE_COMPONENT", "GIVEN", "PATH", "TMPDIR"]);
}

#[tokio::test]
async fn processes_see_each_other_under_the_ids_that_are_reported() {
    let place = Place::new().await;
    let client = place.supervisor.client();
    let pid = client.spawn(place.shell("a", "exec sleep 3600")).await.unwrap();
    let seen =
        place.output(place.shell("b", &format!("cat /proc/{pid}/environ | tr '\\0' '\\n'; cat /proc/1/comm"))).await;
    assert!(seen.contains("BANLIEUE_COMPONENT=a"), "{seen}");
    assert!(seen.ends_with("banlieue-superv\n") || seen.ends_with("exe\n"), "{seen}");
}

#[tokio::test]
async fn binds_are_private_to_the_process() {
    let place = Place::new().await;
    for folder in ["real", "shown"] {
        std::fs::create_dir(place.dir.join(folder)).unwrap();
    }
    std::fs::write(place.dir.join("real/file"), "inside").unwrap();
    let bind = |read_only| Bind { source: place.dir.join("real"), target: place.dir.join("shown"), read_only };
    let script = "cat shown/file; touch shown/new 2>/dev/null && echo ' written' || echo ' refused'";
    let writable = Spec { binds: vec![bind(false)], ..place.shell("a", script) };
    assert_eq!(place.output(writable).await, "inside written\n");
    let read_only = Spec { binds: vec![bind(true)], ..place.shell("b", script) };
    assert_eq!(place.output(read_only).await, "inside refused\n");
    assert_eq!(place.output(place.shell("c", "ls shown")).await, "");
}

#[tokio::test]
async fn a_user_may_be_given() {
    let place = Place::new().await;
    let spec = Spec { uid: Some(1234), ..place.shell("a", "id -u; id -g; id -G") };
    assert_eq!(place.output(spec).await, "1234\n1234\n1234\n");
}

#[tokio::test]
async fn names_are_unique_among_the_running() {
    let place = Place::new().await;
    let client = place.supervisor.client();
    client.spawn(place.shell("a", "exec sleep 3600")).await.unwrap();
    let error = client.spawn(place.shell("a", "exec sleep 3600")).await.unwrap_err();
    assert!(error.is_name_taken(), "{error}");
    client.stop("a", Signal::Kill, Duration::ZERO).await.unwrap();
    client.spawn(place.shell("a", "exit 3")).await.unwrap();
    assert_eq!(client.wait("a").await.unwrap().state, State::Exited { code: 3 });
    client.forget("a").await.unwrap();
    assert!(client.status("a").await.unwrap_err().is_not_found());
    assert_eq!(client.list().await.unwrap(), []);
}

#[tokio::test]
async fn what_ignores_a_signal_is_killed_after_its_grace() {
    let place = Place::new().await;
    let client = place.supervisor.client();
    client.spawn(place.shell("a", "trap '' TERM; echo ready; while :; do sleep 1; done")).await.unwrap();
    while !std::fs::read_to_string(place.dir.join("a.log")).unwrap().contains("ready") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let status = client.stop("a", Signal::Term, Duration::from_millis(50)).await.unwrap();
    assert_eq!(status.state, State::Killed { signal: 9 });
}

#[tokio::test]
async fn what_cannot_start_is_refused_with_a_sentence() {
    let place = Place::new().await;
    let client = place.supervisor.client();
    let missing = Spec { argv: vec!["/no/such/program".into()], ..place.shell("a", "") };
    assert_eq!(client.spawn(missing).await.unwrap_err().to_string(), "a: there is no program /no/such/program");
    let nothing = Spec { argv: vec![], ..place.shell("a", "") };
    assert_eq!(client.spawn(nothing).await.unwrap_err().to_string(), "a has no program");
    let error = client.signal("a", Signal::Term).await.unwrap_err();
    assert_eq!(error.to_string(), "no process called a is known");
}

#[tokio::test]
async fn many_at_once() {
    let place = Place::new().await;
    let client = place.supervisor.client();
    let one = async |index: usize| {
        let name = format!("p{index}");
        client.spawn(place.shell(&name, &format!("exit {}", index % 100))).await.unwrap();
        client.wait(&name).await.unwrap().state
    };
    let ended = futures_of(100, one).await;
    for (index, state) in ended.into_iter().enumerate() {
        assert_eq!(state, State::Exited { code: i32::try_from(index % 100).unwrap() });
    }
}

async fn futures_of<T>(count: usize, one: impl AsyncFn(usize) -> T) -> Vec<T> {
    let mut running: Vec<_> = (0..count).map(|index| Some(Box::pin(one(index)))).collect();
    let mut ended: Vec<Option<T>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (task, result) in running.iter_mut().zip(&mut ended) {
            if let Some(future) = task
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
                *task = None;
            }
        }
        if running.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}
