//! Documents against evidence: from a golden boot to members that differ from it in one thing each.

// Clippy's exception for tests does not reach what tests share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use banlieue_policy::document::{DocumentError, MAX_DOCUMENT, document_digest};
use banlieue_policy::record::{Predictions, RecordError, record};
use banlieue_policy::rule::{Matcher, Pattern, Rule};
use banlieue_policy::{Digest, Evidence, Latch, Measurements, Refusal, Verdict, evaluate};
use banlieue_tpm::eventlog::{Event, EventKind, EventLog};
use banlieue_tpm::hash::sha256;
use banlieue_tpm::pcr::{PcrValue, QUOTED, extend};

fn event(pcr: u8, kind: EventKind, data: &[u8]) -> Event {
    Event { pcr, kind, digest: sha256(&[data]), data: data.to_vec() }
}

fn variable(name: &str, value: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut data = vec![0x61; 16];
    data.extend(((name.len() / 2) as u64).to_le_bytes());
    data.extend((value.len() as u64).to_le_bytes());
    data.extend(name);
    data.extend(value);
    data
}

/// The shape of an honest boot, short.
fn honest_log() -> EventLog {
    let mut events = vec![
        event(0, EventKind::S_CRTM_VERSION, b"\0\0"),
        Event { digest: [0x11; 32], ..event(0, EventKind::EFI_PLATFORM_FIRMWARE_BLOB, b"blob") },
        event(7, EventKind::EFI_VARIABLE_DRIVER_CONFIG, &variable("SecureBoot", &[1])),
        event(1, EventKind::EFI_VARIABLE_BOOT2, &variable("BootOrder", &[0, 0])),
        event(1, EventKind::EFI_VARIABLE_BOOT2, &variable("Boot0000", b"disk")),
        event(4, EventKind::EFI_ACTION, b"Calling EFI Application from Boot Option"),
    ];
    events.extend((0..=7).map(|pcr| event(pcr, EventKind::SEPARATOR, &[0; 4])));
    events.push(event(5, EventKind::EFI_GPT_EVENT, b"partition table"));
    events.push(Event { digest: [0x44; 32], ..event(4, EventKind::EFI_BOOT_SERVICES_APPLICATION, b"") });
    events.push(Event { digest: [0xbb; 32], ..event(11, EventKind::IPL, b".\0l\0i\0n\0u\0x\0\0\0") });
    let tag = [&0x8f3b_22ec_u32.to_le_bytes()[..], &13u32.to_le_bytes(), b"Linux initrd\0"].concat();
    events.push(Event { digest: [0x99; 32], ..event(9, EventKind::EVENT_TAG, &tag) });
    EventLog { startup_locality: 0, events }
}

/// Values after the log; PCR 10 as the kernel's IMA leaves it.
fn values(log: &EventLog) -> [PcrValue; QUOTED] {
    let mut values: [PcrValue; QUOTED] = log.replay()[..QUOTED].try_into().unwrap();
    values[10] = extend(&[0; 32], &[0x10; 32]);
    values
}

fn predictions(log: &EventLog) -> Predictions {
    let values = values(log);
    let hex = |pcr: usize| Digest(values[pcr]).to_string();
    let yaml = format!(
        "apiVersion: measurements.banlieue.io/v1\nimage: {{name: guest, version: 0.1.0, digest: \"sha256:{}\"}}\n\
         pcrs: {{4: {{digest: '{}'}}, 9: {{digest: '{}'}}, 11: {{digest: '{}'}}}}\n\
         programs: {{node: {{path: /usr/bin/banlieue-guest, sha256: '{}', uid: 0}}}}\n",
        Digest([5; 32]),
        hex(4),
        hex(9),
        hex(11),
        Digest([6; 32]),
    );
    Predictions::parse(yaml.as_bytes(), MAX_DOCUMENT).unwrap()
}

fn golden() -> Measurements {
    let log = honest_log();
    record(&predictions(&log), &values(&log), &log).unwrap()
}

fn judge(
    measurements: &Measurements,
    log: &EventLog,
    pcrs: &[PcrValue; QUOTED],
    latch: Latch,
) -> Result<Verdict, Refusal> {
    evaluate(measurements, &Evidence { pcrs, log, latch })
}

