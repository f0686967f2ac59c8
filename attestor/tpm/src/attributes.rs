//! Object attributes: what a key may do and where it may go.

use std::fmt;

/// TPMA_OBJECT (Part 2, 8.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attributes(pub u32);

impl Attributes {
    /// The key never leaves this TPM.
    pub const FIXED_TPM: Self = Self(1 << 1);
    /// The key never moves to another parent.
    pub const FIXED_PARENT: Self = Self(1 << 4);
    /// The TPM made the private part itself.
    pub const SENSITIVE_DATA_ORIGIN: Self = Self(1 << 5);
    /// The key's auth value allows its use.
    pub const USER_WITH_AUTH: Self = Self(1 << 6);
    /// Administration needs the policy.
    pub const ADMIN_WITH_POLICY: Self = Self(1 << 7);
    /// Works only on structures the TPM itself made.
    pub const RESTRICTED: Self = Self(1 << 16);
    /// May decrypt.
    pub const DECRYPT: Self = Self(1 << 17);
    /// May sign.
    pub const SIGN: Self = Self(1 << 18);

    const NAMES: [(u32, &'static str); 12] = [
        (1, "fixedTPM"),
        (2, "stClear"),
        (4, "fixedParent"),
        (5, "sensitiveDataOrigin"),
        (6, "userWithAuth"),
        (7, "adminWithPolicy"),
        (10, "noDA"),
        (11, "encryptedDuplication"),
        (16, "restricted"),
        (17, "decrypt"),
        (18, "sign"),
        (19, "x509sign"),
    ];

    /// All of `attributes`.
    pub const fn all(attributes: &[Self]) -> Self {
        let mut bits = 0;
        let mut rest = attributes;
        while let [first, tail @ ..] = rest {
            bits |= first.0;
            rest = tail;
        }
        Self(bits)
    }

    /// Whether every attribute of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Attributes of `self` that are not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for Attributes {
    /// Names as in the specification, joined by `|`; reserved bits as `bitN`; `none` for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("none");
        }
        let mut first = true;
        for bit in (0..32).filter(|bit| self.0 & (1 << bit) != 0) {
            if !std::mem::take(&mut first) {
                f.write_str("|")?;
            }
            match Self::NAMES.iter().find(|(at, _)| *at == bit) {
                Some((_, name)) => f.write_str(name)?,
                None => write!(f, "bit{bit}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attributes({self})")
    }
}
