//! Who is accepted, and as whom.

use super::*;

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
