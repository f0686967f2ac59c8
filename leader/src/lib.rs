//! Leader election on one Lease.
//!
//! - [`Election`]: one step at a time, without I/O (pure);
//! - [`Leadership`]: whether this process may write, asked before every write;
//! - [`Campaign`]: the steps as calls; [`follow`]: what a process does when it begins to lead and when it ends.

mod campaign;
mod leadership;
mod lease;

pub use campaign::{Campaign, follow, made_up_name};
pub use leadership::Leadership;
pub use lease::{Election, Record, Step, Terms, Written};
