//! From a token whose signature is mediatore's to the sandbox that sends it, or to the reason why not. Pure.
//!
//! The token is a JWT access token (RFC 9068) with an actor (RFC 8693, section 4.1):
//!
//! | claim | what it must be |
//! |---|---|
//! | `typ` (header) | `at+jwt`, so that nothing else that mediatore may ever sign passes for one |
//! | `iss` | mediatore's issuer, byte for byte |
//! | `aud` | this service and nobody else, or another audience could use the token here |
//! | `exp`, `nbf`, `iat` | now is between them; 60 seconds are forgiven |
//! | `act.sub` | `spiffe://<trust domain>/banlieue/claim/<uid>`, of our trust domain, with the uid of `claim_uid` |
//! | `act.act` | nothing, or `{sub}`: the agent that asked for the person; nothing deeper |
//! | `sub` | the subject key, which `upstream_iss` and `upstream_sub` make |

use std::time::{SystemTime, UNIX_EPOCH};

use banlieue_identity::SubjectKey;
use banlieue_identity::token::Verified;
use banlieue_protocol::names::{Named, TrustDomain, Uid, read_id};
use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// How far mediatore's clock and ours may be apart, in seconds.
const SKEW: i64 = 60;
/// Longest id that is taken, in bytes.
const LONGEST_ID: usize = 255;

/// Whose tokens are taken, and for whom they must be.
#[derive(Debug, Clone)]
pub struct Expected {
    /// mediatore's issuer.
    pub issuer: String,
    /// This service.
    pub audience: String,
    /// The trust domain that sandboxes are of.
    pub trust_domain: TrustDomain,
}

/// A sandbox, and for whom it acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Uid of the claim that it is.
    pub claim: Uid,
    /// For whom it acts, to be compared.
    pub subject: SubjectKey,
    /// The issuer at which that person or service is known.
    pub upstream_issuer: String,
    /// Its id there.
    pub upstream_id: String,
    /// The agent that asked for the person; nobody when the person, or a service for itself, asked.
    pub agent: Option<String>,
    /// When its token ends, in seconds since 1970.
    pub expires_at: i64,
}

/// Who sends this token at this time.
///
/// # Errors
/// The first reason that stands against it.
pub fn judge(expected: &Expected, token: &Verified, now: SystemTime) -> Result<Sandbox, Refusal> {
    let claims = token.claims();
    if token.header().typ.as_deref() != Some("at+jwt") {
        return Err(Refusal::token("token_type", "the token's `typ` is not at+jwt, so it is no access token"));
    }
    if text(claims, "iss")? != expected.issuer {
        return Err(Refusal::token("issuer_unknown", format!("the token is not of issuer {}", expected.issuer)));
    }
    audience(claims, &expected.audience)?;
    let expires_at = times(claims, now)?;
    let claim = Uid::parse(text(claims, "claim_uid")?)
        .map_err(|_| Refusal::token("claim_uid", "the token's `claim_uid` is not the uid of a claim"))?;
    let agent = actor(claims, &expected.trust_domain, &claim)?;
    let (upstream_issuer, upstream_id) = (text(claims, "upstream_iss")?, text(claims, "upstream_sub")?);
    let subject = SubjectKey::of(upstream_issuer, upstream_id);
    if text(claims, "sub")? != subject.to_string() {
        let detail = "the token's `sub` is not the key of its `upstream_iss` and `upstream_sub`";
        return Err(Refusal::token("subject", detail));
    }
    Ok(Sandbox {
        claim,
        subject,
        upstream_issuer: upstream_issuer.to_owned(),
        upstream_id: upstream_id.to_owned(),
        agent,
        expires_at,
    })
}

/// A member that is a text: not empty, not endless, without control characters, which would end up in logs.
fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str, Refusal> {
    let usable = |text: &&str| (1..=LONGEST_ID).contains(&text.len()) && !text.chars().any(char::is_control);
    object.get(name).and_then(Value::as_str).filter(usable).ok_or_else(|| {
        Refusal::token(
            "token_malformed",
            format!("the token has no `{name}` that is a text of up to {LONGEST_ID} bytes"),
        )
    })
}

fn audience(claims: &Map<String, Value>, own: &str) -> Result<(), Refusal> {
    let wrong = |why: &str| Err(Refusal::token("audience_wrong", format!("{why}; ask mediatore for one for {own}")));
    match claims.get("aud") {
        Some(Value::String(audience)) if audience == own => Ok(()),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(audience)] if audience == own => Ok(()),
            _ => wrong("the token is not for this service alone"),
        },
        Some(_) => wrong("the token is for another service"),
        None => wrong("the token has no audience"),
    }
}

/// Between `nbf` and `exp`, give or take [`SKEW`]. Returns `exp`.
fn times(claims: &Map<String, Value>, now: SystemTime) -> Result<i64, Refusal> {
    let now = now.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0);
    let time = |name: &str| {
        let said = claims.get(name).and_then(Value::as_i64);
        said.ok_or_else(|| Refusal::token("token_malformed", format!("the token has no `{name}` in whole seconds")))
    };
    let (exp, nbf, iat) = (time("exp")?, time("nbf")?, time("iat")?);
    if now >= exp.saturating_add(SKEW) {
        return Err(Refusal::token("expired", "the token has expired; ask mediatore for another"));
    }
    if now.saturating_add(SKEW) < nbf.max(iat) {
        return Err(Refusal::token("not_yet_valid", "the token is not valid yet; is this machine's clock right?"));
    }
    Ok(exp)
}

/// `act` names the sandbox of this claim; returns the agent before it.
fn actor(claims: &Map<String, Value>, domain: &TrustDomain, claim: &Uid) -> Result<Option<String>, Refusal> {
    let wrong = |why: String| Refusal::token("actor", why);
    let object = |value: &Value| value.as_object().cloned();
    let act = claims.get("act").and_then(object).ok_or_else(|| {
        wrong("the token has no `act`, so it is not a sandbox's; this service talks to sandboxes only".to_owned())
    })?;
    let id = text(&act, "sub")?;
    if read_id(domain, id) != Some(Named::Claim(claim.clone())) {
        return Err(wrong(format!("the token's `act.sub` is not the sandbox of claim {claim} in {domain}")));
    }
    let Some(inner) = act.get("act") else { return Ok(None) };
    let inner = object(inner).ok_or_else(|| wrong("the token's `act.act` is no object".to_owned()))?;
    if inner.contains_key("act") {
        return Err(wrong("the token names more actors than a sandbox and the agent that asked for it".to_owned()));
    }
    Ok(Some(text(&inner, "sub")?.to_owned()))
}
