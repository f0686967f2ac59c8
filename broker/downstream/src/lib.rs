//! A service that sandboxes call: how to be sure that "sandbox of claim X acting for Y" is at the other end.
//!
//! All it knows of mediatore is the issuer's URL: keys come by discovery. What holds for this service holds for any.
//!
//! - [`sandbox`]: from a verified token to a [`Sandbox`], or why not (pure). Lift this one.
//! - [`verifier`]: the signature before it, with mediatore's keys as discovery gives them.
//! - [`refusal`]: why not, as an answer. - [`config`]: what an operator says.
//! - [`service`]: the routes; [`relay`]: the two ends of a WebSocket; [`desk`]: who waits for whom (no I/O).

pub mod config;
pub mod desk;
pub mod refusal;
pub mod relay;
pub mod sandbox;
pub mod service;
pub mod verifier;

pub use refusal::Refusal;
pub use sandbox::{Expected, Sandbox};
pub use verifier::Verifier;
