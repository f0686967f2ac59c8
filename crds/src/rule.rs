//! CEL rules that the API server checks: what a kind says of its fields, put into its schema by [`schema`](crate::schema).

/// One CEL rule that the API server checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Dotted path of the object that the rule sees as `self`; empty for the whole object.
    pub at: &'static str,
    /// Path below `at` that the error points to, with a leading dot, or empty.
    pub field: &'static str,
    /// What is checked.
    pub check: Check,
    /// What the person reads: what is wrong and what to change.
    pub message: &'static str,
}

/// What a rule checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// An expression of its own.
    Cel(&'static str),
    /// The field, which is always there, never changes after creation.
    Immutable,
    /// The field, once there, is never changed or removed, nor is anything above it removed. Such a rule stands on an
    /// object that is always there: one on an optional field sees neither its addition nor its removal.
    WriteOnce,
}

impl Rule {
    /// A rule of its own.
    pub const fn new(at: &'static str, field: &'static str, cel: &'static str, message: &'static str) -> Self {
        Self { at, field, check: Check::Cel(cel), message }
    }

    /// `field` never changes.
    pub const fn immutable(at: &'static str, field: &'static str, message: &'static str) -> Self {
        Self { at, field, check: Check::Immutable, message }
    }

    /// `field` is set once.
    pub const fn write_once(at: &'static str, field: &'static str, message: &'static str) -> Self {
        Self { at, field, check: Check::WriteOnce, message }
    }

    /// Dotted path of the field from the object's root.
    pub fn path(&self) -> String {
        format!("{}{}", self.at, self.field).trim_start_matches('.').to_owned()
    }

    /// The expression in CEL.
    pub fn expression(&self) -> String {
        let field = self.field;
        match self.check {
            Check::Cel(expression) => expression.to_owned(),
            Check::Immutable => format!("self{field} == oldSelf{field}"),
            Check::WriteOnce => {
                // `.a.b` -> `.a`, `.a.b`: every step on the way may be absent.
                let ends = field.match_indices('.').map(|(at, _)| at).skip(1).chain([field.len()]);
                let steps: Vec<&str> = ends.filter_map(|end| field.get(..end)).collect();
                let before: Vec<String> = steps.iter().map(|step| format!("!has(oldSelf{step})")).collect();
                let still: Vec<String> = steps.iter().map(|step| format!("has(self{step})")).collect();
                format!("{} || ({} && self{field} == oldSelf{field})", before.join(" || "), still.join(" && "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_once_looks_at_every_step_of_the_way() {
        let once = |at, field| Rule::write_once(at, field, "").expression();
        assert_eq!(once("spec", ".a"), "!has(oldSelf.a) || (has(self.a) && self.a == oldSelf.a)");
        assert_eq!(
            once("", ".s.e.d"),
            "!has(oldSelf.s) || !has(oldSelf.s.e) || !has(oldSelf.s.e.d) || \
             (has(self.s) && has(self.s.e) && has(self.s.e.d) && self.s.e.d == oldSelf.s.e.d)"
        );
        assert_eq!(Rule::immutable("spec", "", "").expression(), "self == oldSelf");
        assert_eq!(Rule::write_once("", ".status.x", "").path(), "status.x");
    }
}
