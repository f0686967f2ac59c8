//! The serial console: short lines for a person, with the time since boot. Never a secret.

use std::{fmt::Display, io::Write};

use rustix::time::{ClockId, clock_gettime};

/// Seconds and milliseconds since the kernel started, as text.
pub fn uptime() -> String {
    let now = clock_gettime(ClockId::Boottime);
    format!("{}.{:03}", now.tv_sec, now.tv_nsec / 1_000_000)
}

/// One line of progress.
pub fn say(line: impl Display) {
    raw(&format!("[{:>8}] banlieue-guest: {line}\n", uptime()));
}

/// `text` as it is, in one write; a console that is gone is no reason to stop.
pub fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
