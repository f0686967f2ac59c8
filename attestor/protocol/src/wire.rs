//! M1, M2 and M3 as protobuf, without any check. Use [`crate::message`]; these are public so that tests can build what
//! an honest guest never would.
//!
//! Scalars are proto3: a default value is not written.

/// First message, guest to server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireM1 {
    /// Protocol version, [`crate::message::VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Namespace of the member.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Name of the member.
    #[prost(string, tag = "3")]
    pub member: String,
    /// Uid of the member.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// Endorsement key, TPM2B_PUBLIC.
    #[prost(bytes = "vec", tag = "5")]
    pub ek_public: Vec<u8>,
    /// Endorsement certificate in DER, or empty.
    #[prost(bytes = "vec", tag = "6")]
    pub ek_certificate: Vec<u8>,
    /// Attestation key, TPM2B_PUBLIC.
    #[prost(bytes = "vec", tag = "7")]
    pub ak_public: Vec<u8>,
    /// 32 random bytes.
    #[prost(bytes = "vec", tag = "8")]
    pub guest_nonce: Vec<u8>,
    /// 32 bytes, or empty when the guest has no seed any more.
    #[prost(bytes = "vec", tag = "9")]
    pub enrolment_proof: Vec<u8>,
}

/// Second message, server to guest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireM2 {
    /// Protocol version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// 32 random bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub server_nonce: Vec<u8>,
    /// Content of the TPM2B_ID_OBJECT.
    #[prost(bytes = "vec", tag = "3")]
    pub id_object: Vec<u8>,
    /// Content of the TPM2B_ENCRYPTED_SECRET.
    #[prost(bytes = "vec", tag = "4")]
    pub encrypted_secret: Vec<u8>,
    /// TPM_ALG_ID of the PCR bank.
    #[prost(uint32, tag = "5")]
    pub pcr_bank: u32,
    /// Bit n asks for PCR n.
    #[prost(uint32, tag = "6")]
    pub pcr_mask: u32,
    /// SHA-256 of the measurements document the member is judged by.
    #[prost(bytes = "vec", tag = "7")]
    pub policy_digest: Vec<u8>,
    /// Seconds from here to the moment M3 comes too late.
    #[prost(uint32, tag = "8")]
    pub deadline_seconds: u32,
}

/// Third message, guest to server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireM3 {
    /// Protocol version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The quote, TPMS_ATTEST.
    #[prost(bytes = "vec", tag = "2")]
    pub attest: Vec<u8>,
    /// Its signature, TPMT_SIGNATURE.
    #[prost(bytes = "vec", tag = "3")]
    pub signature: Vec<u8>,
    /// Values of PCR 0 to 15, one after the other.
    #[prost(bytes = "vec", tag = "4")]
    pub pcr_values: Vec<u8>,
    /// The event log as the kernel shows it, packed by zstd.
    #[prost(bytes = "vec", tag = "5")]
    pub event_log: Vec<u8>,
    /// The kernel's boot id.
    #[prost(string, tag = "6")]
    pub boot_id: String,
    /// Digest of the seed as the guest read it.
    #[prost(bytes = "vec", tag = "7")]
    pub seed_digest: Vec<u8>,
}
