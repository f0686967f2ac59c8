//! The challenge: a nonce, and a secret that only the TPM with both keys can read.

use aws_lc_rs::rand::SecureRandom;
use banlieue_protocol::{
    message::{DEADLINE_SECONDS, M2, NONCE},
    reason::Reason,
    transcript::m2_hash,
};
use banlieue_tpm::{PcrSelection, credential::make_credential};
use zeroize::Zeroizing;

use super::{Refusal, admit::Admitted};

/// A stream that waits for its evidence. Nonce and secret live here and nowhere else.
pub struct Challenged {
    /// What was admitted.
    pub admitted: Admitted,
    pub(super) server_nonce: [u8; NONCE],
    pub(super) secret: Zeroizing<[u8; NONCE]>,
    pub(super) m2: [u8; 32],
}

impl Challenged {
    /// Draws nonce and secret and gives the bytes of M2.
    ///
    /// # Errors
    /// When the random source fails or no credential can be made for the key.
    pub fn draw(admitted: Admitted, random: &dyn SecureRandom) -> Result<(Self, Vec<u8>), Refusal> {
        let failed = |_| Refusal::stranger(Reason::Internal, "the random source failed");
        let (mut server_nonce, mut secret) = ([0; NONCE], Zeroizing::new([0; NONCE]));
        random.fill(&mut server_nonce).map_err(failed)?;
        random.fill(secret.as_mut_slice()).map_err(failed)?;
        let m1 = &admitted.hello.m1;
        let credential = make_credential(&m1.ek, &m1.ak.name(), secret.as_slice(), random)
            .map_err(|error| Refusal::stranger(Reason::Internal, error))?;
        let m2 = M2 {
            server_nonce,
            id_object: credential.id_object,
            encrypted_secret: credential.encrypted_secret,
            selection: PcrSelection::QUOTED,
            policy_digest: admitted.policy.digest.0,
            deadline_seconds: DEADLINE_SECONDS,
        }
        .encode();
        Ok((Self { admitted, server_nonce, secret, m2: m2_hash(&m2) }, m2))
    }
}
