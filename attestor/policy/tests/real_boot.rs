//! A real boot of the guest image, recorded under QEMU with OVMF and swtpm: `data/ovmf.log` is the kernel's
//! `binary_bios_measurements`, `ovmf.pcrs` its PCR 0 to 15, `predictions.yaml` what the image build said beforehand.

// Clippy's exception for tests does not reach what tests share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use banlieue_policy::document::MAX_DOCUMENT;
use banlieue_policy::record::{Predictions, record};
use banlieue_policy::rule::Rule;
use banlieue_policy::{Digest, Evidence, Latch, Measurements, Refusal, Verdict, evaluate};
use banlieue_tpm::eventlog::{EventKind, EventLog};
use banlieue_tpm::pcr::{PcrValue, QUOTED, extend};

fn boot() -> (EventLog, [PcrValue; QUOTED]) {
    let log = EventLog::parse(include_bytes!("data/ovmf.log")).unwrap();
    let values: Vec<_> = include_str!("data/ovmf.pcrs").lines().map(|line| Digest::parse(line).unwrap().0).collect();
    (log, values.try_into().unwrap())
}

fn document() -> Measurements {
    let (log, pcrs) = boot();
    let predictions = Predictions::parse(include_bytes!("data/predictions.yaml"), MAX_DOCUMENT).unwrap();
    let document = record(&predictions, &pcrs, &log).unwrap();
    let yaml = document.to_yaml().unwrap();
    assert_eq!(Measurements::parse(yaml.as_bytes(), MAX_DOCUMENT).unwrap(), document);
    document
}

#[test]
fn the_boot_fits_its_predictions_and_its_own_document() {
    let (log, pcrs) = boot();
    let document = document();
    assert_eq!(document.rule(10), Some(&Rule::BootAggregate));
    let verdict = evaluate(&document, &Evidence { pcrs: &pcrs, log: &log, latch: Latch::Untouched });
    assert_eq!(verdict, Ok(Verdict { latched: false, secure_boot: false }));
    assert_eq!(EventLog::parse(&log.marshal()).unwrap(), log);
}

#[test]
fn one_byte_in_the_initrd_is_named_where_it_was_measured() {
    let (mut log, mut pcrs) = boot();
    let document = document();
    for event in &mut log.events {
        let initrd = event.pcr == 11 && event.describe() == ".initrd";
        if initrd || event.describe() == "Linux initrd" || event.kind == EventKind::EFI_BOOT_SERVICES_APPLICATION {
            event.digest[0] ^= 1;
        }
    }
    let replayed = log.replay();
    pcrs[..10].copy_from_slice(&replayed[..10]);
    pcrs[11] = replayed[11];
    // What the kernel of such a boot would leave in PCR 10.
    let digest = [&b"sha256:\0"[..], &banlieue_tpm::hash::sha256(&[pcrs[..10].as_flattened()])].concat();
    let entry = [&40u32.to_le_bytes()[..], &digest, &15u32.to_le_bytes(), b"boot_aggregate\0", &[0; 4]].concat();
    pcrs[10] = extend(&[0; 32], &banlieue_tpm::hash::sha256(&[&entry]));
    let evidence = Evidence { pcrs: &pcrs, log: &log, latch: Latch::Untouched };
    let Err(Refusal::Policy(mismatches)) = evaluate(&document, &evidence) else { panic!() };
    assert_eq!(mismatches.0.iter().map(|mismatch| mismatch.pcr).collect::<Vec<_>>(), [4, 9, 11], "{mismatches}");
    let text = mismatches.to_string();
    assert!(
        text.contains("PCR 4: event 3 (EV_EFI_BOOT_SERVICES_APPLICATION image \\EFI\\BOOT\\BOOTX64.EFI): "),
        "{text}"
    );
    assert!(text.contains("PCR 9: event 2 (EV_EVENT_TAG Linux initrd): "), "{text}");
    assert!(text.contains("PCR 11: event 7 (EV_IPL .initrd): "), "{text}");

    // The other PCRs honest, PCR 10 not their aggregate.
    let (log, mut pcrs) = boot();
    pcrs[10] = extend(&pcrs[10], &[1; 32]);
    let evidence = Evidence { pcrs: &pcrs, log: &log, latch: Latch::Untouched };
    let Err(Refusal::Policy(mismatches)) = evaluate(&document, &evidence) else { panic!() };
    assert_eq!(mismatches.0.iter().map(|mismatch| mismatch.pcr).collect::<Vec<_>>(), [10], "{mismatches}");
}
