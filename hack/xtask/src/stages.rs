//! Named stages with their times, for runs that take minutes.

use std::time::{Duration, Instant};

use crate::interrupt;

/// What a stage found of its result under `target/`.
pub enum Kept {
    /// All of it.
    All,
    /// Some or nothing; what was made.
    Made(String),
}

/// Prints each stage as it starts and, at the end, where the time went.
#[derive(Default)]
pub struct Stages {
    /// Name, time, remark.
    done: Vec<(String, Duration, String)>,
}

impl Stages {
    /// Runs one stage; its failure ends the run and keeps its name in the message.
    pub fn run<T>(&mut self, name: &str, act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let started = begin(name);
        let outcome = act();
        self.ended(name, started, String::new(), outcome)
    }

    /// The same for a stage whose result is kept, and says whether it was there.
    pub fn run_kept(&mut self, name: &str, act: impl FnOnce() -> anyhow::Result<Kept>) -> anyhow::Result<()> {
        let started = begin(name);
        let outcome = act();
        let remark = match &outcome {
            Ok(Kept::All) => "cached".to_owned(),
            Ok(Kept::Made(what)) => what.clone(),
            Err(_) => String::new(),
        };
        self.ended(name, started, remark, outcome.map(drop))
    }

    /// The same for a stage that waits.
    pub async fn run_async<T>(
        &mut self,
        name: &str,
        act: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let started = begin(name);
        let outcome = act.await;
        self.ended(name, started, String::new(), outcome)
    }

    fn ended<T>(
        &mut self,
        name: &str,
        started: Instant,
        remark: String,
        outcome: anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let took = started.elapsed();
        let said = if remark.is_empty() { String::new() } else { format!(", {remark}") };
        self.done.push((name.to_owned(), took, said.clone()));
        match outcome {
            Ok(value) => {
                println!("== {name}: {}{said}", seconds(took));
                Ok(value)
            }
            // Whoever interrupts a run knows that it is not whole.
            Err(error) if interrupt::asked() => Err(error),
            Err(error) => {
                self.print();
                Err(error.context(format!("stage '{name}' failed after {}", seconds(took))))
            }
        }
    }

    /// The table of times.
    pub fn print(&self) {
        println!("\nwhere the time went");
        for (name, took, said) in &self.done {
            println!("  {:>9}  {name}{said}", seconds(*took));
        }
        let total: Duration = self.done.iter().map(|(_, took, _)| *took).sum();
        println!("  {:>9}  in all", seconds(total));
    }
}

fn begin(name: &str) -> Instant {
    println!("== {name}");
    Instant::now()
}

/// Seconds with one digit, as people compare them.
pub fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}
