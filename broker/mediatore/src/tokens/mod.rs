//! The tokens that sandboxes get.
//!
//! - [`keys`]: signing keys, their names, and the set that is published;
//! - [`sts`]: what stands in a token that mediatore signs, and how long it lives (pure).

pub mod keys;
pub mod sts;
