//! Bytes to events and back (PFP, 10.2): a TCG_PCR_EVENT header, then TCG_PCR_EVENT2s, little-endian.

use super::{Event, EventKind, EventLog};
use crate::hash::Hash;
use crate::pcr::COUNT;
use crate::wire::{Reader, WireError};

/// Most bytes in a log.
pub const MAX_LOG: usize = 512 * 1024;
/// Most events in a log; OVMF with the stub writes about 40.
pub const MAX_EVENTS: usize = 2048;
/// Most bytes of data in one event; the largest that is known is the revocation list `dbx`.
pub const MAX_EVENT_DATA: usize = 128 * 1024;
/// Most banks in a log.
pub const MAX_ALGORITHMS: usize = 8;

const SPEC_ID: &[u8; 16] = b"Spec ID Event03\0";
const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

/// Why bytes are no event log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Bytes end or sizes are out of range.
    #[error("event log, event {event}: {source}")]
    Wire {
        /// Which event, counted from 0; 0 is the header.
        event: usize,
        /// What is wrong.
        source: WireError,
    },
    /// Above a limit.
    #[error("event log has too many {0}")]
    TooMany(&'static str),
    /// It does not start with a Spec ID event of the crypto-agile format.
    #[error("event log does not start with the header of the crypto-agile format")]
    Header,
    /// The header's algorithms are wrong: none, twice the same, a known one with a wrong size, or no SHA-256.
    #[error("event log header has a wrong list of hash algorithms")]
    Algorithms,
    /// An event's digests are not one for each algorithm of the header.
    #[error("event log, event {event}: digests differ from the header's algorithms")]
    Digests {
        /// Which event.
        event: usize,
    },
    /// A PCR that does not exist.
    #[error("event log, event {event}: PCR {pcr} does not exist")]
    Pcr {
        /// Which event.
        event: usize,
        /// What it claims.
        pcr: u32,
    },
    /// A startup locality that is malformed, repeated, or comes after PCR 0 was extended.
    #[error("event log, event {event}: startup locality is misplaced or malformed")]
    Locality {
        /// Which event.
        event: usize,
    },
}

impl LogError {
    /// Fixed word for metrics: `size` or `malformed`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::TooMany(_) | Self::Wire { source: WireError::TooLarge { .. }, .. } => "size",
            _ => "malformed",
        }
    }
}

/// Algorithm ids of the header with their digest sizes.
type Banks = Vec<(u16, usize)>;

pub(super) fn parse(bytes: &[u8]) -> Result<EventLog, LogError> {
    if bytes.len() > MAX_LOG {
        return Err(LogError::TooMany("bytes"));
    }
    let mut r = Reader::new(bytes);
    let banks = header(&mut r)?;
    let mut log = EventLog::default();
    let mut locality_seen = false;
    let mut count = 0usize;
    while !r.is_empty() {
        count = count.saturating_add(1);
        if count > MAX_EVENTS {
            return Err(LogError::TooMany("events"));
        }
        let (pcr, event) = event2(&mut r, &banks, count)?;
        if event.kind == EventKind::NO_ACTION {
            if let Some(rest) = event.data.strip_prefix(STARTUP_LOCALITY) {
                let early = !locality_seen && log.of_pcr(0).next().is_none();
                // 0 and 3 are what TPM2_Startup takes; 4 stands for a hardware root of trust that extended before.
                match rest {
                    [locality @ (0 | 3 | 4)] if early && pcr == 0 => log.startup_locality = *locality,
                    _ => return Err(LogError::Locality { event: count }),
                }
                locality_seen = true;
            }
            continue;
        }
        log.events.push(event);
    }
    Ok(log)
}

