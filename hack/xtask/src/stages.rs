//! Named stages with their times, for runs that take minutes.

use std::time::{Duration, Instant};

/// Prints each stage as it starts and, at the end, where the time went.
#[derive(Default)]
pub struct Stages {
    done: Vec<(String, Duration)>,
}

impl Stages {
    /// Runs one stage; its failure ends the run and keeps its name in the message.
    pub fn run<T>(&mut self, name: &str, act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        println!("== {name}");
        let started = Instant::now();
        let outcome = act();
        self.ended(name, started.elapsed(), outcome)
    }

    /// The same for a stage that waits.
    pub async fn run_async<T>(
        &mut self,
        name: &str,
        act: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        println!("== {name}");
        let started = Instant::now();
        let outcome = act.await;
        self.ended(name, started.elapsed(), outcome)
    }

    fn ended<T>(&mut self, name: &str, took: Duration, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        self.done.push((name.to_owned(), took));
        match outcome {
            Ok(value) => {
                println!("== {name}: {}", seconds(took));
                Ok(value)
            }
            Err(error) => {
                self.print();
                Err(error.context(format!("stage '{name}' failed after {}", seconds(took))))
            }
        }
    }

    /// The table of times.
    pub fn print(&self) {
        println!("\nwhere the time went");
        for (name, took) in &self.done {
            println!("  {:>9}  {name}", seconds(*took));
        }
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        println!("  {:>9}  in all", seconds(total));
    }
}

/// Seconds with one digit, as people compare them.
pub fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}
