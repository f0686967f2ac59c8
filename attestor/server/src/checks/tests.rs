//! Every check refuses for its own reason, and nothing else about the attempt is wrong.

use banlieue_crds::pool::Endorsement;
use banlieue_policy::Digest;
use banlieue_protocol::{
    message::MAX_M1,
    names::{MemberName, TrustDomain, Uid},
    reason::Reason,
    seed::EnrolmentSecret,
    transcript::latched_pcr,
};
use banlieue_tpm::{
    Hash, PcrSelection,
    public::{Attributes, Key, Scheme},
};

use super::{
    admit::Mode,
    testing::{Attempt, CLAIM, attestation, event, key_pair, public, random32, replay},
    verify::verify,
};
use crate::facts::{Claim, Pin};

type Spoil = fn(&mut Attempt);

fn refuses(base: fn() -> Attempt, cases: &[(&str, Reason, Spoil)]) {
    base().run().expect("the unspoiled attempt must pass");
    for (what, reason, spoil) in cases {
        let mut attempt = base();
        spoil(&mut attempt);
        match attempt.run() {
            Ok(_) => panic!("{what}: admitted, should be {reason}"),
            Err(refusal) => assert_eq!(refusal.reason, *reason, "{what}: {}", refusal.detail),
        }
    }
}

/// Reports and pins follow the key that the attempt shows.
fn follow(attempt: &mut Attempt) {
    let key = Digest(attempt.ek.key_digest().unwrap());
    for report in &mut attempt.facts.reports {
        report.keys = vec![key];
    }
    if let Some(pin) = &mut attempt.facts.member.pin {
        pin.ek = key;
    }
}

fn set_attributes(attempt: &mut Attempt, with: u32, without: u32) {
    let bits = attempt.ak.attributes.0;
    attempt.ak.attributes = Attributes((bits | with) & !without);
}

#[test]
fn what_was_accepted_is_recorded_as_it_was() {
    let first = Attempt::first();
    let verified = first.run().unwrap();
    assert_eq!(verified.admitted.mode, Mode::First);
    assert_eq!(verified.admitted.endorsement, Endorsement::HostReported);
    assert_eq!(verified.clock, first.clock);
    assert!(!verified.latched && !verified.secure_boot);
    assert_eq!(verified.ak_name, hex::encode(first.ak.name().as_bytes()));

    let again = Attempt::again();
    let verified = again.run().unwrap();
    assert!(matches!(verified.admitted.mode, Mode::Again { .. }));
    let selectors = super::verify::selectors(&verified, &again.facts.member);
    assert!(selectors.contains(&format!("member:{}", again.facts.member.uid)));
    assert!(selectors.contains(&"latched:false".to_owned()));
    assert!(selectors.contains(&"endorsement:HostReported".to_owned()));
}

#[test]
fn first_messages() {
    refuses(
        Attempt::first,
        &[
            ("empty", Reason::VersionUnknown, |a| a.m1_bytes = Some(Box::new(Vec::clear))),
            ("trailing bytes", Reason::MessageMalformed, |a| a.m1_bytes = Some(Box::new(|m| m.extend([0x78, 1])))),
            ("oversized", Reason::MessageTooLarge, |a| a.m1_bytes = Some(Box::new(|m| m.resize(MAX_M1 + 1, 0)))),
            ("another member's name", Reason::MemberNotFound, |a| {
                a.m1 = Some(Box::new(|m1| m1.member = MemberName::parse("guest-other").unwrap()));
            }),
            ("the same name, another life", Reason::MemberNotFound, |a| {
                a.facts.member.uid = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ac".to_owned();
            }),
        ],
    );
}

