//! The TPM acts that attestation needs: find the endorsement key, make an attestation key under it, activate a
//! credential, quote. Structures cross as bytes of `banlieue_tpm`, which the server reads them with, too.

use banlieue_tpm::{
    Public,
    attest::{Attest, AttestError},
    pcr::{PcrValue, QUOTED, quote_digest},
    template::{EndorsementKind, attestation_key},
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
        CapabilityData, Data, Digest, EncryptedSecret, IdObject, Nonce, PcrSelectionList, PcrSlot, Public as TssPublic,
        SignatureScheme, SymmetricDefinition,
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

/// A connection with an endorsement and an attestation key. Dropping it flushes every key and session it made.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: flushing needs the connection.
    context: Context,
    _tcti: Tcti,
    ek: KeyHandle,
    ak: KeyHandle,
    /// The endorsement key's public part.
    pub ek_public: Public,
    /// The attestation key's public part; the key is made anew for each session.
    pub ak_public: Public,
}

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

impl Session {
    /// Connects to the TPM of `config` and makes an attestation key.
    pub fn open(config: &str) -> Result<Self, Error> {
        let tcti = tcti::open(config)?;
        let mut context = Context::new(tcti.name.clone()).map_err(tss("connect to the TPM"))?;
        let (ek, ek_public) = endorsement_key(&mut context)?;
        let template = to_tss(&attestation_key())?;
        let session = endorsed(&mut context)?;
        let made = context.execute_with_session(Some(session), |c| c.create(ek, template, None, None, None, None));
        let made = made.map_err(tss("create an attestation key"))?;
        let ak_public = from_tss("attestation key", &made.out_public)?;
        let session = endorsed(&mut context)?;
        let ak = context.execute_with_session(Some(session), |c| c.load(ek, made.out_private, made.out_public));
        let ak = ak.map_err(tss("load the attestation key"))?;
        Ok(Self { context, _tcti: tcti, ek, ak, ek_public, ak_public })
    }

    /// Opens a credential that was made for both our keys.
    pub fn activate(&mut self, id_object: &[u8], encrypted_secret: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
        let act = "activate the credential";
        let id_object = IdObject::try_from(id_object.to_vec()).map_err(tss(act))?;
        let encrypted = EncryptedSecret::try_from(encrypted_secret.to_vec()).map_err(tss(act))?;
        let session = endorsed(&mut self.context)?;
        // Two authorizations: the attestation key's (empty password), the endorsement key's (policy).
        let sessions = (Some(AuthSession::Password), Some(session), None);
        let (ak, ek) = (self.ak, self.ek);
        let secret =
            self.context.execute_with_sessions(sessions, |c| c.activate_credential(ak, ek, id_object, encrypted));
        Ok(Zeroizing::new(secret.map_err(tss(act))?.value().to_vec()))
    }

    /// Quotes PCR 0 to 15 with `extra` as qualifying data.
    pub fn quote(&mut self, extra: &[u8; 32]) -> Result<Quote, Error> {
        const TRIES: usize = 5;
        for _ in 0..TRIES {
            let values = self.read_pcrs()?;
            let act = "quote";
            let data = Data::try_from(extra.to_vec()).map_err(tss(act))?;
            let all = selection(&SLOTS)?;
            let ak = self.ak;
            let quoted = self
                .context
                .execute_with_session(Some(AuthSession::Password), |c| c.quote(ak, data, SignatureScheme::Null, all));
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

/// The RSA-2048 endorsement key of template L-1: the kept one when there is one of that template, else made anew
/// from the endorsement seed, which gives the same key.
fn endorsement_key(context: &mut Context) -> Result<(KeyHandle, Public), Error> {
    let template = EndorsementKind::Rsa2048.template();
    let act = "find the endorsement key";
    // Asked first: reading a handle that is not there leaves the library unable to go on.
    let (there, _) = context
        .execute_without_session(|c| c.get_capability(CapabilityType::Handles, PERSISTENT_EK, 1))
        .map_err(tss(act))?;
    let handle = TpmHandle::Persistent(PersistentTpmHandle::new(PERSISTENT_EK).map_err(tss(act))?);
    // The capability lists handles from the asked one on, so the first may be a later one.
    if matches!(there, CapabilityData::Handles(handles) if handles.first() == Some(&handle)) {
        let object = context.execute_without_session(|c| c.tr_from_tpm_public(handle)).map_err(tss(act))?;
        let key = KeyHandle::from(object);
        let (public, _, _) = context.execute_without_session(|c| c.read_public(key)).map_err(tss(act))?;
        let public = from_tss("endorsement key", &public)?;
        if banlieue_tpm::template::check_endorsement(&public) == Ok(EndorsementKind::Rsa2048) {
            return Ok((key, public));
        }
    }
    let template = to_tss(&template)?;
    let made = context.execute_with_session(Some(AuthSession::Password), |c| {
        c.create_primary(Hierarchy::Endorsement, template, None, None, None, None)
    });
    let made = made.map_err(tss("make the endorsement key"))?;
    Ok((made.key_handle, from_tss("endorsement key", &made.out_public)?))
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
