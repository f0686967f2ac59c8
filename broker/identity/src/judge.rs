//! A verified token against its issuer's entry: who calls, on which path, or why not.
//!
//! First everything that makes a token one for us (401), then everything that its bearer may or may not (403), so that
//! nobody learns of rights from a token that is not for us.

use std::time::{Duration, SystemTime};

use crate::caller::{Caller, Path};
use crate::claims::Claims;
use crate::config::{Accepts, Issuer};
use crate::keys::KeySet;
use crate::refusal::{Refusal, RefusalReason, shown};
use crate::subject::SubjectKey;
use crate::token::{Header, Unverified, Verified};

/// How far the issuer's clock and ours may be apart.
pub const SKEW: Duration = Duration::from_secs(60);

/// The longest subject and client id, in bytes (OpenID Connect Core 1.0, section 2, for `sub`).
const MAX_ID_BYTES: usize = 255;

/// Claims that only ID tokens have (OpenID Connect Core 1.0, sections 2 and 3.3.2.11).
const ID_TOKEN_CLAIMS: &[&str] = &["nonce", "at_hash", "c_hash", "s_hash"];

/// Claims that speak for an access token where `typ` does not. A service that nobody gave a role has only the last two,
/// Entra's word on how the client proved itself.
const ACCESS_TOKEN_SIGNS: &[&str] = &["scp", "scope", "roles", "azpacr", "appidacr"];

/// Claims that only access tokens have (RFC 9068, section 2.2, and Entra's).
const ACCESS_TOKEN_CLAIMS: &[&str] = &["scp", "scope", "client_id", "appid"];

/// Who sends this token, with these keys of its issuer: the signature first, then [`judge`].
///
/// # Errors
/// The first reason that stands against it.
pub fn accept(issuer: &Issuer, keys: &KeySet, token: Unverified<'_>, now: SystemTime) -> Result<Caller, Refusal> {
    judge(issuer, &token.verified_by(keys, &issuer.name, &issuer.algorithms)?, now)
}

/// Who sends this token, under its issuer's entry, at this time.
///
/// # Errors
/// The first reason that stands against it.
pub fn judge(issuer: &Issuer, token: &Verified, now: SystemTime) -> Result<Caller, Refusal> {
    let claims = Claims(token.claims());
    check_issuer(issuer, claims)?;
    check_type(issuer, token.header(), claims)?;
    let audiences = check_audience(issuer, claims)?;
    let not_after = check_times(claims, now)?;
    let client = client(issuer, claims, &audiences)?;
    check_audience_alone(issuer, &audiences, client)?;
    let id = subject(issuer, claims)?;

    check_no_sandbox(issuer, claims, client)?;
    let path = path(issuer, claims, client)?;
    Ok(Caller {
        issuer_name: issuer.name.clone(),
        issuer: issuer.url.clone(),
        id: id.to_owned(),
        display: claims.text(&issuer.display_claim).ok().flatten().and_then(display),
        path,
        client: client.to_owned(),
        azp: (path == Path::AgentForPerson).then(|| client.to_owned()),
        key: SubjectKey::of(&issuer.url, id),
        not_after,
    })
}

fn check_issuer(issuer: &Issuer, claims: Claims<'_>) -> Result<(), Refusal> {
    match claims.text("iss")? {
        Some(iss) if iss == issuer.url => Ok(()),
        _ => Err(Refusal::new(RefusalReason::IssuerUnknown, format!("the token is not of issuer {}", issuer.name))),
    }
}

