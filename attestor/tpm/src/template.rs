//! Which keys are allowed: the endorsement keys that swtpm makes (TCG EK Credential Profile 2.6, B.3 and B.6) and one
//! kind of attestation key; also the templates to create them with.

use crate::hash::Hash;
use crate::public::{ALG_ECDSA, Attributes, Curve, Key, KeyError, Public, Scheme, Symmetric};

/// PolicyA of the profile for SHA-256: PolicySecret(TPM_RH_ENDORSEMENT).
pub const POLICY_A_SHA256: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24, 0xfd, 0x52, 0xd7,
    0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];
/// PolicyB of the profile for SHA-384: PolicyOR of PolicySecret(TPM_RH_ENDORSEMENT) and a policy in an NV index.
pub const POLICY_B_SHA384: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a, 0x07, 0x41, 0x48,
    0xbb, 0x35, 0xd3, 0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca, 0xcb, 0x47, 0xba, 0x09, 0x69, 0x96,
    0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00, 0xf3, 0xf8, 0x0e, 0x12,
];

const EK_ATTRIBUTES: Attributes = Attributes::all(&[
    Attributes::FIXED_TPM,
    Attributes::FIXED_PARENT,
    Attributes::SENSITIVE_DATA_ORIGIN,
    Attributes::ADMIN_WITH_POLICY,
    Attributes::RESTRICTED,
    Attributes::DECRYPT,
]);
/// The profile's high-range templates add userWithAuth.
const EK_HIGH_ATTRIBUTES: Attributes = Attributes::all(&[EK_ATTRIBUTES, Attributes::USER_WITH_AUTH]);
const AK_ATTRIBUTES: Attributes = Attributes::all(&[
    Attributes::FIXED_TPM,
    Attributes::FIXED_PARENT,
    Attributes::SENSITIVE_DATA_ORIGIN,
    Attributes::USER_WITH_AUTH,
    Attributes::RESTRICTED,
    Attributes::SIGN,
]);

/// Why a key is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Attributes that must be set are not, or others are.
    #[error("{role} attributes differ: missing {missing}, not allowed {extra}")]
    Attributes {
        /// `endorsement key` or `attestation key`.
        role: &'static str,
        /// Set in the template, not in the key.
        missing: Attributes,
        /// Set in the key, not in the template.
        extra: Attributes,
    },
    /// Another policy digest than the template's.
    #[error("{0} has another policy digest than its template")]
    Policy(&'static str),
    /// Another algorithm, size, curve, hash or scheme.
    #[error("{role} must be {expected}")]
    Algorithm {
        /// `endorsement key` or `attestation key`.
        role: &'static str,
        /// What is allowed.
        expected: &'static str,
    },
    /// Not a sound key at all.
    #[error("{role}: {source}")]
    Key {
        /// `endorsement key` or `attestation key`.
        role: &'static str,
        /// What is wrong with it.
        source: KeyError,
    },
}

impl TemplateError {
    /// Fixed word for metrics: `attributes`, `policy`, `algorithm` or `key`.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Attributes { .. } => "attributes",
            Self::Policy(_) => "policy",
            Self::Algorithm { .. } => "algorithm",
            Self::Key { .. } => "key",
        }
    }
}

const EK: &str = "endorsement key";
const AK: &str = "attestation key";

/// The kinds of endorsement key that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndorsementKind {
    /// Template L-1: RSA-2048, SHA-256, AES-128-CFB, PolicyA.
    Rsa2048,
    /// Template L-2: P-256, SHA-256, AES-128-CFB, PolicyA.
    P256,
    /// Template H-3: P-384, SHA-384, AES-256-CFB, PolicyB; what swtpm_setup makes.
    P384,
}

