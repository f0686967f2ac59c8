//! The few TPM commands that a host sends to a software TPM before its machine starts.
//!
//! Commands and response headers follow the TCG TPM 2.0 Library Specification, part 3; swtpm's data socket carries them
//! without any framing, one command and one response at a time.

use std::path::Path;

use banlieue_tpm::Public;
use banlieue_tpm::template::EndorsementKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::socket;

const ST_NO_SESSIONS: u16 = 0x8001;
const ST_SESSIONS: u16 = 0x8002;
const CC_CREATE_PRIMARY: u32 = 0x0131;
const CC_SHUTDOWN: u32 = 0x0145;
const CC_SELF_TEST: u32 = 0x0143;
const CC_FLUSH_CONTEXT: u32 = 0x0165;
const CC_READ_PUBLIC: u32 = 0x0173;
const CC_PCR_READ: u32 = 0x017e;
const CC_READ_CLOCK: u32 = 0x0181;
const CC_PCR_EXTEND: u32 = 0x0182;
const RH_ENDORSEMENT: u32 = 0x4000_000b;
const RS_PASSWORD: u32 = 0x4000_0009;
const ALG_SHA256: u16 = 0x000b;
/// Header of a command and of a response: tag, length, code.
const HEADER: usize = 10;
/// More than any TPM answers to the commands used here.
const MAX_RESPONSE: usize = 4096;

/// Where `swtpm_setup --createek` keeps the RSA-2048 and the P-384 endorsement key (TCG EK Credential Profile 2.5,
/// section 2.2.1.3.1, handles of the low and high range).
const EK_HANDLES: [u32; 2] = [0x8101_0001, 0x8101_0016];

