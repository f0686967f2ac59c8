//! Keys, quotes and signatures: bytes that a real TPM made (`data/`, from swtpm 0.7.1), then the same bytes damaged.

// Clippy's exception for tests does not reach what tests share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use aws_lc_rs::rand::SystemRandom;
use banlieue_tpm::attest::{AttestError, MAX_ATTEST};
use banlieue_tpm::credential::{CredentialError, make_credential};
use banlieue_tpm::pcr::PcrSelection;
use banlieue_tpm::public::{Attributes, Curve, Key, KeyError, Scheme, Symmetric};
use banlieue_tpm::signature::SignatureError;
use banlieue_tpm::template::{EndorsementKind, TemplateError, attestation_key, check_attestation, check_endorsement};
use banlieue_tpm::wire::WireError;
use banlieue_tpm::{Attest, Hash, Name, Public, Signature};
use proptest::prelude::*;

const EK_RSA: &[u8] = include_bytes!("data/ek-rsa2048.bin");
const EK_P256: &[u8] = include_bytes!("data/ek-p256.bin");
const EK_P384: &[u8] = include_bytes!("data/ek-p384.bin");
const AK: &[u8] = include_bytes!("data/ak.bin");
const QUOTE: &[u8] = include_bytes!("data/quote.bin");
const SIGNATURE: &[u8] = include_bytes!("data/signature.bin");

fn public(bytes: &[u8]) -> Public {
    Public::parse(bytes).unwrap()
}

#[test]
fn recorded_keys_are_allowed_and_have_the_names_the_tpm_gave_them() {
    assert_eq!(check_endorsement(&public(EK_RSA)), Ok(EndorsementKind::Rsa2048));
    assert_eq!(check_endorsement(&public(EK_P256)), Ok(EndorsementKind::P256));
    assert_eq!(check_endorsement(&public(EK_P384)), Ok(EndorsementKind::P384));
    assert_eq!(check_attestation(&public(AK)), Ok(()));
    let under_hierarchy = |bytes| public(bytes).qualified_name(&Name::endorsement());
    assert_eq!(
        under_hierarchy(EK_P256).to_string(),
        "000be6eb4cf6097f03c1f964ba70f04bee5c4a367d81921312fd35da547d61c5786c"
    );
    assert_eq!(
        public(AK).qualified_name(&under_hierarchy(EK_P384)).to_string(),
        "000b5c009991a0a1096d126922d720825d23d15192a2251641ec613ee63e588fcd80"
    );
}

#[test]
fn the_recorded_quote_verifies() {
    let attest = Attest::parse(QUOTE).unwrap();
    let ek = public(EK_P384).qualified_name(&Name::endorsement());
    assert_eq!(attest.qualified_signer, public(AK).qualified_name(&ek));
    assert_eq!(attest.extra_data, [0xe7; 32]);
    assert_eq!(attest.selection, [PcrSelection::QUOTED]);
    Signature::parse(SIGNATURE).unwrap().verify(&public(AK), QUOTE).unwrap();
}

#[test]
fn every_structure_is_refused_when_cut_at_any_byte_or_followed_by_one() {
    for bytes in [EK_RSA, EK_P256, EK_P384, AK] {
        for cut in 0..bytes.len() {
            Public::parse(&bytes[..cut]).unwrap_err();
            Public::parse_area(&bytes[2..cut.max(2)]).unwrap_err();
        }
        assert!(matches!(Public::parse(&[bytes, &[0]].concat()), Err(WireError::Trailing { left: 1, .. })));
        assert!(matches!(Public::parse_area(&[&bytes[2..], &[0]].concat()), Err(WireError::Trailing { .. })));
    }
    for cut in 0..QUOTE.len() {
        Attest::parse(&QUOTE[..cut]).unwrap_err();
    }
    assert!(matches!(Attest::parse(&[QUOTE, &[0]].concat()), Err(AttestError::Wire(WireError::Trailing { .. }))));
    for cut in 0..SIGNATURE.len() {
        Signature::parse(&SIGNATURE[..cut]).unwrap_err();
    }
    Signature::parse(&[SIGNATURE, &[0]].concat()).unwrap_err();
}

