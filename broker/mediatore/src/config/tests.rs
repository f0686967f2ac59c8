use std::path::PathBuf;

use super::*;

const GOOD: &str = "
trust_domain: banlieue.local
cluster: local
namespaces: [sandboxes, more]
listeners:
  user: {address: '127.0.0.1:8443', tls: {certificate_file: /a, key_file: /b}}
  sandbox: {address: '127.0.0.1:8444'}
issuers:
- {name: idp, url: 'https://idp.example', client_id: broker-client, accepts: access_token, clients: [cli], require: {scope: sandbox.access}, apps: {allowed: true, role: r, ids: [app-1, app-2]}}
audiences:
- {id: 'api://trading-data', backend: sts, max_ttl: 600, endpoints: ['trading.example:443'], apps: [{issuer: idp, ids: [app-1]}]}
sealing_keys:
- {id: k1, file: /keys/k1}
sts: {issuer: 'https://mediatore.example', key_files: [/keys/sts]}
spire: {server: 'spire:8081', workload_api: 'unix:///run/spire/agent.sock'}
";

fn problems(edit: impl Fn(&str) -> String) -> String {
    Config::parse(&edit(GOOD)).map(|_| String::new()).unwrap_or_else(|problems| problems.join("\n"))
}

#[test]
fn a_good_one_has_no_problem() {
    assert_eq!(problems(ToOwned::to_owned), "");
    let config = Config::parse(GOOD).unwrap();
    assert_eq!(config.audience("api://trading-data").unwrap().max_ttl, 600);
    assert!(config.audience("api://trading-data/").is_none());
}

