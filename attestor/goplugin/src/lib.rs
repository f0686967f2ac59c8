//! Serves a SPIRE plugin from Rust: handshake, broker, respawn.
