//! The TPM acts that attestation needs: find the endorsement key, make an attestation key under it, activate a
//! credential, quote. Structures cross as bytes of `banlieue_tpm`, which the server reads them with, too.

use banlieue_tpm::{
    Public,
    attest::{Attest, AttestError},
    pcr::{PcrValue, QUOTED, quote_digest},
    template::{EndorsementKind, attestation_key, check_endorsement},
    wire::WireError,
};
use thiserror::Error;
use tss_esapi::{
    Context,
    constants::{CapabilityType, SessionType},
    handles::{AuthHandle, KeyHandle, PersistentTpmHandle, SessionHandle, TpmHandle},
    interface_types::{
        algorithm::HashingAlgorithm,
        resource_handles::Hierarchy,
        session_handles::{AuthSession, PolicySession},
    },
    structures::{
        CapabilityData, Data, Digest, EncryptedSecret, IdObject, Nonce, PcrSelectionList, PcrSlot, Private,
        Public as TssPublic, SignatureScheme, SymmetricDefinition,
    },
    traits::{Marshall, UnMarshall},
};
use zeroize::Zeroizing;

use crate::tcti::{self, Tcti};

/// Why a TPM act failed.
#[derive(Debug, Error)]
pub enum Error {
    /// See [`tcti::Error`].
    #[error(transparent)]
    Tcti(#[from] tcti::Error),
    /// The TPM or the library refused.
    #[error("cannot {act}: {source}")]
    Tss {
        /// What was asked of the TPM.
        act: &'static str,
        /// What it answered.
        source: tss_esapi::Error,
    },
    /// The TPM made something that our own parser does not read.
    #[error("the TPM's {what} cannot be read: {source}")]
    Wire {
        /// Which structure.
        what: &'static str,
        /// What is wrong with it.
        source: WireError,
    },
    /// The TPM's attestation structure cannot be read.
    #[error("the TPM's quote cannot be read: {0}")]
    Attest(#[from] AttestError),
    /// PCRs changed under every one of several quotes.
    #[error("PCRs kept changing while they were quoted")]
    Unsteady,
    /// The TPM answered with another number of values than asked for.
    #[error("the TPM has no SHA-256 bank with PCR 0 to 15")]
    NoBank,
}

fn tss(act: &'static str) -> impl FnOnce(tss_esapi::Error) -> Error {
    move |source| Error::Tss { act, source }
}

/// Where the RSA endorsement key is kept, when a manufacturer (swtpm_setup) kept it (TCG TPM v2.0 Provisioning
/// Guidance, 7.8).
const PERSISTENT_EK: u32 = 0x8101_0001;
/// First handle of loaded keys (Part 2, 7.4), and more of them than any TPM has room for.
const TRANSIENT_FIRST: u32 = 0x8000_0000;
const MOST_TRANSIENT: u32 = 64;

/// A connection to the TPM. Dropping it flushes every key and session it made.
#[derive(Debug)]
pub struct Tpm {
    // Dropped in this order: flushing needs the connection.
    context: Context,
    _tcti: Tcti,
}

/// The endorsement key, usable through the connection it came from.
#[derive(Debug)]
pub struct EndorsementKey {
    handle: KeyHandle,
    /// Its public part.
    pub public: Public,
}

/// An attestation key outside the TPM: its private part is wrapped so that only its parent can load it.
#[derive(Debug)]
pub struct AttestationKey {
    wrapped: Private,
    /// Its public part.
    pub public: Public,
}

/// An attestation key in the TPM, usable through the connection that loaded it.
#[derive(Debug)]
pub struct LoadedKey(KeyHandle);

/// A quote over PCR 0 to 15.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// TPMS_ATTEST.
    pub attest: Vec<u8>,
    /// TPMT_SIGNATURE.
    pub signature: Vec<u8>,
    /// The values that were quoted.
    pub values: [PcrValue; QUOTED],
}

impl Tpm {
    /// Connects to the TPM that `config` names (see [`crate::config::Config::tpm`]).
    pub fn connect(config: &str) -> Result<Self, Error> {
        let tcti = tcti::open(config)?;
        let mut context = Context::new(tcti.name.clone()).map_err(tss("connect to the TPM"))?;
        if tcti.is_ours_alone() {
            flush_leftovers(&mut context)?;
        }
        Ok(Self { context, _tcti: tcti })
    }

