//! Identity providers: who gets which token, and who is refused.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_cluster::idp::{
    Application, CROSS_CLIENT, Credential, DexConfig, Host, LoginError, MEDIATORE, OidcConfig, Person, SANDBOX_ACCESS,
    SANDBOX_ROLE, decode,
};
use banlieue_cluster::{Cluster, Provider, Signal, component};
use serde_json::{Value, json};

/// The token a person has for the agent's own API.
async fn agent_token(entra: &Provider, person: &Person) -> String {
    entra.login("agent-app", person, "api://agent/access").await.unwrap().access_token
}

fn refusal<T: std::fmt::Debug>(result: Result<T, LoginError>) -> String {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("no refusal: {error}")).to_owned()
}

fn kids(jwks: &Value) -> Vec<String> {
    jwks["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

fn lists(claims: &Value, name: &str) -> Vec<String> {
    let mut list = match &claims[name] {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().map(|it| it.as_str().unwrap().to_owned()).collect(),
        other => panic!("{name} is {other}"),
    };
    list.sort();
    list
}

#[tokio::test]
async fn entra_gives_a_person_a_token_by_pkce_and_on_a_device() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let discovery = entra.discovery().await.unwrap();
    assert_eq!(discovery["issuer"], entra.issuer);
    assert!(entra.issuer.starts_with("https://127.0.0.1:") && entra.issuer.ends_with("/v2.0"), "{}", entra.issuer);
    assert_eq!(discovery["code_challenge_methods_supported"], json!(["S256"]));

    let ada = Person::ada();
    let tokens = entra.login("mediatore-cli", &ada, &format!("openid profile {SANDBOX_ACCESS}")).await.unwrap();
    let (header, _) = decode(&tokens.access_token).unwrap();
    assert_eq!((&header["alg"], &header["typ"]), (&json!("RS256"), &json!("JWT")));
    let claims = entra.verified(&tokens.access_token).await.unwrap();
    assert_eq!(claims["iss"], entra.issuer);
    assert_eq!(claims["aud"], "mediatore");
    assert_eq!(claims["oid"], ada.id);
    assert_eq!(claims["preferred_username"], "ada");
    assert_eq!(claims["scp"], "sandbox.access");
    assert_eq!(claims["azp"], "mediatore-cli");
    assert_eq!(claims["azpacr"], "0");
    assert_eq!(claims["ver"], "2.0");
    assert_eq!(claims["nbf"], claims["iat"]);
    assert!(claims["exp"].as_u64().unwrap() > claims["iat"].as_u64().unwrap());
    assert!(entra.issuer.contains(claims["tid"].as_str().unwrap()));
    assert_ne!(claims["sub"], claims["oid"], "sub differs for each application");
    for absent in ["idtyp", "roles", "scope", "client_id"] {
        assert!(claims.get(absent).is_none(), "{absent} in {claims}");
    }
    assert!(tokens.refresh_token.is_none(), "nobody asked for offline access");
    let id_token = entra.verified(tokens.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!((&id_token["aud"], &id_token["oid"]), (&json!("mediatore-cli"), &json!(ada.id)));

    let on_device = entra.device("mediatore-cli", &Person::grace(), SANDBOX_ACCESS).await.unwrap();
    let claims = entra.verified(&on_device.access_token).await.unwrap();
    assert_eq!((&claims["oid"], &claims["scp"]), (&json!(Person::grace().id), &json!("sandbox.access")));

    // The token of another API has another audience, and an application gets none that it may not ask for.
    let kubernetes = entra.login("mediatore-cli", &ada, "api://kubernetes/access").await.unwrap();
    assert_eq!(entra.verified(&kubernetes.access_token).await.unwrap()["aud"], "kubernetes");
    assert_eq!(refusal(entra.login("agent-app", &ada, SANDBOX_ACCESS).await), "access_denied");
    let wrong = Person { password: "guess".into(), ..ada };
    let error = entra.login("mediatore-cli", &wrong, SANDBOX_ACCESS).await.unwrap_err();
    assert!(error.to_string().contains("may not log in"), "{error}");
}

#[tokio::test]
async fn entra_lets_an_agent_act_for_a_person() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let ada = Person::ada();
    let own = agent_token(&entra, &ada).await;
    assert_eq!(entra.verified(&own).await.unwrap()["aud"], "agent");

    let traded = entra.on_behalf_of("agent", &own, SANDBOX_ACCESS).await.unwrap();
    let claims = entra.verified(&traded.access_token).await.unwrap();
    assert_eq!(claims["aud"], "mediatore");
    assert_eq!(claims["oid"], ada.id);
    assert_eq!(claims["azp"], "agent");
    assert_eq!(claims["azpacr"], "1");
    assert_eq!(claims["scp"], "sandbox.access");
    assert!(claims.get("idtyp").is_none() && traded.refresh_token.is_none());

    // mediatore goes on from there, proving itself by certificate, and keeps a refresh token.
    let downstream = "api://trading-data/.default offline_access";
    let further = entra.on_behalf_of("mediatore", &traded.access_token, downstream).await.unwrap();
    let claims = entra.verified(&further.access_token).await.unwrap();
    assert_eq!((&claims["aud"], &claims["oid"]), (&json!("trading-data"), &json!(ada.id)));
    assert_eq!((&claims["azp"], &claims["azpacr"], &claims["scp"]), (&json!("mediatore"), &json!("2"), &json!("read")));
    let refreshed = entra.refresh("mediatore", &further.refresh_token.unwrap()).await.unwrap();
    let claims = entra.verified(&refreshed.access_token).await.unwrap();
    assert_eq!((&claims["oid"], &claims["scp"]), (&json!(ada.id), &json!("read")));
    assert_eq!(entra.certificate("mediatore").map(|(cert, key)| cert.is_file() && key.is_file()), Some(true));

    // Who may not: with a token for another API, with one of a service, with a forged one, without consent.
    for (agent, assertion) in [("other-agent", &own), ("agent", &traded.access_token), ("pipeline", &own)] {
        assert_eq!(refusal(entra.on_behalf_of(agent, assertion, SANDBOX_ACCESS).await), "invalid_grant", "{agent}");
    }
    let service = entra.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
    let refused = entra.on_behalf_of("mediatore", &service.access_token, downstream).await;
    assert_eq!(refusal(refused), "invalid_grant");
    let forged = format!("{}.{}", own.rsplit_once('.').unwrap().0, traded.access_token.rsplit_once('.').unwrap().1);
    assert_eq!(refusal(entra.on_behalf_of("agent", &forged, SANDBOX_ACCESS).await), "invalid_grant");
    let refused = entra.on_behalf_of("agent", &own, "api://trading-data/read").await;
    assert_eq!(refusal(refused), "invalid_grant");
}

#[tokio::test]
async fn entra_gives_a_service_a_token_of_its_own() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let scope = format!("{MEDIATORE}/.default");
    let tokens = entra.client_credentials("pipeline", &scope).await.unwrap();
    let claims = entra.verified(&tokens.access_token).await.unwrap();
    assert_eq!(claims["aud"], "mediatore");
    assert_eq!(claims["idtyp"], "app");
    assert_eq!(claims["roles"], json!([SANDBOX_ROLE]));
    assert_eq!((&claims["oid"], &claims["sub"]), (&json!("pipeline-object"), &json!("pipeline-object")));
    assert_eq!(claims["azp"], "pipeline");
    assert!(claims.get("scp").is_none() && claims.get("preferred_username").is_none(), "{claims}");

    // As at Entra, a service without the role gets a token too: it is for the API to look.
    let stranger = entra.client_credentials("stranger", &scope).await.unwrap();
    assert!(entra.verified(&stranger.access_token).await.unwrap().get("roles").is_none());
    assert_eq!(refusal(entra.client_credentials("mediatore-cli", &scope).await), "invalid_request");
    assert_eq!(refusal(entra.client_credentials("pipeline", "api://absent/.default").await), "invalid_target");
}

