//! A log as people read it. Every byte shown is foreign: only printable characters leave this file.

use std::fmt::Write as _;

use super::{Event, EventKind, EventLog, Variable};
use crate::wire::{Hex, Reader};

/// Longest description of one event, in characters.
const WIDTH: usize = 100;

/// The log, one line for each event (position in the log, PCR, type, digest, description), then the PCRs it replays to.
pub fn explain(log: &EventLog) -> String {
    let mut out = String::new();
    for (at, event) in log.events.iter().enumerate() {
        let short = event.digest.get(..8).unwrap_or_default();
        let checked = if event.data_if_measured().is_some() { "" } else { " (unauthenticated)" };
        let text = event.describe();
        let note = if text.is_empty() { "" } else { checked };
        let _ = writeln!(out, "{at:3}  PCR {:2}  {:33} {}…  {text}{note}", event.pcr, event.kind.name(), Hex(short));
    }
    let used = log.events.iter().fold(0u32, |mask, event| mask | 1u32.checked_shl(event.pcr.into()).unwrap_or(0));
    for (pcr, value) in log.replay().iter().enumerate().filter(|(pcr, _)| used & (1 << pcr) != 0) {
        let _ = writeln!(out, "PCR {pcr:2} = {}", Hex(value));
    }
    out
}

pub(super) fn describe(event: &Event) -> String {
    let data = event.data.as_slice();
    let text = match event.kind {
        EventKind::SEPARATOR => match data {
            [0, 0, 0, 0] | [0xff, 0xff, 0xff, 0xff] => "separator".to_owned(),
            [1, 0, 0, 0] => "separator: error".to_owned(),
            _ => hex(data),
        },
        EventKind::EFI_VARIABLE_DRIVER_CONFIG
        | EventKind::EFI_VARIABLE_BOOT
        | EventKind::EFI_VARIABLE_BOOT2
        | EventKind::EFI_VARIABLE_AUTHORITY => match Variable::parse(data) {
            Some(variable) => format!("variable {}, {} bytes", variable.name, variable.value.len()),
            None => hex(data),
        },
        EventKind::EVENT_TAG => tag(data).unwrap_or_else(|| hex(data)),
        EventKind::EFI_BOOT_SERVICES_APPLICATION
        | EventKind::EFI_BOOT_SERVICES_DRIVER
        | EventKind::EFI_RUNTIME_SERVICES_DRIVER => image(data).unwrap_or_else(|| "image".to_owned()),
        EventKind::EFI_PLATFORM_FIRMWARE_BLOB2 => blob2(data).unwrap_or_else(|| hex(data)),
        _ => text(data).unwrap_or_else(|| hex(data)),
    };
    cut(&text)
}

fn cut(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { '.' } else { c }).take(WIDTH).collect();
    if text.chars().nth(WIDTH).is_some() { format!("{clean}…") } else { clean }
}

fn hex(data: &[u8]) -> String {
    match data.get(..16) {
        Some(start) if data.len() > 16 => format!("{} bytes {}…", data.len(), Hex(start)),
        _ => Hex(data).to_string(),
    }
}

/// ASCII or little-endian UTF-16, with one final zero or none.
fn text(data: &[u8]) -> Option<String> {
    let printable = |c: char| (' '..='~').contains(&c);
    let ascii = data.strip_suffix(&[0]).unwrap_or(data);
    if !ascii.is_empty() && ascii.iter().all(|byte| printable(char::from(*byte))) {
        return Some(ascii.iter().map(|byte| char::from(*byte)).collect());
    }
    utf16(data).filter(|wide| !wide.is_empty() && wide.chars().all(printable))
}

pub(super) fn utf16(data: &[u8]) -> Option<String> {
    let (pairs, []) = data.as_chunks::<2>() else { return None };
    let units: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    let units = units.strip_suffix(&[0]).unwrap_or(&units);
    String::from_utf16(units).ok()
}

/// TCG_PCClientTaggedEvent (PFP, 10.4.2.1); Linux's EFI stub writes them.
fn tag(data: &[u8]) -> Option<String> {
    let mut r = Reader::new(data);
    let id = r.u32_le("tag").ok()?;
    let size = r.u32_le("tag size").ok()?;
    let body = r.take("tag data", size as usize).ok()?;
    Some(text(body).unwrap_or_else(|| format!("tag {id:#010x}")))
}

/// UEFI_IMAGE_LOAD_EVENT (PFP, 10.2.3): the file names of its device path.
fn image(data: &[u8]) -> Option<String> {
    let mut r = Reader::new(data);
    r.take("image location, lengths and addresses", 24).ok()?;
    let size = r.u32_le("device path length").ok()?;
    r.u32_le("device path length").ok()?;
    let mut path = Reader::new(r.take("device path", size as usize).ok()?);
    let mut names = Vec::new();
    while let (Ok(kind), Ok(sub), Ok(length)) = (path.u8("type"), path.u8("subtype"), path.u16_le("length")) {
        let body = path.take("node", usize::from(length).checked_sub(4)?).ok()?;
        // Media device path, file path (UEFI, 10.3.5.4).
        if (kind, sub) == (4, 4) {
            names.push(utf16(body)?);
        }
    }
    Some(if names.is_empty() { "image".to_owned() } else { format!("image {}", names.join("")) })
}

/// UEFI_PLATFORM_FIRMWARE_BLOB2 (PFP, 10.2.5): its description.
fn blob2(data: &[u8]) -> Option<String> {
    let mut r = Reader::new(data);
    let size = r.u8("description size").ok()?;
    text(r.take("description", usize::from(size)).ok()?)
}
