//! A pool's revision: a hash of what its members are made of and judged by.

use aws_lc_rs::digest;
use banlieue_crds::VirtualMachinePool;
use serde_json::Value;

/// The first 16 hex digits of the SHA-256 of the canonical template and attestation policy, the measurements' digest
/// included and `revoked` excepted: what is revoked ends members, it does not make new ones.
pub fn revision(pool: &VirtualMachinePool) -> String {
    let mut attestation = pool.spec.attestation.clone();
    attestation.revoked.clear();
    let mut canonical = String::new();
    for part in [serde_json::to_value(&pool.spec.template), serde_json::to_value(&attestation)] {
        // Neither can fail: both came out of JSON.
        write(&mut canonical, &part.unwrap_or_default());
        canonical.push('\n');
    }
    let hash = digest::digest(&digest::SHA256, canonical.as_bytes());
    let mut text = hex::encode(hash.as_ref());
    text.truncate(16);
    text
}

/// JSON with sorted keys and without blanks. Independent of how serde_json orders its maps, which is a feature that
/// any crate of the build may turn on.
fn write(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (n, key) in keys.into_iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                if let Some(value) = map.get(key) {
                    write(out, value);
                }
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                write(out, item);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::pool;
    use serde_json::json;

    #[test]
    fn the_revision_follows_template_and_policy_and_nothing_else() {
        let base = pool("p");
        let first = revision(&base);
        assert_eq!(first.len(), 16);

        let mut scaled = base.clone();
        scaled.spec.warm_replicas += 1;
        scaled.spec.attestation.revoked.push(Default::default());
        assert_eq!(revision(&scaled), first);

        let mut measured = base.clone();
        measured.spec.attestation.max_age_seconds += 1;
        assert_ne!(revision(&measured), first);

        let mut template = base.clone();
        template.spec.template.metadata.labels.insert("a".into(), "b".into());
        assert_ne!(revision(&template), first);
    }

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let mut a = String::new();
        let mut b = String::new();
        write(&mut a, &json!({"x": {"b": 1, "a": [true, null]}, "c": "\""}));
        write(&mut b, &serde_json::from_str(r#"{"c":"\"","x":{"a":[true,null],"b":1}}"#).unwrap());
        assert_eq!(a, b);
        assert_eq!(a, r#"{"c":"\"","x":{"a":[true,null],"b":1}}"#);
    }
}
