//! M1, M2 and M3 on the wire: what an honest side sends, and everything else.

// Clippy's exception for tests does not reach what tests share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use banlieue_protocol::message::{DEADLINE_SECONDS, MAX_M1, MAX_M2, MAX_M3, VERSION};
use banlieue_protocol::names::{MemberName, Namespace, Uid};
use banlieue_protocol::wire::{WireM1, WireM2, WireM3};
use banlieue_protocol::{M1, M2, M3, MessageError, Reason};
use banlieue_tpm::Public;
use banlieue_tpm::pcr::PcrSelection;
use proptest::prelude::*;
use prost::Message;

fn uid() -> Uid {
    Uid::parse("0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab").unwrap()
}

fn m1() -> M1 {
    M1 {
        namespace: Namespace::parse("sandboxes").unwrap(),
        member: MemberName::parse("guest-x7k2p").unwrap(),
        uid: uid(),
        ek: Public::parse(include_bytes!("../../tpm/tests/data/ek-p384.bin")).unwrap(),
        ek_certificate: vec![],
        ak: Public::parse(include_bytes!("../../tpm/tests/data/ak.bin")).unwrap(),
        guest_nonce: [1; 32],
        enrolment_proof: Some([2; 32]),
    }
}

fn m2() -> M2 {
    M2 {
        server_nonce: [1; 32],
        id_object: vec![2; 70],
        encrypted_secret: vec![3; 100],
        selection: PcrSelection::QUOTED,
        policy_digest: [4; 32],
        deadline_seconds: DEADLINE_SECONDS,
    }
}

fn m3() -> M3 {
    M3 {
        attest: include_bytes!("../../tpm/tests/data/quote.bin").to_vec(),
        signature: include_bytes!("../../tpm/tests/data/signature.bin").to_vec(),
        pcr_values: [[5; 32]; 16],
        event_log: vec![6; 1000],
        boot_id: uid(),
        seed_digest: [7; 32],
    }
}

#[test]
fn messages_round_trip() {
    for m1 in [m1(), M1 { enrolment_proof: None, ek_certificate: vec![0x30; 1000], ..m1() }] {
        assert_eq!(M1::decode(&m1.encode()).unwrap(), m1);
    }
    assert_eq!(M2::decode(&m2().encode()).unwrap(), m2());
    for m3 in [m3(), M3 { event_log: vec![], ..m3() }] {
        assert_eq!(M3::decode(&m3.encode()).unwrap(), m3);
    }
}

type Decode = fn(&[u8]) -> Result<(), MessageError>;

