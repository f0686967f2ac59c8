//! What is accepted, and every reason to refuse, as tables: a change to an honest token, and what comes of it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod forge;

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

#[test]
fn path_a_a_person_with_entra() {
    let caller = ask(&entra(), &RSA.token(&entra_person())).unwrap();
    assert_eq!(
        caller,
        Caller {
            issuer_name: "entra".to_owned(),
            issuer: ENTRA.to_owned(),
            id: "person-1".to_owned(),
            display: Some("bob@example".to_owned()),
            path: Path::Person,
            client: "az".to_owned(),
            azp: None,
            key: SubjectKey::of(ENTRA, "person-1"),
            not_after: now() + Duration::from_secs(3600),
        }
    );
}

#[test]
fn path_a_a_person_with_dex_whose_login_may_change() {
    let caller = ask(&dex(), &RSA.token(&dex_person())).unwrap();
    assert_eq!((caller.path, caller.azp.as_deref(), caller.display.as_deref()), (Path::Person, None, Some("bob")));
    let renamed =
        ask(&dex(), &RSA.token(&with(&dex_person(), json!({"name": "robert", "email": "r@example"})))).unwrap();
    assert_eq!(renamed.key, caller.key);
    assert_ne!(renamed.display, caller.display);
}

#[test]
fn path_a_a_person_with_a_jwt_access_token() {
    let caller = ask(&provider(), &RSA.sign(&at_jwt(), &provider_person())).unwrap();
    assert_eq!((caller.id.as_str(), caller.client.as_str(), caller.path), ("bob", "mediatore-cli", Path::Person));
}

#[test]
fn path_b_the_subject_is_the_person_and_azp_the_agent() {
    let by_person = ask(&entra(), &RSA.token(&entra_person())).unwrap();
    let by_agent = ask(&entra(), &RSA.token(&with(&entra_person(), json!({"azp": "agent", "azpacr": "1"})))).unwrap();
    assert_eq!((by_agent.path, by_agent.azp.as_deref()), (Path::AgentForPerson, Some("agent")));
    assert_eq!(by_agent.key, by_person.key);

    let dex_agent = with(&dex_person(), json!({"aud": ["agent", "mediatore"], "azp": "agent"}));
    let caller = ask(&dex(), &RSA.token(&dex_agent)).unwrap();
    assert_eq!((caller.path, caller.azp.as_deref()), (Path::AgentForPerson, Some("agent")));

    let provider_agent = with(&provider_person(), json!({"client_id": "agent"}));
    let caller = ask(&provider(), &RSA.sign(&at_jwt(), &provider_agent)).unwrap();
    assert_eq!((caller.path, caller.azp.as_deref()), (Path::AgentForPerson, Some("agent")));
}

#[test]
fn path_c_the_subject_is_the_service() {
    let caller = ask(&entra(), &RSA.token(&entra_app())).unwrap();
    assert_eq!((caller.path, caller.azp.as_deref(), caller.client.as_str()), (Path::Service, None, "pipeline"));
    assert_eq!((caller.id.as_str(), caller.display), ("app-1", None));
    // Without the optional claim `idtyp`: the same subject twice, and a client with a secret or a certificate.
    for (claim, value) in [("azpacr", "1"), ("azpacr", "2"), ("appidacr", "1")] {
        let claims = with(&entra_app(), json!({"idtyp": null, "azpacr": null}));
        let claims = with(&claims, json!({claim: value}));
        assert_eq!(ask(&entra(), &RSA.token(&claims)).unwrap().path, Path::Service, "{claim} {value}");
    }
    let mut listed = entra();
    listed.apps.ids = vec!["pipeline".to_owned()];
    assert_eq!(ask(&listed, &RSA.token(&entra_app())).unwrap().path, Path::Service);
}

