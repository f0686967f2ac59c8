//! The VirtualMachineInstance of a member: the pool's template, and what the controller sets.

use banlieue_crds::names::{self, labels};
use banlieue_crds::pool::AttestationMode;
use banlieue_crds::{PoolMember, VirtualMachinePool, kubevirt};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::member_owner;

/// Builds the instance. The template has passed `decide::check_template`; what is missing in it stays missing and is
/// KubeVirt's to refuse.
pub fn instance(pool: &VirtualMachinePool, member: &PoolMember) -> Value {
    let template = &pool.spec.template;
    let mut spec = template.kube_virt.as_ref().map(|template| Value::Object(template.spec.clone())).unwrap_or_default();
    let name = member.name_any();
    let uid = member.uid().unwrap_or_default();

    let root = object(&mut spec);
    root.insert("evictionStrategy".into(), json!("None"));
    root.insert("terminationGracePeriodSeconds".into(), json!(0));
    let image = image_volume(root);
    // Without an interface KubeVirt attaches one by itself, a bridge unless the cluster says otherwise.
    let interfaces = root.get("domain").and_then(|domain| domain.get("devices")?.get("interfaces"));
    let unconnected = is_empty_list(interfaces) && is_empty_list(root.get("networks"));
    if unconnected {
        root.insert("networks".into(), json!([{ "name": NETWORK, "pod": {} }]));
    }
    let domain = child(root, "domain");
    child(domain, "machine").insert("type".into(), json!("q35"));
    let firmware = child(domain, "firmware");
    firmware.insert("uuid".into(), json!(uid));
    // An EFI without the key means secure boot to KubeVirt, which needs SMM: it is asked for by saying so.
    child(child(firmware, "bootloader"), "efi").entry("secureBoot").or_insert(json!(false));
    let devices = child(domain, "devices");
    if unconnected {
        devices.insert("interfaces".into(), json!([{ "name": NETWORK, "masquerade": {} }]));
    }
    devices.insert("tpm".into(), json!({}));
    if let Some(disks) = devices.get_mut("disks").and_then(Value::as_array_mut) {
        for disk in disks.iter_mut() {
            if disk.get("name").and_then(Value::as_str) == image.as_deref() {
                object(disk).insert("bootOrder".into(), json!(1));
            }
        }
    }
    // Mode None proves nothing, so there is nothing to enrol with.
    if member.spec.attestation.mode == AttestationMode::Vtpm {
        push(
            devices,
            "disks",
            json!({
                "name": names::ENROLMENT_VOLUME,
                "serial": banlieue_protocol::seed::DISK_SERIAL,
                "disk": { "bus": "virtio", "readonly": true },
            }),
        );
        push(
            root,
            "volumes",
            json!({
                "name": names::ENROLMENT_VOLUME,
                "secret": {
                    "secretName": names::enrolment_secret(&name),
                    "volumeLabel": names::ENROLMENT_VOLUME,
                },
            }),
        );
    }

    let mut all_labels = template.metadata.labels.clone();
    for (key, value) in [
        (labels::POOL, pool.name_any()),
        (labels::REVISION, member.spec.revision.clone()),
        (labels::MEMBER, name.clone()),
        (labels::MEMBER_UID, uid),
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE.to_owned()),
    ] {
        all_labels.insert(key.to_owned(), value);
    }
    json!({
        "apiVersion": kubevirt::API_VERSION,
        "kind": kubevirt::KIND,
        "metadata": {
            "name": name,
            "namespace": pool.namespace(),
            "labels": all_labels,
            "annotations": template.metadata.annotations,
            "ownerReferences": [member_owner(member)],
        },
        "spec": spec,
    })
}

/// Name of the interface and network of a template that names none.
const NETWORK: &str = "default";

fn is_empty_list(value: Option<&Value>) -> bool {
    value.and_then(Value::as_array).is_none_or(Vec::is_empty)
}

fn image_volume(spec: &Map<String, Value>) -> Option<String> {
    let volumes = spec.get("volumes")?.as_array()?;
    let image = volumes.iter().find(|volume| volume.get("containerDisk").is_some())?;
    image.get("name")?.as_str().map(str::to_owned)
}

/// The value as an object; anything else becomes an empty one (the allow-list has refused it before).
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // Made an object just above.
        _ => unreachable!(),
    }
}

fn child<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    object(map.entry(key).or_insert(Value::Null))
}

fn push(map: &mut Map<String, Value>, key: &str, item: Value) {
    match map.entry(key).or_insert(Value::Null) {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{member, pool};

    #[test]
    fn the_controller_sets_what_is_its_own() {
        let mut pool = pool("p");
        pool.spec.attestation.mode = AttestationMode::Vtpm;
        let instance = instance(&pool, &member(&pool, "p-abcde", "uid-1"));
        let spec = &instance["spec"];
        assert_eq!(spec["evictionStrategy"], "None");
        assert_eq!(spec["terminationGracePeriodSeconds"], 0);
        assert_eq!(spec["domain"]["firmware"]["uuid"], "uid-1");
        assert_eq!(spec["domain"]["firmware"]["bootloader"]["efi"]["secureBoot"], false);
        assert_eq!(spec["domain"]["devices"]["tpm"], json!({}));
        let disks = spec["domain"]["devices"]["disks"].as_array().unwrap();
        assert_eq!(disks[0]["bootOrder"], 1);
        assert_eq!(disks.last().unwrap()["serial"], "BANLIEUE-ENROL");
        let volumes = spec["volumes"].as_array().unwrap();
        assert_eq!(volumes.last().unwrap()["secret"]["secretName"], "p-abcde-enrol");
        assert_eq!(instance["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        assert_eq!(instance["metadata"]["labels"]["banlieue.io/member-uid"], "uid-1");
    }

    #[test]
    fn a_member_without_an_interface_gets_masquerade_and_no_bridge() {
        let mut pool = pool("p");
        let masquerade = json!([{"name": "default", "masquerade": {}}]);
        for absent in [None, Some(json!([]))] {
            let spec = &mut pool.spec.template.kube_virt.as_mut().unwrap().spec;
            if let Some(absent) = absent {
                spec["domain"]["devices"]["interfaces"] = absent.clone();
                spec.insert("networks".into(), absent);
            }
            let instance = instance(&pool, &member(&pool, "p-abcde", "uid-1"));
            assert_eq!(instance["spec"]["domain"]["devices"]["interfaces"], masquerade);
            assert_eq!(instance["spec"]["networks"], json!([{"name": "default", "pod": {}}]));
        }
        let spec = &mut pool.spec.template.kube_virt.as_mut().unwrap().spec;
        let own = json!([{"name": "mine", "masquerade": {}, "model": "virtio"}]);
        spec["domain"]["devices"]["interfaces"] = own.clone();
        spec.insert("networks".into(), json!([{"name": "mine", "pod": {}}]));
        let instance = instance(&pool, &member(&pool, "p-abcde", "uid-1"));
        assert_eq!(instance["spec"]["domain"]["devices"]["interfaces"], own);
        assert_eq!(instance["spec"]["networks"], json!([{"name": "mine", "pod": {}}]));
    }

    #[test]
    fn mode_none_has_no_seed() {
        let pool = pool("p");
        let instance = instance(&pool, &member(&pool, "p-abcde", "uid-1"));
        assert_eq!(instance["spec"]["volumes"].as_array().unwrap().len(), 1);
        assert_eq!(instance["spec"]["domain"]["devices"]["disks"].as_array().unwrap().len(), 1);
    }
}