#[test]
fn quotes_of_another_magic_type_or_size_are_refused() {
    let with = |at: usize, byte: u8| {
        let mut bytes = QUOTE.to_vec();
        bytes[at] = byte;
        Attest::parse(&bytes)
    };
    assert_eq!(with(0, 0xfe), Err(AttestError::Magic));
    for kind in [0x14, 0x15, 0x16, 0x17, 0x19, 0x1a, 0x1c] {
        assert_eq!(with(5, kind), Err(AttestError::Type(0x8000 | u16::from(kind))));
    }
    assert!(matches!(Attest::parse(&[0; MAX_ATTEST + 1]), Err(AttestError::Wire(WireError::TooLarge { .. }))));
    // "safe" is a TPMI_YES_NO: after magic, type, 36 bytes of name, 34 of extraData, clock and both counters.
    let safe = 4 + 2 + 36 + 34 + 16;
    assert!(!with(safe, 0).unwrap().clock.safe);
    assert!(with(safe, 2).is_err());
}

#[test]
fn selections_are_read_as_written() {
    let at = QUOTE.len() - 34 - 10;
    let with = |list: &[u8]| Attest::parse(&[&QUOTE[..at], list, &QUOTE[QUOTE.len() - 34..]].concat());
    assert_eq!(with(&PcrSelection::QUOTED.marshal_list()).unwrap().selection, [PcrSelection::QUOTED]);
    for other in [
        PcrSelection { mask: 0x7fff, ..PcrSelection::QUOTED },
        PcrSelection { mask: 0x1ffff, ..PcrSelection::QUOTED },
        PcrSelection { mask: 0, ..PcrSelection::QUOTED },
        PcrSelection { bank: Hash::Sha1, ..PcrSelection::QUOTED },
    ] {
        let read = with(&other.marshal_list()).unwrap().selection;
        assert_eq!(read, [other]);
        assert_ne!(read, [PcrSelection::QUOTED]);
    }
    assert!(with(&[0, 0, 0, 0]).unwrap().selection.is_empty());
    with(&[0xff, 0xff, 0xff, 0xff]).unwrap_err();
    with(&[0, 0, 0, 1, 0, 0x0b, 0]).unwrap_err();
    with(&[0, 0, 0, 1, 0, 0x0b, 5, 1, 2, 3, 4, 5]).unwrap_err();
    with(&[0, 0, 0, 1, 0x77, 0x77, 3, 0xff, 0xff, 0]).unwrap_err();
}

#[test]
fn attestation_keys_that_differ_in_one_thing_are_refused() {
    let good = public(AK);
    let attributes = |missing: Attributes, extra: Attributes| {
        let mut key = good.clone();
        key.attributes = Attributes(key.attributes.0 & !missing.0 | extra.0);
        check_attestation(&key)
    };
    let none = Attributes(0);
    for bit in 0..32 {
        let flag = Attributes(1 << bit);
        let (missing, extra) = if good.attributes.contains(flag) { (flag, none) } else { (none, flag) };
        assert_eq!(
            attributes(missing, extra),
            Err(TemplateError::Attributes { role: "attestation key", missing, extra })
        );
    }
    let message = attributes(Attributes::RESTRICTED, Attributes::DECRYPT).unwrap_err().to_string();
    assert_eq!(message, "attestation key attributes differ: missing restricted, not allowed decrypt");

    let change = |edit: fn(&mut Public)| {
        let mut key = good.clone();
        edit(&mut key);
        check_attestation(&key).unwrap_err().category()
    };
    assert_eq!(change(|key| key.name_alg = Hash::Sha1), "algorithm");
    assert_eq!(change(|key| key.auth_policy = vec![0; 32]), "policy");
    let ecc = |edit: fn((&mut Symmetric, &mut Scheme, &mut Curve, &mut Vec<u8>))| {
        let mut key = good.clone();
        let Key::Ecc { symmetric, scheme, curve, x, .. } = &mut key.key else { panic!() };
        edit((symmetric, scheme, curve, x));
        check_attestation(&key).unwrap_err().category()
    };
    assert_eq!(ecc(|(symmetric, ..)| *symmetric = Symmetric::AesCfb { bits: 128 }), "algorithm");
    assert_eq!(ecc(|(_, scheme, ..)| *scheme = Scheme::Null), "algorithm");
    assert_eq!(ecc(|(_, scheme, ..)| *scheme = Scheme::Hashed { alg: 0x18, hash: Hash::Sha1 }), "algorithm");
    assert_eq!(ecc(|(_, scheme, ..)| *scheme = Scheme::Hashed { alg: 0x1c, hash: Hash::Sha256 }), "algorithm");
    assert_eq!(ecc(|(_, scheme, ..)| *scheme = Scheme::Ecdaa { hash: Hash::Sha256, count: 0 }), "algorithm");
    assert_eq!(ecc(|(_, _, curve, _)| *curve = Curve::P384), "algorithm");
    assert_eq!(ecc(|(.., x)| x[0] ^= 1), "key");
    assert_eq!(ecc(|(.., x)| x.insert(0, 0)), "key");
    assert_eq!(ecc(|(.., x)| *x = Vec::new()), "key");
    assert_eq!(check_attestation(&public(EK_P256)).unwrap_err().category(), "attributes");
    assert_eq!(check_attestation(&attestation_key()).unwrap_err().category(), "key");
}

