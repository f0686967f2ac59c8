//! Event logs: written, read back, replayed, and malformed in every way a liar may think of.

// Clippy's exception for tests does not reach what tests share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use banlieue_tpm::eventlog::{Event, EventKind, EventLog, LogError, MAX_ALGORITHMS, MAX_LOG, explain};
use banlieue_tpm::hash::sha256;
use banlieue_tpm::pcr::{COUNT, extend};
use banlieue_tpm::wire::WireError;
use proptest::prelude::*;

fn event(pcr: u8, kind: EventKind, data: &[u8]) -> Event {
    Event { pcr, kind, digest: sha256(&[data]), data: data.to_vec() }
}

fn log() -> EventLog {
    EventLog {
        startup_locality: 3,
        events: vec![
            event(0, EventKind::S_CRTM_VERSION, &[0, 0]),
            event(4, EventKind::EFI_ACTION, b"Calling EFI Application from Boot Option"),
            event(4, EventKind::SEPARATOR, &[0; 4]),
            Event { digest: [9; 32], ..event(11, EventKind::IPL, b".\0l\0i\0n\0u\0x\0\0\0") },
        ],
    }
}

fn header(algorithms: &[(u16, u16)]) -> Vec<u8> {
    let mut spec = b"Spec ID Event03\0\0\0\0\0\0\x02\0\x02".to_vec();
    spec.extend((algorithms.len() as u32).to_le_bytes());
    for (id, size) in algorithms {
        spec.extend(id.to_le_bytes());
        spec.extend(size.to_le_bytes());
    }
    spec.push(0);
    wrap(&spec)
}

fn wrap(spec: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend(3u32.to_le_bytes());
    out.extend([0; 20]);
    out.extend((spec.len() as u32).to_le_bytes());
    out.extend(spec);
    out
}

fn event2(pcr: u32, kind: u32, digests: &[(u16, usize)], data: &[u8]) -> Vec<u8> {
    let mut out = pcr.to_le_bytes().to_vec();
    out.extend(kind.to_le_bytes());
    out.extend((digests.len() as u32).to_le_bytes());
    for (id, size) in digests {
        out.extend(id.to_le_bytes());
        out.extend(vec![7; *size]);
    }
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    out
}

const SHA1: (u16, u16) = (4, 20);
const SHA256: (u16, u16) = (11, 32);

#[test]
fn a_log_round_trips_and_replays() {
    let log = log();
    let bytes = log.marshal();
    assert_eq!(EventLog::parse(&bytes).unwrap(), log);
    let mut started = [0; 32];
    started[31] = 3;
    let values = log.replay();
    assert_eq!(values[0], extend(&started, &sha256(&[&[0, 0]])));
    assert_eq!(values[11], extend(&[0; 32], &[9; 32]));
    assert_eq!((values[1], values[17]), ([0; 32], [0xff; 32]));
    log.check_replay(&values, 0).unwrap();
    for pcr in 0..COUNT {
        let mut wrong = values;
        wrong[pcr][0] ^= 1;
        assert_eq!(log.check_replay(&wrong, 0).unwrap_err().pcr, pcr);
        log.check_replay(&wrong, 1 << pcr).unwrap();
    }
}

#[test]
fn other_banks_are_skipped_in_any_order() {
    let mut bytes = header(&[SHA1, SHA256]);
    bytes.extend(event2(4, 4, &[(4, 20), (11, 32)], b"x"));
    bytes.extend(event2(4, 4, &[(11, 32), (4, 20)], b"y"));
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!(log.events.iter().map(|event| event.digest).collect::<Vec<_>>(), [[7; 32]; 2]);
    // A bank this code has no hash for still has a size in the header.
    let mut bytes = header(&[(0x12, 32), SHA256]);
    bytes.extend(event2(4, 4, &[(0x12, 32), (11, 32)], b""));
    assert_eq!(EventLog::parse(&bytes).unwrap().events.len(), 1);
}