#[test]
fn enrolment() {
    refuses(
        Attempt::first,
        &[
            ("no proof", Reason::EnrolmentProofInvalid, |a| a.secret = None),
            ("another secret", Reason::EnrolmentProofInvalid, |a| a.secret = Some(EnrolmentSecret::new(random32()))),
            ("made for another EK", Reason::EnrolmentProofInvalid, |a| {
                let other = public(a.ek.clone(), &key_pair());
                a.m1 = Some(Box::new(move |m1| m1.ek = other.clone()));
            }),
            ("made for another AK", Reason::EnrolmentProofInvalid, |a| {
                let other = attestation(&key_pair());
                a.m1 = Some(Box::new(move |m1| m1.ak = other.clone()));
            }),
            ("made for another nonce", Reason::EnrolmentProofInvalid, |a| {
                a.m1 = Some(Box::new(|m1| m1.guest_nonce = [4; 32]));
            }),
            ("the Secret is gone", Reason::EnrolmentProofInvalid, |a| a.facts.enrolment = None),
            ("used before", Reason::EnrolmentConsumed, |a| a.facts.member.enrolment_consumed = true),
            ("expired", Reason::EnrolmentExpired, |a| a.now = "2026-11-30T20:10:00Z".parse().unwrap()),
            ("expired by the member's record", Reason::EnrolmentExpired, |a| {
                a.facts.member.enrolment_expires = Some("2026-11-30T19:59:00Z".parse().unwrap());
            }),
            ("another Secret than was recorded", Reason::SeedMismatch, |a| {
                a.facts.enrolment.as_mut().unwrap().seed_digest = Digest([8; 32]);
            }),
            ("another member's Secret", Reason::SeedMismatch, |a| {
                a.facts.enrolment.as_mut().unwrap().member = Uid::parse(CLAIM).unwrap();
            }),
        ],
    );
}

#[test]
fn member_claim_and_instance() {
    const CASES: &[(&str, Reason, Spoil)] = &[
        ("not recorded yet", Reason::InstanceNotRunning, |a| a.facts.member.instance = None),
        ("gone", Reason::InstanceMismatch, |a| a.facts.instance = None),
        ("recreated under the same name", Reason::InstanceMismatch, |a| {
            a.facts.instance.as_mut().unwrap().uid = CLAIM.to_owned();
        }),
        ("does not run", Reason::InstanceNotRunning, |a| a.facts.instance.as_mut().unwrap().running = false),
        ("being deleted", Reason::MemberEnding, |a| a.facts.instance.as_mut().unwrap().deleting = true),
        ("member ends", Reason::MemberEnding, |a| a.facts.member.ending = Some("the member is being deleted")),
        ("claim over", Reason::ClaimEnding, |a| a.facts.claim = Claim::Ending("its claim is being released")),
        ("another mode", Reason::ModeNotVtpm, |a| a.facts.member.needs_evidence = false),
        ("no pool", Reason::MemberEnding, |a| a.facts.pool = None),
        ("no policy", Reason::MeasurementsNotFound, |a| a.facts.policy = None),
        ("policy revoked", Reason::PolicyRevoked, |a| {
            let digest = a.facts.policy.as_ref().unwrap().digest.to_string();
            a.facts.pool.as_mut().unwrap().revoked.push(digest);
        }),
        ("image revoked", Reason::ImageRevoked, |a| a.facts.pool.as_mut().unwrap().revoked.push("ab".repeat(32))),
    ];
    refuses(Attempt::first, CASES);
    refuses(Attempt::again, CASES);
}