/// An access token and an ID token may have the same audience and the same signature. What tells them apart is `typ`
/// where the issuer follows RFC 9068, otherwise claims that only one kind has; a token that says neither is refused.
fn check_type(issuer: &Issuer, header: &Header, claims: Claims<'_>) -> Result<(), Refusal> {
    let refuse = |detail: String| Err(Refusal::new(RefusalReason::TokenType, detail));
    if claims.has("cnf") {
        let detail = "the token is bound to a key (`cnf`) and cannot be used as a bearer token";
        return Err(Refusal::new(RefusalReason::TokenBound, detail));
    }
    if claims.has("events") {
        return refuse("the token reports an event (RFC 8417)".to_owned());
    }
    let wanted = match issuer.accepts {
        Accepts::AccessToken => "an access token",
        Accepts::IdToken => "an ID token",
    };
    // Some providers say it in the claims: Keycloak's `typ`, Cognito's `token_use`.
    for name in ["typ", "token_use"] {
        let said = claims.text(name)?.map(str::to_ascii_lowercase);
        let fits = match (said.as_deref(), issuer.accepts) {
            (None, _) => true,
            (Some("bearer" | "access" | "at+jwt"), kind) => kind == Accepts::AccessToken,
            (Some("id"), kind) => kind == Accepts::IdToken,
            (Some(_), _) => false,
        };
        if !fits {
            return refuse(format!(
                "the token's claim `{name}` says it is not {wanted}, as issuer {} needs",
                issuer.name
            ));
        }
    }
    let first_of = |names: &[&'static str]| names.iter().copied().find(|name| claims.has(name));
    match (issuer.accepts, header.typ.as_deref()) {
        (Accepts::AccessToken, Some("at+jwt")) => Ok(()),
        (Accepts::AccessToken, None | Some("jwt")) => match first_of(ID_TOKEN_CLAIMS) {
            Some(name) => refuse(format!("the token has `{name}`, so it is an ID token; send an access token")),
            None if first_of(ACCESS_TOKEN_SIGNS).is_none() => {
                refuse("nothing in the token says that it is an access token; an ID token is not accepted".to_owned())
            }
            None => Ok(()),
        },
        (Accepts::IdToken, None | Some("jwt")) => match first_of(ACCESS_TOKEN_CLAIMS) {
            Some(name) => refuse(format!("the token has `{name}`, so it is an access token; send the ID token")),
            None => Ok(()),
        },
        (_, Some(typ)) => refuse(format!("the token is of type {}; issuer {} needs {wanted}", shown(typ), issuer.name)),
    }
}

fn check_audience<'a>(issuer: &Issuer, claims: Claims<'a>) -> Result<Vec<&'a str>, Refusal> {
    let audiences = claims.list("aud")?;
    if audiences.is_empty() {
        return Err(Refusal::new(RefusalReason::AudienceMissing, "the token has no audience"));
    }
    if !audiences.contains(&issuer.audience()) {
        let named = audiences.first().map(|first| shown(first)).unwrap_or_default();
        let detail = format!("the token is for {named}; get one for {}", shown(issuer.audience()));
        return Err(Refusal::new(RefusalReason::AudienceWrong, detail));
    }
    Ok(audiences)
}

/// Whoever else a token is for can send it to us. With ID tokens that may be the client that asked for it, which could
/// ask again anyway; with access tokens nobody.
fn check_audience_alone(issuer: &Issuer, audiences: &[&str], client: &str) -> Result<(), Refusal> {
    let ours =
        |audience: &str| audience == issuer.audience() || (issuer.accepts == Accepts::IdToken && audience == client);
    match audiences.iter().find(|audience| !ours(audience)) {
        None => Ok(()),
        Some(other) => {
            let detail = format!("the token is for {} too, who could replay it; get one for us alone", shown(other));
            Err(Refusal::new(RefusalReason::AudienceShared, detail))
        }
    }
}