/// Why a software TPM could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket is not there or broke.
    #[error("cannot talk to the software TPM: {0}")]
    Io(#[from] std::io::Error),
    /// The TPM refused a command.
    #[error("the software TPM answered {code:#x} to {act}")]
    Refused {
        /// What it was asked for.
        act: &'static str,
        /// TPM_RC (part 2, section 6.6).
        code: u32,
    },
    /// The answer is not what the specification says.
    #[error("the software TPM's answer to {0} cannot be read")]
    Malformed(&'static str),
}

/// A connection to a running swtpm's data socket.
pub struct Tpm(UnixStream);

impl Tpm {
    /// Connects to the data socket.
    ///
    /// # Errors
    /// Nothing listens there.
    pub async fn connect(path: &Path) -> Result<Self, Error> {
        Ok(Self(socket::connect(path).await?))
    }

    /// SHA-256 of the SubjectPublicKeyInfo (DER) of every endorsement key a guest can show: the two that `swtpm_setup`
    /// made, and the P-256 key that the same seed gives for the default template.
    ///
    /// # Errors
    /// The TPM has no such keys, or does not answer.
    pub async fn endorsement_digests(&mut self) -> Result<Vec<[u8; 32]>, Error> {
        let mut digests = Vec::new();
        for handle in EK_HANDLES {
            digests.push(digest(&self.read_public(handle).await?)?);
        }
        digests.push(digest(&self.primary(&EndorsementKind::P256.template()).await?)?);
        Ok(digests)
    }

    /// Runs the self tests to their end, so that no guest waits for them.
    ///
    /// # Errors
    /// A test failed.
    pub async fn self_test(&mut self) -> Result<(), Error> {
        self.send(ST_NO_SESSIONS, CC_SELF_TEST, &[1], "a self test").await.map(drop)
    }

    /// Shuts down in order (TPM2_Shutdown with TPM_SU_CLEAR). A TPM that was not says after its next start that its clock
    /// is not safe, and a member that shows such a clock is refused.
    ///
    /// # Errors
    /// The TPM does not answer.
    pub async fn shut_down(&mut self) -> Result<(), Error> {
        self.send(ST_NO_SESSIONS, CC_SHUTDOWN, &[0, 0], "shut down").await.map(drop)
    }

    /// Whether the TPM vouches that its clock never went back (TPMS_TIME_INFO, part 2, section 10.11.6).
    ///
    /// # Errors
    /// The TPM refused.
    pub async fn clock_is_safe(&mut self) -> Result<bool, Error> {
        let act = "read the clock";
        let answer = self.send(ST_NO_SESSIONS, CC_READ_CLOCK, &[], act).await?;
        // time, clock, reset count, restart count, safe
        answer.get(24).map(|safe| *safe == 1).ok_or(Error::Malformed(act))
    }

    async fn read_public(&mut self, handle: u32) -> Result<Public, Error> {
        let act = "read an endorsement key";
        let answer = self.send(ST_NO_SESSIONS, CC_READ_PUBLIC, &handle.to_be_bytes(), act).await?;
        sized(&answer).and_then(|public| Public::parse(public).ok()).ok_or(Error::Malformed(act))
    }

    /// The public part of the endorsement hierarchy's primary key for a template. The key is flushed again.
    pub(crate) async fn primary(&mut self, template: &Public) -> Result<Public, Error> {
        let act = "derive an endorsement key";
        let mut body = RH_ENDORSEMENT.to_be_bytes().to_vec();
        body.extend(password_session());
        body.extend([0, 4, 0, 0, 0, 0]); // TPM2B_SENSITIVE_CREATE: empty authorisation, empty data
        body.extend(template.marshal());
        body.extend([0, 0]); // outside information
        body.extend([0, 0, 0, 0]); // creation PCRs
        let answer = self.send(ST_SESSIONS, CC_CREATE_PRIMARY, &body, act).await?;
        let (handle, rest) = answer.split_first_chunk::<4>().ok_or(Error::Malformed(act))?;
        self.send(ST_NO_SESSIONS, CC_FLUSH_CONTEXT, handle, "flush an endorsement key").await?;
        // Size of the parameter area, then the public area.
        let public = rest.get(4..).and_then(sized).ok_or(Error::Malformed(act))?;
        Public::parse(public).map_err(|_| Error::Malformed(act))
    }

    /// Extends a PCR of the SHA-256 bank.
    ///
    /// # Errors
    /// The PCR cannot be extended from locality 0.
    pub async fn extend(&mut self, pcr: u32, digest: &[u8; 32]) -> Result<(), Error> {
        let mut body = pcr.to_be_bytes().to_vec();
        body.extend(password_session());
        body.extend(1_u32.to_be_bytes());
        body.extend(ALG_SHA256.to_be_bytes());
        body.extend(digest);
        self.send(ST_SESSIONS, CC_PCR_EXTEND, &body, "extend a PCR").await.map(drop)
    }

    /// Value of a PCR of the SHA-256 bank.
    ///
    /// # Errors
    /// The bank is not there.
    pub async fn pcr(&mut self, pcr: u8) -> Result<[u8; 32], Error> {
        let act = "read a PCR";
        let mut selection = [0_u8; 3];
        if let Some(byte) = selection.get_mut(usize::from(pcr / 8)) {
            *byte = 1 << (pcr % 8);
        }
        let mut body = 1_u32.to_be_bytes().to_vec();
        body.extend(ALG_SHA256.to_be_bytes());
        body.push(3);
        body.extend(selection);
        let answer = self.send(ST_NO_SESSIONS, CC_PCR_READ, &body, act).await?;
        answer.last_chunk::<32>().copied().ok_or(Error::Malformed(act))
    }

    async fn send(&mut self, tag: u16, code: u32, body: &[u8], act: &'static str) -> Result<Vec<u8>, Error> {
        let length = u32::try_from(HEADER + body.len()).map_err(|_| Error::Malformed(act))?;
        let mut command = tag.to_be_bytes().to_vec();
        command.extend(length.to_be_bytes());
        command.extend(code.to_be_bytes());
        command.extend(body);
        self.0.write_all(&command).await?;
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).await?;
        let [_, _, a, b, c, d, w, x, y, z] = header;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let rest = length.checked_sub(HEADER).filter(|rest| *rest <= MAX_RESPONSE).ok_or(Error::Malformed(act))?;
        let mut answer = vec![0; rest];
        self.0.read_exact(&mut answer).await?;
        match u32::from_be_bytes([w, x, y, z]) {
            0 => Ok(answer),
            code => Err(Error::Refused { act, code }),
        }
    }
}

fn digest(public: &Public) -> Result<[u8; 32], Error> {
    public.key_digest().map_err(|_| Error::Malformed("an endorsement key"))
}

/// Authorisation area with the empty password (part 1, section 19.4).
fn password_session() -> Vec<u8> {
    let mut area = 9_u32.to_be_bytes().to_vec();
    area.extend(RS_PASSWORD.to_be_bytes());
    area.extend([0, 0, 0, 0, 0]); // nonce, attributes, password
    area
}

/// The TPM2B at the start of `bytes`, its size field included.
fn sized(bytes: &[u8]) -> Option<&[u8]> {
    let (size, _) = bytes.split_first_chunk::<2>()?;
    bytes.get(..2 + usize::from(u16::from_be_bytes(*size)))
}