#[test]
fn accepted_variations() {
    for (name, issuer, token) in [
        ("audience as a list of one", entra(), RSA.token(&with(&entra_person(), json!({"aud": ["mediatore"]})))),
        ("audience twice", entra(), RSA.token(&with(&entra_person(), json!({"aud": ["mediatore", "mediatore"]})))),
        ("another listed algorithm", entra(), P256.token(&entra_person())),
        ("no typ", entra(), RSA.sign(&with(&RSA.header(), json!({"typ": null})), &entra_person())),
        (
            "typ in capitals and in full",
            provider(),
            RSA.sign(&with(&RSA.header(), json!({"typ": "application/AT+JWT"})), &provider_person()),
        ),
        ("scopes as a list", entra(), RSA.token(&with(&entra_person(), json!({"scp": ["a", "sandbox.access"]})))),
        ("scp before scope", entra(), RSA.token(&with(&entra_person(), json!({"scope": "else"})))),
        ("a person with roles", entra(), RSA.token(&with(&entra_person(), json!({"roles": ["Other"]})))),
        ("idtyp of a person", entra(), RSA.token(&with(&entra_person(), json!({"idtyp": "user"})))),
        ("v1: appid", entra(), RSA.token(&with(&entra_person(), json!({"azp": null, "appid": "az"})))),
        (
            "the same client twice",
            entra(),
            RSA.token(&with(&entra_person(), json!({"appid": "az", "client_id": "az"}))),
        ),
        ("expired within the skew", entra(), RSA.token(&with(&entra_person(), json!({"exp": NOW - 59})))),
        (
            "not yet valid within the skew",
            entra(),
            RSA.token(&with(&entra_person(), json!({"nbf": NOW + 60, "iat": NOW + 60}))),
        ),
        ("no nbf, no iat", entra(), RSA.token(&with(&entra_person(), json!({"nbf": null, "iat": null})))),
        ("a time with a fraction", entra(), RSA.token(&with(&entra_person(), json!({"exp": NOW as f64 + 0.5})))),
        ("ID token for us alone, by our CLI", dex(), RSA.token(&with(&dex_person(), json!({"aud": "mediatore"})))),
        (
            "a null claim is no claim",
            entra(),
            RSA.sign_raw(
                &RSA.header().to_string(),
                &entra_person().to_string().replacen('{', "{\"client_id\":null,", 1),
            ),
        ),
        (
            "headers that name other keys are not looked at",
            entra(),
            RSA.sign(
                &with(
                    &RSA.header(),
                    json!({"jku": "https://evil.test", "jwk": STRANGER.jwk(), "x5u": "https://evil.test"}),
                ),
                &entra_person(),
            ),
        ),
    ] {
        if let Err(refusal) = ask(&issuer, &token) {
            panic!("{name}: {refusal:?}");
        }
    }
}

