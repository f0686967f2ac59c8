//! banlieue-guest: the first process in the VM, from boot to power-off, and the guest agent.

use std::path::PathBuf;

use banlieue_guest::{
    boot::{self, Stage},
    guard, power, run,
};

fn main() {
    let agent = std::env::args().nth(1).is_some_and(|argument| argument == guard::AGENT);
    match std::process::id() {
        1 => first(),
        // Only in a machine whose first process is this program: anywhere else it must not power anything off.
        _ if agent && program_of("1").is_some_and(|first| Some(first) == program_of("self")) => {
            power::off_on_panic();
            match run::live() {
                Ok(why) => power::off(&why),
                Err(why) => power::off(&why.to_string()),
            }
        }
        _ => {
            eprintln!("banlieue-guest is the first process of a banlieue VM and powers the machine off when it ends.");
            eprintln!("It does nothing anywhere else. To build an image with it, see guest-image/README.md.");
            std::process::exit(2);
        }
    }
}

fn program_of(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/exe")).ok()
}

fn first() {
    power::off_on_panic();
    let mut stage = Stage::Bare;
    loop {
        stage = match boot::step(stage) {
            Ok(next) => next,
            Err(why) => power::off(&why.to_string()),
        }
    }
}
