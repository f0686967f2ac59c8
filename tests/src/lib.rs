//! End-to-end tests on real components, and the harness they share: what more than one kind of test needs.
//!
//! - [`wait`]: waiting for states. - [`space`]: one runtime for a test program, a namespace for a test. - [`objects`]:
//!   templates of pools, and claims as the broker posts them. - [`members`]: members as they are now, and their enrolment.
//! - [`spire`]: spire-server's own command.
#![allow(clippy::unwrap_used, clippy::panic)] // a test ends at what it did not expect

pub mod members;
pub mod objects;
pub mod space;
pub mod spire;
pub mod wait;
