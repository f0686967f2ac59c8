//! Requests that are refused, with a good token.

use serde_json::{Value, json};

use crate::broker::{IMAGE, request};

const BAD: (u16, &str) = (400, "invalid_request");

/// Bodies of `POST /v1/claims`, each with status and code.
pub fn bodies(pool: &str) -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let good = request(pool).to_string();
    let set = |pointer: &str, value: Value| {
        let mut edited = request(pool);
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        edited.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.into(), value);
        edited.to_string()
    };
    let workload = json!({ "image": IMAGE }).to_string();
    let doubled = |member: &str| good.replacen('{', &format!("{{{member},"), 1);
    let mut rows: Vec<(&str, Vec<u8>, (u16, &str))> =
        vec![("no UTF-8", vec![b'{', b'"', 0xff, b'"', b':', b'1', b'}'], BAD)];
    let mut refuse = |what, text: String, how| rows.push((what, text.into_bytes(), how));
    // Form.
    refuse("empty", String::new(), BAD);
    refuse("white space", " \n ".into(), BAD);
    refuse("half", good[..good.len() / 2].into(), BAD);
    refuse("null", "null".into(), BAD);
    refuse("a number", "1".into(), BAD);
    refuse("a text", "\"claim\"".into(), BAD);
    refuse("a form", "pool_ref=p&ttl_seconds=60".into(), BAD);
    refuse("XML", "<claim/>".into(), BAD);
    refuse("a list", "[]".into(), BAD);
    refuse("a list of one", format!("[{good}]"), BAD);
    refuse("an object's values as a list", json!([pool, 60, [], { "image": IMAGE }, null]).to_string(), BAD);
    refuse("a workload's values as a list", set("/workload", json!([IMAGE, [], [], "never", {}])), BAD);
    refuse("a variable as a list", set("/workload/env", json!([["A", "b"]])), BAD);
    refuse("resources as a list", set("/workload/resources", json!(["1", "1Mi", 1])), BAD);
    refuse("something after it", format!("{good} x"), BAD);
    refuse("another after it", format!("{good}{good}"), BAD);
    refuse("a zero after it", format!("{good}\0"), BAD);
    refuse("a mark of byte order", format!("\u{feff}{good}"), BAD);
    refuse("a comment", format!("/**/{good}"), BAD);
    refuse("a comma too many", good.replacen('}', ",}", 1), BAD);
    refuse("a name twice", doubled(&format!(r#""pool_ref":"{pool}""#)), BAD);
    refuse("a name twice, by an escape", doubled(&format!(r#""pool\u005fref":"{pool}""#)), BAD);
    refuse("a name twice below", good.replacen(r#""workload":{"#, r#""workload":{"image":"x","#, 1), BAD);
    refuse("a section twice", doubled(&format!(r#""workload":{workload}"#)), BAD);
    refuse(
        "deep",
        set("/workload/args", serde_json::from_str(&format!("{}{}", "[".repeat(40), "]".repeat(40))).unwrap()),
        BAD,
    );
    refuse("too deep for any reader", format!("{}{}", "[".repeat(50_000), "]".repeat(50_000)), BAD);
    refuse("too long", format!("{}{good}", " ".repeat(300_000)), (413, "payload_too_large"));
    refuse("a field too long", set("/workload/args", json!(["x".repeat(300_000)])), (413, "payload_too_large"));
    // Fields.
    refuse("an unknown field", set("/nonsense", json!(1)), BAD);
    refuse("an unknown field below", set("/workload/nonsense", json!(1)), BAD);
    refuse("an unknown field of resources", set("/workload/resources", json!({ "gpu": 1 })), BAD);
    refuse("somebody's identity", set("/subject", json!({ "id": "ada" })), BAD);
    refuse("another spelling", set("/poolRef", json!(pool)), BAD);
    refuse("no pool", json!({ "workload": { "image": IMAGE } }).to_string(), BAD);
    refuse("no workload", json!({ "pool_ref": pool }).to_string(), BAD);
    refuse("no image", json!({ "pool_ref": pool, "workload": {} }).to_string(), BAD);
    refuse("a pool that is null", set("/pool_ref", json!(null)), BAD);
    refuse("a pool that is a number", set("/pool_ref", json!(1)), BAD);
    refuse("a pool without a name", set("/pool_ref", json!("")), BAD);
    refuse("a life that is text", set("/ttl_seconds", json!("60")), BAD);
    refuse("a negative life", set("/ttl_seconds", json!(-1)), BAD);
    refuse("a broken life", set("/ttl_seconds", json!(60.5)), BAD);
    refuse("a life beyond all numbers", set("/ttl_seconds", json!(u64::MAX)), BAD);
    refuse("no life", set("/ttl_seconds", json!(0)), (400, "invalid_ttl"));
    refuse("too long a life", set("/ttl_seconds", json!(7201)), (400, "invalid_ttl"));
    refuse("audiences that are text", set("/audiences", json!("api://trading-data")), BAD);
    refuse("an audience without a name", set("/audiences", json!([""])), BAD);
    refuse("an audience twice", set("/audiences", json!(["api://trading-data", "api://trading-data"])), BAD);
    refuse("many audiences", set("/audiences", (0..33).map(|n| json!(n.to_string())).collect()), BAD);
    refuse("an image without a name", set("/workload/image", json!("")), BAD);
    refuse("an image with a space", set("/workload/image", json!("registry.internal:5000/sandbox/a b")), BAD);
    refuse("an image from elsewhere", set("/workload/image", json!("docker.io/library/x")), (400, "image_denied"));
    refuse("arguments that are text", set("/workload/args", json!("/bin/sh")), BAD);
    refuse("an argument with a zero", set("/workload/args", json!(["a\0b"])), BAD);
    refuse("many arguments", set("/workload/args", (0..257).map(|_| json!("a")).collect()), BAD);
    refuse("a variable without a name", set("/workload/env", json!([{ "value": "a" }])), BAD);
    refuse("a variable of no name", set("/workload/env", json!([{ "name": "1A", "value": "a" }])), BAD);
    refuse("a variable twice", set("/workload/env", json!([{ "name": "A" }, { "name": "A" }])), BAD);
    refuse("a policy that nobody knows", set("/workload/restart_policy", json!("sometimes")), BAD);
    refuse("a policy that is an object", set("/workload/restart_policy", json!({ "never": null })), BAD);
    refuse("a quantity that is none", set("/workload/resources", json!({ "cpu": "many" })), BAD);
    refuse("no process at all", set("/workload/resources", json!({ "pids": 0 })), BAD);
    refuse("a refresh token that nothing needs", set("/refresh_token", json!("x")), BAD);
    // What there is not, or not for sandboxes.
    for (what, audience) in [
        ("an audience that nobody knows", "api://nobody"),
        ("mediatore", "mediatore"),
        ("mediatore's API", "api://mediatore"),
        ("mediatore, written otherwise", "API://Mediatore/"),
        ("the Kubernetes API", "https://kubernetes.default.svc"),
        ("mediatore's own issuer", "https://mediatore.example"),
        ("mediatore's own identity", "spiffe://banlieue.local/mediatore"),
    ] {
        refuse(what, set("/audiences", json!([audience])), (400, "unknown_audience"));
    }
    for (what, reference) in [
        ("no such pool", "nobody"),
        ("a pool elsewhere", "kube-system/refused"),
        ("a path", "../refused"),
        ("a pool with a slash too many", "sandboxes/refused/x"),
        ("a namespace alone", "sandboxes/"),
    ] {
        refuse(what, set("/pool_ref", json!(reference)), (404, "pool_not_found"));
    }
    rows.into_iter().map(|(what, text, (status, code))| (what, text, status, code)).collect()
}

/// Idempotency keys that are none.
pub fn idempotency_keys() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![
        ("an empty key", vec![b"".to_vec()]),
        ("a key with a space", vec![b"a b".to_vec()]),
        ("a key with a tab", vec![b"a\tb".to_vec()]),
        ("a key that is no ASCII", vec!["\u{e9}".into()]),
        ("a key that is no text", vec![vec![0xff, 0xfe]]),
        ("a key too long", vec![vec![b'k'; 256]]),
        ("two keys", vec![b"a".to_vec(), b"b".to_vec()]),
        ("one key twice", vec![b"a".to_vec(), b"a".to_vec()]),
    ]
}

/// Methods and paths that there are not.
pub fn routes() -> Vec<(&'static str, &'static str, &'static str, u16, &'static str)> {
    let (no_method, nothing) = ((405, "method_not_allowed"), (404, "not_found"));
    [
        ("putting claims", "PUT", "/v1/claims", no_method),
        ("patching claims", "PATCH", "/v1/claims", no_method),
        ("deleting all claims", "DELETE", "/v1/claims", no_method),
        ("asking for options", "OPTIONS", "/v1/claims", no_method),
        ("tracing", "TRACE", "/v1/claims", no_method),
        ("a method of one's own", "BREW", "/v1/claims", no_method),
        ("posting to a claim", "POST", "/v1/claims/c-1", no_method),
        ("posting a pool", "POST", "/v1/pools", no_method),
        ("posting keys", "POST", "/.well-known/jwks.json", no_method),
        ("no route", "GET", "/v2/claims", nothing),
        ("the root", "GET", "/", nothing),
        ("a slash at the end", "GET", "/v1/claims/", nothing),
        ("a slash too many", "GET", "//v1/claims", nothing),
        ("another spelling", "GET", "/V1/Claims", nothing),
        ("the sandboxes' side", "GET", "/v1/me", nothing),
        ("their tokens", "POST", "/v1/token", nothing),
        ("metrics", "GET", "/metrics", nothing),
        ("a claim that is not there", "GET", "/v1/claims/c-1", nothing),
        ("a claim's name that is none", "DELETE", "/v1/claims/%2e%2e%2fpools", nothing),
        ("a claim's name that is no text", "GET", "/v1/claims/%ff", nothing),
    ]
    .into_iter()
    .map(|(what, method, path, (status, code))| (what, method, path, status, code))
    .collect()
}

/// Bytes on a connection.
pub fn raw(token: &str) -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let post = |fields: &str, body: &str| {
        format!(
            "POST /v1/claims HTTP/1.1\r\nhost: mediatore\r\nconnection: close\r\nauthorization: Bearer {token}\r\n{fields}\r\n\r\n{body}"
        )
    };
    let smuggled = "0\r\n\r\nGET /v1/claims HTTP/1.1\r\n\r\n";
    [
        ("no HTTP", "nonsense\r\n\r\n".to_owned(), BAD),
        ("HTTP/0.9", "GET /\r\n\r\n".to_owned(), BAD),
        ("HTTP/2 without having agreed on it", "GET / HTTP/2.0\r\n\r\n".to_owned(), BAD),
        ("a control character in a field", post("x: a\0b", ""), BAD),
        ("a length that is no number", post("content-length: ten", ""), BAD),
        ("a negative length", post("content-length: -1", ""), BAD),
        ("a length with a sign", post("content-length: +2", "{}"), BAD),
        ("two lengths", post("content-length: 2\r\ncontent-length: 3", "{}"), BAD),
        ("a length beyond all numbers", post("content-length: 99999999999999999999999", ""), BAD),
        ("an encoding that nobody knows", post("transfer-encoding: gzip", ""), BAD),
        ("a length and chunks", post("content-length: 4\r\ntransfer-encoding: chunked", smuggled), BAD),
        ("a chunk without a size", post("transfer-encoding: chunked", "xyz\r\n"), BAD),
        ("a body said to be huge", post("content-length: 1000000000", "{"), (413, "payload_too_large")),
        ("a body that ends early", post("content-length: 10", "{}"), (408, "request_timeout")),
        ("a head too long", post(&format!("x: {}", "y".repeat(70_000)), ""), (431, "headers_too_large")),
        ("a path too long", format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)), (431, "headers_too_large")),
        ("too many fields", post(&"x: y\r\n".repeat(200), ""), (431, "headers_too_large")),
    ]
    .into_iter()
    .map(|(what, text, (status, code))| (what, text.into_bytes(), status, code))
    .collect()
}
