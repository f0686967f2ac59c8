//! Tokens that are refused, each with the reason.

use std::time::SystemTime;

use banlieue_cluster::idp::{CROSS_CLIENT, MEDIATORE, Person, SANDBOX_ACCESS};
use banlieue_identity::RefusalReason as Why;
use serde_json::{Value, json};

use super::World;
use crate::forge::{hmac_token, unsigned_token, with};

pub type Row = (&'static str, String, Why);

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Real tokens of real providers, for somebody or something else.
pub async fn of_real_providers(world: &World) -> Vec<Row> {
    let (entra, dex, ada) = (&world.entra, &world.dex, Person::ada());
    let access = async |client: &str, scope: &str| entra.login(client, &ada, scope).await.unwrap().access_token;
    let login = entra.login("mediatore-cli", &ada, &format!("openid profile {SANDBOX_ACCESS}")).await.unwrap();
    let (honest, again) = (login.access_token.clone(), world.person().await);
    let own_api = access("agent-app", "api://agent/access").await;
    let other_api = access("agent-app", "api://other-agent/access").await;
    let other_agent = entra.on_behalf_of("other-agent", &other_api, SANDBOX_ACCESS).await.unwrap().access_token;
    let onward = entra.on_behalf_of("mediatore", &honest, "api://trading-data/.default").await.unwrap().access_token;
    let stranger = entra.client_credentials("stranger", &format!("{MEDIATORE}/.default")).await.unwrap().access_token;

    let dex_tokens = async |client: &str, scope: &str| dex.login(client, &ada, scope).await.unwrap();
    let cross = format!("openid profile {CROSS_CLIENT}");
    let by_other = dex_tokens("other-agent", &cross).await.id_token.unwrap();
    let alone = dex_tokens("mediatore-cli", "openid profile").await.id_token.unwrap();
    let both = format!("{cross} audience:server:client_id:kubernetes");
    let shared = dex_tokens("mediatore-cli", &both).await.id_token.unwrap();
    let kubernetes = dex_tokens("mediatore-cli", "openid audience:server:client_id:kubernetes").await.id_token.unwrap();
    let own = dex_tokens("mediatore", "openid profile").await.id_token.unwrap();

    let (front, signature) = honest.rsplit_once('.').unwrap();
    let (_, again) = again.rsplit_once('.').unwrap();
    let (header, claims) = front.split_once('.').unwrap();
    vec![
        ("Entra: for Kubernetes", access("mediatore-cli", "api://kubernetes/access").await, Why::AudienceWrong),
        ("Entra: for the agent's own API", own_api, Why::AudienceWrong),
        ("Entra: got by mediatore for a service behind it", onward, Why::AudienceWrong),
        ("Entra: by an agent that is not trusted", other_agent, Why::ClientUntrusted),
        ("Entra: of a service without the role", stranger, Why::RoleMissing),
        ("Entra: an ID token", login.id_token.unwrap(), Why::TokenType),
        ("Entra: another token's signature", format!("{front}.{again}"), Why::SignatureInvalid),
        ("Entra: without its signature", format!("{front}."), Why::SignatureInvalid),
        ("Entra: without its header", format!("{claims}.{signature}"), Why::TokenMalformed),
        ("Entra: cut short", format!("{header}.{}.{signature}", &claims[..claims.len() - 4]), Why::TokenMalformed),
        ("Dex: for its client alone", alone, Why::AudienceWrong),
        ("Dex: for Kubernetes", kubernetes, Why::AudienceWrong),
        ("Dex: for us and Kubernetes", shared, Why::AudienceShared),
        ("Dex: by a peer that is not trusted", by_other, Why::ClientUntrusted),
        ("Dex: asked for by mediatore itself", own, Why::OwnToken),
    ]
}

/// A person's honest token for us, of the issuer `forged`.
pub fn person(world: &World) -> Value {
    json!({
        "iss": world.forged_at.url, "aud": "mediatore", "azp": "cli", "sub": "pairwise", "oid": "person-1",
        "scp": "openid sandbox.access", "groups": ["claimers"], "roles": ["Claimer"],
        "iat": now(), "nbf": now(), "exp": now() + 3600,
    })
}

/// A service's honest token.
fn service(world: &World) -> Value {
    json!({
        "iss": world.forged_at.url, "aud": "mediatore", "azp": "pipeline", "sub": "pipeline-oid", "oid": "pipeline-oid",
        "idtyp": "app", "azpacr": "2", "roles": ["Sandbox.Access"], "iat": now(), "nbf": now(), "exp": now() + 3600,
    })
}

/// A person's honest ID token, of the issuer `other`.
fn id_token(world: &World) -> Value {
    json!({
        "iss": world.other_at.url, "aud": ["cli", "mediatore"], "azp": "cli", "sub": "person-1", "nonce": "n",
        "iat": now(), "exp": now() + 3600,
    })
}

/// What nobody without an issuer's key could send, and what anybody could.
pub fn forged(world: &World) -> Vec<Row> {
    let (key, url) = (&world.forged, &world.forged_at.url);
    let say = |changes| key.token(&with(&person(world), changes));
    let head = |changes| key.sign(&with(&key.header(), changes), &person(world));
    let app = |changes| key.token(&with(&service(world), changes));
    let id = |changes| world.other.token(&with(&id_token(world), changes));
    let text = person(world).to_string();
    let twice = |member: &str| key.sign_raw(&key.header().to_string(), &text.replacen('{', &format!("{{{member},"), 1));
    let hmac = with(&key.header(), json!({ "alg": "HS256" }));
    let swapped = with(&world.other.header(), json!({ "kid": "forged" }));
    let by_twin = world.twin.token(&person(world));
    let by_curve = world.curve.token(&person(world));
    let embedded = with(&world.other.header(), json!({ "kid": "unknown", "jwk": world.other.jwk() }));
    let remote =
        with(&world.other.header(), json!({ "kid": "unknown", "jku": format!("{}/keys", world.other_at.url) }));
    vec![
        // Form.
        ("nonsense", "nonsense".into(), Why::TokenMalformed),
        ("three times nothing", "..".into(), Why::TokenMalformed),
        ("encrypted", "a.b.c.d.e".into(), Why::TokenMalformed),
        ("too large", say(json!({ "x": "x".repeat(16 * 1024) })), Why::TokenTooLarge),
        ("claims are a list", key.sign_raw(&key.header().to_string(), "[]"), Why::TokenMalformed),
        ("a claim twice", twice(r#""oid":"somebody""#), Why::TokenMalformed),
        ("a claim twice, by an escape", twice(r#""\u006fid":"somebody""#), Why::TokenMalformed),
        ("an extension that must be understood", head(json!({ "crit": ["exp"] })), Why::TokenMalformed),
        // Audience.
        ("no audience", say(json!({ "aud": null })), Why::AudienceMissing),
        ("an empty list", say(json!({ "aud": [] })), Why::AudienceMissing),
        ("an audience that is a number", say(json!({ "aud": 1 })), Why::TokenMalformed),
        ("for Kubernetes", say(json!({ "aud": "https://kubernetes.default.svc" })), Why::AudienceWrong),
        ("for an agent's own API", say(json!({ "aud": "api://agent" })), Why::AudienceWrong),
        ("a list without us", say(json!({ "aud": ["a", "b"] })), Why::AudienceWrong),
        ("almost us", say(json!({ "aud": "api://mediatore/" })), Why::AudienceWrong),
        ("us in capitals", say(json!({ "aud": "Mediatore" })), Why::AudienceWrong),
        ("us and somebody else", say(json!({ "aud": ["mediatore", "api://agent"] })), Why::AudienceShared),
        ("us and the client", say(json!({ "aud": ["mediatore", "cli"] })), Why::AudienceShared),
        // Issuer.
        ("no issuer", say(json!({ "iss": null })), Why::TokenMalformed),
        ("an issuer that is a list", say(json!({ "iss": [url] })), Why::TokenMalformed),
        ("an unknown issuer", say(json!({ "iss": "https://evil.example" })), Why::IssuerUnknown),
        ("a slash more", say(json!({ "iss": format!("{url}/") })), Why::IssuerUnknown),
        ("in capitals", say(json!({ "iss": url.to_uppercase() })), Why::IssuerUnknown),
        ("a space more", say(json!({ "iss": format!("{url} ") })), Why::IssuerUnknown),
        ("issued by mediatore", say(json!({ "iss": "https://mediatore.example" })), Why::IssuerReserved),
        (
            "discovery is of another issuer",
            { world.other.token(&with(&person(world), json!({ "iss": world.liar_at.url }))) },
            Why::ProviderInvalid,
        ),
        // Key and signature.
        ("another issuer's key", world.other.sign(&swapped, &person(world)), Why::SignatureInvalid),
        ("another issuer's key under its own name", world.other.token(&person(world)), Why::KeyUnknown),
        ("a key in the header", world.other.sign(&embedded, &person(world)), Why::KeyUnknown),
        ("an address of keys in the header", world.other.sign(&remote, &person(world)), Why::KeyUnknown),
        ("alg none", unsigned_token("none", &person(world)), Why::AlgorithmNotAllowed),
        ("alg nOnE", unsigned_token("nOnE", &person(world)), Why::AlgorithmNotAllowed),
        ("HS256 with the public key", hmac_token(&key.public_bytes(), &hmac, &person(world)), Why::AlgorithmNotAllowed),
        ("an algorithm that is not listed", head(json!({ "alg": "PS256" })), Why::AlgorithmNotAllowed),
        ("a key's own algorithm, which is not listed", by_curve, Why::AlgorithmNotAllowed),
        ("no alg", head(json!({ "alg": null })), Why::TokenMalformed),
        ("no kid", head(json!({ "kid": null })), Why::KeyIdMissing),
        ("an empty kid", head(json!({ "kid": "" })), Why::KeyIdMissing),
        ("a kid that nobody has", head(json!({ "kid": "nobody" })), Why::KeyUnknown),
        ("a kid that is a path", head(json!({ "kid": "../../../dev/null" })), Why::KeyUnknown),
        ("a kid without end", head(json!({ "kid": "k".repeat(300) })), Why::KeyUnknown),
        ("a kid that two keys have", by_twin, Why::KeyAmbiguous),
        // Times.
        ("no expiry", say(json!({ "exp": null })), Why::ExpiryMissing),
        ("expired", say(json!({ "exp": now() - 120 })), Why::Expired),
        ("expired in 1970", say(json!({ "exp": 0 })), Why::Expired),
        ("an expiry that is text", say(json!({ "exp": "4000000000" })), Why::TokenMalformed),
        ("not yet valid", say(json!({ "nbf": now() + 600 })), Why::NotYetValid),
        ("issued in the future", say(json!({ "iat": now() + 600 })), Why::NotYetValid),
        // Kind.
        ("an ID token where access tokens are accepted", say(json!({ "nonce": "n" })), Why::TokenType),
        ("says nothing of what it is", say(json!({ "scp": null, "roles": null })), Why::TokenType),
        ("says it is an ID token", say(json!({ "token_use": "id" })), Why::TokenType),
        ("a logout token", head(json!({ "typ": "logout+jwt" })), Why::TokenType),
        ("a type that nobody knows", head(json!({ "typ": "secevent+jwt" })), Why::TokenType),
        ("an access token where ID tokens are accepted", id(json!({ "scp": "sandbox.access" })), Why::TokenType),
        (
            "typed as one",
            {
                let typed = with(&world.other.header(), json!({ "typ": "at+jwt" }));
                world.other.sign(&typed, &id_token(world))
            },
            Why::TokenType,
        ),
        ("bound to a key", say(json!({ "cnf": { "jkt": "x" } })), Why::TokenBound),
        // Who.
        ("no subject", say(json!({ "oid": null })), Why::SubjectMissing),
        ("an empty subject", say(json!({ "oid": "" })), Why::SubjectMissing),
        ("a subject with a line end", say(json!({ "oid": "a\nb" })), Why::SubjectMissing),
        ("no client", say(json!({ "azp": null })), Why::ClientMissing),
        ("two clients", say(json!({ "appid": "agent" })), Why::ClientMissing),
        ("a client that nobody trusts", say(json!({ "azp": "other-agent" })), Why::ClientUntrusted),
        (
            "of a sandbox",
            say(json!({ "act": { "sub": "spiffe://banlieue.local/banlieue/claim/x" } })),
            Why::SandboxToken,
        ),
        ("of a sandbox, said with nothing", say(json!({ "act": {} })), Why::SandboxToken),
        ("asked for by mediatore itself", say(json!({ "azp": "mediatore" })), Why::OwnToken),
        (
            "an ID token of a client that nobody trusts",
            id(json!({ "azp": "x", "aud": ["x", "mediatore"] })),
            Why::ClientUntrusted,
        ),
        ("an ID token of two clients", id(json!({ "azp": null })), Why::ClientMissing),
        // What they may.
        ("no scope", say(json!({ "scp": null })), Why::ScopeMissing),
        ("another scope", say(json!({ "scp": "sandbox.read" })), Why::ScopeMissing),
        ("a scope that begins alike", say(json!({ "scp": "sandbox.access.all" })), Why::ScopeMissing),
        ("no group", say(json!({ "groups": null })), Why::GroupMissing),
        ("another group", say(json!({ "groups": ["claimers-too"] })), Why::GroupMissing),
        ("too many groups to list", say(json!({ "groups": null, "hasgroups": true })), Why::GroupMissing),
        ("no role", say(json!({ "roles": null })), Why::RoleMissing),
        ("an agent's person without the role", say(json!({ "azp": "agent", "roles": ["x"] })), Why::RoleMissing),
        // Services.
        ("a service without the role", app(json!({ "roles": ["Claimer"] })), Why::RoleMissing),
        ("a service with a scope", app(json!({ "scp": "sandbox.access" })), Why::AppUnproven),
        ("a service that is not listed", app(json!({ "azp": "stranger" })), Why::AppNotAllowed),
        ("a service that does not prove it", app(json!({ "idtyp": null, "azpacr": "0" })), Why::AppUnproven),
        ("neither a person nor a service", app(json!({ "idtyp": "device" })), Why::AppUnproven),
        (
            "an ID token with roles, as a service",
            id(json!({ "idtyp": "app", "roles": ["Sandbox.Access"] })),
            Why::AppNotAllowed,
        ),
    ]
}