    /// Makes an attestation key under `ek`. It is not loaded.
    pub fn create(&mut self, ek: &EndorsementKey) -> Result<AttestationKey, Error> {
        let template = to_tss(&attestation_key())?;
        let session = endorsed(&mut self.context)?;
        let made = self
            .context
            .execute_with_session(Some(session), |c| c.create(ek.handle, template, None, None, None, None))
            .map_err(tss("create an attestation key"))?;
        Ok(AttestationKey { public: from_tss("attestation key", &made.out_public)?, wrapped: made.out_private })
    }

    /// Loads an attestation key that was made under `ek`.
    pub fn load(&mut self, ek: &EndorsementKey, ak: &AttestationKey) -> Result<LoadedKey, Error> {
        let public = to_tss(&ak.public)?;
        let session = endorsed(&mut self.context)?;
        let wrapped = ak.wrapped.clone();
        let loaded = self.context.execute_with_session(Some(session), |c| c.load(ek.handle, wrapped, public));
        loaded.map(LoadedKey).map_err(tss("load the attestation key"))
    }

    /// Opens a credential that was made for both keys.
    pub fn activate(
        &mut self,
        ek: &EndorsementKey,
        ak: &LoadedKey,
        id_object: &[u8],
        encrypted_secret: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let act = "activate the credential";
        let id_object = IdObject::try_from(id_object.to_vec()).map_err(tss(act))?;
        let encrypted = EncryptedSecret::try_from(encrypted_secret.to_vec()).map_err(tss(act))?;
        let session = endorsed(&mut self.context)?;
        // Two authorizations: the attestation key's (empty password), the endorsement key's (policy).
        let sessions = (Some(AuthSession::Password), Some(session), None);
        let secret = self
            .context
            .execute_with_sessions(sessions, |c| c.activate_credential(ak.0, ek.handle, id_object, encrypted));
        Ok(Zeroizing::new(secret.map_err(tss(act))?.value().to_vec()))
    }

    /// Quotes PCR 0 to 15 with `extra` as qualifying data.
    pub fn quote(&mut self, ak: &LoadedKey, extra: &[u8; 32]) -> Result<Quote, Error> {
        const TRIES: usize = 5;
        for _ in 0..TRIES {
            let values = self.read_pcrs()?;
            let act = "quote";
            let data = Data::try_from(extra.to_vec()).map_err(tss(act))?;
            let all = selection(&SLOTS)?;
            let quoted = self
                .context
                .execute_with_session(Some(AuthSession::Password), |c| c.quote(ak.0, data, SignatureScheme::Null, all));
            let (attest, signature) = quoted.map_err(tss(act))?;
            let attest = attest.marshall().map_err(tss(act))?;
            let signature = signature.marshall().map_err(tss(act))?;
            // The latch may be set between reading and quoting: only values that were quoted are evidence.
            if Attest::parse(&attest)?.pcr_digest == quote_digest(&values) {
                return Ok(Quote { attest, signature, values });
            }
        }
        Err(Error::Unsteady)
    }

    /// The RSA-2048 endorsement key of template L-1: the kept one when there is one of that template, else made anew
    /// from the endorsement seed, which gives the same key.
    pub fn endorsement_key(&mut self) -> Result<EndorsementKey, Error> {
        let act = "find the endorsement key";
        let context = &mut self.context;
        // Asked first: reading a handle that is not there leaves the library unable to go on. The TPM lists handles
        // from the asked one on, so the first may be a later one.
        let handle = TpmHandle::Persistent(PersistentTpmHandle::new(PERSISTENT_EK).map_err(tss(act))?);
        if handles(context, PERSISTENT_EK, 1)?.first() == Some(&handle) {
            let object = context.execute_without_session(|c| c.tr_from_tpm_public(handle)).map_err(tss(act))?;
            let handle = KeyHandle::from(object);
            let (public, _, _) = context.execute_without_session(|c| c.read_public(handle)).map_err(tss(act))?;
            let public = from_tss("endorsement key", &public)?;
            if check_endorsement(&public) == Ok(EndorsementKind::Rsa2048) {
                return Ok(EndorsementKey { handle, public });
            }
        }
        let template = to_tss(&EndorsementKind::Rsa2048.template())?;
        let made = context.execute_with_session(Some(AuthSession::Password), |c| {
            c.create_primary(Hierarchy::Endorsement, template, None, None, None, None)
        });
        let made = made.map_err(tss("make the endorsement key"))?;
        Ok(EndorsementKey { handle: made.key_handle, public: from_tss("endorsement key", &made.out_public)? })
    }

