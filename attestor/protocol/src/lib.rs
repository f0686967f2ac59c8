//! BV1: the messages and transcript of attestation, the seed volume, and the SPIFFE names.
//!
//! Pure: bytes in, bytes or an error out. No clock, no file, no socket.
//! - [`names`]: every SPIFFE id and SPIRE entry id of the product, and the character rules behind them.
//! - [`seed`]: what the enrolment Secret and the seed volume hold, and the digest that binds it.
//! - [`message`]: M1, M2 and M3, checked; [`wire`]: the same as protobuf, unchecked; [`log_codec`]: the packed event log.
//! - [`transcript`]: what is hashed, signed and extended, and under which label.
//! - [`reason`]: why an attestation is refused, as one closed list.

pub mod log_codec;
pub mod message;
pub mod names;
pub mod reason;
pub mod seed;
pub mod transcript;
pub mod wire;

pub use message::{M1, M2, M3, MessageError};
pub use reason::Reason;
