//! Portable Executable: append sections to the boot stub, and the Authenticode hash that firmware measures.
//!
//! Formats: Microsoft "PE Format"; "Windows Authenticode Portable Executable Signature Format", section
//! "Calculating the PE Image Hash".

use aws_lc_rs::digest::{Context, SHA256};
use thiserror::Error;

/// Why an executable could not be read or extended.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Not a PE32+ image, or cut short.
    #[error("cannot read the boot executable: {0}")]
    Malformed(&'static str),
    /// The header has no room for one more section entry.
    #[error("cannot add section {0}: the executable's header is full")]
    HeaderFull(String),
    /// Section names are at most 8 bytes, sizes 32 bits.
    #[error("cannot add section {0}: its name or content is too long")]
    TooLong(String),
}

const OPTIONAL: usize = 24;
const CHECKSUM: usize = OPTIONAL + 64;
const SECURITY_ENTRY: usize = OPTIONAL + 112 + 4 * 8;
const SECTION: usize = 40;
/// Sections start on their own pages so that the stub can hand them on without copying.
const PAGE: usize = 0x1000;
/// IMAGE_SCN_CNT_INITIALIZED_DATA and IMAGE_SCN_MEM_READ.
const READ_ONLY_DATA: u32 = 0x4000_0040;

struct Layout {
    pe: usize,
    sections: usize,
    count: usize,
    file_alignment: usize,
    section_alignment: usize,
    headers: usize,
}

/// One section as its header has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name without padding, such as `.linux`.
    pub name: String,
    /// Offset in memory from the image base.
    pub address: usize,
    /// Size in memory: for data that is not padded, its length.
    pub virtual_size: usize,
    /// Offset in the file.
    pub offset: usize,
    /// Size in the file, padded.
    pub raw_size: usize,
}

fn u16_at(b: &[u8], at: usize) -> Result<usize, Error> {
    let v = b.get(at..at + 2).and_then(|v| v.try_into().ok());
    v.map(|v| usize::from(u16::from_le_bytes(v))).ok_or(Error::Malformed("cut short"))
}

fn u32_at(b: &[u8], at: usize) -> Result<usize, Error> {
    let v = b.get(at..at + 4).and_then(|v| v.try_into().ok());
    v.map(|v| u32::from_le_bytes(v) as usize).ok_or(Error::Malformed("cut short"))
}

fn put(b: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Error> {
    let to = b.get_mut(at..at + bytes.len()).ok_or(Error::Malformed("cut short"))?;
    to.copy_from_slice(bytes);
    Ok(())
}

fn word(v: usize) -> Result<[u8; 4], Error> {
    u32::try_from(v).map(u32::to_le_bytes).map_err(|_| Error::Malformed("larger than 4 GiB"))
}

fn layout(image: &[u8]) -> Result<Layout, Error> {
    if !image.starts_with(b"MZ") {
        return Err(Error::Malformed("no MZ signature"));
    }
    let pe = u32_at(image, 0x3c)?;
    if image.get(pe..pe.saturating_add(4)) != Some(b"PE\0\0") {
        return Err(Error::Malformed("no PE signature"));
    }
    if u16_at(image, pe + OPTIONAL)? != 0x20b {
        return Err(Error::Malformed("not PE32+"));
    }
    Ok(Layout {
        pe,
        sections: pe + OPTIONAL + u16_at(image, pe + 20)?,
        count: u16_at(image, pe + 6)?,
        section_alignment: u32_at(image, pe + OPTIONAL + 32)?,
        file_alignment: u32_at(image, pe + OPTIONAL + 36)?,
        headers: u32_at(image, pe + OPTIONAL + 60)?,
    })
}

/// The sections of `image`, in header order.
pub fn sections(image: &[u8]) -> Result<Vec<Section>, Error> {
    let l = layout(image)?;
    (0..l.count)
        .map(|i| {
            let at = l.sections + i * SECTION;
            let name = image.get(at..at + 8).ok_or(Error::Malformed("cut short"))?;
            let name = name.split(|b| *b == 0).next().unwrap_or_default();
            Ok(Section {
                name: String::from_utf8_lossy(name).into_owned(),
                virtual_size: u32_at(image, at + 8)?,
                address: u32_at(image, at + 12)?,
                raw_size: u32_at(image, at + 16)?,
                offset: u32_at(image, at + 20)?,
            })
        })
        .collect()
}

/// The content of section `name`, without padding.
pub fn section<'a>(image: &'a [u8], name: &str) -> Result<&'a [u8], Error> {
    let all = sections(image)?;
    let s = all.iter().find(|s| s.name == name).ok_or(Error::Malformed("section not found"))?;
    image.get(s.offset..s.offset + s.virtual_size.min(s.raw_size)).ok_or(Error::Malformed("cut short"))
}

