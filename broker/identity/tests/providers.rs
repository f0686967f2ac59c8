//! Issuers that are slow, huge, redirecting, rotating, down or impostors; and callers who flood.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod forge;
mod provider;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use banlieue_identity::{Issuer, Issuers, Limits, RefusalReason as Why};
use forge::{Signer, jwks, with};
use provider::{Answer, Certificate, LONG, Provider};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

/// What is held stays fresh, and nothing is asked for again.
const STILL: Limits = Limits { fresh: HOUR, stale: HOUR, floor: HOUR, retry: HOUR, timeout: LONG };
/// What is held is never fresh, and everything is asked for again at once.
const EAGER: Limits =
    Limits { fresh: Duration::ZERO, stale: HOUR, floor: Duration::ZERO, retry: Duration::ZERO, timeout: LONG };
/// Fresh, and a missing key is looked for at once.
const SEEKING: Limits =
    Limits { fresh: HOUR, stale: HOUR, floor: Duration::ZERO, retry: Duration::ZERO, timeout: LONG };

/// What a provider does wrong.
type Misdeed<'a> = Box<dyn Fn(&Provider) + 'a>;

fn now() -> SystemTime {
    SystemTime::now()
}

fn claims(provider: &Provider) -> Value {
    let now = now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    json!({"iss": provider.url, "aud": "mediatore", "azp": "cli", "sub": "bob", "exp": now + 36000, "iat": now})
}

fn issuers(issuer: Issuer, limits: Limits) -> Arc<Issuers> {
    Arc::new(Issuers::with_limits(vec![issuer], limits).unwrap())
}

/// The reason of the refusal, or none when the token is accepted.
async fn reason(issuers: &Issuers, token: &str) -> Option<Why> {
    tokio::time::timeout(LONG, issuers.validate(token, now())).await.unwrap().err().map(|refusal| refusal.reason)
}

