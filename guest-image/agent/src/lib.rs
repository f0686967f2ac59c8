//! banlieue-guest: the first process in the VM, from boot to power-off, and the guest agent, which it starts.
//!
//! - [`boot`]: the stages of boot, all in the first process. [`guard`]: what it does after them: expects the guest agent's
//!   heartbeat, and powers off without.
//! - [`life`]: what the guest agent decides; [`run`] carries it out.
//! - [`system`], [`seed_volume`], [`clock`], [`network`]: what boot sets up.
//! - [`agent`], [`identity`]: the SPIRE agent beside us and what it gives us.
//! - [`evidence`]: a golden recording in place of a life.
//! - [`console`], [`power`]: how it speaks and how it ends.

pub mod agent;
pub mod boot;
pub mod clock;
pub mod console;
pub mod evidence;
pub mod guard;
pub mod identity;
pub mod life;
pub mod network;
pub mod power;
pub mod run;
pub mod seed_volume;
pub mod system;