#[test]
fn not_a_token() {
    let honest = RSA.token(&entra_person());
    let header = RSA.header().to_string();
    let claims = entra_person().to_string();
    let (front, signature) = honest.rsplit_once('.').unwrap();
    refused(
        &entra(),
        vec![
            ("empty", String::new(), Why::TokenMalformed),
            ("opaque", "gho_16C7e42F292c6912E7710c838347Ae178B4a".to_owned(), Why::TokenMalformed),
            ("two parts", front.to_owned(), Why::TokenMalformed),
            ("four parts", format!("{honest}.x"), Why::TokenMalformed),
            ("encrypted, five parts", "a.b.c.d.e".to_owned(), Why::TokenMalformed),
            (
                "padded base64",
                format!("{}=.{}", honest.split_once('.').unwrap().0, honest.split_once('.').unwrap().1),
                Why::TokenMalformed,
            ),
            ("a space in it", honest.replacen('.', " .", 1), Why::TokenMalformed),
            ("header is a list", RSA.sign_raw("[]", &claims), Why::TokenMalformed),
            ("claims are a list", RSA.sign_raw(&header, "[]"), Why::TokenMalformed),
            ("claims are not JSON", RSA.sign_raw(&header, "{"), Why::TokenMalformed),
            ("something after the claims", RSA.sign_raw(&header, &format!("{claims} x")), Why::TokenMalformed),
            (
                "deep claims",
                RSA.sign_raw(&header, &format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500))),
                Why::TokenMalformed,
            ),
            (
                "a header twice",
                RSA.sign_raw(&header.replacen('{', "{\"alg\":\"none\",", 1), &claims),
                Why::TokenMalformed,
            ),
            (
                "a claim twice",
                RSA.sign_raw(&header, &claims.replacen('{', "{\"oid\":\"somebody\",", 1)),
                Why::TokenMalformed,
            ),
            (
                "a claim twice, by an escape",
                RSA.sign_raw(&header, &claims.replacen('{', "{\"\\u006fid\":\"somebody\",", 1)),
                Why::TokenMalformed,
            ),
            (
                "a member twice within a claim",
                RSA.sign_raw(&header, &claims.replacen('{', "{\"x\":[{\"y\":1,\"y\":2}],", 1)),
                Why::TokenMalformed,
            ),
            ("no alg", RSA.sign(&with(&RSA.header(), json!({"alg": null})), &entra_person()), Why::TokenMalformed),
            (
                "alg is a number",
                RSA.sign(&with(&RSA.header(), json!({"alg": 256})), &entra_person()),
                Why::TokenMalformed,
            ),
            (
                "kid is a number",
                RSA.sign(&with(&RSA.header(), json!({"kid": 1})), &entra_person()),
                Why::TokenMalformed,
            ),
            ("crit", RSA.sign(&with(&RSA.header(), json!({"crit": ["exp"]})), &entra_person()), Why::TokenMalformed),
            ("b64", RSA.sign(&with(&RSA.header(), json!({"b64": false})), &entra_person()), Why::TokenMalformed),
            ("too large", RSA.token(&with(&entra_person(), json!({"x": "x".repeat(16 * 1024)}))), Why::TokenTooLarge),
            ("aud is a number", RSA.token(&with(&entra_person(), json!({"aud": 1}))), Why::TokenMalformed),
            (
                "aud lists a number",
                RSA.token(&with(&entra_person(), json!({"aud": ["mediatore", 1]}))),
                Why::TokenMalformed,
            ),
            ("exp is text", RSA.token(&with(&entra_person(), json!({"exp": "1800003600"}))), Why::TokenMalformed),
            (
                "exp is beyond all time",
                RSA.token(&with(&entra_person(), json!({"exp": u64::MAX}))),
                Why::TokenMalformed,
            ),
            ("exp is beyond all floats", RSA.token(&with(&entra_person(), json!({"exp": 1e300}))), Why::TokenMalformed),
            ("azp is a list", RSA.token(&with(&entra_person(), json!({"azp": ["az"]}))), Why::TokenMalformed),
            ("scp is a number", RSA.token(&with(&entra_person(), json!({"scp": 1}))), Why::TokenMalformed),
            (
                "signature has bits left over",
                format!("{front}.{}", &signature[..signature.len() - 1]),
                Why::SignatureInvalid,
            ),
        ],
    );
}