/// `stub` with `added` (name, content) appended as read-only data after its last section.
pub fn append(stub: &[u8], added: &[(&str, &[u8])]) -> Result<Vec<u8>, Error> {
    let l = layout(stub)?;
    if l.file_alignment == 0 || l.section_alignment == 0 {
        return Err(Error::Malformed("no alignment"));
    }
    let present = sections(stub)?;
    let file_end = present.iter().map(|s| s.offset + s.raw_size).max().unwrap_or(l.headers);
    // Anything behind the last section (symbols, a signature) would be moved or made stale: it is left out.
    let mut image = stub.get(..file_end).ok_or(Error::Malformed("cut short"))?.to_vec();
    put(&mut image, l.pe + 12, &[0; 8])?;
    put(&mut image, l.pe + SECURITY_ENTRY, &[0; 8])?;
    put(&mut image, l.pe + CHECKSUM, &[0; 4])?;

    let mut address = present.iter().map(|s| s.address + s.virtual_size).max().unwrap_or(l.headers);
    let mut data = 0;
    for (i, (name, content)) in added.iter().enumerate() {
        if name.len() > 8 {
            return Err(Error::TooLong((*name).to_owned()));
        }
        let header_at = l.sections + (l.count + i) * SECTION;
        if header_at + SECTION > l.headers || image.get(header_at..header_at + SECTION) != Some(&[0; SECTION]) {
            return Err(Error::HeaderFull((*name).to_owned()));
        }
        address = address.next_multiple_of(PAGE.max(l.section_alignment));
        image.resize(image.len().next_multiple_of(l.file_alignment), 0);
        let offset = image.len();
        image.extend_from_slice(content);
        image.resize(image.len().next_multiple_of(l.file_alignment), 0);
        let raw = image.len() - offset;

        let mut padded = [0; 8];
        put(&mut padded, 0, name.as_bytes())?;
        put(&mut image, header_at, &padded)?;
        for (at, value) in [(8, content.len()), (12, address), (16, raw), (20, offset)] {
            put(&mut image, header_at + at, &word(value)?)?;
        }
        put(&mut image, header_at + 36, &READ_ONLY_DATA.to_le_bytes())?;
        address += content.len();
        data += raw;
    }
    let count = u16::try_from(l.count + added.len()).map_err(|_| Error::Malformed("too many sections"))?;
    put(&mut image, l.pe + 6, &count.to_le_bytes())?;
    let initialized = u32_at(&image, l.pe + OPTIONAL + 8)? + data;
    put(&mut image, l.pe + OPTIONAL + 8, &word(initialized)?)?;
    put(&mut image, l.pe + OPTIONAL + 56, &word(address.next_multiple_of(l.section_alignment))?)?;
    Ok(image)
}

/// `image` with the content of its last section, which must be `name`, replaced.
pub fn replace_last(image: &[u8], name: &str, content: &[u8]) -> Result<Vec<u8>, Error> {
    let l = layout(image)?;
    let all = sections(image)?;
    let last = all.last().filter(|s| s.name == name).ok_or(Error::Malformed("the section is not the last one"))?;
    let mut shorter = image.to_vec();
    put(&mut shorter, l.sections + (l.count - 1) * SECTION, &[0; SECTION])?;
    put(&mut shorter, l.pe + 6, &u16::try_from(l.count - 1).unwrap_or_default().to_le_bytes())?;
    let initialized = u32_at(image, l.pe + OPTIONAL + 8)?.saturating_sub(last.raw_size);
    put(&mut shorter, l.pe + OPTIONAL + 8, &word(initialized)?)?;
    append(&shorter, &[(name, content)])
}

