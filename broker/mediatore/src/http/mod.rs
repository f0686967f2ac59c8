//! What both listeners have in common.
//!
//! - [`answer`]: the one shape of every error, and its codes;
//! - [`body`]: reading JSON, whatever the Content-Type says, within size and time;
//! - [`guard`]: what stands around every route: deadline, panics, the framework's own rejections;
//! - [`listen`]: accepting connections in TLS or plain, and stopping gracefully;
//! - [`reload`]: files that are read again when they change;
//! - [`rate`]: how often somebody may ask;
//! - [`route`]: the table that both the router and the OpenAPI document are made from.

pub mod answer;
pub mod body;
pub mod guard;
pub mod listen;
pub mod rate;
pub mod reload;
pub mod route;