#[test]
fn endorsement_keys() {
    const CASES: &[(&str, Reason, Spoil)] = &[
        ("not reported yet", Reason::EkReportMissing, |a| a.facts.reports.clear()),
        ("other keys reported", Reason::EkNotReported, |a| a.facts.reports[0].keys = vec![Digest([1; 32])]),
        ("reported by another node", Reason::EkReportedElsewhere, |a| a.facts.reports[0].node = "node-2".to_owned()),
        ("node unknown", Reason::InstanceNotRunning, |a| a.facts.instance.as_mut().unwrap().node = None),
        ("own report ended", Reason::EkTombstoned, |a| a.facts.reports[0].ended = true),
        ("of another living member", Reason::DuplicateEndorsementKey, |a| {
            a.facts.key_elsewhere.pinned_to = Some("sandboxes/other".to_owned());
        }),
        ("of an ended member", Reason::EkTombstoned, |a| {
            a.facts.key_elsewhere.tombstone = Some("sandboxes/u.n".to_owned());
        }),
        ("template altered: may sign", Reason::EkTemplate, |a| {
            a.ek.attributes = Attributes(a.ek.attributes.0 | Attributes::SIGN.0);
            follow(a);
        }),
        ("template altered: not restricted", Reason::EkTemplate, |a| {
            a.ek.attributes = a.ek.attributes.without(Attributes::RESTRICTED);
            follow(a);
        }),
        ("template altered: policy", Reason::EkTemplate, |a| {
            a.ek.auth_policy = vec![0; 32];
            follow(a);
        }),
    ];
    refuses(Attempt::first, CASES);
    refuses(Attempt::again, CASES);
    refuses(
        Attempt::again,
        &[
            ("not the pinned one", Reason::EkNotPinned, |a| {
                a.facts.member.pin.as_mut().unwrap().ek = Digest([1; 32]);
            }),
            ("pinned without a record", Reason::EkNotPinned, |a| a.facts.member.record = None),
            ("first use, then HostReported is demanded", Reason::EndorsementTooWeak, |a| {
                a.facts.member.pin.as_mut().unwrap().source = Endorsement::FirstUse;
            }),
        ],
    );
    refuses(
        Attempt::first,
        &[("off its curve", Reason::EkUnsound, |a| {
            a.m1_bytes = None;
            if let Key::Ecc { y, .. } = &mut a.ek.key {
                y.fill(1);
            }
        })],
    );
}

#[test]
fn another_nodes_report_neither_pins_nor_blocks() {
    let mut attempt = Attempt::first();
    let other = crate::facts::Report { node: "node-2".to_owned(), keys: vec![Digest([1; 32])], ended: true };
    attempt.facts.reports.insert(0, other);
    attempt.run().unwrap();

    // Also when it is there first, and names the member's very key: the member waits for its own node, and nothing
    // stands against it.
    let mut early = Attempt::first();
    early.facts.reports[0].node = "node-2".to_owned();
    let refusal = early.run().unwrap_err();
    assert_eq!(refusal.reason, Reason::EkReportedElsewhere);
    assert!(refusal.authenticated && !refusal.counts() && refusal.reason.is_transient());
}

#[test]
fn a_member_whose_policy_is_missing_is_told_so() {
    // Its policy was copied before it was made: what is not there will not come, and its owner has to see why.
    let mut first = Attempt::first();
    first.facts.policy = None;
    let refusal = first.run().unwrap_err();
    assert!(refusal.reason == Reason::MeasurementsNotFound && refusal.counts(), "{refusal:?}");
    // One that was attested before is not ended by a ConfigMap.
    let mut again = Attempt::again();
    again.facts.policy = None;
    assert!(!again.run().unwrap_err().counts());
}

#[test]
fn first_use_needs_no_report_where_the_member_was_made_for_it() {
    let mut attempt = Attempt::first();
    attempt.facts.reports.clear();
    attempt.facts.member.endorsement = Endorsement::FirstUse;
    assert_eq!(attempt.run().unwrap().admitted.endorsement, Endorsement::FirstUse);

    let mut again = Attempt::again();
    again.facts.reports.clear();
    again.facts.member.endorsement = Endorsement::FirstUse;
    let ek = again.facts.member.pin.as_ref().unwrap().ek;
    again.facts.member.pin = Some(Pin { source: Endorsement::FirstUse, ek });
    again.run().unwrap();
}