fn judge_log(measurements: &Measurements, log: &EventLog) -> Result<Verdict, Refusal> {
    judge(measurements, log, &values(log), Latch::Untouched)
}

#[test]
fn a_golden_boot_makes_a_document_that_accepts_it_and_survives_its_text() {
    let golden = golden();
    let yaml = golden.to_yaml().unwrap();
    assert_eq!(Measurements::parse(yaml.as_bytes(), MAX_DOCUMENT).unwrap(), golden);
    assert_eq!(judge_log(&golden, &honest_log()), Ok(Verdict { latched: false, secure_boot: true }));
    assert_ne!(document_digest(yaml.as_bytes()), document_digest(format!("{yaml} ").as_bytes()));
}

#[test]
fn a_changed_initrd_is_named() {
    let mut log = honest_log();
    log.events.last_mut().unwrap().digest = [0x98; 32];
    let Err(Refusal::Policy(mismatches)) = judge_log(&golden(), &log) else { panic!() };
    let sentence = format!(
        "PCR 9: event 1 (EV_EVENT_TAG Linux initrd): expected sha256:{}, found sha256:{}",
        Digest([0x99; 32]),
        Digest([0x98; 32])
    );
    assert_eq!(mismatches.to_string(), sentence);
    assert_eq!(mismatches.summary(3), sentence);
}

#[test]
fn a_credential_beside_the_image_is_named_in_its_pcr() {
    let mut log = honest_log();
    log.events.push(event(12, EventKind::IPL, b"c\0r\0e\0d\0\0\0"));
    let Err(Refusal::Policy(mismatches)) = judge_log(&golden(), &log) else { panic!() };
    assert!(
        mismatches.to_string().starts_with("PCR 12: event 1 (EV_IPL cred): no such event is allowed, found sha256:"),
        "{mismatches}"
    );
}

#[test]
fn every_pcr_counts_and_all_that_differ_are_named() {
    let golden = golden();
    for pcr in 0..QUOTED as u8 {
        let mut log = honest_log();
        let mut pcrs = values(&log);
        if pcr != 10 && pcr != 15 {
            log.events.push(event(pcr, EventKind::ACTION, b"one more"));
            pcrs = values(&log);
        } else {
            pcrs[usize::from(pcr)] = extend(&pcrs[usize::from(pcr)], &[7; 32]);
        }
        match judge(&golden, &log, &pcrs, Latch::Untouched) {
            Err(Refusal::Policy(mismatches)) => {
                assert_eq!(mismatches.0.iter().map(|m| m.pcr).collect::<Vec<_>>(), [pcr], "{mismatches}");
            }
            Err(Refusal::LatchUnexpected(_)) => assert_eq!(pcr, 15),
            other => panic!("PCR {pcr}: {other:?}"),
        }
    }
    let mut log = honest_log();
    log.events.pop();
    log.events.push(event(13, EventKind::IPL, b"x"));
    let Err(Refusal::Policy(mismatches)) = judge_log(&golden, &log) else { panic!() };
    assert_eq!(mismatches.0.iter().map(|m| m.pcr).collect::<Vec<_>>(), [9, 13]);
    assert!(
        mismatches.to_string().contains("PCR 9: event 1 (EV_EVENT_TAG Linux initrd): expected sha256:9999"),
        "{mismatches}"
    );
    assert!(mismatches.to_string().contains("found no event"), "{mismatches}");
    assert!(mismatches.summary(1).ends_with("; and 1 more PCRs"), "{}", mismatches.summary(1));
}

#[test]
fn a_log_that_does_not_replay_is_refused_before_policy() {
    let log = honest_log();
    let mut pcrs = values(&log);
    pcrs[4] = [1; 32];
    let Err(Refusal::Replay(error)) = judge(&golden(), &log, &pcrs, Latch::Untouched) else { panic!() };
    assert_eq!(error.pcr, 4);
    // Right values with a log that lacks one event.
    let mut short = honest_log();
    short.events.remove(0);
    assert!(matches!(judge(&golden(), &short, &values(&log), Latch::Untouched), Err(Refusal::Replay(_))));
}

