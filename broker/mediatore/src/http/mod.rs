//! What both listeners have in common.
//!
//! - [`answer`]: the one shape of every error, and its codes;
//! - [`shape`]: hyper's own answers, put into that shape;
//! - [`body`]: reading JSON, whatever the Content-Type says, within size and time; [`strict`]: reading it strictly;
//! - [`guard`]: what stands around every route: deadline, panics, heads that are too long;
//! - [`listen`]: accepting connections, and stopping gracefully; [`connection`]: one of them, TLS or plain;
//!   [`seats`]: how many there may be;
//! - [`reload`]: files that are read again when they change;
//! - [`rate`]: how often somebody may ask;
//! - [`route`]: the table that both the router and the [`openapi`] document are made from.

pub mod answer;
pub mod body;
pub mod connection;
pub mod guard;
pub mod listen;
pub mod openapi;
pub mod rate;
pub mod reload;
pub mod route;
pub mod seats;
pub mod shape;
pub mod strict;
