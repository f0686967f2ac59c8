//! The three weights of instance, chosen for each node and never by the product.

use std::str::FromStr;

/// Node label that tells tests and pools which weight a node gives.
pub const LABEL: &str = "banlieue.io/node-weight";

/// What stands behind an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// QEMU, OVMF and swtpm.
    Full,
    /// swtpm with recorded PCRs, spire-agent and our plugin as host processes.
    Light,
    /// Nothing: status only.
    Weightless,
}

impl Weight {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Light => "light",
            Self::Weightless => "weightless",
        }
    }
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Full, Self::Light, Self::Weightless]
            .into_iter()
            .find(|weight| weight.as_str() == text)
            .ok_or_else(|| format!("{text}: a node's weight is full, light or weightless"))
    }
}
