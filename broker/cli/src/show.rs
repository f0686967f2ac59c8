//! Tables and progress. What came from elsewhere is printed without control characters: a terminal obeys them.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;

use crate::api::{Claim, Pool};
use crate::fault::Fault;

/// The text without control characters, each of which becomes a space.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_direction(c) { ' ' } else { c }).collect()
}

/// Characters that turn the direction of what follows (Unicode UAX 9, 2): they can make a line read as another.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints a result. A reader that went away is no failure.
///
/// # Errors
/// When standard output cannot be written, a full disk for example.
pub fn print(text: &str) -> Result<(), Fault> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Columns as wide as their widest cell.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).map(|at| width(at).unwrap_or(0)).collect();
    let line = |cells: &Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Claims as a table.
#[must_use]
pub fn claims(claims: &[Claim], now: Timestamp) -> String {
    let rows: Vec<Vec<String>> = claims
        .iter()
        .map(|claim| {
            let workload = match (&claim.workload_state, claim.exit_code) {
                (Some(state), Some(code)) => format!("{state} ({code})"),
                (Some(state), None) => state.clone(),
                (None, _) => "-".to_owned(),
            };
            let why = claim.termination_reason.as_deref().unwrap_or("-");
            let cells = [&claim.name, &claim.phase, &claim.pool_ref, &left(claim, now), &workload, why];
            cells.map(plain).to_vec()
        })
        .collect();
    table(&["NAME", "PHASE", "POOL", "ENDS IN", "WORKLOAD", "REASON"], &rows)
}

/// What is left of a claim, in its two largest units.
fn left(claim: &Claim, now: Timestamp) -> String {
    let Some(deadline) = claim.expires_at.as_deref().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "-".to_owned();
    };
    let seconds = deadline.as_second().saturating_sub(now.as_second());
    if seconds <= 0 || !["Bound", "Pending"].contains(&claim.phase.as_str()) {
        return "-".to_owned();
    }
    let parts = [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let from = parts.iter().position(|(number, _)| *number > 0).unwrap_or(3);
    parts.iter().skip(from).take(2).map(|(number, unit)| format!("{number}{unit}")).collect()
}

/// Pools as a table.
#[must_use]
pub fn pools(pools: &[Pool]) -> String {
    let some = |list: &[String]| if list.is_empty() { "-".to_owned() } else { list.join(",") };
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|pool| {
            let longest = format!("{}s", pool.max_ttl_seconds);
            let (most, warm) = (pool.max_claims_per_subject.to_string(), pool.warm.to_string());
            let cells =
                [&pool.pool_ref, &warm, &longest, &most, &some(&pool.allowed_images), &some(&pool.allowed_audiences)];
            cells.map(|cell| plain(cell)).to_vec()
        })
        .collect();
    table(&["POOL", "WARM", "LONGEST", "PER PERSON", "IMAGES", "AUDIENCES"], &rows)
}

/// How far something is, on standard error: one line that changes at a terminal, a line for each change elsewhere.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    last: String,
}

impl Progress {
    /// Nothing is said yet.
    #[must_use]
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, last: String::new() }
    }

    /// How far it is now.
    pub fn say(&mut self, text: &str) {
        let text = plain(text);
        if text == self.last {
            return;
        }
        match &self.bar {
            Some(bar) => bar.set_message(text.clone()),
            None => eprintln!("{text}"),
        }
        self.last = text;
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn claim(phase: &str, expires_at: Option<&str>) -> Claim {
        let json = serde_json::json!({ "name": "c-1", "uid": "u", "phase": phase, "pool_ref": "n/p", "expires_at": expires_at });
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case("2026-01-01T00:00:09Z", "9s")]
    #[case("2026-01-01T00:01:00Z", "1m0s")]
    #[case("2026-01-01T01:59:59Z", "1h59m")]
    #[case("2026-01-03T01:59:59Z", "2d1h")]
    #[case("2025-01-03T01:59:59Z", "-")]
    #[case("soon", "-")]
    fn what_is_left(#[case] deadline: &str, #[case] shown: &str) {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(left(&claim("Bound", Some(deadline)), now), shown);
        assert_eq!(left(&claim("Released", Some(deadline)), now), "-");
        assert_eq!(left(&claim("Pending", None), now), "-");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let text = claims(&[claim("Bound", None), claim("Releasing", None)], Timestamp::UNIX_EPOCH);
        let columns: Vec<_> = text.lines().map(|line| line.find(['P', 'B', 'R']).unwrap()).collect();
        assert_eq!(columns, [7, 7, 7], "{text}");
    }

    proptest! {
        #[test]
        fn a_terminal_has_nothing_to_obey(text in any::<String>()) {
            prop_assert!(!plain(&text).chars().any(|c| c.is_control() || is_direction(c)));
        }
    }
}