fn check_times(claims: Claims<'_>, now: SystemTime) -> Result<SystemTime, Refusal> {
    let expires = claims.time("exp")?.ok_or_else(|| {
        Refusal::new(RefusalReason::ExpiryMissing, "the token has no `exp`, so it would hold for ever")
    })?;
    // now >= exp + skew, written so that no time can overflow.
    if now.duration_since(expires).is_ok_and(|late| late >= SKEW) {
        return Err(Refusal::new(RefusalReason::Expired, "the token has expired; get a new one"));
    }
    for name in ["nbf", "iat"] {
        if let Some(from) = claims.time(name)?
            && from.duration_since(now).is_ok_and(|early| early > SKEW)
        {
            let detail = format!("the token's `{name}` lies in the future; is a clock wrong?");
            return Err(Refusal::new(RefusalReason::NotYetValid, detail));
        }
    }
    Ok(expires)
}

/// The client that asked for the token.
fn client<'a>(issuer: &Issuer, claims: Claims<'a>, audiences: &[&'a str]) -> Result<&'a str, Refusal> {
    let missing = |detail: &str| Refusal::new(RefusalReason::ClientMissing, detail);
    let client = match issuer.accepts {
        Accepts::AccessToken => {
            // Entra v2, RFC 9068, Entra v1. One that differs from another is not ours to choose from.
            let mut named = None;
            for name in ["azp", "client_id", "appid"] {
                match (claims.text(name)?, named) {
                    (Some(client), Some(other)) if client != other => {
                        return Err(missing("the token names two clients that asked for it"));
                    }
                    (Some(client), _) => named = Some(client),
                    (None, _) => {}
                }
            }
            named.ok_or_else(|| missing("the token does not say which client asked for it"))?
        }
        // OpenID Connect Core 1.0, section 2: the client is the one audience, or `azp`.
        Accepts::IdToken => match (claims.text("azp")?, audiences) {
            (Some(client), _) => client,
            (None, [only]) => only,
            (None, _) => return Err(missing("the token has several audiences and no `azp`")),
        },
    };
    if is_id(client) { Ok(client) } else { Err(missing("the token names no usable client")) }
}

fn subject<'a>(issuer: &Issuer, claims: Claims<'a>) -> Result<&'a str, Refusal> {
    let claim = &issuer.subject_claim;
    claims.text(claim)?.filter(|id| is_id(id)).ok_or_else(|| {
        let detail = format!("the token has no `{claim}` of 1 to {MAX_ID_BYTES} bytes without control characters");
        Refusal::new(RefusalReason::SubjectMissing, detail)
    })
}

/// A sandbox never claims sandboxes: what it holds was issued by us (which no issuer entry accepts), says `act`, or was
/// asked for by us.
fn check_no_sandbox(issuer: &Issuer, claims: Claims<'_>, client: &str) -> Result<(), Refusal> {
    if claims.has("act") {
        let detail = "the token says that somebody acts for its subject (`act`), as a sandbox's does; a sandbox never claims sandboxes";
        return Err(Refusal::new(RefusalReason::SandboxToken, detail));
    }
    if issuer.reserved().any(|reserved| reserved == client) {
        let detail = "the token was asked for by the broker's own client; log in with a client of your own";
        return Err(Refusal::new(RefusalReason::OwnToken, detail));
    }
    Ok(())
}

/// Whatever looks like a service's token is held to the rules of path C, so that none passes for a person's.
fn path(issuer: &Issuer, claims: Claims<'_>, client: &str) -> Result<Path, Refusal> {
    let (sub, oid) = (claims.text("sub")?, claims.text("oid")?);
    let oid_is_sub = oid.is_some() && oid == sub;
    match claims.text("idtyp")? {
        Some("app") => service(issuer, claims, client, true),
        Some("user") | None if oid_is_sub => {
            // Entra v2 and v1: how the client proved itself; 0 is a public client, 1 a secret, 2 a certificate.
            let mut confidential = false;
            for name in ["azpacr", "appidacr"] {
                confidential |= matches!(claims.text(name)?, Some("1" | "2"));
            }
            service(issuer, claims, client, confidential && !claims.has("idtyp"))
        }
        // RFC 9068, section 5: with client credentials `sub` is the client.
        Some("user") | None if sub == Some(client) => service(issuer, claims, client, false),
        Some("user") | None => person(issuer, claims, client),
        Some(other) => {
            let detail = format!("the token is of neither a person nor an application, but of {}", shown(other));
            Err(Refusal::new(RefusalReason::AppUnproven, detail))
        }
    }
}

