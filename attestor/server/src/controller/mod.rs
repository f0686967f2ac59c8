//! The attestor controller: the only one with rights over members' identities in SPIRE.
//!
//! - [`decide`]: what one member needs (pure); [`member`]: reading the snapshot and doing it;
//! - [`claims`]: entries of claims that are over; [`reports`]: tombstones; [`sweep`]: what nothing stands for (all pure);
//! - [`probe`]: whether the plugin answers;
//! - [`run`](run::run) ties them together; `sweeps`, `tombstones` and `timers` carry out what is not about one member.

pub mod claims;
pub mod decide;
pub mod member;
pub mod metrics;
pub mod probe;
pub mod reports;
pub mod run;
pub mod sweep;
mod sweeps;
#[cfg(test)]
mod tests;
mod timers;
mod tombstones;
