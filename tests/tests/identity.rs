//! Paths A, B and C with real tokens of real providers: who is a caller, and who is refused.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use std::time::SystemTime;

use banlieue_cluster::idp::{
    CROSS_CLIENT, DexConfig, Host, MEDIATORE, OidcConfig, Person, Provider, SANDBOX_ACCESS, SANDBOX_ROLE,
};
use banlieue_identity::{Caller, Issuer, Issuers, Path, Refusal, RefusalReason as Why, SubjectKey};
use serde_json::{Value, json};

/// An issuer entry for a provider; `rest` says what is not the same for all.
fn issuer(name: &str, provider: &Provider, rest: Value) -> Issuer {
    let mut entry = json!({
        "name": name, "url": provider.issuer, "client_id": "mediatore", "ca_file": provider.ca_file,
        "clients": ["mediatore-cli"], "peers": ["agent"],
    });
    entry.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    serde_json::from_value(entry).unwrap()
}

fn entra_entry(provider: &Provider) -> Issuer {
    let rest = json!({
        "accepts": "access_token", "subject_claim": "oid", "require": {"scope": "sandbox.access"},
        "apps": {"allowed": true, "role": SANDBOX_ROLE},
    });
    issuer("entra", provider, rest)
}

async fn ask(issuers: &Issuers, token: &str) -> Result<Caller, Refusal> {
    issuers.validate(token, SystemTime::now()).await
}

async fn refused(issuers: &Issuers, what: &str, token: &str, why: Why) {
    match ask(issuers, token).await {
        Err(refusal) => assert_eq!(refusal.reason, why, "{what}: {refusal:?}"),
        Ok(caller) => panic!("{what}: accepted as {caller:?}"),
    }
}

#[tokio::test]
async fn entra_people_agents_and_services() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let issuers = Issuers::new(vec![entra_entry(&entra)]).unwrap();
    let ada = Person::ada();

    // A: in a browser, and on a device.
    let login = entra.login("mediatore-cli", &ada, &format!("openid profile {SANDBOX_ACCESS}")).await.unwrap();
    let person = ask(&issuers, &login.access_token).await.unwrap();
    assert_eq!((person.path, person.azp.as_deref(), person.client.as_str()), (Path::Person, None, "mediatore-cli"));
    assert_eq!((person.id.as_str(), person.display.as_deref()), (ada.id.as_str(), Some("ada")));
    assert_eq!(person.key, SubjectKey::of(&entra.issuer, &ada.id));
    let device = entra.device("mediatore-cli", &ada, SANDBOX_ACCESS).await.unwrap();
    assert_eq!(ask(&issuers, &device.access_token).await.unwrap().key, person.key);

    // B: the subject is the person; the agent is named.
    let own = entra.login("agent-app", &ada, "api://agent/access").await.unwrap().access_token;
    let traded = entra.on_behalf_of("agent", &own, SANDBOX_ACCESS).await.unwrap().access_token;
    let agent = ask(&issuers, &traded).await.unwrap();
    assert_eq!((agent.path, agent.azp.as_deref(), agent.key), (Path::AgentForPerson, Some("agent"), person.key));

    // C: the subject is the service.
    let scope = format!("{MEDIATORE}/.default");
    let service = entra.client_credentials("pipeline", &scope).await.unwrap().access_token;
    let service = ask(&issuers, &service).await.unwrap();
    assert_eq!((service.path, service.azp.as_deref(), service.id.as_str()), (Path::Service, None, "pipeline-object"));
    assert_eq!(service.client, "pipeline");

    let kubernetes = entra.login("mediatore-cli", &ada, "api://kubernetes/access").await.unwrap().access_token;
    let other = entra.login("agent-app", &ada, "api://other-agent/access").await.unwrap().access_token;
    let other = entra.on_behalf_of("other-agent", &other, SANDBOX_ACCESS).await.unwrap().access_token;
    let onward = entra.on_behalf_of("mediatore", &login.access_token, "api://trading-data/.default").await.unwrap();
    let stranger = entra.client_credentials("stranger", &scope).await.unwrap().access_token;
    refused(&issuers, "a token for Kubernetes", &kubernetes, Why::AudienceWrong).await;
    refused(&issuers, "a token for the agent's own API", &own, Why::AudienceWrong).await;
    refused(&issuers, "a token that the broker got", &onward.access_token, Why::AudienceWrong).await;
    refused(&issuers, "an agent that is not trusted", &other, Why::ClientUntrusted).await;
    refused(&issuers, "a service without the role", &stranger, Why::RoleMissing).await;
    refused(&issuers, "an ID token", login.id_token.as_deref().unwrap(), Why::TokenType).await;
    let (front, _) = login.access_token.rsplit_once('.').unwrap();
    let (_, signature) = traded.rsplit_once('.').unwrap();
    refused(&issuers, "another token's signature", &format!("{front}.{signature}"), Why::SignatureInvalid).await;

    let no_services = Issuer { apps: Default::default(), ..entra_entry(&entra) };
    let issuers = Issuers::new(vec![no_services]).unwrap();
    let service = entra.client_credentials("pipeline", &scope).await.unwrap().access_token;
    refused(&issuers, "a service where none may", &service, Why::AppNotAllowed).await;
}

