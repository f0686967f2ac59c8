//! M1 and M3 of protocol BV1.

use std::path::Path;

use banlieue_protocol::{
    log_codec::{self, LogCodecError},
    message::{M1, M2, M3, MessageError},
    names::{NameError, TrustDomain},
    transcript::{ProofInput, QuoteInput, enrolment_proof, extra_data, m1_hash, m2_hash},
};
use thiserror::Error;

use crate::{
    config::Config,
    inputs,
    tpm::{self, AttestationKey, Tpm},
};

/// Why there is no evidence.
#[derive(Debug, Error)]
pub enum Error {
    /// See [`inputs::Error`].
    #[error(transparent)]
    Inputs(#[from] inputs::Error),
    /// See [`tpm::Error`].
    #[error(transparent)]
    Tpm(#[from] tpm::Error),
    /// The server's message cannot be read.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The event log cannot be packed.
    #[error(transparent)]
    Log(#[from] LogCodecError),
    /// SPIRE's trust domain cannot be used.
    #[error(transparent)]
    TrustDomain(#[from] NameError),
    /// SPIRE's trust domain is not the seed's.
    #[error("the agent works for trust domain {agent}, the seed names {seed}")]
    OtherTrustDomain {
        /// SPIRE's.
        agent: TrustDomain,
        /// The seed's.
        seed: TrustDomain,
    },
}

/// One attestation under way: M1 was made, M2 is awaited. Meanwhile nothing is in the TPM: SPIRE kills its plugins
/// when the server says no.
#[derive(Debug)]
pub struct Attestation {
    tpm: String,
    ak: AttestationKey,
    m1: [u8; 32],
    seed_digest: [u8; 32],
    trust_domain: TrustDomain,
}

impl Attestation {
    /// Begins: makes a fresh attestation key and M1, which is returned encoded. Blocks on the TPM.
    pub fn begin(config: &Config, trust_domain: &str) -> Result<(Self, Vec<u8>), Error> {
        let trust_domain = TrustDomain::parse(trust_domain)?;
        let (seed, seed_digest) = inputs::seed(&config.seed)?;
        if seed.trust_domain != trust_domain {
            return Err(Error::OtherTrustDomain { agent: trust_domain, seed: seed.trust_domain.clone() });
        }
        let mut tpm = Tpm::connect(&config.tpm)?;
        let ek = tpm.endorsement_key()?;
        let ak = tpm.create(&ek)?;
        drop(tpm);
        let guest_nonce: [u8; 32] = rand::random();
        let proof =
            ProofInput { member: &seed.uid, ek: &ek.public, ak_name: &ak.public.name(), guest_nonce: &guest_nonce };
        let enrolment_proof = Some(enrolment_proof(&seed.secret, &proof));
        let m1 = M1 {
            namespace: seed.namespace.clone(),
            member: seed.member.clone(),
            uid: seed.uid.clone(),
            ek: ek.public,
            // Its certificate authority is a throw-away of the host's: it would prove nothing.
            ek_certificate: Vec::new(),
            ak: ak.public.clone(),
            guest_nonce,
            // Always given: only the server knows whether it still counts.
            enrolment_proof,
        }
        .encode();
        Ok((Self { tpm: config.tpm.clone(), ak, m1: m1_hash(&m1), seed_digest, trust_domain }, m1))
    }

    /// Answers the server's M2 with M3, encoded. Blocks on the TPM.
    pub fn answer(self, challenge: &[u8], event_log: &Path, boot_id: &Path) -> Result<Vec<u8>, Error> {
        let m2 = M2::decode(challenge)?;
        let mut tpm = Tpm::connect(&self.tpm)?;
        let ek = tpm.endorsement_key()?;
        let ak = tpm.load(&ek, &self.ak)?;
        let secret = tpm.activate(&ek, &ak, &m2.id_object, &m2.encrypted_secret)?;
        let extra = extra_data(&QuoteInput {
            server_nonce: &m2.server_nonce,
            secret: &secret,
            m1: &self.m1,
            m2: &m2_hash(challenge),
            seed: &self.seed_digest,
            trust_domain: &self.trust_domain,
        });
        let quote = tpm.quote(&ak, &extra)?;
        drop(tpm);
        let m3 = M3 {
            attest: quote.attest,
            signature: quote.signature,
            pcr_values: quote.values,
            event_log: log_codec::pack(&inputs::event_log(event_log)?)?,
            boot_id: inputs::boot_id(boot_id)?,
            seed_digest: self.seed_digest,
        };
        Ok(m3.encode())
    }
}