#[test]
fn endorsement_keys_that_differ_in_one_thing_are_refused() {
    for bytes in [EK_RSA, EK_P256, EK_P384] {
        let good = public(bytes);
        for bit in 0..32 {
            let mut key = good.clone();
            key.attributes.0 ^= 1 << bit;
            assert_eq!(check_endorsement(&key).unwrap_err().category(), "attributes", "bit {bit}");
        }
        for at in 0..good.auth_policy.len() {
            let mut key = good.clone();
            key.auth_policy[at] ^= 1;
            assert_eq!(check_endorsement(&key), Err(TemplateError::Policy("endorsement key")));
        }
        let mut none = good.clone();
        none.auth_policy.clear();
        assert_eq!(check_endorsement(&none), Err(TemplateError::Policy("endorsement key")));
    }
    let rsa = |edit: fn((&mut u16, &mut u32, &mut Vec<u8>))| {
        let mut key = public(EK_RSA);
        let Key::Rsa { bits, exponent, modulus, .. } = &mut key.key else { panic!() };
        edit((bits, exponent, modulus));
        check_endorsement(&key)
    };
    let refused = |source| Err(TemplateError::Key { role: "endorsement key", source });
    assert_eq!(rsa(|(_, exponent, _)| *exponent = 65537), Ok(EndorsementKind::Rsa2048));
    assert_eq!(rsa(|(_, exponent, _)| *exponent = 3), refused(KeyError::Exponent(3)));
    assert_eq!(rsa(|(_, exponent, _)| *exponent = 1), refused(KeyError::Exponent(1)));
    assert_eq!(rsa(|(.., modulus)| modulus[255] &= 0xfe), refused(KeyError::Modulus(2048)));
    assert_eq!(rsa(|(.., modulus)| modulus[0] &= 0x7f), refused(KeyError::Modulus(2048)));
    assert_eq!(rsa(|(.., modulus)| modulus.truncate(128)), refused(KeyError::Modulus(2048)));
    assert_eq!(rsa(|(.., modulus)| modulus.clear()), refused(KeyError::Modulus(2048)));
    assert_eq!(rsa(|(bits, ..)| *bits = 3072).unwrap_err().category(), "algorithm");
    assert_eq!(check_endorsement(&public(AK)).unwrap_err().category(), "attributes");
}

#[test]
fn points_off_the_curve_are_no_keys() {
    let with = |x: Vec<u8>, y: Vec<u8>| {
        let mut key = public(EK_P256);
        let Key::Ecc { x: old_x, y: old_y, .. } = &mut key.key else { panic!() };
        (*old_x, *old_y) = (x, y);
        key
    };
    let prime = hex::decode("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff").unwrap();
    for (x, y) in [
        (vec![0; 32], vec![0; 32]),
        (vec![0; 32], vec![1; 32]),
        (vec![0xff; 32], vec![0xff; 32]),
        (prime.clone(), vec![1; 32]),
        (vec![1; 33], vec![1; 32]),
        (vec![], vec![]),
    ] {
        let key = with(x, y);
        assert_eq!(key.check_key(), Err(KeyError::Point(Curve::P256)));
        key.spki_der().unwrap_err();
        key.key_digest().unwrap_err();
        let object = public(AK).name();
        let made = make_credential(&key, &object, &[1; 32], &SystemRandom::new());
        assert!(matches!(made, Err(CredentialError::Key(_))), "{made:?}");
    }
}