#[test]
fn signatures() {
    let claims = entra_person();
    let honest = RSA.token(&claims);
    let (front, signature) = honest.rsplit_once('.').unwrap();
    let other = RSA.token(&with(&claims, json!({"oid": "person-2"})));
    let (other_front, _) = other.rsplit_once('.').unwrap();
    let header = |changes| with(&RSA.header(), changes);
    let pem_like = [b"-----BEGIN PUBLIC KEY-----\n".as_slice(), &RSA.public_bytes()].concat();
    refused(
        &entra(),
        vec![
            ("alg none", unsigned_token("none", &claims), Why::AlgorithmNotAllowed),
            ("alg None", unsigned_token("None", &claims), Why::AlgorithmNotAllowed),
            ("alg nOnE", unsigned_token("nOnE", &claims), Why::AlgorithmNotAllowed),
            ("alg empty", unsigned_token("", &claims), Why::AlgorithmNotAllowed),
            ("no signature", format!("{front}."), Why::SignatureInvalid),
            (
                "HS256 with the public key",
                hmac_token(&RSA.public_bytes(), &header(json!({"alg": "HS256"})), &claims),
                Why::AlgorithmNotAllowed,
            ),
            (
                "HS256 with the public key as text",
                hmac_token(&pem_like, &header(json!({"alg": "HS256"})), &claims),
                Why::AlgorithmNotAllowed,
            ),
            (
                "HS256 with the JWK",
                hmac_token(RSA.jwk().to_string().as_bytes(), &header(json!({"alg": "HS256"})), &claims),
                Why::AlgorithmNotAllowed,
            ),
            ("an HMAC called RS256", hmac_token(&RSA.public_bytes(), &RSA.header(), &claims), Why::SignatureInvalid),
            ("alg not listed: PS256", RSA.sign(&header(json!({"alg": "PS256"})), &claims), Why::AlgorithmNotAllowed),
            ("alg not listed: RS512", RSA.sign(&header(json!({"alg": "RS512"})), &claims), Why::AlgorithmNotAllowed),
            ("alg not listed: EdDSA", Signer::ed25519("rsa").token(&claims), Why::AlgorithmNotAllowed),
            ("alg in another case", RSA.sign(&header(json!({"alg": "rs256"})), &claims), Why::AlgorithmNotAllowed),
            ("the key of another type", RSA.sign(&header(json!({"alg": "ES256"})), &claims), Why::KeyUnknown),
            (
                "an elliptic key named for RS256",
                P256.sign(&with(&P256.header(), json!({"alg": "RS256"})), &claims),
                Why::KeyUnknown,
            ),
            ("a key of the same name that is not the issuer's", STRANGER.token(&claims), Why::SignatureInvalid),
            (
                "another key of the issuer than it names",
                P256.sign(&with(&P256.header(), json!({"kid": "rsa"})), &claims),
                Why::KeyUnknown,
            ),
            (
                "its own key in the header",
                STRANGER.sign(&header(json!({"jwk": STRANGER.jwk()})), &claims),
                Why::SignatureInvalid,
            ),
            ("no kid", RSA.sign(&header(json!({"kid": null})), &claims), Why::KeyIdMissing),
            ("empty kid", RSA.sign(&header(json!({"kid": ""})), &claims), Why::KeyIdMissing),
            ("unknown kid", RSA.sign(&header(json!({"kid": "else"})), &claims), Why::KeyUnknown),
            ("kid in another case", RSA.sign(&header(json!({"kid": "RSA"})), &claims), Why::KeyUnknown),
            ("a huge kid", RSA.sign(&header(json!({"kid": "k".repeat(5000)})), &claims), Why::KeyUnknown),
            ("the signature of another token", format!("{other_front}.{signature}"), Why::SignatureInvalid),
            ("a signature cut short", format!("{front}.{}", &signature[..40]), Why::SignatureInvalid),
            ("a signature that is not base64url", format!("{front}.!!!"), Why::SignatureInvalid),
        ],
    );
}

#[test]
fn every_algorithm_verifies_when_listed() {
    let signers = [RSA.jwk(), P256.jwk()];
    let (p384, ed25519) = (Signer::p384("p384"), Signer::ed25519("ed25519"));
    let keys = json!({"keys": [signers[0], signers[1], p384.jwk(), ed25519.jwk()]});
    let keys = KeySet::parse(keys.to_string().as_bytes()).unwrap();
    let mut issuer = entra();
    for (signer, alg) in
        [(&*RSA, "RS256"), (&RSA, "RS512"), (&RSA, "PS256"), (&P256, "ES256"), (&p384, "ES384"), (&ed25519, "EdDSA")]
    {
        let token = signer.sign(&with(&signer.header(), json!({"alg": alg})), &entra_person());
        issuer.algorithms = vec![banlieue_identity::Algorithm::of(alg).unwrap()];
        accept(&issuer, &keys, Unverified::parse(&token).unwrap(), now())
            .unwrap_or_else(|why| panic!("{alg}: {why:?}"));
    }
}