#[test]
fn logs_cut_inside_an_event_are_refused() {
    let bytes = log().marshal();
    let mut whole = 0;
    for cut in 0..bytes.len() {
        // A cut between two events leaves a shorter log, which then does not replay.
        if let Ok(short) = EventLog::parse(&bytes[..cut]) {
            whole += 1;
            assert!(short.events.len() < log().events.len());
            short.check_replay(&log().replay(), 0).unwrap_err();
        }
    }
    assert_eq!(whole, log().events.len() + 1);
    EventLog::parse(&[bytes.as_slice(), &[0]].concat()).unwrap_err();
}

#[test]
fn headers_that_are_none_are_refused() {
    for bytes in [vec![], wrap(b""), wrap(b"Spec ID Event02\0"), event2(0, 3, &[(11, 32)], b"")] {
        EventLog::parse(&bytes).unwrap_err();
    }
    let good = header(&[SHA256]);
    assert_eq!(EventLog::parse(&good), Ok(EventLog::default()));
    for (at, byte) in [(0, 1), (4, 4), (8, 1), (32, b'X'), (28, 0xff)] {
        let mut bad = good.clone();
        bad[at] = byte;
        EventLog::parse(&bad).unwrap_err();
    }
    let mut huge = good.clone();
    huge[28..32].copy_from_slice(&[0xff; 4]);
    assert_eq!(EventLog::parse(&huge), Err(LogError::Header));
    for (algorithms, expected) in [
        (vec![], LogError::Algorithms),
        (vec![SHA1], LogError::Algorithms),
        (vec![SHA256, SHA256], LogError::Algorithms),
        (vec![(11, 20)], LogError::Algorithms),
        (vec![SHA256, (0x77, 0)], LogError::Algorithms),
        (vec![SHA256, (0x77, 65)], LogError::Algorithms),
        ((0..=MAX_ALGORITHMS as u16).map(|id| (id + 0x100, 32)).collect(), LogError::TooMany("hash algorithms")),
    ] {
        assert_eq!(EventLog::parse(&header(&algorithms)), Err(expected));
    }
    let mut many = header(&[SHA256]);
    many[56..60].copy_from_slice(&[0xff; 4]);
    assert_eq!(EventLog::parse(&many), Err(LogError::TooMany("hash algorithms")));
}

#[test]
fn events_that_lie_about_sizes_digests_or_pcrs_are_refused() {
    let with = |event: Vec<u8>| EventLog::parse(&[header(&[SHA1, SHA256]), event].concat());
    let both = [(4, 20), (11, 32)];
    assert!(with(event2(4, 4, &both, b"")).is_ok());
    let digests = Err(LogError::Digests { event: 1 });
    assert_eq!(with(event2(4, 4, &[], b"")), digests);
    assert_eq!(with(event2(4, 4, &[(11, 32)], b"")), digests);
    assert_eq!(with(event2(4, 4, &[(4, 20), (4, 20)], b"")), digests);
    assert_eq!(with(event2(4, 4, &[(11, 32), (11, 32)], b"")), digests);
    assert_eq!(with(event2(4, 4, &[(4, 20), (12, 48)], b"")), digests);
    assert_eq!(with(event2(4, 4, &[(4, 20), (11, 32), (12, 48)], b"")), digests);
    assert_eq!(with(event2(24, 4, &both, b"")), Err(LogError::Pcr { event: 1, pcr: 24 }));
    assert_eq!(with(event2(u32::MAX, 4, &both, b"")), Err(LogError::Pcr { event: 1, pcr: u32::MAX }));
    for size in [1u32, 0x1_0000, 0x7fff_ffff, u32::MAX] {
        let mut lying = event2(4, 4, &both, b"");
        let at = lying.len() - 4;
        lying[at..].copy_from_slice(&size.to_le_bytes());
        assert!(matches!(with(lying), Err(LogError::Wire { event: 1, .. })), "{size:#x}");
    }
    let mut counted = event2(4, 4, &both, b"");
    counted[8..12].copy_from_slice(&[0xff; 4]);
    assert_eq!(with(counted), digests);
    let huge = event2(4, 4, &both, &vec![0; 200 * 1024]);
    assert!(matches!(with(huge), Err(LogError::Wire { source: WireError::TooLarge { .. }, .. })));
}