#[test]
fn attestation_keys() {
    const CASES: &[(&str, Reason, Spoil)] = &[
        ("not restricted", Reason::AkNotRestricted, |a| set_attributes(a, 0, Attributes::RESTRICTED.0)),
        ("not fixedTPM", Reason::AkNotFixed, |a| set_attributes(a, 0, Attributes::FIXED_TPM.0)),
        ("imported", Reason::AkImported, |a| set_attributes(a, 0, Attributes::SENSITIVE_DATA_ORIGIN.0)),
        ("decrypts", Reason::AkDecrypts, |a| set_attributes(a, Attributes::DECRYPT.0, 0)),
        ("another attribute", Reason::AkAttributes, |a| set_attributes(a, 1 << 10, 0)),
        ("another hash", Reason::AkAlgorithm, |a| {
            if let Key::Ecc { scheme, .. } = &mut a.ak.key {
                *scheme = Scheme::Hashed { alg: banlieue_tpm::public::ALG_ECDSA, hash: Hash::Sha384 };
            }
        }),
        ("another scheme", Reason::AkAlgorithm, |a| {
            if let Key::Ecc { scheme, .. } = &mut a.ak.key {
                *scheme = Scheme::Null;
            }
        }),
        ("with a policy", Reason::AkPolicy, |a| a.ak.auth_policy = vec![1; 32]),
        ("off its curve", Reason::AkUnsound, |a| {
            if let Key::Ecc { y, .. } = &mut a.ak.key {
                y.fill(1);
            }
        }),
    ];
    refuses(Attempt::first, CASES);
    refuses(Attempt::again, CASES);
}

#[test]
fn quotes() {
    const CASES: &[(&str, Reason, Spoil)] = &[
        ("AK swapped between M1 and quote", Reason::SignatureInvalid, |a| a.signing = key_pair()),
        ("signature over other bytes", Reason::SignatureInvalid, |a| {
            a.m3 = Some(Box::new(|m3| *m3.attest.last_mut().unwrap() ^= 1));
        }),
        ("degenerate signature", Reason::SignatureDegenerate, |a| {
            a.m3 = Some(Box::new(|m3| {
                let at = m3.signature.len() - 32;
                m3.signature[at..].fill(0);
            }));
        }),
        ("no signature", Reason::SignatureMalformed, |a| a.m3 = Some(Box::new(|m3| m3.signature = vec![0]))),
        ("wrong magic", Reason::QuoteMagic, |a| a.quote = Some(Box::new(|q| q.magic ^= 1))),
        ("another attest type", Reason::QuoteType, |a| a.quote = Some(Box::new(|q| q.kind = 0x8017))),
        ("trailing bytes", Reason::QuoteMalformed, |a| a.quote = Some(Box::new(|q| q.rest = vec![0]))),
        ("AK under another hierarchy", Reason::SignerMismatch, |a| {
            let name = a.ak.name().as_bytes().to_vec();
            a.quote = Some(Box::new(move |q| q.signer = name.clone()));
        }),
        ("credential solved on another TPM", Reason::ExtraDataMismatch, |a| a.opened = Some([0; 32])),
        ("without secret and nonce", Reason::ExtraDataMismatch, |a| {
            a.quote = Some(Box::new(|q| q.extra = vec![0; 32]));
        }),
        ("no extraData", Reason::ExtraDataMismatch, |a| a.quote = Some(Box::new(|q| q.extra.clear()))),
        ("a smaller selection", Reason::SelectionMismatch, |a| {
            a.quote = Some(Box::new(|q| {
                q.selection = PcrSelection { bank: Hash::Sha256, mask: 0x7fff }.marshal_list();
            }));
        }),
        ("a larger selection", Reason::SelectionMismatch, |a| {
            a.quote = Some(Box::new(|q| {
                q.selection = PcrSelection { bank: Hash::Sha256, mask: 0x1_ffff }.marshal_list();
            }));
        }),
        ("another bank", Reason::SelectionMismatch, |a| {
            a.quote = Some(Box::new(|q| {
                q.selection = PcrSelection { bank: Hash::Sha1, mask: 0xffff }.marshal_list();
            }));
        }),
        ("an empty selection", Reason::SelectionMismatch, |a| {
            a.quote = Some(Box::new(|q| q.selection = vec![0; 4]));
        }),
        ("right values, wrong digest", Reason::PcrDigestMismatch, |a| {
            a.quote = Some(Box::new(|q| q.digest = vec![0; 32]));
        }),
        ("values other than quoted", Reason::PcrDigestMismatch, |a| {
            a.m3 = Some(Box::new(|m3| m3.pcr_values[0] = [0; 32]));
        }),
        ("clock not safe", Reason::ClockUnsafe, |a| a.clock.safe = false),
        ("another seed", Reason::SeedMismatch, |a| a.seed = Digest([7; 32])),
        ("a seed that the quote does not cover", Reason::ExtraDataMismatch, |a| {
            a.m3 = Some(Box::new(|m3| m3.seed_digest = [7; 32]));
        }),
        ("trailing bytes after M3", Reason::MessageMalformed, |a| {
            a.m3_bytes = Some(Box::new(|m| m.extend([0x78, 1])));
        }),
        ("oversized M3", Reason::MessageTooLarge, |a| {
            a.m3_bytes = Some(Box::new(|m| m.resize(banlieue_protocol::message::MAX_M3 + 1, 0)));
        }),
    ];
    refuses(Attempt::first, CASES);
    refuses(Attempt::again, CASES);
}

