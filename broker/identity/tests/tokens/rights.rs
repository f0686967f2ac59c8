//! Genuine tokens of those who may not: 403, and subjects that are none.

use super::*;

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
