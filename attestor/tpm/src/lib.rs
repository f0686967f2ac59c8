//! TPM 2.0 structures, event logs, credentials and quotes in software: parse and verify bytes.
//!
//! Pure and without any TPM library: every function takes bytes and gives a value or an error. All input is foreign;
//! parsers are bounded, refuse trailing bytes and never panic. "Part 1" and "Part 2" in comments are parts of the TCG
//! TPM 2.0 Library Specification, revision 1.59; "PFP" is the TCG PC Client Platform Firmware Profile.
//!
//! - [`hash`]: algorithm ids, digests, HMAC. - [`public`]: TPM2B_PUBLIC, names, SubjectPublicKeyInfo.
//! - [`template`]: which endorsement and attestation keys are allowed, and their creation templates.
//! - [`credential`]: MakeCredential. - [`attest`]: quotes. - [`signature`]: their signatures.
//! - [`pcr`]: selections and values. - [`eventlog`]: the firmware's log, its replay and its explanation.

pub mod attest;
mod attributes;
pub mod credential;
pub mod eventlog;
pub mod hash;
mod kdf;
pub mod pcr;
pub mod public;
pub mod signature;
pub mod template;
pub mod wire;

pub use attest::{Attest, ClockInfo};
pub use hash::Hash;
pub use pcr::{PcrSelection, PcrValue};
pub use public::{Name, Public};
pub use signature::Signature;
