//! The attestor controller: the only one with rights over members' identities in SPIRE.
//!
//! - [`decide`]: what one member needs (pure); [`member`]: reading the snapshot and doing it;
//! - [`claims`]: entries of claims that are over; [`reports`]: tombstones; [`sweep`]: what nothing stands for;
//! - [`probe`]: whether the plugin answers; [`run`](run::run) ties them together.

pub mod claims;
pub mod decide;
pub mod member;
pub mod metrics;
pub mod probe;
pub mod reports;
pub mod run;
pub mod sweep;
#[cfg(test)]
mod tests;