#[test]
fn a_quote_cut_at_every_byte_is_refused() {
    let trust_domain = TrustDomain::parse("banlieue.local").unwrap();
    let whole = {
        let attempt = Attempt::first();
        let (challenged, _) = attempt.challenge().unwrap();
        attempt.evidence(&challenged, &trust_domain).len()
    };
    for length in 0..whole {
        let mut attempt = Attempt::first();
        attempt.m3_bytes = Some(Box::new(move |m| m.truncate(length)));
        assert!(attempt.run().is_err(), "cut at {length}");
    }
}

#[test]
fn logs_and_policy() {
    const CASES: &[(&str, Reason, Spoil)] = &[
        ("log does not replay", Reason::LogReplay, |a| a.log.events[0].digest = [0; 32]),
        ("log is no log", Reason::LogMalformed, |a| {
            a.m3 = Some(Box::new(|m3| m3.event_log = banlieue_protocol::log_codec::pack(b"junk").unwrap()));
        }),
        ("log is a bomb", Reason::MessageTooLarge, |a| {
            a.m3 = Some(Box::new(|m3| m3.event_log = zstd::bulk::compress(&vec![0; 1 << 26], 19).unwrap()));
        }),
        ("one PCR wrong", Reason::PolicyMismatch, |a| {
            a.log.events[4] = event(4, "another image");
            a.pcrs = replay(&a.log);
        }),
        ("a forbidden event", Reason::PolicyMismatch, |a| {
            a.log.events.push(event(12, "a command line from the boot entry"));
            a.pcrs = replay(&a.log);
        }),
        ("a credential beside the image", Reason::PolicyMismatch, |a| {
            a.log.events.push(event(13, "credential"));
            a.pcrs = replay(&a.log);
        }),
        ("PCR 10, which has no events", Reason::PolicyMismatch, |a| a.pcrs[10] = [1; 32]),
        ("latched without a claim", Reason::LatchUnexpected, |a| {
            a.pcrs[15] = latched_pcr(&Uid::parse(CLAIM).unwrap());
        }),
    ];
    refuses(Attempt::first, CASES);
    refuses(Attempt::again, CASES);
}

#[test]
fn a_mismatch_names_the_event() {
    let mut attempt = Attempt::first();
    attempt.log.events[10] = event(4, "another image");
    attempt.pcrs = replay(&attempt.log);
    let refusal = attempt.run().unwrap_err();
    for part in ["PCR 4", "event 2", "expected sha256:", "found sha256:"] {
        assert!(refusal.detail.contains(part), "{part} in {}", refusal.detail);
    }
    assert!(refusal.counts());
}

