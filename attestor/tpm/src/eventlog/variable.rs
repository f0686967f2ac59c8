//! UEFI_VARIABLE_DATA (PFP, 10.2.6).

use super::explain::utf16;
use crate::wire::Reader;

/// A UEFI variable as firmware logged it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable<'a> {
    /// Vendor GUID, in its wire order.
    pub vendor: [u8; 16],
    /// Name.
    pub name: String,
    /// Content.
    pub value: &'a [u8],
}

impl<'a> Variable<'a> {
    /// Reads the structure and nothing after it.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(data);
        let vendor = r.array("vendor GUID").ok()?;
        let length = usize::try_from(r.u64_le("name length").ok()?).ok()?;
        let size = usize::try_from(r.u64_le("data length").ok()?).ok()?;
        let name = utf16(r.take("name", length.checked_mul(2)?).ok()?)?;
        let value = r.take("data", size).ok()?;
        r.end("variable").ok()?;
        Some(Self { vendor, name, value })
    }
}
