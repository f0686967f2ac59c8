use std::time::SystemTime;

use banlieue_identity::SubjectKey;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::http::body::parse;

const CONFIG: &str = "
trust_domain: banlieue.local
cluster: local
namespaces: [sandboxes]
listeners: {user: {address: '127.0.0.1:0', behind_proxy: true}}
issuers:
- {name: idp, url: 'https://idp.example', client_id: m, accepts: access_token, clients: [cli], require: {scope: s}, apps: {allowed: true, role: r}}
- {name: other, url: 'https://other.example', client_id: m, accepts: access_token, apps: {allowed: true, role: r}}
audiences:
- {id: data, apps: [{issuer: other, ids: [x]}, {issuer: idp, ids: [app-client]}]}
- {id: of-the-other-issuer, apps: [{issuer: other, ids: [app-client]}]}
- {id: by-its-object, apps: [{issuer: idp, ids: [app-oid]}]}
- {id: people-only}
- {id: not-in-the-pool}
sealing_keys: [{id: k, file: /k}]
sts: {issuer: 'https://mediatore.example', key_files: [/s]}
";

fn pool() -> VirtualMachinePool {
    serde_json::from_value(json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool",
        "metadata": { "name": "p", "namespace": "sandboxes" },
        "spec": {
            "maxReplicas": 1, "template": {},
            "claimPolicy": {
                "maxTtlSeconds": 600, "allowedImages": ["registry.internal:5000/sandbox/*"],
                "allowedAudiences": ["data", "of-the-other-issuer", "by-its-object", "people-only", "nobody-knows"],
                "maxRetentionSeconds": 100, "maxBindDeadlineSeconds": 30,
            },
        },
    }))
    .unwrap()
}

fn caller(path: Path) -> Caller {
    Caller {
        issuer_name: "idp".into(),
        issuer: "https://idp.example".into(),
        id: "app-oid".into(),
        display: None,
        path,
        client: "app-client".into(),
        azp: None,
        key: SubjectKey::of("https://idp.example", "app-oid"),
        not_after: SystemTime::now(),
    }
}

fn judged(path: Path, edit: Value) -> Result<Wanted, Failure> {
    let mut body = json!({ "pool_ref": "p", "workload": { "image": "registry.internal:5000/sandbox/x:1" } });
    for (key, value) in edit.as_object().unwrap() {
        body[key] = value.clone();
    }
    let request: ClaimRequest = parse(body.to_string().as_bytes()).unwrap();
    wanted(&Config::parse(CONFIG).unwrap(), &caller(path), &pool(), "sandboxes", "p", request)
}

#[rstest]
#[case::bare(Path::Person, json!({}), None)]
#[case::longest(Path::Person, json!({ "ttl_seconds": 600 }), None)]
#[case::too_long(Path::Person, json!({ "ttl_seconds": 601 }), Some(Code::InvalidTtl))]
#[case::image(Path::Person, json!({ "workload": { "image": "docker.io/x" } }), Some(Code::ImageDenied))]
#[case::audience(Path::Person, json!({ "audiences": ["data", "people-only"] }), None)]
#[case::unknown(Path::Person, json!({ "audiences": ["data", "nobody-knows"] }), Some(Code::UnknownAudience))]
#[case::not_in_the_pool(Path::Person, json!({ "audiences": ["not-in-the-pool"] }), Some(Code::UnknownAudience))]
#[case::reserved(Path::Person, json!({ "audiences": ["mediatore"] }), Some(Code::UnknownAudience))]
#[case::service(Path::Service, json!({ "audiences": ["data"] }), None)]
#[case::service_of_another_issuer(Path::Service, json!({ "audiences": ["of-the-other-issuer"] }), Some(Code::Forbidden))]
#[case::service_by_its_object(Path::Service, json!({ "audiences": ["by-its-object"] }), Some(Code::Forbidden))]
#[case::service_not_listed(Path::Service, json!({ "audiences": ["people-only"] }), Some(Code::Forbidden))]
#[case::agent(Path::AgentForPerson, json!({ "audiences": ["people-only"] }), None)]
#[case::refresh(Path::Person, json!({ "refresh_token": "x" }), Some(Code::InvalidRequest))]
fn what_the_pool_and_the_configuration_allow(#[case] path: Path, #[case] edit: Value, #[case] expected: Option<Code>) {
    assert_eq!(judged(path, edit).err().map(|failure| failure.code), expected);
}

#[test]
fn the_pools_bounds_reach_the_claim() {
    let wanted = judged(Path::Person, json!({})).unwrap();
    assert_eq!(wanted.ttl_seconds, 600);
    let claim = record::claim("c", &wanted, record::subject(&caller(Path::Person)), "s");
    assert_eq!((claim.spec.retention_seconds, claim.spec.bind_deadline_seconds), (100, 30));
    assert_eq!(claim.metadata.finalizers.unwrap(), ["banlieue.io/claim-protection"]);
}

#[test]
fn keys_of_requests() {
    let key = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("idempotency-key", value.parse().unwrap());
        }
        idempotency_key(&headers).map(|key| key.is_some()).map_err(|failure| failure.code)
    };
    assert_eq!(key(&[]), Ok(false));
    assert_eq!(key(&["a-1"]), Ok(true));
    for bad in [&["a", "a"][..], &["a b"], &[""]] {
        assert_eq!(key(bad), Err(Code::InvalidRequest), "{bad:?}");
    }
}