#[test]
fn the_latch() {
    let latched = || latched_pcr(&Uid::parse(CLAIM).unwrap());
    // Before the latch is recorded both are right: rotation may fall between bind and latch.
    assert!(!Attempt::again().bound().run().unwrap().latched);
    let mut attempt = Attempt::again().bound();
    attempt.pcrs[15] = latched();
    assert!(attempt.run().unwrap().latched);
    // Once recorded, only the latch is.
    attempt.facts.member.record.as_mut().unwrap().latched = true;
    assert!(attempt.run().unwrap().latched);
    attempt.pcrs[15] = [0; 32];
    assert_eq!(attempt.run().unwrap_err().reason, Reason::LatchMissing);
    // Another claim's latch is none.
    attempt.pcrs[15] = latched_pcr(&Uid::parse(super::testing::INSTANCE).unwrap());
    assert_eq!(attempt.run().unwrap_err().reason, Reason::LatchUnexpected);
}

#[test]
fn counters() {
    refuses(
        Attempt::again,
        &[
            ("reset", Reason::ResetCountChanged, |a| a.clock.reset_count = 4),
            ("counter went back", Reason::ResetCountChanged, |a| a.clock.reset_count = 2),
            ("restarted", Reason::RestartCountChanged, |a| a.clock.restart_count = 1),
            ("clock stands", Reason::ClockBackwards, |a| a.clock.clock = 4000),
            ("clock went back", Reason::ClockBackwards, |a| a.clock.clock = 10),
        ],
    );
}

#[test]
fn evidence_serves_one_stream_only() {
    let trust_domain = TrustDomain::parse("banlieue.local").unwrap();
    let attempt = Attempt::again();
    let (one, _) = attempt.challenge().unwrap();
    let (other, _) = attempt.challenge().unwrap();
    let evidence = attempt.evidence(&one, &trust_domain);
    assert_eq!(verify(other, &evidence, &trust_domain).unwrap_err().reason, Reason::ExtraDataMismatch);
    assert!(verify(one, &evidence, &trust_domain).is_ok());
    // Nor another trust domain.
    let (again, _) = attempt.challenge().unwrap();
    let evidence = attempt.evidence(&again, &trust_domain);
    let elsewhere = TrustDomain::parse("other.local").unwrap();
    assert_eq!(verify(again, &evidence, &elsewhere).unwrap_err().reason, Reason::ExtraDataMismatch);
}

#[test]
fn a_stranger_touches_nobody() {
    // Before a valid proof.
    let mut attempt = Attempt::first();
    attempt.secret = Some(EnrolmentSecret::new(random32()));
    assert!(!attempt.run().unwrap_err().authenticated);
    // After one, it is the member.
    let mut attempt = Attempt::first();
    attempt.clock.safe = false;
    assert!(attempt.run().unwrap_err().counts());
    // With the pinned key's public part, which anybody may know, but without its TPM.
    let mut attempt = Attempt::again();
    attempt.opened = Some([0; 32]);
    attempt.pcrs[10] = [1; 32];
    assert!(!attempt.run().unwrap_err().authenticated);
    let mut attempt = Attempt::again();
    attempt.m3_bytes = Some(Box::new(|m| m.truncate(10)));
    assert!(!attempt.run().unwrap_err().authenticated);
    // With the TPM: the member itself.
    let mut attempt = Attempt::again();
    attempt.pcrs[10] = [1; 32];
    assert!(attempt.run().unwrap_err().counts());
    // "Not yet" counts against nobody.
    let mut attempt = Attempt::first();
    attempt.facts.reports.clear();
    assert!(!attempt.run().unwrap_err().counts());
}

#[test]
fn an_rsa_key_gets_a_challenge_too() {
    // The modulus of any RSA-2048 key: only its holder could go on.
    use aws_lc_rs::{
        rsa::KeySize,
        signature::{KeyPair, RsaKeyPair},
    };
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let mut attempt = Attempt::first();
    attempt.ek = banlieue_tpm::template::EndorsementKind::Rsa2048.template();
    if let Key::Rsa { modulus, .. } = &mut attempt.ek.key {
        *modulus = pair.public_key().modulus().big_endian_without_leading_zero().to_vec();
    }
    follow(&mut attempt);
    let (_, m2) = attempt.challenge().unwrap();
    assert!(banlieue_protocol::message::M2::decode(&m2).is_ok());
}
