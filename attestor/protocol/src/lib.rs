//! BV1: the messages and transcript of attestation, the seed volume, and the SPIFFE names.
//!
//! Pure: bytes in, bytes or an error out. No clock, no file, no socket.
//! - [`names`]: every SPIFFE id and SPIRE entry id of the product, and the character rules behind them.
//! - [`seed`]: what the enrolment Secret and the seed volume hold, and the digest that binds it.

pub mod names;
pub mod seed;