#[tokio::test]
async fn jwt_access_tokens_of_people_only() {
    let host = Host::start().await.unwrap();
    let plain = host.start_oidc(OidcConfig::plain()).await.unwrap();
    let rest = json!({"accepts": "access_token", "require": {"scope": SANDBOX_ACCESS},
        "apps": {"allowed": true, "role": SANDBOX_ROLE}});
    let issuers = Issuers::new(vec![issuer("plain", &plain, rest)]).unwrap();
    let ada = Person::ada();

    let login = plain.login("mediatore-cli", &ada, &format!("openid profile {SANDBOX_ACCESS}")).await.unwrap();
    let person = ask(&issuers, &login.access_token).await.unwrap();
    assert_eq!((person.path, person.id.as_str()), (Path::Person, ada.id.as_str()));
    refused(&issuers, "an ID token", login.id_token.as_deref().unwrap(), Why::TokenType).await;

    // A service's token names itself twice and proves nothing more, so it is neither a person's nor a service's.
    let service = plain.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
    refused(&issuers, "a service that does not say so", &service.access_token, Why::AppUnproven).await;
}

#[tokio::test]
async fn dex_people_and_agents() {
    let host = Host::start().await.unwrap();
    let dex = host.start_dex(DexConfig::default()).await.unwrap();
    let entry = || issuer("dex", &dex, json!({"accepts": "id_token", "display_claim": "name"}));
    let issuers = Issuers::new(vec![entry()]).unwrap();
    let (ada, scope) = (Person::ada(), format!("openid profile {CROSS_CLIENT}"));
    let id_token = async |client: &str, person: &Person, scope: &str| {
        dex.login(client, person, scope).await.unwrap().id_token.unwrap()
    };

    // A: the CLI's token is for the CLI and for us.
    let by_cli = id_token("mediatore-cli", &ada, &scope).await;
    let person = ask(&issuers, &by_cli).await.unwrap();
    assert_eq!((person.path, person.azp.as_deref(), person.display.as_deref()), (Path::Person, None, Some("ada")));

    // B: a trusted peer's.
    let agent = ask(&issuers, &id_token("agent", &ada, &scope).await).await.unwrap();
    assert_eq!((agent.path, agent.azp.as_deref(), agent.key), (Path::AgentForPerson, Some("agent"), person.key));

    let grace = ask(&issuers, &id_token("mediatore-cli", &Person::grace(), &scope).await).await.unwrap();
    assert_ne!(grace.key, person.key);

    // Renamed, she is the same person; who takes her old name is another.
    let renamed = Person { login: "ada-l".to_owned(), ..Person::ada() };
    dex.put_person(&renamed).await.unwrap();
    let again = ask(&issuers, &id_token("mediatore-cli", &renamed, &scope).await).await.unwrap();
    assert_eq!((again.key, again.display.as_deref()), (person.key, Some("ada-l")));
    let usurper = Person::new("0c0c0c0c-1111-4222-8333-0000000000ad", "ada");
    dex.put_person(&usurper).await.unwrap();
    let usurper = ask(&issuers, &id_token("mediatore-cli", &usurper, &scope).await).await.unwrap();
    assert_eq!(usurper.display, person.display);
    assert_ne!(usurper.key, person.key);

    let both = format!("{scope} audience:server:client_id:kubernetes");
    let refusals = [
        ("an agent that is not trusted", id_token("other-agent", &renamed, &scope).await, Why::ClientUntrusted),
        ("a token for somebody else", id_token("stranger", &renamed, "openid").await, Why::AudienceWrong),
        ("a token for the CLI alone", id_token("mediatore-cli", &renamed, "openid").await, Why::AudienceWrong),
        ("a token for Kubernetes too", id_token("mediatore-cli", &renamed, &both).await, Why::AudienceShared),
        ("a login to the broker itself", id_token("mediatore", &renamed, "openid").await, Why::OwnToken),
    ];
    for (what, token, why) in &refusals {
        refused(&issuers, what, token, *why).await;
    }
    let opaque = dex.login("mediatore-cli", &renamed, &scope).await.unwrap().access_token;
    assert!(ask(&issuers, &opaque).await.is_err(), "Dex's access token");

    let nobody = Issuers::new(vec![Issuer { peers: Vec::new(), ..entry() }]).unwrap();
    let by_agent = id_token("agent", &renamed, &scope).await;
    refused(&nobody, "an agent where none is trusted", &by_agent, Why::ClientUntrusted).await;
}

