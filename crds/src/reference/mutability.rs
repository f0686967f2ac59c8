//! Which fields may change when. The CEL rules enforce it; the reference says it.

use crate::rule::Check;
use std::fmt;

/// When a field may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutability {
    /// At any time, by who may write the object.
    Free,
    /// Never after creation.
    Immutable,
    /// Set once, then never changed or removed.
    Once,
    /// Only upwards.
    Grows,
    /// Along its order only.
    Forward,
    /// By our programs only.
    Status,
}

impl fmt::Display for Mutability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "yes",
            Self::Immutable => "no",
            Self::Once => "once",
            Self::Grows => "grows",
            Self::Forward => "forward",
            Self::Status => "status",
        })
    }
}

/// What differs from the rest of its spec or status and is no plain write-once rule: kind, path (with everything below
/// it), when it may change.
pub const EXCEPTIONS: &[(&str, &str, Mutability)] = &[
    ("VirtualMachineClaim", "spec.ttlSeconds", Mutability::Grows),
    ("VirtualMachineClaim", "status.phase", Mutability::Forward),
];

/// When a field of a kind may change, by its dotted path from the object's root.
pub fn mutability(kind: &str, path: &str) -> Mutability {
    let covers = |field: &str| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if super::rules(kind).iter().any(|rule| rule.check == Check::WriteOnce && covers(&rule.path())) {
        return Mutability::Once;
    }
    let exception = EXCEPTIONS.iter().find(|(of, field, _)| *of == kind && covers(field));
    match exception {
        Some((_, _, mutability)) => *mutability,
        None if path.starts_with("status") => Mutability::Status,
        None if kind == "VirtualMachinePool" => Mutability::Free,
        None => Mutability::Immutable,
    }
}