#[test]
fn issuers_and_audiences() {
    let change = |changes| RSA.token(&with(&entra_person(), changes));
    refused(
        &entra(),
        vec![
            ("another issuer", change(json!({"iss": "https://evil.test"})), Why::IssuerUnknown),
            ("a look-alike with a slash", change(json!({"iss": format!("{ENTRA}/")})), Why::IssuerUnknown),
            ("a look-alike in capitals", change(json!({"iss": ENTRA.to_uppercase()})), Why::IssuerUnknown),
            (
                "a look-alike with a port",
                change(json!({"iss": ENTRA.replace(".test", ".test:443")})),
                Why::IssuerUnknown,
            ),
            ("no issuer", change(json!({"iss": null})), Why::IssuerUnknown),
            ("Kubernetes", change(json!({"aud": "https://kubernetes.default.svc"})), Why::AudienceWrong),
            ("the agent's own API", change(json!({"aud": "api://agent", "azp": "agent"})), Why::AudienceWrong),
            ("a look-alike", change(json!({"aud": "mediatore/"})), Why::AudienceWrong),
            ("in capitals", change(json!({"aud": "Mediatore"})), Why::AudienceWrong),
            ("no audience", change(json!({"aud": null})), Why::AudienceMissing),
            ("an empty list", change(json!({"aud": []})), Why::AudienceMissing),
            ("an empty name", change(json!({"aud": ""})), Why::AudienceWrong),
            ("a list without us", change(json!({"aud": ["kubernetes", "api://agent"]})), Why::AudienceWrong),
            ("a list with us and others", change(json!({"aud": ["mediatore", "kubernetes"]})), Why::AudienceShared),
            ("a list with us and the client", change(json!({"aud": ["mediatore", "az"]})), Why::AudienceShared),
        ],
    );
    let change = |changes| RSA.sign(&at_jwt(), &with(&provider_person(), changes));
    refused(
        &provider(),
        vec![
            ("the client where a URI is the audience", change(json!({"aud": "mediatore"})), Why::AudienceWrong),
            (
                "its issuer without the slash",
                change(json!({"iss": PROVIDER.trim_end_matches('/')})),
                Why::IssuerUnknown,
            ),
        ],
    );
    let change = |changes| RSA.token(&with(&dex_person(), changes));
    refused(
        &dex(),
        vec![
            ("for kubelogin", change(json!({"aud": "kubernetes", "azp": null})), Why::AudienceWrong),
            ("for the CLI alone", change(json!({"aud": "mediatore-cli", "azp": null})), Why::AudienceWrong),
            ("for three", change(json!({"aud": ["mediatore", "mediatore-cli", "kubernetes"]})), Why::AudienceShared),
            (
                "for two, asked for by a third",
                change(json!({"aud": ["mediatore", "mediatore-cli"], "azp": "agent"})),
                Why::AudienceShared,
            ),
            ("for two, and nobody asked", change(json!({"azp": null})), Why::ClientMissing),
        ],
    );
}

#[test]
fn times() {
    let change = |changes| RSA.token(&with(&entra_person(), changes));
    refused(
        &entra(),
        vec![
            ("no exp", change(json!({"exp": null})), Why::ExpiryMissing),
            ("expired", change(json!({"exp": NOW - 3600})), Why::Expired),
            ("expired by the whole skew", change(json!({"exp": NOW - 60})), Why::Expired),
            ("exp is zero", change(json!({"exp": 0})), Why::Expired),
            ("exp before 1970", change(json!({"exp": -5})), Why::Expired),
            ("not yet valid", change(json!({"nbf": NOW + 3600})), Why::NotYetValid),
            ("not yet valid by more than the skew", change(json!({"nbf": NOW + 61})), Why::NotYetValid),
            ("issued in the future", change(json!({"iat": NOW + 61})), Why::NotYetValid),
        ],
    );
}

