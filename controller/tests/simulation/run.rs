//! One run: a scheduler that lets one thing happen at a time, chosen by the seed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};

use banlieue_controller::act::{Clock, Controller, Event as Told, EventSink, Parts, Settings};
use banlieue_controller::api::{ApiError, Kind as ObjectKind, Operation};
use banlieue_controller::decide::Tuning;
use banlieue_controller::metrics::Metrics;
use banlieue_controller::runtime::{Egress, Issuer};
use banlieue_controller::schedule::Lane;
use banlieue_controller::store::{Change, ChangeEvent, ObjectKey};
use banlieue_leader::Leadership;
use banlieue_protocol::names::{Cluster, TrustDomain};
use banlieue_protocol::seed::HostPort;
use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use serde_json::Value;

use crate::chance::Chance;
use crate::changes::{boundary, event, listed, read, scope};
use crate::invariants::Invariants;
use crate::network::{Network, Pending};
use crate::rest;
use crate::server::Server;
use crate::world::{self, Mood};

/// What may go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Calm,
    Faults,
    Trouble,
    TwoLeaders,
}

#[derive(Clone)]
struct VirtualClock(Arc<AtomicI64>);

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.0.load(Ordering::Relaxed)).unwrap()
    }
}

struct Silent;

impl EventSink for Silent {
    fn send(&self, _: Told) {}
}

const WATCHED: [ObjectKind; 7] = [
    ObjectKind::Pool,
    ObjectKind::Member,
    ObjectKind::Claim,
    ObjectKind::Instance,
    ObjectKind::Pod,
    ObjectKind::ConfigMap,
    ObjectKind::NetworkPolicy,
];

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A controller with its watches' places in the logs and the passes that are running.
struct Process {
    controller: Arc<Controller>,
    network: Network,
    cursors: [usize; WATCHED.len()],
    node_cursor: usize,
    tasks: Vec<Task>,
}

pub struct Run {
    seed: u64,
    kind: Kind,
    chance: Chance,
    clock: VirtualClock,
    server: Server,
    invariants: Invariants,
    processes: Vec<Process>,
    /// Writes whose reply was given as lost and that have not arrived yet.
    late: Vec<(banlieue_controller::api::Request, usize, Timestamp)>,
    checked: usize,
    loud: bool,
    step: usize,
}

impl Run {
    pub fn new(seed: u64, kind: Kind) -> Self {
        let start: Timestamp = "2026-11-30T20:00:00Z".parse().unwrap();
        Self {
            seed,
            kind,
            chance: Chance::new(seed),
            clock: VirtualClock(Arc::new(AtomicI64::new(start.as_microsecond()))),
            server: Server::default(),
            invariants: Invariants::default(),
            processes: Vec::new(),
            late: Vec::new(),
            checked: 0,
            loud: std::env::var_os("BANLIEUE_SEED").is_some(),
            step: 0,
        }
    }

    pub fn run(mut self) -> Result<(), String> {
        let now = self.clock.now();
        world::begin(&mut self.server, &self.chance.clone(), now, self.seed.is_multiple_of(2));
        self.start();
        if self.kind == Kind::TwoLeaders {
            self.start();
        }
        self.invariants.costs = self.kind == Kind::Calm;
        let mood = Mood { people: true, trouble: matches!(self.kind, Kind::Trouble | Kind::TwoLeaders) };
        for _ in 0..700 {
            self.one_step(mood)?;
        }
        self.settle()
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.loud {
            println!("[{:5}] {} {}", self.step, self.clock.now(), text());
        }
    }

    fn faults(&self) -> bool {
        self.kind != Kind::Calm
    }

    /// One thing happens.
    fn one_step(&mut self, mood: Mood) -> Result<(), String> {
        self.step += 1;
        let which = self.chance.below(self.processes.len());
        match self.chance.below(100) {
            0..=24 => self.take_work(which),
            25..=54 => self.deliver_call(which),
            55..=79 => self.deliver_event(which),
            80..=91 => {
                let (chance, now) = (self.chance.clone(), self.clock.now());
                world::step(&mut self.server, &chance, now, mood);
            }
            92..=97 => self.advance(world::pause(&self.chance)),
            98 if self.faults() => self.relist(which),
            99 if self.faults() && self.chance.percent(40) => self.crash(which),
            _ => self.arrive_late(),
        }
        self.check()
    }

    fn advance(&mut self, by: SignedDuration) {
        self.clock.0.fetch_add(by.as_micros() as i64, Ordering::Relaxed);
        // No API server works on a request for longer than a minute.
        let oldest = self.clock.now() - SignedDuration::from_secs(60);
        while let Some(n) = self.late.iter().position(|(.., since)| *since < oldest) {
            self.arrive(n);
        }
    }