/// Waits until the issuer's newest keys count.
async fn becomes(issuers: &Issuers, token: &str, wanted: Option<Why>, what: &str) {
    let come = async {
        while reason(issuers, token).await != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, come).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn a_token_is_accepted_with_keys_from_discovery() {
    let signer = Signer::p256("k1");
    let provider = Provider::start(jwks(&[&signer])).await;
    let issuers = issuers(provider.issuer(), Limits::default());
    let caller = issuers.validate(&signer.token(&claims(&provider)), now()).await.unwrap();
    assert_eq!((caller.id.as_str(), caller.issuer.as_str()), ("bob", provider.url.as_str()));
    assert_eq!(issuers.discovery("idp").await.unwrap().token_endpoint, Some(format!("{}/token", provider.url)));
    assert_eq!(issuers.discovery("else").await.unwrap_err().reason, Why::IssuerUnknown);
    for _ in 0..20 {
        assert_eq!(reason(&issuers, &signer.token(&claims(&provider))).await, None);
    }
    assert_eq!(provider.asked(), (1, 1));
}

#[tokio::test]
async fn what_needs_no_keys_is_refused_without_asking() {
    let signer = Signer::p256("k1");
    let provider = Provider::start(jwks(&[&signer])).await;
    let issuers = Issuers::new(vec![provider.issuer()]).unwrap().reserve("https://mediatore.example").unwrap();
    let change = |changes| signer.token(&with(&claims(&provider), changes));
    let header = |changes| signer.sign(&with(&signer.header(), changes), &claims(&provider));
    for (token, why) in [
        (change(json!({"iss": "https://evil.example"})), Why::IssuerUnknown),
        (change(json!({"iss": format!("{}/", provider.url)})), Why::IssuerUnknown),
        (change(json!({"iss": "https://mediatore.example"})), Why::IssuerReserved),
        (change(json!({"iss": null})), Why::TokenMalformed),
        (change(json!({"iss": ["a"]})), Why::TokenMalformed),
        (header(json!({"alg": "none"})), Why::AlgorithmNotAllowed),
        (header(json!({"alg": "HS256"})), Why::AlgorithmNotAllowed),
        (header(json!({"kid": null})), Why::KeyIdMissing),
        (header(json!({"kid": "k".repeat(256)})), Why::KeyUnknown),
        ("x".repeat(16 * 1024 + 1), Why::TokenTooLarge),
    ] {
        assert_eq!(reason(&issuers, &token).await, Some(why));
    }
    let slash = issuers.validate(&change(json!({"iss": format!("{}/", provider.url)})), now()).await.unwrap_err();
    assert!(slash.detail.contains("slash"), "{}", slash.detail);
    assert_eq!(provider.asked(), (0, 0));
}

#[tokio::test]
async fn a_token_signed_by_another_issuers_key() {
    let (one, two) = (Signer::p256("k"), Signer::p256("k"));
    let (first, second) = (Provider::start(jwks(&[&one])).await, Provider::start(jwks(&[&two])).await);
    let other = Issuer { name: "second".to_owned(), ..second.issuer() };
    let issuers = Issuers::new(vec![first.issuer(), other]).unwrap();
    assert_eq!(reason(&issuers, &one.token(&claims(&first))).await, None);
    assert_eq!(reason(&issuers, &two.token(&claims(&second))).await, None);
    assert_eq!(reason(&issuers, &two.token(&claims(&first))).await, Some(Why::SignatureInvalid));
    assert_eq!(reason(&issuers, &one.token(&claims(&second))).await, Some(Why::SignatureInvalid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_at_once_cause_one_fetch() {
    let signer = Signer::p256("k1");
    let provider = Provider::start(jwks(&[&signer])).await;
    let issuers = issuers(provider.issuer(), STILL);
    provider.shut();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let (issuers, token) = (Arc::clone(&issuers), signer.token(&claims(&provider)));
        callers.spawn(async move { reason(&issuers, &token).await });
    }
    while provider.asked() == (0, 0) {
        tokio::task::yield_now().await;
    }
    provider.open();
    for answer in callers.join_all().await {
        assert_eq!(answer, None);
    }
    assert_eq!(provider.asked(), (1, 1));
    assert_eq!((issuers.statuses()[0].fetches, issuers.statuses()[0].failures), (1, 0));
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_nobodys_fetch_with_it() {
    let signer = Signer::p256("k1");
    let provider = Provider::start(jwks(&[&signer])).await;
    let issuers = issuers(provider.issuer(), STILL);
    provider.shut();
    let (shared, token) = (Arc::clone(&issuers), signer.token(&claims(&provider)));
    let impatient = tokio::spawn(async move { reason(&shared, &token).await });
    while provider.asked() == (0, 0) {
        tokio::task::yield_now().await;
    }
    impatient.abort();
    assert!(impatient.await.unwrap_err().is_cancelled());
    provider.open();
    assert_eq!(reason(&issuers, &signer.token(&claims(&provider))).await, None);
    assert_eq!(provider.asked(), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_unknown_keys_causes_one_fetch_per_floor() {
    let signer = Signer::p256("k1");
    let provider = Provider::start(jwks(&[&signer])).await;
    let issuers = issuers(provider.issuer(), STILL);
    assert_eq!(reason(&issuers, &signer.token(&claims(&provider))).await, None);
    let mut flood = tokio::task::JoinSet::new();
    for number in 0..500 {
        let header = with(&signer.header(), json!({"kid": format!("unknown-{number}")}));
        let (issuers, token) = (Arc::clone(&issuers), signer.sign(&header, &claims(&provider)));
        flood.spawn(async move { reason(&issuers, &token).await });
    }
    let mut answers = BTreeMap::new();
    for answer in flood.join_all().await {
        *answers.entry(answer).or_insert(0) += 1;
    }
    assert_eq!(answers, BTreeMap::from([(Some(Why::KeyUnknown), 500)]));
    assert_eq!(provider.asked(), (1, 1), "within the floor of the first fetch there is no other");
    assert_eq!(reason(&issuers, &signer.token(&claims(&provider))).await, None, "a good token is served meanwhile");

    // The same flood without a floor: one fetch serves everybody who came while it was under way.
    let seeking = self::issuers(provider.issuer(), SEEKING);
    assert_eq!(reason(&seeking, &signer.token(&claims(&provider))).await, None);
    let before = provider.asked().0;
    provider.shut();
    let mut flood = tokio::task::JoinSet::new();
    for number in 0..200 {
        let header = with(&signer.header(), json!({"kid": format!("unknown-{number}")}));
        let (seeking, token) = (Arc::clone(&seeking), signer.sign(&header, &claims(&provider)));
        flood.spawn(async move { reason(&seeking, &token).await });
    }
    while provider.asked().0 == before {
        tokio::task::yield_now().await;
    }
    assert_eq!(reason(&seeking, &signer.token(&claims(&provider))).await, None, "a known key waits for no fetch");
    assert_eq!(provider.asked().0, before + 1, "one at a time");
    provider.open();
    assert!(flood.join_all().await.into_iter().all(|answer| answer == Some(Why::KeyUnknown)));
}

#[tokio::test]
async fn rotated_keys_are_found_and_removed_keys_are_dropped() {
    let (old, new) = (Signer::p256("old"), Signer::rsa("new"));
    let provider = Provider::start(jwks(&[&old])).await;
    let (seeking, eager) = (issuers(provider.issuer(), SEEKING), issuers(provider.issuer(), EAGER));
    let (by_old, by_new) = (old.token(&claims(&provider)), new.token(&claims(&provider)));
    assert_eq!(reason(&seeking, &by_old).await, None);
    assert_eq!(reason(&seeking, &by_new).await, Some(Why::KeyUnknown));
    provider.answer_keys(Answer::Document(jwks(&[&old, &new])));
    assert_eq!(reason(&seeking, &by_new).await, None, "an unknown key is looked for");
    assert_eq!(reason(&seeking, &by_old).await, None);
    assert_eq!(reason(&eager, &by_old).await, None);
    provider.answer_keys(Answer::Document(jwks(&[&new])));
    becomes(&eager, &by_old, Some(Why::KeyUnknown), "gone once what is held is no longer fresh").await;
    // The same name for another key: what is fresh is believed, then the new one.
    let again = Signer::rsa("new");
    provider.answer_keys(Answer::Document(jwks(&[&again])));
    becomes(&eager, &by_new, Some(Why::SignatureInvalid), "another key of that name").await;
    assert_eq!(reason(&eager, &again.token(&claims(&provider))).await, None);
    // One name for two.
    provider.answer_keys(Answer::Document(jwks(&[&old, &new, &again])));
    becomes(&eager, &by_new, Some(Why::KeyAmbiguous), "one name for two").await;
    assert_eq!(reason(&eager, &by_old).await, None);
}

#[tokio::test]
async fn an_outage_stops_nobody_whose_key_is_held() {
    let (held, other) = (Signer::p256("held"), Signer::p256("other"));
    let provider = Provider::start(jwks(&[&held])).await;
    let issuers = issuers(provider.issuer(), EAGER);
    let (good, unknown) = (held.token(&claims(&provider)), other.token(&claims(&provider)));
    assert_eq!(reason(&issuers, &good).await, None);
    for broken in [Answer::Status(500), Answer::Status(404), Answer::Text("<html>"), Answer::Document(json!({}))] {
        provider.answer_keys(broken);
        assert_eq!(reason(&issuers, &good).await, None);
        let why = reason(&issuers, &unknown).await;
        assert!(matches!(why, Some(Why::ProviderUnreachable | Why::ProviderInvalid)), "nobody can tell: {why:?}");
    }
    provider.stop();
    assert_eq!(reason(&issuers, &good).await, None);
    assert_eq!(reason(&issuers, &unknown).await, Some(Why::ProviderUnreachable));
    let status = &issuers.statuses()[0];
    assert!(status.keys == 1 && status.failures >= 5 && status.failure.is_some(), "{status:?}");

    let too_old = Limits { stale: Duration::ZERO, ..EAGER };
    let provider = Provider::start(jwks(&[&held])).await;
    let issuers = self::issuers(provider.issuer(), too_old);
    issuers.warm().await;
    provider.stop();
    let refusal = issuers.validate(&held.token(&claims(&provider)), now()).await.unwrap_err();
    assert_eq!((refusal.reason, refusal.status), (Why::ProviderUnreachable, 503));
    assert!(!refusal.detail.contains("127.0.0.1") && !refusal.detail.contains("localhost"), "{}", refusal.detail);
}

#[tokio::test]
async fn an_issuer_that_hangs_slows_nobody_whose_key_is_held() {
    let (held, other) = (Signer::p256("held"), Signer::p256("other"));
    let provider = Provider::start(jwks(&[&held])).await;
    let issuers = issuers(provider.issuer(), EAGER);
    let (good, new) = (held.token(&claims(&provider)), other.token(&claims(&provider)));
    assert_eq!(reason(&issuers, &good).await, None);
    // From here on nothing is answered until it opens again, and what is held is never fresh.
    provider.shut();
    provider.answer_keys(Answer::Document(jwks(&[&held, &other])));
    for _ in 0..100 {
        assert_eq!(reason(&issuers, &good).await, None);
    }
    while provider.asked().0 < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reason(&issuers, &good).await, None);
    assert_eq!((provider.asked().0, issuers.statuses()[0].fetches), (2, 2), "one refresh, however many ask");
    provider.open();
    becomes(&issuers, &new, None, "the key that came with the refresh").await;
}

#[tokio::test]
async fn an_issuer_that_comes_late_is_found() {
    let signer = Signer::p256("k1");
    let provider = Provider::start(jwks(&[&signer])).await;
    provider.answer_discovery(Answer::Status(503));
    let issuers = issuers(provider.issuer(), EAGER);
    let token = signer.token(&claims(&provider));
    assert_eq!(reason(&issuers, &token).await, Some(Why::ProviderUnreachable));
    let status = issuers.warm().await;
    assert!(status[0].age.is_none() && status[0].failure.is_some(), "{status:?}");
    let document = json!({"issuer": provider.url, "jwks_uri": format!("{}/keys", provider.url)});
    provider.answer_discovery(Answer::Document(document));
    assert_eq!(reason(&issuers, &token).await, None);
}

#[tokio::test]
async fn hostile_documents_are_refused() {
    let signer = Signer::p256("k1");
    let good = jwks(&[&signer]);
    let elsewhere = Provider::start(good.clone()).await;
    let keys_elsewhere = format!("{}/keys", elsewhere.url);
    let discovery_elsewhere = format!("{}/.well-known/openid-configuration", elsewhere.url);
    let many: Vec<Value> = (0..51).map(|number| with(&signer.jwk(), json!({"kid": number.to_string()}))).collect();

    let hostile: Vec<(&str, Misdeed<'_>)> = vec![
        ("wrong issuer", Box::new(|idp| idp.change_discovery("issuer", json!("https://evil.example")))),
        ("issuer with a slash", Box::new(|idp| idp.change_discovery("issuer", json!(format!("{}/", idp.url))))),
        ("no issuer", Box::new(|idp| idp.change_discovery("issuer", json!(null)))),
        ("no keys", Box::new(|idp| idp.change_discovery("jwks_uri", json!(null)))),
        ("keys without TLS", Box::new(|idp| idp.change_discovery("jwks_uri", json!(idp.url.replace("https", "http"))))),
        ("keys in a file", Box::new(|idp| idp.change_discovery("jwks_uri", json!("file:///etc/passwd")))),
        (
            "keys with credentials",
            Box::new(|idp| idp.change_discovery("jwks_uri", json!("https://a:b@localhost/keys"))),
        ),
        ("discovery is no JSON", Box::new(|idp| idp.answer_discovery(Answer::Text("<html>")))),
        ("discovery is a list", Box::new(|idp| idp.answer_discovery(Answer::Text("[]")))),
        ("discovery redirects", Box::new(|idp| idp.answer_discovery(Answer::Redirect(discovery_elsewhere.clone())))),
        ("discovery without end", Box::new(|idp| idp.answer_discovery(Answer::Endless))),
        ("discovery said to be huge", Box::new(|idp| idp.answer_discovery(Answer::Boast(1 << 40)))),
        ("keys redirect", Box::new(|idp| idp.answer_keys(Answer::Redirect(keys_elsewhere.clone())))),
        ("keys without end", Box::new(|idp| idp.answer_keys(Answer::Endless))),
        ("keys said to be huge", Box::new(|idp| idp.answer_keys(Answer::Boast(1 << 40)))),
        ("keys are no JSON", Box::new(|idp| idp.answer_keys(Answer::Text("keys")))),
        ("no keys in the set", Box::new(|idp| idp.answer_keys(Answer::Document(json!({"keys": []}))))),
        ("too many keys", Box::new(|idp| idp.answer_keys(Answer::Document(json!({"keys": many}))))),
    ];
    for (name, behave) in hostile {
        let provider = Provider::start(good.clone()).await;
        behave(&provider);
        let issuers = issuers(provider.issuer(), EAGER);
        let token = signer.token(&claims(&provider));
        let refusal = tokio::time::timeout(LONG, issuers.validate(&token, now())).await.unwrap().unwrap_err();
        assert_eq!((refusal.reason, refusal.status), (Why::ProviderInvalid, 503), "{name}: {refusal:?}");
    }
    assert_eq!(elsewhere.asked(), (0, 0), "no redirect was followed");
}

#[tokio::test]
async fn slow_issuers_are_given_up() {
    let signer = Signer::p256("k1");
    let limits = Limits { timeout: Duration::from_millis(500), ..EAGER };
    let slow: Vec<(&str, Misdeed<'_>)> = vec![
        ("silent discovery", Box::new(|idp| idp.answer_discovery(Answer::Silence))),
        ("dripping discovery", Box::new(|idp| idp.answer_discovery(Answer::Drip))),
        ("silent keys", Box::new(|idp| idp.answer_keys(Answer::Silence))),
        ("dripping keys", Box::new(|idp| idp.answer_keys(Answer::Drip))),
    ];
    for (name, behave) in slow {
        let provider = Provider::start(jwks(&[&signer])).await;
        behave(&provider);
        let issuers = issuers(provider.issuer(), limits);
        let token = signer.token(&claims(&provider));
        assert_eq!(reason(&issuers, &token).await, Some(Why::ProviderUnreachable), "{name}");
    }
}

#[tokio::test]
async fn impostors_are_not_believed() {
    let signer = Signer::p256("k1");
    for certificate in [Certificate::Expired, Certificate::NotYetValid, Certificate::ForAnotherName] {
        let provider = Provider::start_with(jwks(&[&signer]), certificate).await;
        let issuers = issuers(provider.issuer(), EAGER);
        let token = signer.token(&claims(&provider));
        assert_eq!(reason(&issuers, &token).await, Some(Why::ProviderUnreachable));
        let failure = issuers.statuses()[0].failure.clone().unwrap().to_string();
        assert!(failure.contains("certificate"), "{failure}");
        assert_eq!(provider.asked(), (0, 0));
    }
    // An authority that nobody named, and one that another entry names.
    let (provider, other) = (Provider::start(jwks(&[&signer])).await, Provider::start(jwks(&[&signer])).await);
    for ca_file in [None, Some(other.ca_file.clone())] {
        let issuers = issuers(Issuer { ca_file, ..provider.issuer() }, EAGER);
        assert_eq!(reason(&issuers, &signer.token(&claims(&provider))).await, Some(Why::ProviderUnreachable));
    }
    assert_eq!(provider.asked(), (0, 0));
}

#[tokio::test]
async fn changed_authorities_count_without_a_restart() {
    let signer = Signer::p256("k1");
    let (provider, other) = (Provider::start(jwks(&[&signer])).await, Provider::start(jwks(&[&signer])).await);
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    std::fs::copy(&other.ca_file, &ca_file).unwrap();
    let issuers = issuers(Issuer { ca_file: Some(ca_file.clone()), ..provider.issuer() }, EAGER);
    let token = signer.token(&claims(&provider));
    assert_eq!(reason(&issuers, &token).await, Some(Why::ProviderUnreachable));
    std::fs::copy(&provider.ca_file, &ca_file).unwrap();
    assert_eq!(reason(&issuers, &token).await, None);
    std::fs::remove_file(&ca_file).unwrap();
    assert_eq!(reason(&issuers, &token).await, None, "what is held outlives a mishap with the file");
}
