//! Time and randomness, as the simulation replaces them.

use jiff::Timestamp;

/// The time.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// Random bytes.
pub trait Random: Send + Sync {
    /// Fills the buffer.
    fn fill(&self, buffer: &mut [u8]);
}

/// The system's clock and its secure random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Clock for System {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl Random for System {
    fn fill(&self, buffer: &mut [u8]) {
        // It only fails when the library itself does not work. A predictable enrolment secret or member name is the
        // one thing that must not come out of that, so the process ends.
        if aws_lc_rs::rand::fill(buffer).is_err() {
            tracing::error!("the system's random source does not work");
            std::process::abort();
        }
    }
}

/// Five letters and digits that are not mistaken for each other, as Kubernetes makes its suffixes.
pub(super) fn suffix(random: &dyn Random) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut out = String::with_capacity(5);
    while out.len() < 5 {
        let mut byte = [0u8; 1];
        random.fill(&mut byte);
        // 27 * 9 = 243: what is above would make the first letters likelier.
        let index = usize::from(byte[0]);
        if index < 243
            && let Some(letter) = LETTERS.get(index % 27)
        {
            out.push(char::from(*letter));
        }
    }
    out
}