fn person(issuer: &Issuer, claims: Claims<'_>, client: &str) -> Result<Path, Refusal> {
    let listed = |list: &[String]| list.iter().any(|id| id == client);
    let path = if listed(&issuer.clients) {
        Path::Person
    } else if listed(&issuer.peers) {
        Path::AgentForPerson
    } else {
        let detail =
            format!("the client {} is not trusted to claim for people of issuer {}", shown(client), issuer.name);
        return Err(Refusal::new(RefusalReason::ClientUntrusted, detail));
    };
    let missing = |reason, claim: &str, wanted: &str| {
        Err(Refusal::new(reason, format!("the token's `{claim}` lacks {}, which claiming needs", shown(wanted))))
    };
    let require = &issuer.require;
    if let Some(scope) = &require.scope
        && !claims.scopes()?.contains(&scope.as_str())
    {
        return missing(RefusalReason::ScopeMissing, "scp", scope);
    }
    if let Some(group) = &require.group
        && !claims.list("groups")?.contains(&group.as_str())
    {
        if claims.groups_left_out() {
            let detail = "the person is in too many groups for the token to list them; assign the group to the application, \
                          so that only such groups are listed";
            return Err(Refusal::new(RefusalReason::GroupMissing, detail));
        }
        return missing(RefusalReason::GroupMissing, "groups", group);
    }
    if let Some(role) = &require.role
        && !claims.list("roles")?.contains(&role.as_str())
    {
        return missing(RefusalReason::RoleMissing, "roles", role);
    }
    Ok(path)
}

fn service(issuer: &Issuer, claims: Claims<'_>, client: &str, proven: bool) -> Result<Path, Refusal> {
    let apps = &issuer.apps;
    let refuse = |reason, detail: &str| Err(Refusal::new(reason, detail));
    if issuer.accepts == Accepts::IdToken {
        return refuse(RefusalReason::AppNotAllowed, "an ID token is about a person and never lets a service claim");
    }
    if !apps.allowed {
        return refuse(RefusalReason::AppNotAllowed, "services may not claim with tokens of this issuer");
    }
    if !proven {
        let detail = "the token looks like a service's but does not prove it (`idtyp` is not `app`, nor is `oid` the same \
                      as `sub` with a confidential client)";
        return refuse(RefusalReason::AppUnproven, detail);
    }
    if !claims.scopes()?.is_empty() {
        return refuse(RefusalReason::AppUnproven, "the token is a service's and has a scope, which only people give");
    }
    let Some(role) = &apps.role else {
        return refuse(RefusalReason::AppNotAllowed, "no role is configured for services of this issuer");
    };
    if !claims.list("roles")?.contains(&role.as_str()) {
        let detail = format!("the service lacks the application role {}", shown(role));
        return Err(Refusal::new(RefusalReason::RoleMissing, detail));
    }
    if !apps.ids.is_empty() && !apps.ids.iter().any(|id| id == client) {
        let detail = format!("the service {} is not among those that may claim", shown(client));
        return Err(Refusal::new(RefusalReason::AppNotAllowed, detail));
    }
    Ok(Path::Service)
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_ID_BYTES && !text.chars().any(char::is_control)
}

/// A display name is shown, so it loses what could disguise it; it is never compared.
fn display(text: &str) -> Option<String> {
    let mut shown: String = text.trim().chars().filter(|character| !is_disguise(*character)).collect();
    while shown.len() > MAX_ID_BYTES {
        shown.pop();
    }
    (!shown.is_empty()).then_some(shown)
}

/// Control characters, and those that reorder or hide text.
fn is_disguise(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}
