//! banlieue-guest: the first process in the VM, from boot to power-off.

use banlieue_guest::{
    boot::{self, Stage},
    power,
};

fn main() {
    if std::process::id() != 1 {
        eprintln!("banlieue-guest is the first process of a banlieue VM and powers the machine off when it ends.");
        eprintln!("It does nothing anywhere else. To build an image with it, see guest-image/README.md.");
        std::process::exit(2);
    }
    power::off_on_panic();
    let mut stage = Stage::Bare;
    loop {
        stage = match boot::step(stage) {
            Ok(next) => next,
            Err(why) => power::off(&why.to_string()),
        }
    }
}