#[test]
fn every_problem_is_said_at_once() {
    let said = problems(|good| {
        good.replace("cluster: local", "cluster: Not A Label\nnonsense: 1")
            .replace("max_ttl: 600", "max_ttl: 6000")
            .replace("id: k1", "id: k1, colour: red")
            .replace("trading.example:443", "trading.example")
            .replace("sandboxes, more", "sandboxes, sandboxes")
    });
    for part in ["cluster: ", "nonsense: there is no such key", "sealing_keys[0]: unknown field `colour`"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let said = problems(|good| {
        good.replace("max_ttl: 600", "max_ttl: 6000")
            .replace("trading.example:443", "trading.example")
            .replace("sandboxes, more", "sandboxes, sandboxes")
            .replace("api://trading-data", "api://broker-client")
    });
    for part in ["max_ttl", "is not host:port", "stands there twice", "the client id of issuer idp"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn reserved_audiences_are_refused_however_they_are_written() {
    for id in [
        "mediatore",
        "api://mediatore",
        "API://Mediatore/",
        "broker-client",
        "api://broker-client",
        "https://idp.example",
        "https://idp.example/",
        "https://kubernetes.default.svc",
        "https://kubernetes.default.svc.cluster.local",
        "https://mediatore.example",
        "spiffe://banlieue.local/mediatore",
    ] {
        let said = problems(|good| good.replace("api://trading-data", id));
        assert!(said.contains("is reserved"), "{id}: {said}");
    }
}

#[test]
fn backends_need_their_providers() {
    for (backend, more, needs) in [
        ("entra-obo", "", "needs an item of upstreams"),
        ("entra-obo", "", "needs scope"),
        ("entra-obo, scope: read", "", "scope must be <resource>/<scope>"),
        ("entra-obo, scope: 'api://mediatore/.default'", "", "scope is of mediatore itself"),
        ("dex-refresh", "", "needs an item of upstreams"),
        ("sts, scope: 'api://a/read'", "", "scope is for backend entra-obo"),
        ("sts", "upstreams: [{issuer: nobody, backend: dex-refresh}]", "there is no issuer of this name"),
        ("sts", "upstreams: [{issuer: idp, backend: sts}]", "must be dex-refresh or entra-obo"),
        ("sts", "upstreams: [{issuer: idp, backend: dex-refresh}]", "client_id must be one of the issuer's clients"),
        ("sts", "upstreams: [{issuer: idp, backend: entra-obo}]", "needs certificate_file and key_file"),
        ("sts", "upstreams: [{issuer: idp, backend: entra-obo, secret: x}]", "unknown field"),
    ] {
        let said = problems(|good| {
            let good = good.replace("backend: sts", &format!("backend: {backend}"));
            format!("{good}\n{more}\n")
        });
        assert!(said.contains(needs), "{backend} {more}: {said}");
    }
}

#[test]
fn what_is_not_built_says_so() {
    assert!(problems(|good| format!("{good}\negress: {{}}")).contains("egress: there is no such key"));
}

#[test]
fn bearer_tokens_in_the_clear_are_a_choice() {
    let bare = |good: &str| good.replace(", tls: {certificate_file: /a, key_file: /b}", "");
    assert!(problems(bare).contains("needs tls, or behind_proxy"));
    assert_eq!(problems(|good| bare(good).replace("8443'", "8443', behind_proxy: true")), "");
}

#[test]
fn files_are_looked_into_without_showing_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path: PathBuf = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    assert!(sealing_key(&file("hex", "0f".repeat(32).as_bytes())).is_ok());
    assert!(sealing_key(&file("line", format!("{}\n", "0f".repeat(32)).as_bytes())).is_ok());
    assert!(sealing_key(&file("raw", &[7; 32])).is_ok());
    let error = sealing_key(&file("short", b"swordfish")).unwrap_err().to_string();
    assert!(error.contains("32 bytes") && !error.contains("swordfish"), "{error}");
    let pair = rcgen::KeyPair::generate().unwrap().serialize_pem();
    assert!(signing_key(&file("p256", pair.as_bytes())).is_ok());
    let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
    assert!(signing_key(&file("ed", other.as_bytes())).unwrap_err().to_string().contains("P-256"));
}

#[test]
fn an_application_is_one_of_its_issuers() {
    for (to, part) in [
        ("[{issuer: nobody, ids: [app-1]}]", "there is no such issuer"),
        ("[{issuer: idp, ids: [app-3]}]", "app-3 is not among its apps.ids"),
        ("[{issuer: idp, ids: []}]", "at least one"),
        ("[{issuer: idp, ids: [app-1, app-1]}]", "stands there twice"),
        ("[{issuer: idp, ids: [app-1]}, {issuer: idp, ids: [app-2]}]", "stands there twice"),
        ("[app-1]", "audiences[0]"),
    ] {
        let said = problems(|good| good.replace("[{issuer: idp, ids: [app-1]}]", to));
        assert!(said.contains(part), "{to}: {said}");
    }
    let closed = problems(|good| good.replace(", apps: {allowed: true, role: r, ids: [app-1, app-2]}", ""));
    assert!(closed.contains("set apps.allowed there"), "{closed}");
}

#[test]
fn two_listeners_have_two_addresses() {
    assert!(problems(|good| good.replace("8444", "8443")).contains("has the address of listeners.user"));
    assert_eq!(problems(|good| good.replace("8444", "0").replace("8443", "0")), "");
    assert!(problems(|good| good.replace("spire:8081", "spire")).contains("spire.server"));
}

#[test]
fn everything_that_serve_reads_is_checked_beside_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, content: &str| {
        std::fs::write(dir.path().join(name), content).unwrap();
        path(name)
    };
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let (one, same) = (write("one", &pem), write("same", &pem));
    let text = format!(
        "{}\nregistry: {{ca_file: {}}}\naudit_file: {}\nnonsense: 1\n",
        GOOD.replace("/a,", &format!("{},", path("no-certificate")))
            .replace("/b}", &format!("{}}}", path("no-key")))
            .replace("/keys/k1", &write("sealing", "swordfish"))
            .replace("[/keys/sts]", &format!("[{one}, {same}, {}]", path("no-signing-key")))
            .replace("clients: [cli],", &format!("clients: [cli], ca_file: {},", write("ca", "swordfish"))),
        write("registry", "swordfish"),
        path("no-folder/audit"),
    );
    let file = dir.path().join("config.yaml");
    let said = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Config::load(&file).unwrap_err().to_string()
    };
    let parts = [
        "listeners.user.tls: cannot read",
        "sealing_keys (k1): ",
        "has the same key as",
        "no-signing-key",
        "issuers (idp).ca_file: ",
        "registry.ca_file: ",
        "audit_file: cannot write",
        "nonsense: there is no such key",
    ];
    // However little else of it can be read.
    for text in [text.clone(), text.replace("cluster: local", "cluster: Not A Label")] {
        let said = said(&text);
        for part in parts {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains("swordfish"), "{said}");
    }
    assert!(!dir.path().join("no-folder").exists());
}
