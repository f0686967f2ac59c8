//! The tokens that sandboxes get.
//!
//! - [`keys`]: signing keys, their names, and the set that is published;
//! - [`sts`]: what stands in a token that mediatore signs, and how long it lives (pure);
//! - [`session`]: refreshing the one session that a subject has (pure);
//! - [`upstream`]: what a provider's answer means (pure).

pub mod keys;
pub mod session;
pub mod sts;
pub mod upstream;
