//! A compact JWS (RFC 7515, section 3.1) taken apart strictly, and its signature checked.
//!
//! An [`Unverified`] token yields only what is needed to find its key. Its claims come out of [`Unverified::verify`] as
//! a [`Verified`], and that is the only thing that [`crate::judge()`] takes: no claim is believed before its signature.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::config::Algorithm;
use crate::keys::{Key, KeySet};
use crate::refusal::{Refusal, RefusalReason, malformed, shown};

/// The longest token that is looked at, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// The longest `kid` that is looked up, in bytes.
const MAX_KID_BYTES: usize = 255;

/// The token in the value of an `Authorization` header (RFC 6750, section 2.1).
///
/// # Errors
/// `token_missing` without a header, or with another scheme.
pub fn bearer(authorization: Option<&str>) -> Result<&str, Refusal> {
    const SEND: &str = "send `Authorization: Bearer <token>`";
    let missing = |what: &str| Refusal::new(RefusalReason::TokenMissing, format!("{what}; {SEND}"));
    let value = authorization.ok_or_else(|| missing("there is no Authorization header"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(missing("the Authorization header carries no bearer token"));
    }
    Ok(token)
}

/// The header of a token, as far as it is looked at. `jku`, `jwk`, `x5u` and `x5c` are not: keys come from the issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// `alg`, as it stands.
    pub alg: String,
    /// `kid`, where there is one.
    pub kid: Option<String>,
    /// `typ` as a media type in lower case, without `application/` (RFC 7515, section 4.1.9).
    pub typ: Option<String>,
}

/// A token whose signature nobody checked yet.
pub struct Unverified<'a> {
    header: Header,
    claims: Map<String, Value>,
    signed: &'a str,
    signature: &'a str,
}

/// A token with a signature by a key of its issuer.
#[derive(Clone)]
pub struct Verified {
    header: Header,
    claims: Map<String, Value>,
}

impl Verified {
    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its claims. No member occurs twice, at any depth.
    #[must_use]
    pub fn claims(&self) -> &Map<String, Value> {
        &self.claims
    }
}

impl<'a> Unverified<'a> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// `token_too_large`, `token_malformed`.
    pub fn parse(token: &'a str) -> Result<Self, Refusal> {
        if token.len() > MAX_BYTES {
            let detail = format!("the token has {} bytes and may have {MAX_BYTES}", token.len());
            return Err(Refusal::new(RefusalReason::TokenTooLarge, detail));
        }
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed(
                "the token is not a signed JWT of three parts; an opaque or encrypted token is of no use here",
            ));
        };
        let signed = token.get(..header.len() + 1 + claims.len()).unwrap_or_default();
        let header = parse_header(&object(header, "header")?)?;
        Ok(Self { header, claims: object(claims, "claims")?, signed, signature })
    }

    /// `iss`: it says whose keys to try, and proves nothing yet.
    ///
    /// # Errors
    /// `token_malformed` when it is missing or no string.
    pub fn issuer(&self) -> Result<&str, Refusal> {
        self.claims
            .get("iss")
            .and_then(Value::as_str)
            .ok_or_else(|| malformed("the token has no `iss` that is a string"))
    }

    /// The algorithm, when it is one of these; `issuer` is what messages call the issuer.
    ///
    /// # Errors
    /// `algorithm_not_allowed`.
    pub fn algorithm(&self, issuer: &str, allowed: &[Algorithm]) -> Result<Algorithm, Refusal> {
        Algorithm::of(&self.header.alg).filter(|algorithm| allowed.contains(algorithm)).ok_or_else(|| {
            let detail = format!("tokens of issuer {issuer} may not be signed with {}", shown(&self.header.alg));
            Refusal::new(RefusalReason::AlgorithmNotAllowed, detail)
        })
    }

    /// The `kid`.
    ///
    /// # Errors
    /// `key_id_missing`; `key_unknown` for one that is too long to be any key's.
    pub fn kid(&self) -> Result<&str, Refusal> {
        match self.header.kid.as_deref() {
            None | Some("") => Err(Refusal::new(
                RefusalReason::KeyIdMissing,
                "the token's header has no `kid`, so its key cannot be told",
            )),
            Some(kid) if kid.len() > MAX_KID_BYTES => {
                Err(Refusal::new(RefusalReason::KeyUnknown, "the token's `kid` is longer than any key's"))
            }
            Some(kid) => Ok(kid),
        }
    }

    /// Checks the signature by the key of this set that the token names.
    ///
    /// # Errors
    /// As [`Self::algorithm`], [`Self::kid`], [`KeySet::key`] and [`Self::verify`].
    pub fn verified_by(self, keys: &KeySet, issuer: &str, allowed: &[Algorithm]) -> Result<Verified, Refusal> {
        let algorithm = self.algorithm(issuer, allowed)?;
        let key = keys.key(self.kid()?, algorithm)?;
        self.verify(key, algorithm)
    }

    /// Checks the signature.
    ///
    /// # Errors
    /// `signature_invalid`, also for a signature that is not base64url.
    pub fn verify(self, key: &Key, algorithm: Algorithm) -> Result<Verified, Refusal> {
        if key.verifies(algorithm, self.signed.as_bytes(), self.signature) {
            Ok(Verified { header: self.header, claims: self.claims })
        } else {
            Err(Refusal::new(
                RefusalReason::SignatureInvalid,
                "the token's signature was not made by the issuer's key that it names",
            ))
        }
    }
}