#[tokio::test]
async fn entra_ends_sessions_and_rotates_keys() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let (ada, grace) = (Person::ada(), Person::grace());
    let offline = format!("openid offline_access {SANDBOX_ACCESS}");
    let session = entra.login("mediatore-cli", &ada, &offline).await.unwrap();
    let other = entra.login("mediatore-cli", &grace, &offline).await.unwrap();
    let own = agent_token(&entra, &ada).await;
    let session = entra.refresh("mediatore-cli", &session.refresh_token.unwrap()).await.unwrap();

    // Keys: a new one signs, the old one still verifies, sessions live on.
    let before = kids(&entra.jwks().await.unwrap());
    entra.rotate_keys().await.unwrap();
    let after = kids(&entra.jwks().await.unwrap());
    assert!(after.len() > before.len() && before.iter().all(|kid| after.contains(kid)), "{before:?} {after:?}");
    entra.verified(&session.access_token).await.unwrap();
    let session = entra.refresh("mediatore-cli", &session.refresh_token.unwrap()).await.unwrap();
    let kid = decode(&session.access_token).unwrap().0["kid"].as_str().unwrap().to_owned();
    assert!(!before.contains(&kid));
    entra.verified(&session.access_token).await.unwrap();

    // An ended session: neither a refresh nor a token from before buys anything; a new login does.
    assert_eq!(entra.end_sessions(&ada).await.unwrap(), 1);
    assert_eq!(refusal(entra.refresh("mediatore-cli", &session.refresh_token.unwrap()).await), "invalid_grant");
    assert_eq!(refusal(entra.on_behalf_of("agent", &own, SANDBOX_ACCESS).await), "invalid_grant");
    let own = agent_token(&entra, &ada).await;
    let traded = entra.on_behalf_of("agent", &own, &format!("{SANDBOX_ACCESS} offline_access")).await.unwrap();

    // A disabled person: nothing at all. Others do not notice.
    entra.put_person(&Person { disabled: true, ..ada.clone() }).await.unwrap();
    assert_eq!(refusal(entra.refresh("agent", &traded.refresh_token.unwrap()).await), "invalid_grant");
    assert_eq!(refusal(entra.on_behalf_of("agent", &own, SANDBOX_ACCESS).await), "invalid_grant");
    assert!(entra.login("mediatore-cli", &ada, &offline).await.is_err());
    let other = entra.refresh("mediatore-cli", &other.refresh_token.unwrap()).await.unwrap();

    // A renamed person stays the same person.
    let renamed = Person { login: "ada.lovelace".into(), disabled: false, ..ada };
    entra.put_person(&renamed).await.unwrap();
    let tokens = entra.login("mediatore-cli", &renamed, SANDBOX_ACCESS).await.unwrap();
    let claims = entra.verified(&tokens.access_token).await.unwrap();
    assert_eq!((&claims["oid"], &claims["preferred_username"]), (&json!(renamed.id), &json!("ada.lovelace")));

    // An outage is no refusal.
    entra.outage(true).await.unwrap();
    let error = entra.discovery().await.unwrap_err();
    assert!(error.refusal().is_none() && error.to_string().contains("503"), "{error}");
    entra.outage(false).await.unwrap();
    entra.refresh("mediatore-cli", &other.refresh_token.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_plain_provider_gives_tokens_of_rfc_9068() {
    let host = Host::start().await.unwrap();
    let mut config = OidcConfig::plain();
    config.resources.iter_mut().for_each(|resource| resource.alg = "ES256".into());
    let plain = host.start_oidc(config).await.unwrap();
    let tokens = plain.login("mediatore-cli", &Person::ada(), &format!("openid {SANDBOX_ACCESS}")).await.unwrap();
    let (header, _) = decode(&tokens.access_token).unwrap();
    assert_eq!((&header["typ"], &header["alg"]), (&json!("at+jwt"), &json!("ES256")));
    let claims = plain.verified(&tokens.access_token).await.unwrap();
    assert_eq!((&claims["sub"], &claims["aud"]), (&json!(Person::ada().id), &json!("mediatore")));
    assert_eq!((&claims["scope"], &claims["client_id"]), (&json!(SANDBOX_ACCESS), &json!("mediatore-cli")));
    let service = plain.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
    let claims = plain.verified(&service.access_token).await.unwrap();
    assert_eq!((&claims["sub"], &claims["roles"]), (&json!("pipeline"), &json!([SANDBOX_ROLE])));
    let refused = plain.on_behalf_of("agent", &tokens.access_token, SANDBOX_ACCESS).await;
    assert_eq!(refusal(refused), "unsupported_grant_type");
}

#[tokio::test]
async fn dex_gives_cross_client_tokens() {
    let host = Host::start().await.unwrap();
    let dex = host.start_dex(DexConfig::default()).await.unwrap();
    assert_eq!(dex.discovery().await.unwrap()["issuer"], dex.issuer);
    let ada = Person::ada();
    let scope = format!("openid profile email groups {CROSS_CLIENT}");

    // A: the command line asks for mediatore's audience.
    let tokens = dex.login("mediatore-cli", &ada, &scope).await.unwrap();
    let claims = dex.verified(tokens.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!(claims["iss"], dex.issuer);
    assert_eq!(lists(&claims, "aud"), ["mediatore", "mediatore-cli"]);
    assert_eq!(claims["azp"], "mediatore-cli");
    assert_eq!((&claims["name"], &claims["groups"]), (&json!("ada"), &json!(["staff"])));
    assert!(decode(&tokens.access_token).is_err(), "access tokens are opaque");
    let subject = claims["sub"].clone();

    // B: a trusted peer asks for it too; the person is the same.
    let tokens = dex.login("agent", &ada, &scope).await.unwrap();
    let claims = dex.verified(tokens.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!(lists(&claims, "aud"), ["agent", "mediatore"]);
    assert_eq!((&claims["azp"], &claims["sub"]), (&json!("agent"), &subject));
    assert_eq!(refusal(dex.login("stranger", &ada, &scope).await), "invalid_scope");
    let alone = dex.login("stranger", &ada, "openid").await.unwrap();
    let claims = dex.verified(alone.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!(lists(&claims, "aud"), ["stranger"]);

    // C: there is none.
    assert_eq!(refusal(dex.client_credentials("agent", "openid").await), "invalid_grant");

    // A renamed person stays the same person.
    let renamed = Person { login: "ada.lovelace".into(), ..ada };
    dex.put_person(&renamed).await.unwrap();
    let tokens = dex.login("mediatore-cli", &renamed, &scope).await.unwrap();
    let claims = dex.verified(tokens.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!((&claims["sub"], &claims["name"]), (&subject, &json!("ada.lovelace")));
}

#[tokio::test]
async fn dex_ends_sessions_and_rotates_keys() {
    let host = Host::start().await.unwrap();
    let dex = host.start_dex(DexConfig::default()).await.unwrap();
    let ada = Person::ada();
    let scope = format!("openid offline_access {CROSS_CLIENT}");
    let first = dex.login("mediatore-cli", &ada, &scope).await.unwrap().refresh_token.unwrap();
    let session = dex.refresh("mediatore-cli", &first).await.unwrap();
    let claims = dex.verified(session.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!(lists(&claims, "aud"), ["mediatore", "mediatore-cli"]);
    // Each use gives another refresh token, and each login ends what the one before brought.
    assert_eq!(refusal(dex.refresh("mediatore-cli", &first).await), "invalid_request");
    let newest = dex.login("mediatore-cli", &ada, &scope).await.unwrap().refresh_token.unwrap();
    assert_eq!(refusal(dex.refresh("mediatore-cli", &session.refresh_token.unwrap()).await), "invalid_request");

    let before = kids(&dex.jwks().await.unwrap());
    dex.rotate_keys().await.unwrap();
    let after = kids(&dex.jwks().await.unwrap());
    assert!(after.len() == before.len() + 1 && before.iter().all(|kid| after.contains(kid)), "{before:?} {after:?}");
    dex.verified(session.id_token.as_deref().unwrap()).await.unwrap();
    let session = dex.refresh("mediatore-cli", &newest).await.unwrap();
    let id_token = session.id_token.unwrap();
    assert!(!before.contains(&decode(&id_token).unwrap().0["kid"].as_str().unwrap().to_owned()));
    dex.verified(&id_token).await.unwrap();

    assert_eq!(dex.end_sessions(&ada).await.unwrap(), 1);
    assert_eq!(refusal(dex.refresh("mediatore-cli", &session.refresh_token.unwrap()).await), "invalid_request");

    // Dex answers the refresh of somebody whom its connector no longer knows as if something had broken.
    let session = dex.login("mediatore-cli", &ada, &scope).await.unwrap();
    dex.put_person(&Person { disabled: true, ..ada.clone() }).await.unwrap();
    assert_eq!(refusal(dex.refresh("mediatore-cli", &session.refresh_token.unwrap()).await), "server_error");
    assert!(dex.login("mediatore-cli", &ada, &scope).await.is_err());

    dex.outage(true).await.unwrap();
    assert!(dex.jwks().await.unwrap_err().refusal().is_none());
    dex.outage(false).await.unwrap();
    dex.jwks().await.unwrap();
}

#[tokio::test]
async fn an_id_token_lists_a_persons_roles_on_the_applications_own_api() {
    let host = Host::start().await.unwrap();
    let mut config = OidcConfig::entra();
    let mut ada = Person::ada();
    ada.roles.insert(MEDIATORE.into(), vec![SANDBOX_ROLE.into()]);
    config.people = vec![ada.clone()];
    config.applications.retain(|it| it.client_id != "mediatore");
    config.applications.push(Application {
        redirect_uris: vec!["https://mediatore.example.org/callback".into()],
        ..Application::new("mediatore", Credential::Secret("s".into()))
    });
    let entra = host.start_oidc(config).await.unwrap();
    let tokens = entra.login("mediatore", &ada, "openid").await.unwrap();
    let claims = entra.verified(tokens.id_token.as_deref().unwrap()).await.unwrap();
    assert_eq!((&claims["aud"], &claims["roles"]), (&json!("mediatore"), &json!([SANDBOX_ROLE])));
}

/// As `mediatore-cli login` does: print an address, listen on a port of the moment, and take the code from there.
#[tokio::test]
async fn a_person_follows_the_address_that_a_command_line_printed() {
    let host = Host::start().await.unwrap();
    let entra = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let dex = host.start_dex(DexConfig::default()).await.unwrap();
    for (provider, name, scope) in [(&entra, "127.0.0.1", SANDBOX_ACCESS), (&dex, "localhost", "openid")] {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut line = String::new();
            let (reading, mut writing) = stream.split();
            let mut reading = tokio::io::BufReader::new(reading);
            loop {
                let mut next = String::new();
                tokio::io::AsyncBufReadExt::read_line(&mut reading, &mut next).await.unwrap();
                if next.trim().is_empty() {
                    break;
                }
                line.push_str(&next);
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone";
            tokio::io::AsyncWriteExt::write_all(&mut writing, answer).await.unwrap();
            line
        });
        let endpoint = provider.discovery().await.unwrap()["authorization_endpoint"].as_str().unwrap().to_owned();
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"; // RFC 7636, appendix B
        let printed = format!(
            "{endpoint}?client_id=mediatore-cli&response_type=code&scope={scope}&state=s\
             &redirect_uri=http%3A%2F%2F{name}%3A{port}%2Fcallback\
             &code_challenge={challenge}&code_challenge_method=S256"
        );
        assert_eq!(provider.browse(&printed, &Person::ada()).await.unwrap(), "done");
        let heard = heard.await.unwrap();
        assert!(heard.starts_with("GET /callback?code=") && heard.contains("state=s"), "{heard}");
        assert!(!heard.to_lowercase().contains("cookie:"), "cookies of the provider left it: {heard}");
    }
}

#[tokio::test]
async fn a_cluster_has_providers_too() {
    let cluster = Cluster::builder().start().await.unwrap();
    let entra = cluster.start_oidc(OidcConfig::entra()).await.unwrap();
    let dex = cluster.start_dex(DexConfig::default()).await.unwrap();
    entra.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
    dex.login("mediatore-cli", &Person::grace(), "openid").await.unwrap();
    for provider in [&entra, &dex] {
        assert!(cluster.log(&provider.component).is_file() && provider.ca_file.is_file());
    }
    let dir = cluster.dir().to_owned();
    cluster.stop().await.unwrap();
    assert!(!dir.exists() && entra.discovery().await.is_err());
}

#[tokio::test]
async fn providers_are_told_apart_and_come_back() {
    let host = Host::start().await.unwrap();
    let one = host.start_oidc(OidcConfig::entra()).await.unwrap();
    let two = host.start_oidc(OidcConfig { name: "oidc-two".into(), ..OidcConfig::entra() }).await.unwrap();
    assert_ne!(one.issuer, two.issuer);
    let service = one.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
    assert!(two.verified(&service.access_token).await.is_err(), "another provider's keys verified a token");

    host.kill(component::OIDC, Signal::Kill).await.unwrap();
    assert!(matches!(one.discovery().await, Err(LoginError::Unreachable { .. })));
    host.restart(component::OIDC).await.unwrap();
    let mut tries = 0;
    while let Err(error) = one.discovery().await {
        tries += 1;
        assert!(tries < 3000, "{error}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    one.client_credentials("pipeline", &format!("{MEDIATORE}/.default")).await.unwrap();
}