#[test]
fn the_latch_follows_the_members_record() {
    let (golden, log, set) = (golden(), honest_log(), [0x15; 32]);
    let run = |held: PcrValue, latch| {
        let mut pcrs = values(&log);
        pcrs[15] = held;
        judge(&golden, &log, &pcrs, latch).map(|verdict| verdict.latched)
    };
    let other = [0x16; 32];
    assert_eq!(run([0; 32], Latch::Untouched), Ok(false));
    assert_eq!(run(set, Latch::Untouched), Err(Refusal::LatchUnexpected(Digest(set))));
    assert_eq!(run([0; 32], Latch::Either(set)), Ok(false));
    assert_eq!(run(set, Latch::Either(set)), Ok(true));
    assert_eq!(run(other, Latch::Either(set)), Err(Refusal::LatchUnexpected(Digest(other))));
    assert_eq!(run(set, Latch::Set(set)), Ok(true));
    assert_eq!(run([0; 32], Latch::Set(set)), Err(Refusal::LatchMissing));
    assert_eq!(run(other, Latch::Set(set)), Err(Refusal::LatchUnexpected(Digest(other))));
}

fn with_event_rule() -> Measurements {
    let mut measurements = golden();
    let pattern = |kind, matcher, optional, repeated| Pattern { kind, matcher, optional, repeated };
    measurements.rules[1] = Rule::Events(vec![
        pattern(EventKind::EFI_VARIABLE_BOOT2, Matcher::Variable("BootOrder".into()), false, false),
        pattern(EventKind::EFI_VARIABLE_BOOT2, Matcher::Variable("Boot0000".into()), true, true),
        pattern(EventKind::SEPARATOR, Matcher::Digests(vec![Digest(sha256(&[&[0; 4]]))]), false, false),
    ]);
    let yaml = measurements.to_yaml().unwrap();
    assert_eq!(Measurements::parse(yaml.as_bytes(), MAX_DOCUMENT).unwrap(), measurements);
    measurements
}

#[test]
fn an_event_rule_lets_vary_what_it_names_and_nothing_else() {
    let measurements = with_event_rule();
    let mut log = honest_log();
    log.events[3] = event(1, EventKind::EFI_VARIABLE_BOOT2, &variable("BootOrder", &[7, 0, 8, 0]));
    assert!(judge_log(&measurements, &log).is_ok());
    log.events[4] = event(1, EventKind::EFI_VARIABLE_BOOT2, &variable("Boot0666", b"disk"));
    let Err(Refusal::Policy(mismatches)) = judge_log(&measurements, &log) else { panic!() };
    assert!(
        mismatches.to_string().starts_with("PCR 1: event 2 (EV_EFI_VARIABLE_BOOT2 variable Boot0666"),
        "{mismatches}"
    );
}

#[test]
fn event_data_edited_under_unchanged_digests_decides_nothing() {
    let measurements = with_event_rule();
    let mut log = honest_log();
    // A forbidden event whose text was edited into an allowed one: its digest still replays.
    let forbidden = event(1, EventKind::EFI_VARIABLE_BOOT2, &variable("Boot0666", b"evil"));
    log.events[4] = Event { data: variable("Boot0000", b"disk"), ..forbidden };
    assert!(matches!(judge_log(&measurements, &log), Err(Refusal::Policy(_))));
    // Secure Boot off, its data edited to say on: the digest differs from the golden one, and the edit is not believed.
    let mut log = honest_log();
    let off = event(7, EventKind::EFI_VARIABLE_DRIVER_CONFIG, &variable("SecureBoot", &[0]));
    log.events[2] = Event { data: variable("SecureBoot", &[1]), ..off };
    let mut lax = golden();
    lax.rules[7] = Rule::Digest(Digest(values(&log)[7]));
    assert_eq!(judge_log(&lax, &log), Ok(Verdict { latched: false, secure_boot: false }));
}

#[test]
fn a_golden_boot_that_is_not_the_image_is_no_golden_boot() {
    let log = honest_log();
    let mut other = honest_log();
    other.events.last_mut().unwrap().digest = [0x98; 32];
    assert!(matches!(record(&predictions(&log), &values(&other), &other), Err(RecordError::Prediction { pcr: 9, .. })));
    let mut touched = honest_log();
    touched.events.push(event(12, EventKind::IPL, b"x"));
    assert!(matches!(
        record(&predictions(&log), &values(&touched), &touched),
        Err(RecordError::NotZero { pcr: 12, .. })
    ));
    let mut latched = values(&log);
    latched[15] = [1; 32];
    assert!(matches!(record(&predictions(&log), &latched, &log), Err(RecordError::NotZero { pcr: 15, .. })));
}

