//! Ends: the power button asks for one, and every end is a power-off.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rustix::system::{RebootCommand, reboot};

use crate::console;

/// Powers the machine off, saying why. Does not return; should the kernel refuse, the process ends. The first process then
/// sees that the guest agent is gone and tries itself; its own end is a kernel panic and so (`panic=1`) a reset, after
/// which attestation refuses this guest for ever.
pub fn off(why: &str) -> ! {
    console::say(format_args!("powering off: {why}"));
    let _ = rustix::termios::tcdrain(std::io::stdout());
    rustix::fs::sync();
    let refused = reboot(RebootCommand::PowerOff);
    console::say(format_args!("the kernel refused to power off: {refused:?}"));
    std::process::exit(1)
}

/// Makes every panic, on whatever thread, a power-off: a guest whose agent is broken must not live.
pub fn off_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        off(&format!("the guest agent panicked at {place}"))
    }));
}

/// One `struct input_event` on a 64-bit machine (linux/input.h): time 16, type 2, code 2, value 4.
const EVENT: usize = 24;
const EV_KEY: u16 = 1;
const KEY_POWER: u16 = 116;

/// Whether the event is the power key going down.
fn is_press(event: &[u8; EVENT]) -> bool {
    let [.., t0, t1, c0, c1, v0, v1, v2, v3] = *event;
    u16::from_le_bytes([t0, t1]) == EV_KEY
        && u16::from_le_bytes([c0, c1]) == KEY_POWER
        && i32::from_le_bytes([v0, v1, v2, v3]) == 1
}

/// The input devices that are ACPI power buttons.
pub fn buttons() -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir("/sys/class/input") else { return Vec::new() };
    let mut found: Vec<PathBuf> = listing
        .filter_map(Result::ok)
        .filter(|e| e.file_name().to_string_lossy().starts_with("event"))
        .filter(|e| std::fs::read_to_string(e.path().join("device/name")).is_ok_and(|n| n.trim() == "Power Button"))
        .map(|e| Path::new("/dev/input").join(e.file_name()))
        .collect();
    found.sort();
    found
}

/// Blocks until the button at `device` is pressed; an error when it cannot be read.
pub fn wait_for_press(device: &Path) -> std::io::Result<()> {
    let mut file = File::open(device)?;
    let mut event = [0; EVENT];
    loop {
        file.read_exact(&mut event)?;
        if is_press(&event) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u16, code: u16, value: i32) -> [u8; EVENT] {
        let mut e = [0xaa; EVENT];
        e[16..18].copy_from_slice(&kind.to_le_bytes());
        e[18..20].copy_from_slice(&code.to_le_bytes());
        e[20..24].copy_from_slice(&value.to_le_bytes());
        e
    }

    #[test]
    fn only_the_power_key_going_down_counts() {
        assert!(is_press(&event(1, 116, 1)));
        assert!(!is_press(&event(1, 116, 0)), "release");
        assert!(!is_press(&event(0, 0, 0)), "sync");
        assert!(!is_press(&event(1, 30, 1)), "another key");
    }
}