/// The Authenticode SHA-256 of `image`: what firmware measures into PCR 4 when it loads it.
///
/// Left out are the checksum, the certificate table's directory entry and the table itself.
pub fn authenticode(image: &[u8]) -> Result<[u8; 32], Error> {
    let l = layout(image)?;
    let slice = |from: usize, to: usize| image.get(from..to).ok_or(Error::Malformed("cut short"));
    let mut hash = Context::new(&SHA256);
    let checksum = l.pe + CHECKSUM;
    let security = l.pe + SECURITY_ENTRY;
    let directories = u32_at(image, l.pe + OPTIONAL + 108)?;
    hash.update(slice(0, checksum)?);
    let mut certificates = 0;
    if directories > 4 {
        hash.update(slice(checksum + 4, security)?);
        hash.update(slice(security + 8, l.headers)?);
        certificates = u32_at(image, security + 4)?;
    } else {
        hash.update(slice(checksum + 4, l.headers)?);
    }
    let mut ordered = sections(image)?;
    ordered.sort_by_key(|s| s.offset);
    let mut hashed = l.headers;
    for s in ordered.iter().filter(|s| s.raw_size > 0) {
        hash.update(slice(s.offset, s.offset + s.raw_size)?);
        hashed += s.raw_size;
    }
    let end = image.len().saturating_sub(certificates);
    if end > hashed {
        hash.update(slice(hashed, end)?);
    }
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

    fn stub() -> Vec<u8> {
        std::fs::read(STUB).expect("the boot stub is missing: apt-get install systemd-boot-efi")
    }

    #[test]
    fn appended_sections_read_back_and_object_agrees() {
        use object::{Object, ObjectSection};
        let big = vec![7; 70_001];
        let image = append(&stub(), &[(".osrel", b"ID=x\n"), (".linux", &big)]).unwrap();
        assert_eq!(section(&image, ".osrel").unwrap(), b"ID=x\n");
        assert_eq!(section(&image, ".linux").unwrap(), big);
        let file = object::read::pe::PeFile64::parse(&*image).unwrap();
        let found = file.section_by_name(".linux").unwrap();
        assert_eq!(found.size(), 70_001);
        assert_eq!(found.address() & 0xfff, 0);
        let all = sections(&image).unwrap();
        for pair in all.windows(2) {
            assert!(pair[0].address + pair[0].virtual_size <= pair[1].address);
        }
    }

    #[test]
    fn a_replaced_section_is_as_if_it_had_been_appended() {
        let parts = |last: &'static [u8]| append(&stub(), &[(".osrel", b"ID=x\n"), (".initrd", last)]).unwrap();
        let changed = replace_last(&parts(b"one"), ".initrd", b"another, longer one").unwrap();
        assert!(changed == parts(b"another, longer one"));
        assert!(replace_last(&changed, ".osrel", b"x").is_err());
    }

    #[test]
    fn hash_ignores_the_checksum_and_sees_every_other_byte() {
        let image = append(&stub(), &[(".cmdline", b"quiet")]).unwrap();
        let whole = authenticode(&image).unwrap();
        let l = layout(&image).unwrap();
        let mut sum = image.clone();
        sum[l.pe + CHECKSUM] ^= 1;
        assert_eq!(authenticode(&sum).unwrap(), whole);
        for at in [0x20, l.headers + 5, image.len() - 1] {
            let mut other = image.clone();
            other[at] ^= 1;
            assert_ne!(authenticode(&other).unwrap(), whole, "byte {at}");
        }
    }

    #[test]
    fn refuses_what_is_no_executable() {
        for bytes in [&b""[..], b"MZ", &[b'M', b'Z', 0, 0, 0, 0], &vec![0xff; 4096]] {
            assert!(authenticode(bytes).is_err());
        }
        let image = stub();
        for cut in [64, 200, 400, 1000] {
            assert!(authenticode(&image[..cut]).is_err());
        }
    }
}
