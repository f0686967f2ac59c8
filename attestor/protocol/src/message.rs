//! M1, M2 and M3, checked. Decoding is strict: a message whose canonical encoding is not the very bytes that arrived is
//! refused, which covers unknown and repeated fields, other field orders, written defaults and trailing bytes.

use banlieue_tpm::attest::MAX_ATTEST;
use banlieue_tpm::pcr::{PcrSelection, PcrValue, QUOTED};
use banlieue_tpm::public::MAX_PUBLIC;
use banlieue_tpm::signature::MAX_SIGNATURE;
use banlieue_tpm::wire::WireError;
use banlieue_tpm::{Hash, Public};
use prost::Message;

use crate::names::{MemberName, NameError, Namespace, Uid};
use crate::wire::{WireM1, WireM2, WireM3};

/// The one protocol version.
pub const VERSION: u32 = 1;
/// Most bytes in M1.
pub const MAX_M1: usize = 16 * 1024;
/// Most bytes in M2.
pub const MAX_M2: usize = 4 * 1024;
/// Most bytes in M3.
pub const MAX_M3: usize = 1024 * 1024;
/// Most bytes in an endorsement certificate.
pub const MAX_CERTIFICATE: usize = 8 * 1024;
/// Seconds a guest has from M2 to M3.
pub const DEADLINE_SECONDS: u32 = 30;
/// Size of both nonces, the secret in the credential, and the proof.
pub const NONCE: usize = 32;

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Above the message's limit.
    #[error("{message} has {size} bytes, at most {max} are allowed")]
    TooLarge {
        /// `M1`, `M2` or `M3`.
        message: &'static str,
        /// What arrived.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// Not protobuf of this shape.
    #[error("{0} is not a protobuf message of its kind")]
    Encoding(&'static str),
    /// Another version.
    #[error("{message} has version {version}, only {VERSION} is known")]
    Version {
        /// `M1`, `M2` or `M3`.
        message: &'static str,
        /// What it says.
        version: u32,
    },
    /// Unknown fields, trailing bytes, or another encoding than the canonical one.
    #[error("{0} has unknown fields, trailing bytes or another encoding than the canonical one")]
    NotCanonical(&'static str),
    /// A field of the wrong size.
    #[error("field {0} has the wrong size")]
    Size(&'static str),
    /// A field with a value that is not allowed.
    #[error("field {0} has a value that is not allowed")]
    Value(&'static str),
    /// A word that may not enter a SPIFFE id.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A key's public area does not parse.
    #[error("{which}: {source}")]
    Key {
        /// `ek_public` or `ak_public`.
        which: &'static str,
        /// What is wrong.
        source: WireError,
    },
}

impl MessageError {
    /// Fixed word for metrics: `size`, `version`, `name`, `key` or `malformed`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "size",
            Self::Version { .. } => "version",
            Self::Name(_) => "name",
            Self::Key { .. } => "key",
            Self::Encoding(_) | Self::NotCanonical(_) | Self::Size(_) | Self::Value(_) => "malformed",
        }
    }
}

/// First message, guest to server: who the guest says it is, and its keys. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct M1 {
    /// Namespace of the member.
    pub namespace: Namespace,
    /// Name of the member.
    pub member: MemberName,
    /// Uid of the member.
    pub uid: Uid,
    /// Endorsement key.
    pub ek: Public,
    /// Endorsement certificate in DER; empty for none. Shown, never decided on.
    pub ek_certificate: Vec<u8>,
    /// Attestation key.
    pub ak: Public,
    /// Guest nonce.
    pub guest_nonce: [u8; NONCE],
    /// Enrolment proof; a guest may leave it out once its key is pinned.
    pub enrolment_proof: Option<[u8; NONCE]>,
}

impl M1 {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        WireM1 {
            version: VERSION,
            namespace: self.namespace.to_string(),
            member: self.member.to_string(),
            uid: self.uid.to_string(),
            ek_public: self.ek.marshal(),
            ek_certificate: self.ek_certificate.clone(),
            ak_public: self.ak.marshal(),
            guest_nonce: self.guest_nonce.to_vec(),
            enrolment_proof: self.enrolment_proof.map(Vec::from).unwrap_or_default(),
        }
        .encode_to_vec()
    }

    /// Reads what arrived.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let wire: WireM1 = strict("M1", bytes, MAX_M1, |wire: &WireM1| wire.version)?;
        if wire.ek_certificate.len() > MAX_CERTIFICATE {
            return Err(MessageError::Size("ek_certificate"));
        }
        Ok(Self {
            namespace: Namespace::parse(&wire.namespace)?,
            member: MemberName::parse(&wire.member)?,
            uid: Uid::parse(&wire.uid)?,
            ek: key("ek_public", &wire.ek_public)?,
            ek_certificate: wire.ek_certificate,
            ak: key("ak_public", &wire.ak_public)?,
            guest_nonce: exact("guest_nonce", &wire.guest_nonce)?,
            enrolment_proof: match wire.enrolment_proof.as_slice() {
                [] => None,
                proof => Some(exact("enrolment_proof", proof)?),
            },
        })
    }
}

