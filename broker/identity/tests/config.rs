//! Issuer entries: what they default to, and what is wrong with them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_identity::config::problems;
use banlieue_identity::discovery::url;
use banlieue_identity::{Accepts, Algorithm, Issuer, Issuers};

const GOOD: &str = "name: idp\nurl: https://idp.example/\nclient_id: mediatore\naccepts: id_token\nclients: [cli]\n";

fn read(yaml: &str) -> Issuer {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

#[test]
fn what_is_left_out_has_its_default() {
    let issuer = read(GOOD);
    assert_eq!(issuer.problems(), Vec::<String>::new());
    assert_eq!(issuer.algorithms, [Algorithm::RS256, Algorithm::ES256]);
    assert_eq!((issuer.subject_claim.as_str(), issuer.display_claim.as_str()), ("sub", "preferred_username"));
    assert_eq!((issuer.audience(), issuer.accepts), ("mediatore", Accepts::IdToken));
    assert!(issuer.peers.is_empty() && !issuer.apps.allowed && issuer.require.scope.is_none());
    assert_eq!(url(&issuer.url), "https://idp.example/.well-known/openid-configuration");
    let bare = Issuer { url: "https://idp.example/a/b".to_owned(), ..issuer };
    assert_eq!(url(&bare.url), "https://idp.example/a/b/.well-known/openid-configuration");
    assert_eq!(read(&serde_saphyr::to_string(&bare).unwrap()), bare, "written and read again");
}

#[test]
fn what_does_not_parse() {
    for (name, line) in [
        ("an unknown key", "secret: x"),
        ("an unknown key inside", "apps: {enabled: true}"),
        ("a symmetric algorithm", "algorithms: [HS256]"),
        ("no algorithm", "algorithms: [none]"),
        ("both kinds", "accepts: any"),
    ] {
        let yaml = format!(
            "{}{line}\n",
            if line.starts_with("accepts") { GOOD.replace("accepts: id_token\n", "") } else { GOOD.to_owned() }
        );
        assert!(serde_saphyr::from_str::<Issuer>(&yaml).is_err(), "{name}");
    }
}

#[test]
fn every_problem_is_named() {
    let access = GOOD.replace("id_token", "access_token") + "require: {scope: s}\n";
    assert_eq!(read(&access).problems(), Vec::<String>::new());
    for (base, from, to, starts) in [
        (GOOD, "name: idp", "name: IdP", "name:"),
        (GOOD, "https://", "http://", "url:"),
        (GOOD, "idp.example/", "idp.example/?a=b", "url:"),
        (GOOD, "idp.example/", "idp.example/#a", "url:"),
        (GOOD, "idp.example/", "user:pass@idp.example/", "url:"),
        (GOOD, "https://idp.example/", "idp", "url:"),
        (GOOD, "client_id: mediatore", "client_id: ''", "client_id:"),
        (GOOD, "clients: [cli]", "clients: [cli, cli]", "clients:"),
        (GOOD, "clients: [cli]", "clients: ['']", "clients:"),
        (GOOD, "clients: [cli]", "clients: [mediatore]", "clients:"),
        (GOOD, "clients: [cli]", "peers: [mediatore]", "peers:"),
        (GOOD, "clients: [cli]", "clients: [cli]\npeers: [cli]", "peers:"),
        (GOOD, "clients: [cli]\n", "", "clients:"),
        (GOOD, "clients: [cli]", "clients: [cli]\nsubject_claim: email", "subject_claim:"),
        (GOOD, "clients: [cli]", "clients: [cli]\nsubject_claim: preferred_username", "subject_claim:"),
        (GOOD, "clients: [cli]", "clients: [cli]\nalgorithms: []", "algorithms:"),
        (GOOD, "clients: [cli]", "clients: [cli]\nalgorithms: [ES256, ES256]", "algorithms:"),
        (GOOD, "clients: [cli]", "clients: [cli]\nrequire: {scope: x}", "require.scope:"),
        (GOOD, "clients: [cli]", "clients: [cli]\napps: {allowed: true, role: r}", "apps.allowed:"),
        (&access, "{scope: s}", "{}", "require.scope:"),
        (&access, "{scope: s}", "{scope: 's t'}", "require.scope:"),
        (&access, "clients: [cli]", "clients: [cli]\napps: {allowed: true}", "apps.role:"),
        (&access, "clients: [cli]", "clients: [cli]\napps: {role: r}", "apps:"),
    ] {
        let problems = read(&base.replacen(from, to, 1)).problems();
        assert!(problems.len() == 1 && problems[0].starts_with(starts), "{to}: {problems:?}");
    }
}

#[test]
fn entries_together() {
    let one = read(GOOD);
    assert_eq!(problems(&[]).len(), 1);
    let slash = Issuer { name: "other".to_owned(), url: "https://idp.example".to_owned(), ..one.clone() };
    assert_eq!(problems(&[one.clone(), slash]).len(), 1, "a slash makes no second issuer");
    let same_name = Issuer { url: "https://else.example".to_owned(), ..one.clone() };
    assert_eq!(problems(&[one.clone(), same_name]).len(), 1);
    let bad = Issuer { name: String::new(), client_id: String::new(), ..one.clone() };
    let error = Issuers::new(vec![one.clone(), bad]).unwrap_err().to_string();
    for part in ["issuers[1].name", "issuers[1].client_id", "issuers[1].url"] {
        assert!(error.contains(part), "all at once: {error}");
    }
    let missing = Issuer { ca_file: Some("/nonexistent/ca.pem".into()), ..one.clone() };
    assert!(Issuers::new(vec![missing]).unwrap_err().to_string().contains("/nonexistent/ca.pem"));
    assert!(Issuers::new(vec![one.clone()]).unwrap().reserve("https://idp.example").is_err());
    assert!(Issuers::new(vec![one]).unwrap().reserve("https://mediatore.example").is_ok());
}