#[test]
fn credentials_have_bounded_secrets_and_only_known_keys() {
    let random = SystemRandom::new();
    let object = public(AK).name();
    for bytes in [EK_RSA, EK_P256, EK_P384] {
        let ek = public(bytes);
        let most = ek.name_alg.size();
        assert!(make_credential(&ek, &object, &vec![1; most], &random).is_ok());
        assert_eq!(make_credential(&ek, &object, &vec![1; most + 1], &random), Err(CredentialError::SecretSize(most)));
        assert_eq!(make_credential(&ek, &object, &[], &random), Err(CredentialError::SecretSize(most)));
        let once = make_credential(&ek, &object, &[1; 32], &random).unwrap();
        assert_ne!(once, make_credential(&ek, &object, &[1; 32], &random).unwrap());
    }
    // A signing key has no symmetric algorithm to wrap with.
    assert_eq!(make_credential(&public(AK), &object, &[1; 32], &random), Err(CredentialError::Unsupported));
}

#[test]
fn degenerate_signatures_are_refused() {
    let order = hex::decode("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551").unwrap();
    let below: Vec<u8> = order.iter().enumerate().map(|(at, byte)| if at == 31 { byte - 1 } else { *byte }).collect();
    let write = |r: &[u8], s: &[u8]| {
        let sized = |number: &[u8]| [&u16::try_from(number.len()).unwrap().to_be_bytes(), number].concat();
        [&[0, 0x18, 0, 0x0b][..], &sized(r), &sized(s)].concat()
    };
    let (r, s) = (&SIGNATURE[6..38], &SIGNATURE[40..72]);
    assert_eq!(write(r, s), SIGNATURE);
    for bad in [&[][..], &[0], &[0; 32], &order, &[0xff; 32]] {
        assert_eq!(Signature::parse(&write(bad, s)), Err(SignatureError::Degenerate));
        assert_eq!(Signature::parse(&write(r, bad)), Err(SignatureError::Degenerate));
        let mut padded = vec![0; 32 - bad.len()];
        padded.extend(bad);
        assert_eq!(Signature::from_fixed(&[&padded, s].concat()), Err(SignatureError::Degenerate));
    }
    assert!(matches!(Signature::parse(&write(&[1; 33], s)), Err(SignatureError::Wire(WireError::TooLarge { .. }))));
    for odd in [&[1][..], &below] {
        let parsed = Signature::parse(&write(odd, s)).unwrap();
        assert_eq!(parsed.verify(&public(AK), QUOTE), Err(SignatureError::Mismatch));
        assert_eq!(Signature::parse(&parsed.marshal()).unwrap(), parsed);
    }
    for (at, byte) in [(1, 0x14), (1, 0x1c), (3, 0x04), (3, 0x0c)] {
        let mut other = SIGNATURE.to_vec();
        other[at] = byte;
        assert_eq!(Signature::parse(&other), Err(SignatureError::Algorithm));
    }
    let good = Signature::parse(SIGNATURE).unwrap();
    assert_eq!(good.verify(&public(EK_P256), QUOTE), Err(SignatureError::Algorithm));
    assert_eq!(good.verify(&public(EK_RSA), QUOTE), Err(SignatureError::Algorithm));
}

/// Real structures with some bytes changed, and pure noise.
fn damaged(original: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6).prop_map(move |edits| {
        let mut bytes = original.to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![edits, proptest::collection::vec(any::<u8>(), 0..600)]
}

proptest! {
    /// Whatever parses marshals back to the same bytes: so a name computed here is the name the TPM computes.
    #[test]
    fn public_areas_round_trip(
        bytes in prop_oneof![damaged(EK_RSA), damaged(EK_P256), damaged(EK_P384), damaged(AK)]
    ) {
        if let Ok(public) = Public::parse(&bytes) {
            prop_assert_eq!(public.marshal(), bytes);
            let _ = (public.name(), public.key_digest(), check_endorsement(&public), check_attestation(&public));
            let _ = make_credential(&public, &public.name(), &[1; 16], &SystemRandom::new());
        }
    }

    #[test]
    fn quotes_never_panic(bytes in damaged(QUOTE)) {
        let _ = Attest::parse(&bytes);
        if bytes != QUOTE {
            let signature = Signature::parse(SIGNATURE).unwrap();
            prop_assert_eq!(signature.verify(&public(AK), &bytes), Err(SignatureError::Mismatch));
        }
    }

    #[test]
    fn signatures_round_trip(bytes in damaged(SIGNATURE)) {
        if let Ok(signature) = Signature::parse(&bytes) {
            prop_assert_eq!(Signature::parse(&signature.marshal()).unwrap(), signature.clone());
            prop_assert_eq!(signature.verify(&public(AK), QUOTE).is_ok(), bytes == SIGNATURE);
        }
    }
}
