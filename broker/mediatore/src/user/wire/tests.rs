use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::http::body::parse;

fn reference() -> Value {
    json!({
        "pool_ref": "pool-a",
        "ttl_seconds": 3600,
        "audiences": ["api://trading-data"],
        "workload": {
            "image": "registry.internal:5000/sandbox/claude:latest",
            "args": ["/usr/bin/claude", "-p", "reconcile the ledgers"],
        },
    })
}

fn with(pointer: &str, value: Value) -> Result<ClaimRequest, Failure> {
    let mut body = reference();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
    let request: ClaimRequest = parse(body.to_string().as_bytes())?;
    request.check()?;
    Ok(request)
}

#[test]
fn the_references_own_request_is_taken() {
    let request = with("/ttl_seconds", json!(3600)).unwrap();
    assert_eq!(request.workload.workload().unwrap().args.len(), 3);
    assert!(!format!("{:?}", with("/refresh_token", json!("swordfish")).unwrap()).contains("swordfish"));
}

#[rstest]
#[case("/nonsense", json!(1))]
#[case("/workload/nonsense", json!(1))]
#[case("/workload/resources", json!({ "nonsense": 1 }))]
#[case("/pool_ref", json!(""))]
#[case("/pool_ref", json!(null))]
#[case("/ttl_seconds", json!(0))]
#[case("/ttl_seconds", json!(-1))]
#[case("/ttl_seconds", json!("3600"))]
#[case("/ttl_seconds", json!(1.5))]
#[case("/audiences", json!(["a", "a"]))]
#[case("/audiences", json!([""]))]
#[case("/audiences", json!(vec!["x"; 33]))]
#[case("/workload/image", json!(""))]
#[case("/workload/image", json!("a b"))]
#[case("/workload/args", json!(["a\u{0}b"]))]
#[case("/workload/args", json!(["x".repeat(4097)]))]
#[case("/workload/args", json!(vec!["x"; 257]))]
#[case("/workload/env", json!([{ "name": "1A", "value": "" }]))]
#[case("/workload/env", json!([{ "name": "A" }, { "name": "A" }]))]
#[case("/workload/env", json!([{ "name": "A", "value": "\u{0}" }]))]
#[case("/workload/restart_policy", json!("Sometimes"))]
#[case("/workload/resources", json!({ "cpu": "1 2" }))]
#[case("/workload/resources", json!({ "memory": "1Xi" }))]
#[case("/workload/resources", json!({ "pids": 0 }))]
#[case("/workload", json!(null))]
fn what_is_no_request(#[case] pointer: &str, #[case] value: Value) {
    let error = with(pointer, value).unwrap_err();
    assert!(matches!(error.code, Code::InvalidRequest | Code::InvalidTtl), "{error:?}");
}

#[test]
fn what_a_guest_gets_is_what_was_sent() {
    let body = json!({
        "image": "i", "args": ["a"], "env": [{ "name": "A", "value": "1" }], "restart_policy": "on_failure",
        "resources": { "cpu": "500m", "memory": "1Gi", "pids": 7 },
    });
    let sent: WorkloadRequest = serde_json::from_value(body.clone()).unwrap();
    let got = WorkloadRequest::from_claim(&sent.workload().unwrap());
    assert_eq!(serde_json::to_value(got).unwrap(), body);
}