impl EndorsementKind {
    /// The creation template (Part 3, TPM2_CreatePrimary under the endorsement hierarchy).
    pub fn template(self) -> Public {
        let low = |key| Public {
            name_alg: Hash::Sha256,
            attributes: EK_ATTRIBUTES,
            auth_policy: POLICY_A_SHA256.to_vec(),
            key,
        };
        match self {
            Self::Rsa2048 => low(Key::Rsa {
                symmetric: Symmetric::AesCfb { bits: 128 },
                scheme: Scheme::Null,
                bits: 2048,
                exponent: 0,
                modulus: vec![0; 256],
            }),
            Self::P256 => low(Key::Ecc {
                symmetric: Symmetric::AesCfb { bits: 128 },
                scheme: Scheme::Null,
                curve: Curve::P256,
                x: vec![0; 32],
                y: vec![0; 32],
            }),
            Self::P384 => Public {
                name_alg: Hash::Sha384,
                attributes: EK_HIGH_ATTRIBUTES,
                auth_policy: POLICY_B_SHA384.to_vec(),
                key: Key::Ecc {
                    symmetric: Symmetric::AesCfb { bits: 256 },
                    scheme: Scheme::Null,
                    curve: Curve::P384,
                    // High-range templates have an empty unique field.
                    x: Vec::new(),
                    y: Vec::new(),
                },
            },
        }
    }
}

/// Checks an endorsement key against the allowed templates, and that it is a sound key.
pub fn check_endorsement(ek: &Public) -> Result<EndorsementKind, TemplateError> {
    let kind = match &ek.key {
        Key::Rsa { bits: 2048, .. } => EndorsementKind::Rsa2048,
        Key::Ecc { curve: Curve::P256, .. } => EndorsementKind::P256,
        Key::Ecc { curve: Curve::P384, .. } => EndorsementKind::P384,
        _ => return Err(TemplateError::Algorithm { role: EK, expected: "RSA-2048, P-256 or P-384" }),
    };
    check(EK, ek, &kind.template(), "RSA-2048, P-256 or P-384 with the hash and AES-CFB of its template")?;
    Ok(kind)
}

/// The creation template of the attestation key, under the endorsement key: P-256, ECDSA with SHA-256, restricted.
pub fn attestation_key() -> Public {
    Public {
        name_alg: Hash::Sha256,
        attributes: AK_ATTRIBUTES,
        auth_policy: Vec::new(),
        key: Key::Ecc {
            symmetric: Symmetric::Null,
            scheme: Scheme::Hashed { alg: ALG_ECDSA, hash: Hash::Sha256 },
            curve: Curve::P256,
            x: Vec::new(),
            y: Vec::new(),
        },
    }
}

/// Checks an attestation key against its template, attribute by attribute, and that it is a sound key.
pub fn check_attestation(ak: &Public) -> Result<(), TemplateError> {
    check(AK, ak, &attestation_key(), "P-256 with ECDSA and SHA-256 and no symmetric algorithm")
}

fn check(role: &'static str, got: &Public, template: &Public, expected: &'static str) -> Result<(), TemplateError> {
    let missing = template.attributes.without(got.attributes);
    let extra = got.attributes.without(template.attributes);
    if missing.0 != 0 || extra.0 != 0 {
        return Err(TemplateError::Attributes { role, missing, extra });
    }
    if got.name_alg != template.name_alg || !same_parameters(&got.key, &template.key) {
        return Err(TemplateError::Algorithm { role, expected });
    }
    if got.auth_policy != template.auth_policy {
        return Err(TemplateError::Policy(role));
    }
    got.check_key().map_err(|source| TemplateError::Key { role, source })
}

/// Everything but the unique field, and the exponent, whose two spellings check_key knows.
fn same_parameters(a: &Key, b: &Key) -> bool {
    match (a, b) {
        (Key::Rsa { symmetric: s, scheme: c, bits: n, .. }, Key::Rsa { symmetric, scheme, bits, .. }) => {
            s == symmetric && c == scheme && n == bits
        }
        (Key::Ecc { symmetric: s, scheme: c, curve: n, .. }, Key::Ecc { symmetric, scheme, curve, .. }) => {
            s == symmetric && c == scheme && n == curve
        }
        _ => false,
    }
}