#[test]
fn documents_are_read_strictly() {
    let yaml = golden().to_yaml().unwrap();
    let parse = |text: &str| Measurements::parse(text.as_bytes(), MAX_DOCUMENT);
    assert!(parse(&yaml).is_ok());
    assert!(matches!(Measurements::parse(yaml.as_bytes(), 100), Err(DocumentError::TooLarge { .. })));
    assert!(matches!(parse(&yaml.replace("/v1", "/v2")), Err(DocumentError::Version(_))));
    assert!(matches!(parse(&format!("{yaml}extra: 1\n")), Err(DocumentError::Shape(_))));
    assert!(
        matches!(parse(&format!("{yaml}image: {{name: a, version: b, digest: c}}\n")), Err(DocumentError::Shape(_))),
        "duplicate key"
    );
    assert!(matches!(parse(&format!("{yaml}---\n{yaml}")), Err(DocumentError::Shape(_))), "two documents");
    let anchored = yaml.replacen("image:", "image: &a", 1);
    assert!(matches!(parse(&anchored), Err(DocumentError::Shape(_))), "anchors");
    for (from, to, why) in [
        ("zero: true", "zero: false", "false says nothing"),
        ("latch: true", "latch: true\n    zero: true", "two rules"),
        ("latch: true", "{}", "no rule"),
        ("zero: true", "bootAggregate: true", "the boot aggregate is in PCR 10"),
        ("zero: true", "latch: true", "the latch is PCR 15"),
    ] {
        let changed = yaml.replacen(from, to, 1);
        assert_ne!(changed, yaml, "{why}");
        assert!(parse(&changed).is_err(), "{why}");
    }
    let sixteen = yaml.replacen("\n  15:", "\n  16:", 1);
    assert!(matches!(parse(&sixteen), Err(DocumentError::Rule { .. })), "{sixteen}");
    let upper = Digest([0xbb; 32]).to_string();
    assert!(parse(&yaml.replacen(&upper, &upper.to_uppercase(), 1)).is_err());
    let mut moved = golden();
    moved.reference.events[1].digest = Digest([3; 32]);
    assert!(matches!(parse(&moved.to_yaml().unwrap()), Err(DocumentError::Reference(0))));
    let mut path = golden();
    path.programs.node.path = "/usr/bin/../x y".into();
    assert!(matches!(parse(&path.to_yaml().unwrap()), Err(DocumentError::Field { field: "programs.node", .. })));
}

#[test]
fn a_rule_may_not_read_data_that_no_digest_covers() {
    let mut measurements = golden();
    measurements.rules[9] = Rule::Events(vec![Pattern {
        kind: EventKind::EVENT_TAG,
        matcher: Matcher::Text("Linux initrd".into()),
        optional: false,
        repeated: false,
    }]);
    measurements.reference.events.retain(|event| event.pcr != 9);
    let yaml = measurements.to_yaml().unwrap();
    let Err(DocumentError::Rule { pcr: 9, why }) = Measurements::parse(yaml.as_bytes(), MAX_DOCUMENT) else { panic!() };
    assert!(why.contains("not the hash of that data"), "{why}");
}

#[test]
fn digests_without_letters_survive_yaml() {
    let mut measurements = golden();
    measurements.reference.events.clear();
    measurements.rules[0] = Rule::Digest(Digest([0x11; 32]));
    let mut exponent = [0x11; 32];
    exponent[1] = 0x1e;
    measurements.rules[1] = Rule::Digest(Digest(exponent));
    let yaml = measurements.to_yaml().unwrap();
    assert_eq!(Measurements::parse(yaml.as_bytes(), MAX_DOCUMENT).unwrap(), measurements);
    let bare = yaml.replace(['"', '\''], "");
    assert_eq!(Measurements::parse(bare.as_bytes(), MAX_DOCUMENT).unwrap().rules[..2], measurements.rules[..2]);
}