    fn read_pcrs(&mut self) -> Result<[PcrValue; QUOTED], Error> {
        let mut values = [[0; 32]; QUOTED];
        let (slots, targets) = (SLOTS.chunks(8), values.chunks_mut(8));
        // One command reads at most eight (TPML_DIGEST).
        for (slots, targets) in slots.zip(targets) {
            let asked = selection(slots)?;
            let read = self.context.execute_without_session(|c| c.pcr_read(asked));
            let (_, _, digests) = read.map_err(tss("read PCRs"))?;
            if digests.value().len() != targets.len() {
                return Err(Error::NoBank);
            }
            for (digest, target) in digests.value().iter().zip(targets) {
                *target = digest.value().try_into().map_err(|_| Error::NoBank)?;
            }
        }
        Ok(values)
    }
}

const SLOTS: [PcrSlot; QUOTED] = [
    PcrSlot::Slot0,
    PcrSlot::Slot1,
    PcrSlot::Slot2,
    PcrSlot::Slot3,
    PcrSlot::Slot4,
    PcrSlot::Slot5,
    PcrSlot::Slot6,
    PcrSlot::Slot7,
    PcrSlot::Slot8,
    PcrSlot::Slot9,
    PcrSlot::Slot10,
    PcrSlot::Slot11,
    PcrSlot::Slot12,
    PcrSlot::Slot13,
    PcrSlot::Slot14,
    PcrSlot::Slot15,
];

fn selection(slots: &[PcrSlot]) -> Result<PcrSelectionList, Error> {
    PcrSelectionList::builder().with_selection(HashingAlgorithm::Sha256, slots).build().map_err(tss("select PCRs"))
}

fn to_tss(public: &Public) -> Result<TssPublic, Error> {
    TssPublic::unmarshall(&public.marshal_area()).map_err(tss("read a key template"))
}

fn from_tss(what: &'static str, public: &TssPublic) -> Result<Public, Error> {
    let bytes = public.marshall().map_err(tss("write a public key"))?;
    Public::parse_area(&bytes).map_err(|source| Error::Wire { what, source })
}

/// Up to `most` handles that the TPM knows, from `first` on.
fn handles(context: &mut Context, first: u32, most: u32) -> Result<Vec<TpmHandle>, Error> {
    let there = context.execute_without_session(|c| c.get_capability(CapabilityType::Handles, first, most));
    Ok(match there.map_err(tss("list the TPM's handles"))? {
        (CapabilityData::Handles(list), _) => list.into_inner(),
        _ => Vec::new(),
    })
}

/// Flushes keys that nobody can use any more: without a resource manager, those of a program that was killed stay, and
/// three of them fill the TPM.
fn flush_leftovers(context: &mut Context) -> Result<(), Error> {
    let act = "flush a key that was left in the TPM";
    for handle in handles(context, TRANSIENT_FIRST, MOST_TRANSIENT)? {
        let object = context.execute_without_session(|c| c.tr_from_tpm_public(handle)).map_err(tss(act))?;
        context.flush_context(object).map_err(tss(act))?;
    }
    Ok(())
}

/// A session that may use the endorsement key once: its policy is PolicySecret of the endorsement hierarchy.
fn endorsed(context: &mut Context) -> Result<AuthSession, Error> {
    let act = "open a session for the endorsement key";
    let session = context
        .execute_without_session(|c| {
            let (kind, cipher) = (SessionType::Policy, SymmetricDefinition::AES_128_CFB);
            c.start_auth_session(None, None, None, kind, cipher, HashingAlgorithm::Sha256)
        })
        .map_err(tss(act))?
        .ok_or(Error::Tss {
            act,
            source: tss_esapi::Error::WrapperError(tss_esapi::WrapperErrorKind::InvalidHandleState),
        })?;
    let policy = PolicySession::try_from(session).map_err(tss(act))?;
    let granted = context.execute_with_session(Some(AuthSession::Password), |c| {
        let none = || (Nonce::default(), Digest::default(), Nonce::default());
        let (nonce, parameters, reference) = none();
        c.policy_secret(policy, AuthHandle::Endorsement, nonce, parameters, reference, None)
    });
    if let Err(source) = granted {
        let _ = context.flush_context(SessionHandle::from(policy).into());
        return Err(Error::Tss { act, source });
    }
    Ok(session)
}