#[test]
fn types_where_access_tokens_are_accepted() {
    let change = |changes| RSA.token(&with(&entra_person(), changes));
    let typed = |typ: &str, claims| RSA.sign(&with(&RSA.header(), json!({"typ": typ})), &claims);
    let id_token = with(&entra_person(), json!({"scp": null, "azp": null, "azpacr": null, "nonce": "n"}));
    refused(
        &entra(),
        vec![
            ("an ID token", RSA.token(&id_token), Why::TokenType),
            ("an ID token without nonce", RSA.token(&with(&id_token, json!({"nonce": null}))), Why::TokenType),
            (
                "an ID token with roles, as a person",
                RSA.token(&with(&id_token, json!({"roles": ["Sandbox.Access"]}))),
                Why::TokenType,
            ),
            (
                "an ID token with roles, as an app",
                RSA.token(&with(&entra_app(), json!({"nonce": "n"}))),
                Why::TokenType,
            ),
            ("an ID token with a hash", change(json!({"at_hash": "x"})), Why::TokenType),
            ("Keycloak's ID token", change(json!({"typ": "ID"})), Why::TokenType),
            ("Keycloak's refresh token", change(json!({"typ": "Refresh"})), Why::TokenType),
            ("Cognito's ID token", change(json!({"token_use": "id"})), Why::TokenType),
            ("a logout token", typed("logout+jwt", entra_person()), Why::TokenType),
            ("a security event", change(json!({"events": {}})), Why::TokenType),
            ("an authorization request", typed("oauth-authz-req+jwt", entra_person()), Why::TokenType),
            ("a DPoP proof", typed("dpop+jwt", entra_person()), Why::TokenType),
            ("an empty type", typed("", entra_person()), Why::TokenType),
            ("bound to a key", change(json!({"cnf": {"jkt": "x"}})), Why::TokenBound),
            (
                "bound to nothing",
                RSA.sign_raw(&RSA.header().to_string(), &entra_person().to_string().replacen('{', "{\"cnf\":null,", 1)),
                Why::TokenBound,
            ),
        ],
    );
}

#[test]
fn types_where_id_tokens_are_accepted() {
    let change = |changes| RSA.token(&with(&dex_person(), changes));
    refused(
        &dex(),
        vec![
            ("an access token by its type", RSA.sign(&at_jwt(), &dex_person()), Why::TokenType),
            ("an access token by its scope", change(json!({"scope": "openid"})), Why::TokenType),
            ("an access token by its scp", change(json!({"scp": "openid"})), Why::TokenType),
            ("an access token by its client", change(json!({"client_id": "mediatore-cli"})), Why::TokenType),
            ("Keycloak's access token", change(json!({"typ": "Bearer"})), Why::TokenType),
            ("Cognito's access token", change(json!({"token_use": "access"})), Why::TokenType),
            ("an app", change(json!({"idtyp": "app", "roles": ["Sandbox.Access"]})), Why::AppNotAllowed),
            (
                "an app by its ids",
                change(json!({"oid": dex_person()["sub"], "roles": ["Sandbox.Access"]})),
                Why::AppNotAllowed,
            ),
            ("an app by its client", change(json!({"sub": "mediatore-cli"})), Why::AppNotAllowed),
        ],
    );
}

