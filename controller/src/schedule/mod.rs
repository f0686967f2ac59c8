//! When work is done: a keyed queue with deadlines and backoff, expectations for creates in flight, and the workers.
//!
//! Everything but `workers` is synchronous and takes the time as an argument, so that the simulation drives the very
//! same code by a virtual clock.

mod backoff;
mod expectations;
mod pace;
mod queue;
mod workers;

pub use backoff::Backoff;
pub use expectations::{Expectation, Expectations};
pub use pace::Pace;
pub use queue::{Key, Lane, Queue};
pub use workers::{Lookout, Schedule, run_workers};