    /// A worker takes a key.
    fn take_work(&mut self, which: usize) {
        let now = self.clock.now();
        let lanes = [Lane::Bind, Lane::End, Lane::Fill];
        let first = self.chance.below(3);
        let process = &mut self.processes[which];
        if process.tasks.len() >= 6 {
            return;
        }
        for n in 0..3 {
            let key = process.controller.schedule().queue().pop(lanes[(first + n) % 3], now);
            if let Some(key) = key {
                let controller = process.controller.clone();
                if self.loud {
                    println!("[{:5}] {now} {which} works on {key:?}", self.step);
                }
                process.tasks.push(Box::pin(async move { controller.work(key).await }));
                self.poll(which);
                return;
            }
        }
    }

    fn poll(&mut self, which: usize) {
        let mut context = Context::from_waker(Waker::noop());
        self.processes[which].tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    }

    /// One call gets its answer, or what it takes for one.
    fn deliver_call(&mut self, which: usize) {
        let pending: Option<Pending> = {
            let mut calls = self.processes[which].network.0.lock().unwrap();
            if calls.is_empty() {
                None
            } else {
                let n = self.chance.below(calls.len());
                Some(calls.remove(n))
            }
        };
        let Some(pending) = pending else { return };
        let request = pending.request.clone();
        let what = format!("{} {}/{}", request.operation.verb(), request.kind.plural(), request.name);
        let lost = || ApiError::Unknown { what: what.clone(), message: "connection reset".into() };
        let fate = if self.faults() { self.chance.below(100) } else { 99 };
        let answer = match fate {
            // Nothing happened, and one knows it.
            0..=2 => Err(ApiError::Busy { what: what.clone(), message: "try later".into() }),
            // Nothing happened, and one does not know.
            3..=4 => Err(lost()),
            // It happened, and one does not know.
            5..=8 => {
                let _ = self.do_call(&request);
                Err(lost())
            }
            // It will happen, and one does not know.
            9..=10 if request.operation.is_write() => {
                let now = self.clock.now();
                self.late.push((request.clone(), which, now));
                Err(lost())
            }
            _ => self.do_call(&request),
        };
        self.say(|| format!("{which} {what} -> {}", answer.as_ref().err().map_or("ok".into(), ToString::to_string)));
        pending.answer(answer.map(|value| value.to_string()));
        self.poll(which);
    }

    fn do_call(&mut self, request: &banlieue_controller::api::Request) -> Result<Value, ApiError> {
        let now = self.clock.now();
        let before = self.server.done.len();
        let answer = self.server.call(request, now);
        for done in &mut self.server.done[before..] {
            done.by_us = true;
        }
        answer
    }