#[test]
fn sandboxes_never_claim_sandboxes() {
    let change = |changes| RSA.token(&with(&entra_person(), changes));
    refused(
        &entra(),
        vec![
            ("act", change(json!({"act": {"sub": "spiffe://td/banlieue/claim/1"}})), Why::SandboxToken),
            ("act of a listed agent", change(json!({"azp": "agent", "act": {"sub": "agent"}})), Why::SandboxToken),
            ("act in an app's", RSA.token(&with(&entra_app(), json!({"act": {}}))), Why::SandboxToken),
            ("asked for by the broker", change(json!({"azp": "mediatore"})), Why::OwnToken),
            (
                "asked for by the broker, as an app",
                RSA.token(&with(&entra_app(), json!({"azp": "mediatore"}))),
                Why::OwnToken,
            ),
        ],
    );
    let change = |changes| RSA.token(&with(&dex_person(), changes));
    refused(
        &dex(),
        vec![
            ("asked for by the broker", change(json!({"aud": "mediatore", "azp": "mediatore"})), Why::OwnToken),
            ("asked for by the broker, silently", change(json!({"aud": "mediatore", "azp": null})), Why::OwnToken),
        ],
    );
    let change = |changes| RSA.sign(&at_jwt(), &with(&provider_person(), changes));
    refused(
        &provider(),
        vec![
            ("asked for by the broker", change(json!({"client_id": "mediatore"})), Why::OwnToken),
            ("asked for by the broker's URI", change(json!({"client_id": "api://mediatore"})), Why::OwnToken),
        ],
    );
}

#[test]
fn people_who_may_not() {
    let change = |changes| RSA.token(&with(&entra_person(), changes));
    refused(
        &entra(),
        vec![
            ("a client that nobody listed", change(json!({"azp": "evil"})), Why::ClientUntrusted),
            ("a client in another case", change(json!({"azp": "AZ"})), Why::ClientUntrusted),
            ("no client", change(json!({"azp": null})), Why::ClientMissing),
            ("an empty client", change(json!({"azp": ""})), Why::ClientMissing),
            ("two clients", change(json!({"appid": "agent"})), Why::ClientMissing),
            (
                "two clients, the other way round",
                change(json!({"azp": "agent", "client_id": "az"})),
                Why::ClientMissing,
            ),
            ("another scope", change(json!({"scp": "openid"})), Why::ScopeMissing),
            ("a scope that begins alike", change(json!({"scp": "sandbox.access.all sandbox"})), Why::ScopeMissing),
            ("an empty scope", change(json!({"scp": ""})), Why::ScopeMissing),
            ("a role instead of a scope", change(json!({"scp": null, "roles": ["sandbox.access"]})), Why::ScopeMissing),
            ("no subject", change(json!({"oid": null})), Why::SubjectMissing),
            ("an empty subject", change(json!({"oid": ""})), Why::SubjectMissing),
            ("a subject with a line break", change(json!({"oid": "a\nb"})), Why::SubjectMissing),
            ("a long subject", change(json!({"oid": "x".repeat(256)})), Why::SubjectMissing),
            ("a device", change(json!({"idtyp": "device"})), Why::AppUnproven),
            ("a person in an app's clothes", change(json!({"idtyp": "app"})), Why::AppUnproven),
        ],
    );
    let mut strict = entra();
    strict.require.group = Some("g1".to_owned());
    strict.require.role = Some("Sandbox.User".to_owned());
    let grouped = json!({"groups": ["g0", "g1"], "roles": ["Sandbox.User"]});
    assert!(ask(&strict, &change(grouped.clone())).is_ok());
    let change = |changes| RSA.token(&with(&with(&entra_person(), grouped.clone()), changes));
    refused(
        &strict,
        vec![
            ("no groups", change(json!({"groups": null})), Why::GroupMissing),
            ("another group", change(json!({"groups": ["g11"]})), Why::GroupMissing),
            (
                "too many groups to list",
                change(json!({"groups": null, "_claim_names": {"groups": "src1"}})),
                Why::GroupMissing,
            ),
            ("the group as a role", change(json!({"groups": [], "roles": ["g1", "Sandbox.User"]})), Why::GroupMissing),
            ("no roles", change(json!({"roles": null})), Why::RoleMissing),
            ("another role", change(json!({"roles": ["Sandbox.Access"]})), Why::RoleMissing),
            (
                "an agent, for a person without the group",
                change(json!({"azp": "agent", "groups": []})),
                Why::GroupMissing,
            ),
        ],
    );
    let mut alone = entra();
    alone.peers.clear();
    refused(&alone, vec![("an agent where none is trusted", change(json!({"azp": "agent"})), Why::ClientUntrusted)]);
    let mut alone = dex();
    alone.peers.clear();
    let agent = RSA.token(&with(&dex_person(), json!({"aud": ["agent", "mediatore"], "azp": "agent"})));
    refused(&alone, vec![("an agent of Dex where none is trusted", agent, Why::ClientUntrusted)]);
}

