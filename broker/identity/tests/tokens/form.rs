//! What is no token for us: 401.

use super::*;

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