/// Second message, server to guest: the challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct M2 {
    /// Server nonce.
    pub server_nonce: [u8; NONCE],
    /// Content of the TPM2B_ID_OBJECT.
    pub id_object: Vec<u8>,
    /// Content of the TPM2B_ENCRYPTED_SECRET.
    pub encrypted_secret: Vec<u8>,
    /// PCRs to quote.
    pub selection: PcrSelection,
    /// SHA-256 of the measurements document the member is judged by.
    pub policy_digest: [u8; 32],
    /// Seconds the guest has for M3.
    pub deadline_seconds: u32,
}

impl M2 {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        WireM2 {
            version: VERSION,
            server_nonce: self.server_nonce.to_vec(),
            id_object: self.id_object.clone(),
            encrypted_secret: self.encrypted_secret.clone(),
            pcr_bank: u32::from(self.selection.bank.id()),
            pcr_mask: self.selection.mask,
            policy_digest: self.policy_digest.to_vec(),
            deadline_seconds: self.deadline_seconds,
        }
        .encode_to_vec()
    }

    /// Reads what arrived. The guest answers one selection only, so no server can make it quote less.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let wire: WireM2 = strict("M2", bytes, MAX_M2, |wire: &WireM2| wire.version)?;
        let bank = u16::try_from(wire.pcr_bank).ok().and_then(Hash::from_id).ok_or(MessageError::Value("pcr_bank"))?;
        let selection = PcrSelection { bank, mask: wire.pcr_mask };
        if selection != PcrSelection::QUOTED {
            return Err(MessageError::Value("pcr selection"));
        }
        if !(1..=128).contains(&wire.id_object.len()) {
            return Err(MessageError::Size("id_object"));
        }
        if !(1..=512).contains(&wire.encrypted_secret.len()) {
            return Err(MessageError::Size("encrypted_secret"));
        }
        if !(1..=600).contains(&wire.deadline_seconds) {
            return Err(MessageError::Value("deadline_seconds"));
        }
        Ok(Self {
            server_nonce: exact("server_nonce", &wire.server_nonce)?,
            id_object: wire.id_object,
            encrypted_secret: wire.encrypted_secret,
            selection,
            policy_digest: exact("policy_digest", &wire.policy_digest)?,
            deadline_seconds: wire.deadline_seconds,
        })
    }
}

/// Third message, guest to server: the evidence. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct M3 {
    /// The quote, TPMS_ATTEST: the bytes that are signed.
    pub attest: Vec<u8>,
    /// Its signature, TPMT_SIGNATURE.
    pub signature: Vec<u8>,
    /// Values of PCR 0 to 15.
    pub pcr_values: [PcrValue; QUOTED],
    /// The event log, packed: see [`crate::log_codec`].
    pub event_log: Vec<u8>,
    /// The kernel's boot id: a UUID.
    pub boot_id: Uid,
    /// Digest of the seed as the guest read it. The quote covers it; the server compares it with the member's.
    pub seed_digest: [u8; 32],
}

impl M3 {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        WireM3 {
            version: VERSION,
            attest: self.attest.clone(),
            signature: self.signature.clone(),
            pcr_values: self.pcr_values.as_flattened().to_vec(),
            event_log: self.event_log.clone(),
            boot_id: self.boot_id.to_string(),
            seed_digest: self.seed_digest.to_vec(),
        }
        .encode_to_vec()
    }

    /// Reads what arrived.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let wire: WireM3 = strict("M3", bytes, MAX_M3, |wire: &WireM3| wire.version)?;
        if !(1..=MAX_ATTEST).contains(&wire.attest.len()) {
            return Err(MessageError::Size("attest"));
        }
        if !(1..=MAX_SIGNATURE).contains(&wire.signature.len()) {
            return Err(MessageError::Size("signature"));
        }
        let mut pcr_values = [[0; 32]; QUOTED];
        let (values, rest) = wire.pcr_values.as_chunks::<32>();
        if values.len() != QUOTED || !rest.is_empty() {
            return Err(MessageError::Size("pcr_values"));
        }
        pcr_values.copy_from_slice(values);
        Ok(Self {
            attest: wire.attest,
            signature: wire.signature,
            pcr_values,
            event_log: wire.event_log,
            boot_id: Uid::parse(&wire.boot_id)?,
            seed_digest: exact("seed_digest", &wire.seed_digest)?,
        })
    }
}

fn strict<W: Message + Default>(
    message: &'static str,
    bytes: &[u8],
    max: usize,
    version: impl Fn(&W) -> u32,
) -> Result<W, MessageError> {
    if bytes.len() > max {
        return Err(MessageError::TooLarge { message, size: bytes.len(), max });
    }
    let wire = W::decode(bytes).map_err(|_| MessageError::Encoding(message))?;
    if version(&wire) != VERSION {
        return Err(MessageError::Version { message, version: version(&wire) });
    }
    // prost skips unknown fields and takes the last of repeated ones; one valid spelling for each message closes that,
    // and makes hashes of messages mean their content.
    if wire.encode_to_vec() != bytes {
        return Err(MessageError::NotCanonical(message));
    }
    Ok(wire)
}

fn key(which: &'static str, bytes: &[u8]) -> Result<Public, MessageError> {
    if bytes.len() > MAX_PUBLIC {
        return Err(MessageError::Size(which));
    }
    Public::parse(bytes).map_err(|source| MessageError::Key { which, source })
}

fn exact<const N: usize>(field: &'static str, bytes: &[u8]) -> Result<[u8; N], MessageError> {
    bytes.try_into().map_err(|_| MessageError::Size(field))
}
