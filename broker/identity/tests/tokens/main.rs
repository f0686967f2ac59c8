//! What is accepted, and every reason to refuse, as tables: a change to an honest token, and what comes of it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod callers;
#[path = "../forge/mod.rs"]
mod forge;
mod form;
mod rights;

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use banlieue_identity::keys::KeySet;
use banlieue_identity::token::Unverified;
use banlieue_identity::{Caller, Issuer, Path, Refusal, RefusalReason as Why, SubjectKey, accept};
use forge::{Signer, hmac_token, jwks, unsigned_token, with};
use serde_json::{Value, json};

const NOW: u64 = 1_800_000_000;
const ENTRA: &str = "https://entra.test/tenant/v2.0";
const DEX: &str = "https://dex.test";
const PROVIDER: &str = "https://provider.test/";

static RSA: LazyLock<Signer> = LazyLock::new(|| Signer::rsa("rsa"));
static P256: LazyLock<Signer> = LazyLock::new(|| Signer::p256("p256"));
static STRANGER: LazyLock<Signer> = LazyLock::new(|| Signer::rsa("rsa"));

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
}

fn issuer(yaml: &str) -> Issuer {
    let issuer: Issuer = serde_saphyr::from_str(yaml).unwrap();
    assert_eq!(issuer.problems(), Vec::<String>::new());
    issuer
}

/// Entra: `typ: JWT`, scopes in `scp`, the subject in `oid`.
fn entra() -> Issuer {
    issuer(&format!(
        "{{name: entra, url: '{ENTRA}', client_id: mediatore, accepts: access_token, subject_claim: oid, clients: [az],
          require: {{scope: sandbox.access}}, peers: [agent], apps: {{allowed: true, role: Sandbox.Access}}}}"
    ))
}

/// Dex: ID tokens, for the broker and for the client that asked.
fn dex() -> Issuer {
    issuer(&format!(
        "{{name: dex, url: '{DEX}', client_id: mediatore, accepts: id_token, display_claim: name,
          clients: [mediatore-cli], peers: [agent]}}"
    ))
}

/// RFC 9068: `typ: at+jwt`, the audience a URI, `client_id` instead of `azp`, scopes in `scope`.
fn provider() -> Issuer {
    issuer(&format!(
        "{{name: provider, url: '{PROVIDER}', client_id: mediatore, audience: 'api://mediatore', accepts: access_token,
          clients: [mediatore-cli], require: {{scope: sandbox.access}}, peers: [agent]}}"
    ))
}

fn entra_person() -> Value {
    json!({
        "iss": ENTRA, "aud": "mediatore", "exp": NOW + 3600, "iat": NOW - 10, "nbf": NOW - 10, "ver": "2.0", "tid": "tenant",
        "sub": "pairwise", "oid": "person-1", "azp": "az", "azpacr": "0", "scp": "openid sandbox.access",
        "preferred_username": "bob@example", "name": "Bob"
    })
}

fn entra_app() -> Value {
    json!({
        "iss": ENTRA, "aud": "mediatore", "exp": NOW + 3600, "iat": NOW - 10, "nbf": NOW - 10, "ver": "2.0", "tid": "tenant",
        "sub": "app-1", "oid": "app-1", "azp": "pipeline", "azpacr": "2", "idtyp": "app", "roles": ["Sandbox.Access"]
    })
}

fn dex_person() -> Value {
    json!({
        "iss": DEX, "aud": ["mediatore", "mediatore-cli"], "azp": "mediatore-cli", "exp": NOW + 3600, "iat": NOW - 10,
        "sub": "CgR1c2VyEgVsb2NhbA", "at_hash": "x", "nonce": "y", "email": "bob@example", "name": "bob"
    })
}

fn provider_person() -> Value {
    json!({
        "iss": PROVIDER, "aud": "api://mediatore", "client_id": "mediatore-cli", "exp": NOW + 3600, "iat": NOW - 10,
        "sub": "bob", "scope": "sandbox.access", "jti": "1"
    })
}

fn at_jwt() -> Value {
    with(&RSA.header(), json!({"typ": "at+jwt"}))
}

fn keys() -> KeySet {
    KeySet::parse(jwks(&[&RSA, &P256]).to_string().as_bytes()).unwrap()
}

fn ask(issuer: &Issuer, token: &str) -> Result<Caller, Refusal> {
    accept(issuer, &keys(), Unverified::parse(token)?, now())
}

type Case = (&'static str, String, Why);

/// Every case is run, and all that went otherwise are shown.
fn refused(issuer: &Issuer, cases: Vec<Case>) {
    let mut wrong = Vec::new();
    for (name, token, why) in cases {
        match ask(issuer, &token) {
            Err(refusal) if refusal.reason == why => {
                assert_eq!((refusal.status, refusal.code), (why.code().status(), why.code()));
                for part in token.split('.').filter(|part| part.len() > 20) {
                    assert!(!refusal.detail.contains(part), "{name}: the detail shows the token");
                }
            }
            other => wrong.push(format!("{name}: wanted {why:?}, got {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
