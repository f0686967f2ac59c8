//! Every check of the server, in the order of the design, as pure functions over what arrived and what is known.
//!
//! An attestation moves through types, so that no step can be left out or taken twice:
//!
//! ```text
//! bytes -> hello::Hello -> (facts) -> admit::Admitted -> challenge::Challenged -> (bytes) -> verify::Verified
//!          parse           proof or pin, member,         nonce, secret,           signature, quote, log,
//!                          keys, report, budget          credential               policy, counters, seed
//! ```
//!
//! [`refusal::Refusal`] is what any of them says instead, with what may be told to whom.

pub mod admit;
pub mod challenge;
pub mod hello;
pub mod refusal;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod verify;

pub use refusal::Refusal;