#[test]
fn services_that_may_not() {
    let change = |changes| RSA.token(&with(&entra_app(), changes));
    refused(
        &entra(),
        vec![
            ("no role", change(json!({"roles": null})), Why::RoleMissing),
            ("another role", change(json!({"roles": ["Sandbox.Accessory"]})), Why::RoleMissing),
            ("the role as a scope", change(json!({"roles": null, "scp": "Sandbox.Access"})), Why::AppUnproven),
            ("a scope besides", change(json!({"scp": "sandbox.access"})), Why::AppUnproven),
            ("a scope besides, by its other name", change(json!({"scope": "sandbox.access"})), Why::AppUnproven),
            ("unproven: a public client", change(json!({"idtyp": null, "azpacr": "0"})), Why::AppUnproven),
            ("unproven: nobody says how", change(json!({"idtyp": null, "azpacr": null})), Why::AppUnproven),
            ("unproven: said to be a person", change(json!({"idtyp": "user"})), Why::AppUnproven),
            (
                "unproven: sub is the client",
                change(json!({"idtyp": null, "sub": "pipeline", "oid": "x"})),
                Why::AppUnproven,
            ),
            ("roles and no more", change(json!({"idtyp": null, "sub": "pairwise"})), Why::ClientUntrusted),
            (
                "roles and no more, by a login client",
                change(json!({"idtyp": null, "sub": "pairwise", "azp": "az"})),
                Why::ScopeMissing,
            ),
            ("no oid", change(json!({"oid": null})), Why::SubjectMissing),
        ],
    );
    let mut listed = entra();
    listed.apps.ids = vec!["nightly".to_owned()];
    refused(&listed, vec![("not listed", change(json!({})), Why::AppNotAllowed)]);
    let mut none = entra();
    none.apps = banlieue_identity::Apps::default();
    refused(
        &none,
        vec![
            ("not allowed by idtyp", change(json!({})), Why::AppNotAllowed),
            ("not allowed by oid and sub", change(json!({"idtyp": null})), Why::AppNotAllowed),
            ("not allowed, of a trusted agent", change(json!({"azp": "agent"})), Why::AppNotAllowed),
        ],
    );
    let own = with(&provider_person(), json!({"sub": "agent", "client_id": "agent"}));
    refused(
        &provider(),
        vec![("an agent as itself, with a person's scope", RSA.sign(&at_jwt(), &own), Why::AppNotAllowed)],
    );
}

#[test]
fn a_display_name_cannot_disguise() {
    let shown = |name: &str| {
        let token = RSA.token(&with(&entra_person(), json!({"preferred_username": name})));
        ask(&entra(), &token).unwrap().display
    };
    assert_eq!(shown(" bob\n\u{202e}exe "), Some("bobexe".to_owned()));
    assert_eq!(shown("\u{200b}"), None);
    assert_eq!(shown(&"é".repeat(300)).unwrap().len(), 254);
    let odd = RSA.token(&with(&entra_person(), json!({"preferred_username": 7})));
    assert_eq!(ask(&entra(), &odd).unwrap().display, None);
}
