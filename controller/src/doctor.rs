//! `banlieue-controller doctor`.
pub use crate::run::installed;
