//! What a person sees while a cluster starts.

use std::time::Duration;

/// One step of a start.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A component or step has begun.
    Starting {
        /// Its name.
        component: String,
    },
    /// It is ready.
    Ready {
        /// Its name.
        component: String,
        /// Time since it began.
        took: Duration,
    },
}

/// Prints one line for each thing that is ready: `Starting kube-apiserver … ready in 3.9 s`. Components start side by
/// side, so a line is printed when it is complete.
pub fn print(progress: &Progress) {
    if let Progress::Ready { component, took } = progress {
        println!("Starting {component} … ready in {:.1} s", took.as_secs_f64());
    }
}