fn header(r: &mut Reader<'_>) -> Result<Banks, LogError> {
    let wire = |source| LogError::Wire { event: 0, source };
    let pcr = r.u32_le("header PCR").map_err(wire)?;
    let kind = r.u32_le("header type").map_err(wire)?;
    let digest: [u8; 20] = r.array("header digest").map_err(wire)?;
    let size = r.u32_le("header size").map_err(wire)?;
    if pcr != 0 || EventKind(kind) != EventKind::NO_ACTION || digest != [0; 20] || size > 1024 {
        return Err(LogError::Header);
    }
    let mut h = Reader::new(r.take("header", size as usize).map_err(wire)?);
    if h.array::<16>("header signature").map_err(wire)? != *SPEC_ID {
        return Err(LogError::Header);
    }
    // platformClass, minor and major version, errata, uintnSize.
    h.take("header version", 8).map_err(wire)?;
    let count = h.u32_le("algorithm count").map_err(wire)? as usize;
    if count > MAX_ALGORITHMS {
        return Err(LogError::TooMany("hash algorithms"));
    }
    let mut banks = Banks::new();
    for _ in 0..count {
        let id = h.u16_le("algorithm id").map_err(wire)?;
        let size = usize::from(h.u16_le("digest size").map_err(wire)?);
        let sound = Hash::from_id(id).map_or((1..=64).contains(&size), |hash| hash.size() == size);
        if !sound || banks.iter().any(|(known, _)| *known == id) {
            return Err(LogError::Algorithms);
        }
        banks.push((id, size));
    }
    if !banks.iter().any(|(id, _)| *id == Hash::Sha256.id()) {
        return Err(LogError::Algorithms);
    }
    let vendor = usize::from(h.u8("vendor info size").map_err(wire)?);
    h.take("vendor info", vendor).map_err(wire)?;
    h.end("header").map_err(wire)?;
    Ok(banks)
}

/// One event, with its PCR as written: EV_NO_ACTION events may name any.
fn event2(r: &mut Reader<'_>, banks: &Banks, event: usize) -> Result<(u32, Event), LogError> {
    let wire = |source| LogError::Wire { event, source };
    let pcr = r.u32_le("PCR").map_err(wire)?;
    let kind = EventKind(r.u32_le("event type").map_err(wire)?);
    let count = r.u32_le("digest count").map_err(wire)? as usize;
    if count != banks.len() {
        return Err(LogError::Digests { event });
    }
    let mut seen = Vec::with_capacity(count);
    let mut digest = None;
    for _ in 0..count {
        let id = r.u16_le("digest algorithm").map_err(wire)?;
        let Some((_, size)) = banks.iter().find(|(known, _)| *known == id) else {
            return Err(LogError::Digests { event });
        };
        if seen.contains(&id) {
            return Err(LogError::Digests { event });
        }
        seen.push(id);
        if id == Hash::Sha256.id() {
            digest = Some(r.array::<32>("digest").map_err(wire)?);
        } else {
            r.take("digest", *size).map_err(wire)?;
        }
    }
    let digest = digest.ok_or(LogError::Digests { event })?;
    let size = r.u32_le("event size").map_err(wire)? as usize;
    if size > MAX_EVENT_DATA {
        return Err(wire(WireError::TooLarge { what: "event data", size, max: MAX_EVENT_DATA }));
    }
    let data = r.take("event data", size).map_err(wire)?.to_vec();
    let index = u8::try_from(pcr).ok().filter(|index| usize::from(*index) < COUNT);
    let index = match (index, kind) {
        (Some(index), _) => index,
        // The specification lets firmware write 0xffffffff here; nothing is extended.
        (None, EventKind::NO_ACTION) => 0,
        (None, _) => return Err(LogError::Pcr { event, pcr }),
    };
    Ok((pcr, Event { pcr: index, kind, digest, data }))
}

pub(super) fn marshal(log: &EventLog) -> Vec<u8> {
    let mut out = Vec::new();
    let mut spec = SPEC_ID.to_vec();
    spec.extend_from_slice(&[0, 0, 0, 0, 0, 2, 0, 2]);
    spec.extend_from_slice(&1u32.to_le_bytes());
    spec.extend_from_slice(&Hash::Sha256.id().to_le_bytes());
    spec.extend_from_slice(&32u16.to_le_bytes());
    spec.push(0);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&EventKind::NO_ACTION.0.to_le_bytes());
    out.extend_from_slice(&[0; 20]);
    put_data(&mut out, &spec);
    if log.startup_locality != 0 {
        let data = [STARTUP_LOCALITY.as_slice(), &[log.startup_locality]].concat();
        put_event(&mut out, &Event { pcr: 0, kind: EventKind::NO_ACTION, digest: [0; 32], data });
    }
    for event in &log.events {
        put_event(&mut out, event);
    }
    out
}

fn put_event(out: &mut Vec<u8>, event: &Event) {
    out.extend_from_slice(&u32::from(event.pcr).to_le_bytes());
    out.extend_from_slice(&event.kind.0.to_le_bytes());
    out.extend_from_slice(&1u32.to_le_bytes());
    out.extend_from_slice(&Hash::Sha256.id().to_le_bytes());
    out.extend_from_slice(&event.digest);
    put_data(out, &event.data);
}

fn put_data(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(data);
}