    /// A write whose reply was lost arrives.
    fn arrive_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let n = self.chance.below(self.late.len());
        self.arrive(n);
    }

    fn arrive(&mut self, n: usize) {
        let (request, which, _) = self.late.remove(n);
        let answer = self.do_call(&request);
        self.say(|| {
            format!(
                "{which} late {} {}/{} -> {}",
                request.operation.verb(),
                request.kind.plural(),
                request.name,
                answer.err().map_or("ok".into(), |error| error.to_string())
            )
        });
    }

    /// One watch tells one thing.
    fn deliver_event(&mut self, which: usize) {
        let n = self.chance.below(WATCHED.len() + 1);
        self.deliver_from(which, n);
    }

    fn deliver_from(&mut self, which: usize, n: usize) -> bool {
        let process = &mut self.processes[which];
        if n == WATCHED.len() {
            let Some(logged) = self.server.node_log.get(process.node_cursor) else { return false };
            process.node_cursor += 1;
            let change = Change { scope: String::new(), event: ChangeEvent::Node(Event::Apply(read(&logged.object))) };
            process.controller.observe(change);
            return true;
        }
        let kind = WATCHED[n];
        let log = self.server.log.get(&kind).map(Vec::as_slice).unwrap_or_default();
        let Some(logged) = log.get(process.cursors[n]) else { return false };
        process.cursors[n] += 1;
        if let Some(change) = event(kind, logged) {
            process.controller.observe(change);
        }
        true
    }

    /// A watch breaks and lists again: what was deleted meanwhile is only seen by its absence.
    fn relist(&mut self, which: usize) {
        let n = self.chance.below(WATCHED.len());
        self.say(|| format!("{which} lists {:?} again", WATCHED[n]));
        self.list(which, n);
    }

    fn list(&mut self, which: usize, n: usize) {
        let kind = WATCHED[n];
        let process = &mut self.processes[which];
        process.controller.observe(Change { scope: scope(kind), event: boundary(kind, true) });
        for (_, object) in self.server.of(kind) {
            if let Some(change) = listed(kind, object) {
                process.controller.observe(change);
            }
        }
        process.controller.observe(Change { scope: scope(kind), event: boundary(kind, false) });
        process.cursors[n] = self.server.log.get(&kind).map_or(0, Vec::len);
    }

    /// The process dies at whatever it was doing. A create that was on its way is settled before the next process
    /// lists; anything else may still arrive.
    fn crash(&mut self, which: usize) {
        self.say(|| format!("{which} crashes"));
        let process = self.processes.remove(which);
        let calls = std::mem::take(&mut *process.network.0.lock().unwrap());
        drop(process);
        for pending in calls {
            let create = matches!(pending.request.operation, Operation::Create { .. });
            match self.chance.below(3) {
                0 => {}
                1 if !create && pending.request.operation.is_write() => {
                    let now = self.clock.now();
                    self.late.push((pending.request, which, now));
                }
                _ => {
                    let _ = self.do_call(&pending.request);
                }
            }
        }
        let (creates, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|(request, ..)| matches!(request.operation, Operation::Create { .. }));
        self.late = others;
        for (request, ..) in creates {
            let _ = self.do_call(&request);
        }
        self.start();
    }

    fn start(&mut self) {
        let network = Network::default();
        let controller = Arc::new(Controller::new(Parts {
            api: Arc::new(network.clone()),
            binding: Arc::new(network.clone()),
            scopes: 1,
            clock: Arc::new(self.clock.clone()),
            random: Arc::new(self.chance.clone()),
            settings: Settings {
                issuer: Issuer {
                    trust_domain: TrustDomain::parse("banlieue.local").unwrap(),
                    cluster: Cluster::parse("local").unwrap(),
                    spire_server: HostPort::parse("10.0.2.100:8081").unwrap(),
                    broker: None,
                    agent_ttl_seconds: 600,
                },
                egress: Egress::default(),
                bundle: ObjectKey::new("banlieue-system", "spire-bundle"),
                tuning: Tuning::default(),
                coalesce: SignedDuration::from_millis(250),
                pace: (10, 10),
            },
            events: Arc::new(Silent),
            metrics: Metrics::default(),
            leadership: Leadership::always(),
        }));
        self.processes.push(Process {
            controller,
            network,
            cursors: [0; WATCHED.len()],
            node_cursor: 0,
            tasks: Vec::new(),
        });
        let which = self.processes.len() - 1;
        for n in 0..WATCHED.len() {
            self.list(which, n);
        }
        let process = &mut self.processes[which];
        let node = |event| Change { scope: String::new(), event: ChangeEvent::Node(event) };
        process.controller.observe(node(Event::Init));
        for object in self.server.nodes.values() {
            process.controller.observe(node(Event::InitApply(read(object))));
        }
        process.controller.observe(node(Event::InitDone));
        process.node_cursor = self.server.node_log.len();
    }

    fn check(&mut self) -> Result<(), String> {
        while let Some(done) = self.server.done.get(self.checked).cloned() {
            self.checked += 1;
            let caps = self.kind != Kind::TwoLeaders;
            self.invariants
                .check(&self.server, &done, done.by_us, caps)
                .map_err(|error| format!("step {}: {error}", self.step))?;
        }
        Ok(())
    }

    /// No more surprises: everything must come to rest as it should.
    fn settle(&mut self) -> Result<(), String> {
        self.say(|| "settles".into());
        for node in ["n1", "n2"] {
            self.server.put_node(node, false);
        }
        let calm = Mood { people: false, trouble: false };
        if self.processes.len() > 1 {
            // The one that should not have woken up finds out and ends.
            self.crash(0);
            self.processes.pop();
        }
        if self.kind != Kind::TwoLeaders {
            self.kind = Kind::Calm;
        }
        while !self.late.is_empty() {
            self.arrive_late();
        }
        let mut quiet = 0;
        for _ in 0..4000 {
            self.step += 1;
            let before = (self.server.done.len(), self.clock.now());
            for which in 0..self.processes.len() {
                for n in 0..=WATCHED.len() {
                    while self.deliver_from(which, n) {}
                }
                for _ in 0..6 {
                    self.take_work(which);
                }
                while !self.processes[which].network.0.lock().unwrap().is_empty() {
                    self.deliver_plainly(which);
                }
            }
            let (chance, now) = (self.chance.clone(), self.clock.now());
            for _ in 0..8 {
                world::machine(&mut self.server, &chance, now, calm);
                world::attestor(&mut self.server, &chance, now, calm);
                world::collect(&mut self.server, now);
            }
            self.check()?;
            self.advance(SignedDuration::from_millis(if quiet > 3 { 2000 } else { 300 }));
            // The attestor goes on writing; everybody else has come to rest when nothing else was written for long.
            let ours = self.server.done[before.0..].iter().filter(|done| done.by_us).count();
            quiet = if ours == 0 { quiet + 1 } else { 0 };
            if quiet > 60 {
                break;
            }
        }
        if self.processes.iter().any(|process| !process.tasks.is_empty()) {
            return Err("a pass never ended".into());
        }
        rest::check(&self.server, self.clock.now(), self.kind == Kind::TwoLeaders)?;
        if self.invariants.costs { self.invariants.check_costs() } else { Ok(()) }
    }

    fn deliver_plainly(&mut self, which: usize) {
        let pending = self.processes[which].network.0.lock().unwrap().remove(0);
        let answer = self.do_call(&pending.request);
        self.say(|| {
            let request = &pending.request;
            format!(
                "{which} {} {}/{} -> {}",
                request.operation.verb(),
                request.kind.plural(),
                request.name,
                answer.as_ref().err().map_or("ok".into(), ToString::to_string)
            )
        });
        pending.answer(answer.map(|value| value.to_string()));
        self.poll(which);
    }
}
