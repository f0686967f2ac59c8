//! Reading and writing the TPM's big-endian wire format (Part 2, 4) without a panic.

use std::fmt;

/// Why bytes are not the structure they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("bytes end inside {0}")]
    Short(&'static str),
    /// Bytes are left after the structure.
    #[error("{left} bytes are left after {what}")]
    Trailing {
        /// The structure.
        what: &'static str,
        /// How many bytes follow it.
        left: usize,
    },
    /// A size field is above its bound.
    #[error("{what} has size {size}, at most {max} is allowed")]
    TooLarge {
        /// The field.
        what: &'static str,
        /// The size it claims.
        size: usize,
        /// The bound.
        max: usize,
    },
    /// A field holds a value that is unknown or not supported here.
    #[error("{what} has the unsupported value {value:#x}")]
    Unsupported {
        /// The field.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
}

impl WireError {
    /// Fixed word for metrics.
    pub fn category(&self) -> &'static str {
        "malformed"
    }
}

/// A cursor over foreign bytes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn take(&mut self, what: &'static str, size: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(WireError::Short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short(what))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_be_bytes)
    }

    pub(crate) fn u16_le(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32_le(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64_le(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A TPM2B: u16 size and that many bytes, at most `max`.
    pub(crate) fn sized(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let size = usize::from(self.u16(what)?);
        if size > max {
            return Err(WireError::TooLarge { what, size, max });
        }
        self.take(what, size)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn end(self, what: &'static str) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing { what, left: self.rest.len() }) }
    }
}

/// Appends a TPM2B. Every caller bounds `bytes` far below 64 KiB when it parses or builds them.
pub(crate) fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(bytes.get(..usize::from(size)).unwrap_or_default());
}

/// Shows bytes as hexadecimal.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
