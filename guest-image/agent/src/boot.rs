//! From the kernel's hand-over to a running guest: the stages of boot, each entered only from the one before.

use banlieue_protocol::seed::Seed;
use thiserror::Error;

use crate::{
    agent, clock, console, evidence, guard, network, power,
    seed_volume::{self, Volume},
    system,
};

/// Why a guest cannot go on. Always fatal.
#[derive(Debug, Error)]
pub enum Error {
    /// See [`system::Error`].
    #[error(transparent)]
    System(#[from] system::Error),
    /// See [`seed_volume::Error`].
    #[error(transparent)]
    Seed(#[from] seed_volume::Error),
    /// See [`evidence::Error`].
    #[error(transparent)]
    Evidence(#[from] evidence::Error),
    /// See [`network::Error`].
    #[error(transparent)]
    Network(#[from] network::Error),
    /// See [`clock::Error`].
    #[error(transparent)]
    Clock(#[from] clock::Error),
    /// See [`agent::Error`].
    #[error(transparent)]
    Agent(#[from] agent::Error),
    /// See [`guard::Error`].
    #[error(transparent)]
    Guard(#[from] guard::Error),
}

/// Where a boot stands.
#[derive(Debug)]
pub enum Stage {
    /// Nothing is set up.
    Bare,
    /// File systems are mounted and drivers loaded.
    System,
    /// The volume asked for a recording.
    Recording,
    /// The seed was read.
    Seeded(Box<Seed>),
    /// Network and clock work.
    Online(Box<Seed>),
    /// Everything is up: the guest agent's life begins.
    Living,
    /// There is nothing more to do, for this reason.
    Over(String),
}

/// Goes one stage on.
pub fn step(stage: Stage) -> Result<Stage, Error> {
    Ok(match stage {
        Stage::Bare => {
            system::mount_all()?;
            console::say("user space");
            let modules = system::load_modules()?;
            console::say(format_args!("{modules} modules loaded"));
            Stage::System
        }
        Stage::System => match seed_volume::read()? {
            Volume::Record => Stage::Recording,
            Volume::Enrol(seed) => {
                console::say(format_args!("seed of member {}/{}", seed.namespace, seed.member));
                Stage::Seeded(seed)
            }
        },
        Stage::Recording => {
            console::raw(&evidence::line()?);
            Stage::Over("measurements recorded".to_owned())
        }
        Stage::Seeded(seed) => {
            clock::check(seed.issued_at, seed.expires_at)?;
            let lease = network::bring_up()?;
            console::say(format_args!("network {}/{}", lease.address, lease.prefix));
            Stage::Online(seed)
        }
        Stage::Online(seed) => {
            agent::prepare(&seed)?;
            Stage::Living
        }
        Stage::Living => Stage::Over(guard::keep()?),
        Stage::Over(why) => power::off(&why),
    })
}