#[tokio::test]
async fn keys_rotate_and_providers_fail() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    // No floor, so that a new key is looked for at once.
    let limits = banlieue_identity::Limits { floor: std::time::Duration::ZERO, ..Default::default() };
    let issuers = Issuers::with_limits(vec![entra_entry(&entra)], limits).unwrap();
    let token = async || entra.login("mediatore-cli", &Person::ada(), SANDBOX_ACCESS).await.unwrap().access_token;
    let before = token().await;
    let key = ask(&issuers, &before).await.unwrap().key;
    entra.rotate_keys().await.unwrap();
    let after = token().await;
    assert_eq!(ask(&issuers, &after).await.unwrap().key, key);
    assert_eq!(ask(&issuers, &before).await.unwrap().key, key, "the older key still verifies");
    assert_eq!(issuers.statuses()[0].fetches, 2);

    entra.outage(true).await.unwrap();
    assert_eq!(ask(&issuers, &after).await.unwrap().key, key, "an outage stops nobody whose key is held");
    let late = Issuers::new(vec![entra_entry(&entra)]).unwrap();
    refused(&late, "nothing held", &after, Why::ProviderUnreachable).await;
    entra.outage(false).await.unwrap();

    // Two providers, each with the other's tokens.
    let other = host.start_oidc(OidcConfig { name: "other".to_owned(), ..OidcConfig::entra() }).await.unwrap();
    let wrong = Issuer { url: other.issuer.clone(), ca_file: Some(other.ca_file.clone()), ..entra_entry(&entra) };
    let issuers = Issuers::new(vec![wrong]).unwrap();
    refused(&issuers, "an issuer that is not ours", &after, Why::IssuerUnknown).await;
    let slash =
        Issuer { url: format!("{}/", other.issuer), ca_file: Some(other.ca_file.clone()), ..entra_entry(&other) };
    let issuers = Issuers::new(vec![slash]).unwrap();
    let foreign = other.login("mediatore-cli", &Person::ada(), SANDBOX_ACCESS).await.unwrap().access_token;
    refused(&issuers, "our entry has a slash too much", &foreign, Why::IssuerUnknown).await;
    assert!(
        issuers.warm().await[0].failure.as_ref().is_some_and(|failure| failure.is_invalid()),
        "discovery differs too"
    );
}
