//! What BV1 hashes, and under which label. Every hash here has its own label, and every part its length, so no two
//! purposes and no two splits of the same bytes can meet.

use aws_lc_rs::hmac;
use banlieue_tpm::hash::sha256;
use banlieue_tpm::pcr::{PcrValue, extend};
use banlieue_tpm::{Name, Public};
use subtle::ConstantTimeEq;

use crate::names::{TrustDomain, Uid};
use crate::seed::EnrolmentSecret;

const PROOF: &[u8] = b"banlieue BV1 enrolment proof";
const EK: &[u8] = b"banlieue BV1 endorsement key";
const M1: &[u8] = b"banlieue BV1 message 1";
const M2: &[u8] = b"banlieue BV1 message 2";
const QUOTE: &[u8] = b"banlieue BV1 quote";
const LATCH: &[u8] = b"banlieue BV1 latch";

/// The PCR that says whether a member was used.
pub const LATCH_PCR: usize = 15;

/// Each part behind its u32 big-endian length, the label first.
fn framed(label: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    for part in std::iter::once(&label).chain(parts) {
        // Parts are digests, names and nonces; the longest is a public area or a message, bounded far below 4 GiB.
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

fn hash(label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    sha256(&[&framed(label, parts)])
}

/// What the enrolment proof covers.
#[derive(Debug, Clone, Copy)]
pub struct ProofInput<'a> {
    /// Uid of the member.
    pub member: &'a Uid,
    /// Endorsement key of M1.
    pub ek: &'a Public,
    /// Name of the attestation key of M1.
    pub ak_name: &'a Name,
    /// Guest nonce of M1.
    pub guest_nonce: &'a [u8; 32],
}

impl ProofInput<'_> {
    fn bytes(&self) -> Vec<u8> {
        let ek = hash(EK, &[&self.ek.marshal()]);
        framed(PROOF, &[self.member.as_str().as_bytes(), &ek, self.ak_name.as_bytes(), self.guest_nonce])
    }
}

/// HMAC-SHA256 with the enrolment secret over label, member uid, H(ek_public), AK name and guest nonce.
pub fn enrolment_proof(secret: &EnrolmentSecret, input: &ProofInput<'_>) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose());
    let mut out = [0u8; 32];
    out.copy_from_slice(hmac::sign(&key, &input.bytes()).as_ref());
    out
}

/// Checks an enrolment proof in constant time.
pub fn verify_proof(secret: &EnrolmentSecret, input: &ProofInput<'_>, proof: &[u8; 32]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose());
    hmac::verify(&key, &input.bytes(), proof).is_ok()
}

/// Hash of M1 as it crossed the wire.
pub fn m1_hash(encoded: &[u8]) -> [u8; 32] {
    hash(M1, &[encoded])
}

/// Hash of M2 as it crossed the wire.
pub fn m2_hash(encoded: &[u8]) -> [u8; 32] {
    hash(M2, &[encoded])
}

/// What the quote's extraData covers.
#[derive(Clone, Copy)]
pub struct QuoteInput<'a> {
    /// Server nonce of M2.
    pub server_nonce: &'a [u8; 32],
    /// The secret inside M2's credential.
    pub secret: &'a [u8],
    /// [`m1_hash`].
    pub m1: &'a [u8; 32],
    /// [`m2_hash`].
    pub m2: &'a [u8; 32],
    /// [`crate::seed::seed_digest`] of what the guest read.
    pub seed: &'a [u8; 32],
    /// Trust domain.
    pub trust_domain: &'a TrustDomain,
}

/// The quote's extraData: SHA-256 over label, nonce, secret, H(M1), H(M2), H(seed as read) and trust domain.
pub fn extra_data(input: &QuoteInput<'_>) -> [u8; 32] {
    let domain = input.trust_domain.as_str().as_bytes();
    hash(QUOTE, &[input.server_nonce, input.secret, input.m1, input.m2, input.seed, domain])
}

/// Compares a quote's extraData in constant time.
pub fn extra_data_matches(input: &QuoteInput<'_>, quoted: &[u8]) -> bool {
    extra_data(input).ct_eq(quoted).into()
}

/// What a member's guest agent extends into PCR 15 before any tenant code.
pub fn latch_value(claim: &Uid) -> [u8; 32] {
    hash(LATCH, &[claim.as_str().as_bytes()])
}

/// PCR 15 of a member that latched for this claim, and of no other.
pub fn latched_pcr(claim: &Uid) -> PcrValue {
    extend(&[0; 32], &latch_value(claim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use banlieue_tpm::template::{EndorsementKind, attestation_key};

    fn uid(n: u8) -> Uid {
        Uid::parse(&format!("0b7a3a3e-8a8f-4f0e-9a0b-0123456789{n:02x}")).unwrap()
    }

    #[test]
    fn a_proof_is_for_one_secret_member_ek_ak_and_nonce() {
        let (ek, other_ek) = (EndorsementKind::P256.template(), EndorsementKind::Rsa2048.template());
        let (ak, other_ak) = (attestation_key().name(), ek.name());
        let (member, other_member) = (uid(1), uid(2));
        let input = ProofInput { member: &member, ek: &ek, ak_name: &ak, guest_nonce: &[1; 32] };
        let secret = EnrolmentSecret::new([3; 32]);
        let proof = enrolment_proof(&secret, &input);
        assert!(verify_proof(&secret, &input, &proof));
        assert!(!verify_proof(&EnrolmentSecret::new([4; 32]), &input, &proof));
        assert!(!verify_proof(&secret, &ProofInput { member: &other_member, ..input }, &proof));
        assert!(!verify_proof(&secret, &ProofInput { ek: &other_ek, ..input }, &proof));
        assert!(!verify_proof(&secret, &ProofInput { ak_name: &other_ak, ..input }, &proof));
        assert!(!verify_proof(&secret, &ProofInput { guest_nonce: &[2; 32], ..input }, &proof));
        for byte in 0..32 {
            let mut changed = proof;
            changed[byte] ^= 1;
            assert!(!verify_proof(&secret, &input, &changed));
        }
    }

    #[test]
    fn extra_data_depends_on_every_part() {
        let (domain, other) = (TrustDomain::parse("a").unwrap(), TrustDomain::parse("b").unwrap());
        let input = QuoteInput {
            server_nonce: &[1; 32],
            secret: &[2; 32],
            m1: &[3; 32],
            m2: &[4; 32],
            seed: &[5; 32],
            trust_domain: &domain,
        };
        let quoted = extra_data(&input);
        assert!(extra_data_matches(&input, &quoted));
        assert!(!extra_data_matches(&input, &quoted[..31]));
        assert!(!extra_data_matches(&input, b""));
        for changed in [
            QuoteInput { server_nonce: &[9; 32], ..input },
            QuoteInput { secret: &[9; 32], ..input },
            QuoteInput { secret: &[2; 31], ..input },
            QuoteInput { secret: &[], ..input },
            QuoteInput { m1: &[9; 32], ..input },
            QuoteInput { m2: &[9; 32], ..input },
            QuoteInput { seed: &[9; 32], ..input },
            QuoteInput { trust_domain: &other, ..input },
        ] {
            assert!(!extra_data_matches(&changed, &quoted));
        }
    }

    #[test]
    fn labels_keep_purposes_apart() {
        assert_ne!(m1_hash(b"x"), m2_hash(b"x"));
        assert_ne!(latch_value(&uid(1)), latch_value(&uid(2)));
        assert_eq!(latched_pcr(&uid(1)), sha256(&[&[0; 32], &latch_value(&uid(1))]));
    }
}
