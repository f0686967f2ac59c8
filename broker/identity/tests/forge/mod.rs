//! A token factory: keys of its own, honest tokens, and forged ones.
#![allow(dead_code)] // each test file takes what it needs

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RsaKeyPair, RsaPublicKeyComponents,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key pair with the name that its public half is published under.
pub struct Signer {
    pub kid: String,
    pair: Pair,
}

enum Pair {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub fn p256(kid: &str) -> Self {
        Self {
            kid: kid.to_owned(),
            pair: Pair::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()),
        }
    }

    pub fn p384(kid: &str) -> Self {
        Self {
            kid: kid.to_owned(),
            pair: Pair::P384(EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap()),
        }
    }

    pub fn rsa(kid: &str) -> Self {
        Self { kid: kid.to_owned(), pair: Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()) }
    }

    pub fn ed25519(kid: &str) -> Self {
        Self { kid: kid.to_owned(), pair: Pair::Ed25519(Ed25519KeyPair::generate().unwrap()) }
    }

    /// The public half as a JWK.
    pub fn jwk(&self) -> Value {
        let curve = |public: &[u8], name: &str| {
            let (x, y) = public[1..].split_at((public.len() - 1) / 2);
            json!({"kty": "EC", "crv": name, "x": base64url(x), "y": base64url(y)})
        };
        let mut jwk = match &self.pair {
            Pair::P256(pair) => curve(pair.public_key().as_ref(), "P-256"),
            Pair::P384(pair) => curve(pair.public_key().as_ref(), "P-384"),
            Pair::Rsa(pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "n": base64url(public.n), "e": base64url(public.e)})
            }
            Pair::Ed25519(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(pair.public_key().as_ref())}),
        };
        jwk["kid"] = json!(self.kid);
        jwk["use"] = json!("sig");
        jwk
    }

    /// The public half as bytes: what an attacker uses as the secret of a symmetric algorithm.
    pub fn public_bytes(&self) -> Vec<u8> {
        match &self.pair {
            Pair::P256(pair) | Pair::P384(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    pub fn default_alg(&self) -> &'static str {
        match &self.pair {
            Pair::P256(_) => "ES256",
            Pair::P384(_) => "ES384",
            Pair::Rsa(_) => "RS256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// The header of an honest token.
    pub fn header(&self) -> Value {
        json!({"alg": self.default_alg(), "kid": self.kid, "typ": "JWT"})
    }

    /// A token with an honest header.
    pub fn token(&self, claims: &Value) -> String {
        self.sign(&self.header(), claims)
    }

    /// A token with any header; the signature is by the header's `alg` where the key can do it.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        self.sign_raw(&header.to_string(), &claims.to_string())
    }

    /// A token of any two texts.
    pub fn sign_raw(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", base64url(header), base64url(claims));
        let alg =
            serde_json::from_str::<Value>(header).ok().and_then(|header| Some(header.get("alg")?.as_str()?.to_owned()));
        format!("{signed}.{}", base64url(self.signature(alg.as_deref(), signed.as_bytes())))
    }

    fn signature(&self, alg: Option<&str>, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::P256(pair) | Pair::P384(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let padding: &'static dyn aws_lc_rs::signature::RsaEncoding = match alg {
                    Some("PS256") => &RSA_PSS_SHA256,
                    Some("RS512") => &RSA_PKCS1_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                pair.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }
}

/// A token whose "signature" is an HMAC under this secret.
pub fn hmac_token(secret: &[u8], header: &Value, claims: &Value) -> String {
    let signed = format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    format!("{signed}.{}", base64url(aws_lc_rs::hmac::sign(&key, signed.as_bytes())))
}

/// A token without a signature.
pub fn unsigned_token(alg: &str, claims: &Value) -> String {
    let header = json!({"alg": alg, "typ": "JWT", "kid": "k1"}).to_string();
    format!("{}.{}.", base64url(header), base64url(claims.to_string()))
}

pub fn jwks(signers: &[&Signer]) -> Value {
    json!({"keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>()})
}

/// `changes` laid over `base`: a member that is null in `changes` goes.
pub fn with(base: &Value, changes: Value) -> Value {
    let mut result = base.clone();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(result.as_object_mut().unwrap().remove(name)),
            value => drop(result.as_object_mut().unwrap().insert(name.clone(), value.clone())),
        }
    }
    result
}
