//! The guest half of attestation: a SPIRE agent plugin that speaks to the vTPM.
//!
//! - [`config`]: what SPIRE's configuration says.
//! - [`tcti`]: how the TPM is reached. [`tpm`]: the few TPM acts attestation needs, by TSS 2.0.
//! - [`inputs`]: seed, event log and boot id, read with bounds.
//! - [`evidence`]: M1 and M3 of protocol BV1 from all of these.
//! - [`service`]: the plugin's gRPC services.
//!
//! It decides nothing: whether evidence is good is the server's word alone.

pub mod config;
pub mod evidence;
pub mod inputs;
pub mod service;
pub mod tcti;
pub mod tpm;