fn all() -> [(&'static str, Vec<u8>, Decode, usize); 3] {
    [
        ("M1", m1().encode(), |bytes| M1::decode(bytes).map(drop), MAX_M1),
        ("M2", m2().encode(), |bytes| M2::decode(bytes).map(drop), MAX_M2),
        ("M3", m3().encode(), |bytes| M3::decode(bytes).map(drop), MAX_M3),
    ]
}

#[test]
fn messages_cut_anywhere_or_extended_are_refused() {
    for (name, bytes, decode, max) in all() {
        decode(&bytes).unwrap();
        for cut in 0..bytes.len() {
            // The proof is M1's last field and may be left out: that one cut is a whole message.
            let whole = name == "M1" && cut == bytes.len() - 34;
            assert_eq!(decode(&bytes[..cut]).is_ok(), whole, "{name} cut at {cut}");
        }
        // An unknown field, the version once more, and an unknown group: prost alone would take them all.
        for tail in [&[0x78, 0x01][..], &[0x08, 0x01], &[0x7b, 0x7c], &[0xfa, 0x01, 0x00]] {
            let longer = [bytes.as_slice(), tail].concat();
            assert_eq!(decode(&longer), Err(MessageError::NotCanonical(name)), "{name} with {tail:?}");
        }
        assert!(decode(&[bytes.as_slice(), &[0]].concat()).is_err());
        // Fields in another order.
        let (version, rest) = bytes.split_at(2);
        assert_eq!(decode(&[rest, version].concat()), Err(MessageError::NotCanonical(name)));
        // The version as a longer varint of the same value.
        assert_eq!(decode(&[&[0x08, 0x81, 0x00], rest].concat()), Err(MessageError::NotCanonical(name)));
        for version in [0, VERSION + 1, u32::MAX] {
            let mut head = vec![];
            prost::encoding::uint32::encode(1, &version, &mut head);
            let changed = [head.as_slice(), rest].concat();
            assert_eq!(decode(&changed), Err(MessageError::Version { message: name, version }), "{name}");
        }
        assert_eq!(decode(rest), Err(MessageError::Version { message: name, version: 0 }));
        let large = decode(&vec![0; max + 1]).unwrap_err();
        assert_eq!(large, MessageError::TooLarge { message: name, size: max + 1, max });
        assert_eq!(Reason::from(&large), Reason::MessageTooLarge);
        assert!(decode(&[]).is_err());
    }
}

fn wire1(edit: fn(&mut WireM1)) -> MessageError {
    let mut wire = WireM1::decode(m1().encode().as_slice()).unwrap();
    edit(&mut wire);
    M1::decode(&wire.encode_to_vec()).unwrap_err()
}

fn wire2(edit: fn(&mut WireM2)) -> MessageError {
    let mut wire = WireM2::decode(m2().encode().as_slice()).unwrap();
    edit(&mut wire);
    M2::decode(&wire.encode_to_vec()).unwrap_err()
}

fn wire3(edit: fn(&mut WireM3)) -> MessageError {
    let mut wire = WireM3::decode(m3().encode().as_slice()).unwrap();
    edit(&mut wire);
    M3::decode(&wire.encode_to_vec()).unwrap_err()
}

#[test]
fn fields_out_of_range_are_refused_with_their_reason() {
    let reason = |error: MessageError| Reason::from(&error);
    assert_eq!(reason(wire1(|wire| wire.namespace = "a/b".into())), Reason::NameInvalid);
    assert_eq!(reason(wire1(|wire| wire.member = "..".into())), Reason::NameInvalid);
    assert_eq!(reason(wire1(|wire| wire.uid = "../../../../../../../../../../../../..".into())), Reason::NameInvalid);
    assert_eq!(reason(wire1(|wire| wire.uid = wire.uid.to_uppercase())), Reason::NameInvalid);
    assert_eq!(reason(wire1(|wire| wire.ek_public.push(0))), Reason::EkMalformed);
    assert_eq!(reason(wire1(|wire| wire.ek_public.clear())), Reason::EkMalformed);
    assert_eq!(reason(wire1(|wire| wire.ak_public.truncate(9))), Reason::AkMalformed);
    assert_eq!(wire1(|wire| wire.ak_public = vec![0; 2000]), MessageError::Size("ak_public"));
    assert_eq!(wire1(|wire| wire.guest_nonce.clear()), MessageError::Size("guest_nonce"));
    assert_eq!(wire1(|wire| wire.guest_nonce.push(0)), MessageError::Size("guest_nonce"));
    assert_eq!(wire1(|wire| wire.enrolment_proof.truncate(31)), MessageError::Size("enrolment_proof"));
    assert_eq!(wire1(|wire| wire.ek_certificate = vec![0; 9000]), MessageError::Size("ek_certificate"));

    assert_eq!(wire2(|wire| wire.pcr_mask = 0x7fff), MessageError::Value("pcr selection"));
    assert_eq!(wire2(|wire| wire.pcr_mask = 0), MessageError::Value("pcr selection"));
    assert_eq!(wire2(|wire| wire.pcr_bank = 4), MessageError::Value("pcr selection"));
    assert_eq!(wire2(|wire| wire.pcr_bank = 0x1_000b), MessageError::Value("pcr_bank"));
    assert_eq!(wire2(|wire| wire.server_nonce.truncate(16)), MessageError::Size("server_nonce"));
    assert_eq!(wire2(|wire| wire.id_object.clear()), MessageError::Size("id_object"));
    assert_eq!(wire2(|wire| wire.encrypted_secret = vec![0; 600]), MessageError::Size("encrypted_secret"));
    assert_eq!(wire2(|wire| wire.policy_digest.clear()), MessageError::Size("policy_digest"));
    assert_eq!(wire2(|wire| wire.deadline_seconds = 0), MessageError::Value("deadline_seconds"));
    assert_eq!(wire2(|wire| wire.deadline_seconds = 6000), MessageError::Value("deadline_seconds"));

    assert_eq!(wire3(|wire| wire.attest.clear()), MessageError::Size("attest"));
    assert_eq!(wire3(|wire| wire.attest = vec![0; 600]), MessageError::Size("attest"));
    assert_eq!(wire3(|wire| wire.signature = vec![0; 100]), MessageError::Size("signature"));
    assert_eq!(wire3(|wire| wire.pcr_values.truncate(480)), MessageError::Size("pcr_values"));
    assert_eq!(wire3(|wire| wire.pcr_values.push(0)), MessageError::Size("pcr_values"));
    assert_eq!(wire3(|wire| wire.pcr_values = vec![0; 32 * 17]), MessageError::Size("pcr_values"));
    assert_eq!(reason(wire3(|wire| wire.boot_id = "x\n".into())), Reason::NameInvalid);
    assert_eq!(wire3(|wire| wire.seed_digest.clear()), MessageError::Size("seed_digest"));
}

proptest! {
    /// Whatever decodes encodes to the same bytes: a message has one spelling, and its hash means its content.
    #[test]
    fn damaged_messages_never_panic_and_have_one_spelling(
        which in 0usize..3,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (_, mut bytes, ..) = all()[which].clone();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let again = match which {
            0 => M1::decode(&bytes).map(|message| message.encode()),
            1 => M2::decode(&bytes).map(|message| message.encode()),
            _ => M3::decode(&bytes).map(|message| message.encode()),
        };
        if let Ok(again) = again {
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for (_, _, decode, _) in all() {
            let _ = decode(&bytes);
        }
    }
}
