//! What the doctor found, as lines for a person.

use std::fmt::Write as _;

/// The findings so far, under headings.
#[derive(Debug, Default)]
pub(super) struct Report {
    text: String,
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
        let _ = writeln!(self.text, "  ok     {}", line.as_ref());
    }

    pub(super) fn bad(&mut self, line: impl AsRef<str>) {
        self.wrong = self.wrong.saturating_add(1);
        let _ = writeln!(self.text, "  WRONG  {}", line.as_ref());
    }

    pub(super) fn note(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.text, "  note   {}", line.as_ref());
    }

    pub(super) fn is_good(&self) -> bool {
        self.wrong == 0
    }

    /// Everything, with the sum at the end.
    pub(super) fn text(&self) -> String {
        let sum = match self.wrong {
            0 => "Nothing is wrong.".to_owned(),
            1 => "1 thing is wrong.".to_owned(),
            many => format!("{many} things are wrong."),
        };
        format!("{}\n{sum}\n", self.text)
    }
}