#[test]
fn logs_are_bounded() {
    assert_eq!(EventLog::parse(&vec![0; MAX_LOG + 1]), Err(LogError::TooMany("bytes")));
    let mut bytes = header(&[SHA256]);
    for _ in 0..3000 {
        bytes.extend(event2(4, 4, &[(11, 32)], b""));
    }
    assert_eq!(EventLog::parse(&bytes), Err(LogError::TooMany("events")));
    // Events that extend nothing count too.
    let mut bytes = header(&[SHA256]);
    for _ in 0..3000 {
        bytes.extend(event2(u32::MAX, 3, &[(11, 32)], b""));
    }
    assert_eq!(EventLog::parse(&bytes), Err(LogError::TooMany("events")));
}

#[test]
fn startup_locality_counts_once_and_first() {
    let locality = |pcr, value: &[u8]| event2(pcr, 3, &[(11, 32)], &[b"StartupLocality\0", value].concat());
    let with = |events: &[Vec<u8>]| EventLog::parse(&[header(&[SHA256]), events.concat()].concat());
    let other = event2(7, 4, &[(11, 32)], b"");
    let zero = event2(0, 4, &[(11, 32)], b"");
    assert_eq!(with(&[locality(0, &[3])]).unwrap().startup_locality, 3);
    assert_eq!(with(&[other.clone(), locality(0, &[0])]).unwrap().startup_locality, 0);
    for bad in [
        vec![zero, locality(0, &[3])],
        vec![locality(0, &[3]), locality(0, &[3])],
        vec![locality(1, &[3])],
        vec![locality(u32::MAX, &[3])],
        vec![locality(0, &[])],
        vec![locality(0, &[1])],
        vec![locality(0, &[3, 0])],
    ] {
        assert!(matches!(with(&bad), Err(LogError::Locality { .. })), "{bad:?}");
    }
}

#[test]
fn explain_shows_what_people_need_and_no_control_characters() {
    let mut log = log();
    log.events.push(event(12, EventKind::IPL, b"\x1b[31mred\n\0"));
    log.events.push(event(12, EventKind(0x1234), &[0xff; 100]));
    let text = explain(&log);
    assert!(text.contains("EV_EFI_ACTION"), "{text}");
    assert!(text.contains("Calling EFI Application from Boot Option\n"), "measured text is shown as such:\n{text}");
    assert!(text.contains(".linux (unauthenticated)"), "{text}");
    assert!(text.contains("0x00001234"), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
}

#[test]
fn names_of_types_read_back() {
    for kind in [EventKind::EFI_ACTION, EventKind::EFI_VARIABLE_BOOT2, EventKind(0x1234), EventKind(0xffff_ffff)] {
        assert_eq!(EventKind::from_name(&kind.name()), Some(kind));
    }
    for bad in ["", "EV_", "0x", "0x4", "0x00000004", "0xFFFFFFFF", "4"] {
        assert_eq!(EventKind::from_name(bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = EventLog::parse(&bytes);
        let _ = EventLog::parse(&[header(&[SHA256]), bytes].concat());
    }

    #[test]
    fn damaged_logs_never_panic_and_what_parses_explains(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = log().marshal();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(log) = EventLog::parse(&bytes) {
            let text = explain(&log);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }

    #[test]
    fn event_data_of_any_kind_is_described_in_one_bounded_line(kind in 0u32..0x14, efi in any::<bool>(), data in proptest::collection::vec(any::<u8>(), 0..200)) {
        let event = event(0, EventKind(if efi { 0x8000_0000 | kind } else { kind }), &data);
        let text = event.describe();
        prop_assert!(text.chars().count() <= 101 && !text.contains(char::is_control));
    }

    #[test]
    fn logs_round_trip(events in proptest::collection::vec((0u8..24, 4u32.., any::<[u8; 32]>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
        let events = events.into_iter().map(|(pcr, kind, digest, data)| Event { pcr, kind: EventKind(kind), digest, data }).collect();
        let log = EventLog { startup_locality: 0, events };
        prop_assert_eq!(EventLog::parse(&log.marshal()), Ok(log));
    }
}