// By hand: what a log shows of a token must not be the token.
impl fmt::Debug for Unverified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unverified").field("header", &self.header).finish_non_exhaustive()
    }
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").field("header", &self.header).finish_non_exhaustive()
    }
}

fn parse_header(header: &Map<String, Value>) -> Result<Header, Refusal> {
    // A `crit` names extensions that must be understood, and none is; `b64` changes what is signed; `enc` is a JWE's.
    if let Some(name) = ["crit", "b64", "enc"].into_iter().find(|name| header.contains_key(*name)) {
        return Err(malformed(format!("the token's header has `{name}`, which is not supported")));
    }
    let text = |name: &str| match header.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(malformed(format!("the token's header has a `{name}` that is no string"))),
    };
    let alg = text("alg")?.ok_or_else(|| malformed("the token's header has no `alg`"))?;
    let typ = text("typ")?.map(|typ| {
        let typ = typ.to_ascii_lowercase();
        typ.strip_prefix("application/").map(str::to_owned).unwrap_or(typ)
    });
    Ok(Header { alg, kid: text("kid")?, typ })
}

fn object(part: &str, what: &str) -> Result<Map<String, Value>, Refusal> {
    let bytes = URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| malformed(format!("the token's {what} part is not base64url without padding")))?;
    // Two readers of a member that occurs twice may see two different tokens.
    serde_json::from_slice::<NoMemberTwice>(&bytes)
        .and_then(|_| serde_json::from_slice(&bytes))
        // serde_json's message could quote the token, so it is not passed on.
        .map_err(|_| malformed(format!("the token's {what} part is not a JSON object, or has a member twice")))
}

/// Any JSON in which no object has a member twice.
struct NoMemberTwice;

impl<'de> Deserialize<'de> for NoMemberTwice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NoMemberTwiceVisitor)
    }
}

struct NoMemberTwiceVisitor;

macro_rules! takes {
    ($($visit:ident: $of:ty),+) => {
        $(fn $visit<E>(self, _: $of) -> Result<NoMemberTwice, E> { Ok(NoMemberTwice) })+
    };
}

impl<'de> Visitor<'de> for NoMemberTwiceVisitor {
    type Value = NoMemberTwice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON in which no member occurs twice")
    }

    takes!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<NoMemberTwice, E> {
        Ok(NoMemberTwice)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NoMemberTwice, A::Error> {
        while list.next_element::<NoMemberTwice>()?.is_some() {}
        Ok(NoMemberTwice)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NoMemberTwice, A::Error> {
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name) {
                map.next_value::<IgnoredAny>()?;
                return Err(serde::de::Error::custom("a member occurs twice"));
            }
            map.next_value::<NoMemberTwice>()?;
        }
        Ok(NoMemberTwice)
    }
}
