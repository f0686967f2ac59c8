//! Measurements, event rules and mismatch reports.
//!
//! Pure: a document, PCR values and an event log in; a verdict or an explained refusal out. The caller has already
//! verified that a quote covers the values.
//!
//! - [`document`]: the measurements document as people write it. - [`digest`]: its digests.
//! - [`rule`]: rules for a PCR, and matching events against them. - [`evaluate`](mod@evaluate): the verdict.
//! - [`mismatch`]: what differs, in sentences. - [`record`](mod@record): making a document from a golden boot.
//! - [`golden`]: a golden boot's evidence on its console. - [`aggregate`]: what the kernel extends into PCR 10.

pub mod aggregate;
pub mod digest;
pub mod document;
pub mod evaluate;
pub mod golden;
pub mod mismatch;
pub mod record;
pub mod rule;

pub use digest::Digest;
pub use document::{DocumentError, Measurements};
pub use evaluate::{Evidence, Latch, Refusal, Verdict, evaluate};
pub use mismatch::{Mismatch, Mismatches};
