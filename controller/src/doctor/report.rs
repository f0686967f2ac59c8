//! What the doctor found, as lines for a person.

use std::fmt::Write as _;

/// The findings so far, under headings.
#[derive(Debug, Default)]
pub(super) struct Report {
    text: String,
    good: u32,
    warnings: u32,
    wrong: u32,
}

impl Report {
    pub(super) fn heading(&mut self, text: impl AsRef<str>) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let _ = writeln!(self.text, "{}", text.as_ref());
    }

    pub(super) fn good(&mut self, line: impl AsRef<str>) {
        self.good = self.good.saturating_add(1);
        let _ = writeln!(self.text, "  ok     {}", line.as_ref());
    }

    pub(super) fn bad(&mut self, line: impl AsRef<str>) {
        self.wrong = self.wrong.saturating_add(1);
        let _ = writeln!(self.text, "  WRONG  {}", line.as_ref());
    }

    /// What may be meant and should be known.
    pub(super) fn warn(&mut self, line: impl AsRef<str>) {
        self.warnings = self.warnings.saturating_add(1);
        let _ = writeln!(self.text, "  warn   {}", line.as_ref());
    }

    /// What is so everywhere, and counts for nothing.
    pub(super) fn note(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.text, "  note   {}", line.as_ref());
    }

    pub(super) fn is_good(&self) -> bool {
        self.wrong == 0
    }

    /// Everything, with the sum at the end.
    pub(super) fn text(&self) -> String {
        let warnings = if self.warnings == 1 { "warning" } else { "warnings" };
        let verdict =
            if self.is_good() { "nothing is wrong" } else { "each line above that says WRONG names its remedy" };
        format!("{}\n{} ok, {} {warnings}, {} failed: {verdict}\n", self.text, self.good, self.warnings, self.wrong)
    }
}
