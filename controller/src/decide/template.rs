//! The template's allow-list (`api.md`, "The template is an allow-list").
//!
//! Whoever may create a pool must not gain the namespace's secrets or the node. So nothing is forbidden by name:
//! what is not listed here is refused, with its path.

use banlieue_crds::VirtualMachinePool;
use banlieue_crds::names::{self, annotations, labels};
use banlieue_crds::pool::{AttestationMode, RuntimeKind};
use kube::ResourceExt;
use serde_json::{Map, Value};
use thiserror::Error;

/// What is wrong with a template: the field, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {message}")]
pub struct TemplateFault {
    /// Path of the field below `spec`.
    pub field: String,
    /// A sentence.
    pub message: String,
}

/// KubeVirt's judgement of a revision's instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateVerdict {
    /// Its webhooks accept it.
    Accepted,
    /// They refuse it, in these words.
    Refused {
        /// KubeVirt's words.
        message: String,
        /// When to ask again: what the refusal is about may be outside the pool.
        ask_again: jiff::Timestamp,
    },
}

/// State of a pool's measurements document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyState {
    /// The immutable copy is there and has the right content.
    Copied,
    /// Why it is not.
    Missing {
        /// A sentence.
        message: String,
        /// `PoolSnapshot::measurements_version` when it was looked at.
        looked_at: String,
    },
}

type Check = Result<(), TemplateFault>;

/// What an operator adds to the allow-list, for every pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// What keys of labels and annotations may begin with, besides `app.kubernetes.io/`.
    pub key_prefixes: Vec<String>,
    /// PriorityClasses that members may have.
    pub priority_classes: Vec<String>,
}

/// Judges a pool's template without asking anybody.
pub fn check_template(pool: &VirtualMachinePool, allowed: &Allowed) -> Check {
    let spec = &pool.spec;
    if spec.attestation.mode == AttestationMode::None
        && pool.annotations().get(annotations::ALLOW_UNATTESTED).map(String::as_str) != Some("true")
    {
        return fault(
            "attestation.mode",
            format!("mode None needs the pool annotation {}: \"true\"", annotations::ALLOW_UNATTESTED),
        );
    }
    match spec.template.runtime() {
        Some(RuntimeKind::KubeVirt) => {}
        Some(RuntimeKind::Kata) => {
            return fault("template.kata", "Kata members are not supported yet: use template.kubeVirt");
        }
        None => return fault("template", "exactly one of kubeVirt and kata must be set"),
    }
    if spec.attestation.mode == AttestationMode::Pod {
        return fault("attestation.mode", "mode Pod is for Kata templates: use VTPM");
    }
    for key in spec.template.metadata.labels.keys() {
        metadata_key("template.metadata.labels", key, allowed)?;
    }
    for key in spec.template.metadata.annotations.keys() {
        metadata_key("template.metadata.annotations", key, allowed)?;
    }
    match &spec.template.kube_virt {
        Some(template) => kubevirt_spec(&template.spec, allowed),
        None => Ok(()),
    }
}

/// Keys that say only what something is. They reach the launcher pod, where any other may steer a network plugin, a
/// container runtime or an injector, and nobody can list those.
const DESCRIBING: &str = "app.kubernetes.io/";

fn metadata_key(field: &str, key: &str, allowed: &Allowed) -> Check {
    if key == labels::MANAGED_BY || key.starts_with(names::KEY_PREFIX) {
        return fault(field, format!("the key {key} is the controller's: remove it"));
    }
    let mut prefixes = allowed.key_prefixes.iter().map(String::as_str).chain([DESCRIBING]);
    if prefixes.any(|prefix| key.starts_with(prefix)) {
        return Ok(());
    }
    fault(
        field,
        format!(
            "the key {key} is not allowed: remove it, use one under {DESCRIBING}, or have the operator of the controller \
             allow it with --allow-template-key-prefix"
        ),
    )
}

/// What is allowed where, for the words of a refusal. What is not matched below is refused, whatever stands here.
const SPEC: [&str; 11] = [
    "domain",
    "volumes",
    "networks",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "schedulerName",
    "priorityClassName",
    "evictionStrategy",
    "terminationGracePeriodSeconds",
];
const DOMAIN: [&str; 7] = ["cpu", "memory", "machine", "resources", "features", "firmware", "devices"];
const FEATURES: [&str; 3] = ["acpi", "apic", "smm"];
const CPU: [&str; 5] = ["cores", "sockets", "threads", "model", "features"];
const DEVICES: [&str; 7] = [
    "disks",
    "interfaces",
    "tpm",
    "rng",
    "autoattachGraphicsDevice",
    "autoattachMemBalloon",
    "autoattachSerialConsole",
];

fn kubevirt_spec(spec: &Map<String, Value>, allowed: &Allowed) -> Check {
    let at = "template.kubeVirt.spec";
    for (key, value) in spec {
        let field = format!("{at}.{key}");
        match key.as_str() {
            // Scheduling.
            "nodeSelector" | "affinity" | "tolerations" | "topologySpreadConstraints" | "schedulerName" => {}
            "priorityClassName" => {
                let class = string(&field, value)?;
                if !allowed.priority_classes.iter().any(|allowed| allowed == class) {
                    let text = format!(
                        "{class} is not allowed: remove it, or have the operator of the controller allow it with \
                         --allow-priority-class"
                    );
                    return fault(field, text);
                }
            }
            "evictionStrategy" => only(&field, value, &Value::from("None"))?,
            "terminationGracePeriodSeconds" => only(&field, value, &Value::from(0))?,
            "domain" => domain(&field, object(&field, value)?)?,
            "networks" => networks(&field, array(&field, value)?)?,
            "volumes" => {}
            _ => return not_allowed(&field, &SPEC),
        }
    }
    let Some(machine) = spec.get("domain").and_then(Value::as_object) else {
        return fault(format!("{at}.domain"), "a machine is needed: set domain");
    };
    let devices = machine.get("devices").and_then(Value::as_object);
    let list = |key: &str| devices.and_then(|devices| devices.get(key)).and_then(Value::as_array);
    let disks = list("disks").map(Vec::as_slice).unwrap_or_default();
    let volumes = match spec.get("volumes") {
        Some(value) => array(&format!("{at}.volumes"), value)?.as_slice(),
        None => &[],
    };
    volumes_and_disks(at, volumes, disks)?;
    interface_and_network(at, list("interfaces"), spec.get("networks").and_then(Value::as_array))
}

fn domain(at: &str, map: &Map<String, Value>) -> Check {
    for (key, value) in map {
        let field = format!("{at}.{key}");
        match key.as_str() {
            "cpu" => cpu(&field, object(&field, value)?)?,
            "memory" => {
                keys(&field, value, &["guest", "hugepages"])?;
                if let Some(guest) = value.get("guest") {
                    quantity(&format!("{field}.guest"), guest)?;
                }
                if let Some(huge) = value.get("hugepages") {
                    let field = format!("{field}.hugepages");
                    keys(&field, huge, &["pageSize"])?;
                    if let Some(size) = huge.get("pageSize") {
                        quantity(&format!("{field}.pageSize"), size)?;
                    }
                }
            }
            "machine" => {
                keys(&field, value, &["type"])?;
                match value.get("type") {
                    None => {}
                    Some(machine) => only(&format!("{field}.type"), machine, &Value::from("q35"))?,
                }
            }
            "resources" => {
                keys(&field, value, &["requests", "limits"])?;
                for part in ["requests", "limits"] {
                    if let Some(amounts) = value.get(part) {
                        let field = format!("{field}.{part}");
                        keys(&field, amounts, &["cpu", "memory"])?;
                        for (name, amount) in object(&field, amounts)? {
                            quantity(&format!("{field}.{name}"), amount)?;
                        }
                    }
                }
            }
            "features" => {
                for (name, feature) in object(&field, value)? {
                    let field = format!("{field}.{name}");
                    if !FEATURES.contains(&name.as_str()) {
                        return not_allowed(&field, &FEATURES);
                    }
                    keys(&field, feature, &["enabled"])?;
                    if let Some(enabled) = feature.get("enabled") {
                        boolean(&format!("{field}.enabled"), enabled)?;
                    }
                }
            }
            "firmware" => firmware(&field, object(&field, value)?)?,
            "devices" => devices(&field, object(&field, value)?)?,
            _ => return not_allowed(&field, &DOMAIN),
        }
    }
    Ok(())
}

fn cpu(at: &str, map: &Map<String, Value>) -> Check {
    for (key, value) in map {
        let field = format!("{at}.{key}");
        match key.as_str() {
            "cores" | "sockets" | "threads" => {
                if value.as_u64().is_none() {
                    return fault(field, format!("must be a whole number, not {value}"));
                }
            }
            "model" => word(&field, value)?,
            "features" => {
                for (n, feature) in array(&field, value)?.iter().enumerate() {
                    let field = format!("{field}[{n}]");
                    keys(&field, feature, &["name", "policy"])?;
                    for (key, value) in object(&field, feature)? {
                        word(&format!("{field}.{key}"), value)?;
                    }
                }
            }
            _ => return not_allowed(&field, &CPU),
        }
    }
    Ok(())
}

fn firmware(at: &str, map: &Map<String, Value>) -> Check {
    for (key, value) in map {
        let field = format!("{at}.{key}");
        match key.as_str() {
            "bootloader" => {
                keys(&field, value, &["efi"])?;
                let Some(efi) = value.get("efi") else { return fault(field, "members boot by EFI: set efi") };
                let field = format!("{field}.efi");
                keys(&field, efi, &["secureBoot", "persistent"])?;
                if let Some(persistent) = efi.get("persistent") {
                    only(&format!("{field}.persistent"), persistent, &Value::from(false))?;
                }
                // KubeVirt takes a null for its own default, which is not ours.
                if let Some(secure) = efi.get("secureBoot") {
                    boolean(&format!("{field}.secureBoot"), secure)?;
                }
            }
            "uuid" => return fault(field, "the controller sets it to the member's uid: remove it"),
            _ => return not_allowed(&field, &["bootloader"]),
        }
    }
    Ok(())
}

fn devices(at: &str, map: &Map<String, Value>) -> Check {
    for (key, value) in map {
        let field = format!("{at}.{key}");
        match key.as_str() {
            "disks" => {
                for (n, disk) in array(&field, value)?.iter().enumerate() {
                    let field = format!("{field}[{n}]");
                    keys(&field, disk, &["name", "disk", "bootOrder"])?;
                    if let Some(target) = disk.get("disk") {
                        let field = format!("{field}.disk");
                        keys(&field, target, &["bus", "readonly"])?;
                        if let Some(readonly) = target.get("readonly") {
                            boolean(&format!("{field}.readonly"), readonly)?;
                        }
                    }
                }
            }
            "interfaces" => {
                for (n, interface) in array(&field, value)?.iter().enumerate() {
                    let field = format!("{field}[{n}]");
                    keys(&field, interface, &["name", "masquerade", "model", "ports"])?;
                    // Without it, and with a null, KubeVirt puts a bridge there.
                    match interface.get("masquerade") {
                        Some(masquerade @ Value::Object(_)) => keys(&format!("{field}.masquerade"), masquerade, &[])?,
                        _ => return fault(field, "the interface must be masquerade: set masquerade: {}"),
                    }
                    if let Some(model) = interface.get("model") {
                        word(&format!("{field}.model"), model)?;
                    }
                    if let Some(ports) = interface.get("ports") {
                        let field = format!("{field}.ports");
                        for (n, port) in array(&field, ports)?.iter().enumerate() {
                            keys(&format!("{field}[{n}]"), port, &["name", "protocol", "port"])?;
                        }
                    }
                }
            }
            "tpm" => {
                keys(&field, value, &["persistent"])?;
                if let Some(persistent) = value.get("persistent") {
                    only(&format!("{field}.persistent"), persistent, &Value::from(false))?;
                }
            }
            "rng" => keys(&field, value, &[])?,
            "autoattachGraphicsDevice" | "autoattachMemBalloon" | "autoattachSerialConsole" => boolean(&field, value)?,
            _ => return not_allowed(&field, &DEVICES),
        }
    }
    Ok(())
}

fn networks(at: &str, list: &[Value]) -> Check {
    for (n, network) in list.iter().enumerate() {
        let field = format!("{at}[{n}]");
        keys(&field, network, &["name", "pod"])?;
        match network.get("pod") {
            Some(pod) => keys(&format!("{field}.pod"), pod, &["vmNetworkCIDR"])?,
            None => return fault(field, "only the pod network is allowed: set pod: {}"),
        }
    }
    Ok(())
}

fn volumes_and_disks(at: &str, volumes: &[Value], disks: &[Value]) -> Check {
    let mut images = Vec::new();
    for (n, volume) in volumes.iter().enumerate() {
        let field = format!("{at}.volumes[{n}]");
        keys(&field, volume, &["name", "containerDisk", "emptyDisk"])?;
        let name = name_of(volume);
        if name == names::ENROLMENT_VOLUME {
            return fault(format!("{field}.name"), format!("{name} is the controller's volume: use another name"));
        }
        match (volume.get("containerDisk"), volume.get("emptyDisk")) {
            (Some(disk), None) => {
                let field = format!("{field}.containerDisk");
                keys(&field, disk, &["image", "imagePullPolicy", "path"])?;
                if let Some(path) = disk.get("path")
                    && string(&format!("{field}.path"), path)?.split('/').any(|step| step == "..")
                {
                    return fault(format!("{field}.path"), "must not lead out of the image: remove the ..");
                }
                images.push(name.to_owned());
            }
            (None, Some(disk)) => {
                let field = format!("{field}.emptyDisk");
                keys(&field, disk, &["capacity"])?;
                if let Some(capacity) = disk.get("capacity") {
                    quantity(&format!("{field}.capacity"), capacity)?;
                }
            }
            _ => return fault(field, "a volume is either a containerDisk or an emptyDisk"),
        }
        if disks.iter().filter(|disk| name_of(disk) == name).count() != 1 {
            return fault(format!("{field}.name"), format!("exactly one disk must be named {name}"));
        }
    }
    let [image] = images.as_slice() else {
        return fault(format!("{at}.volumes"), "exactly one containerDisk, the image, is needed");
    };
    for (n, disk) in disks.iter().enumerate() {
        let field = format!("{at}.domain.devices.disks[{n}]");
        let name = name_of(disk);
        if !volumes.iter().any(|volume| name_of(volume) == name) {
            return fault(format!("{field}.name"), format!("there is no volume named {name}"));
        }
        if let Some(order) = disk.get("bootOrder")
            && (name != image || order != &Value::from(1))
        {
            return fault(format!("{field}.bootOrder"), "the controller sets 1 on the image disk: remove it");
        }
    }
    Ok(())
}

fn interface_and_network(at: &str, interfaces: Option<&Vec<Value>>, networks: Option<&Vec<Value>>) -> Check {
    let interfaces = interfaces.map(Vec::as_slice).unwrap_or_default();
    let networks = networks.map(Vec::as_slice).unwrap_or_default();
    match (interfaces, networks) {
        ([], []) => Ok(()),
        ([interface], [network]) if name_of(interface) == name_of(network) => Ok(()),
        ([_], [_]) => fault(format!("{at}.networks[0].name"), "interface and network must have one name"),
        _ => fault(format!("{at}.networks"), "at most one interface with its one network is allowed"),
    }
}

fn string<'a>(field: &str, value: &'a Value) -> Result<&'a str, TemplateFault> {
    value.as_str().ok_or_else(|| TemplateFault { field: field.to_owned(), message: "must be a text".into() })
}

fn boolean(field: &str, value: &Value) -> Check {
    if value.is_boolean() { Ok(()) } else { fault(field, "must be true or false, or left out") }
}

/// A word that ends in the machine's definition or on its hypervisor's command line.
fn word(field: &str, value: &Value) -> Check {
    let ordinary = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let text = string(field, value)?;
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 63 && text.chars().all(ordinary) {
        Ok(())
    } else {
        fault(
            field,
            "must be a word of at most 63 letters, digits, dots, hyphens and underscores that begins with a letter or digit",
        )
    }
}

fn name_of(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn keys(field: &str, value: &Value, allowed: &[&str]) -> Check {
    match object(field, value)?.keys().find(|key| !allowed.contains(&key.as_str())) {
        Some(key) => not_allowed(&format!("{field}.{key}"), allowed),
        None => Ok(()),
    }
}

fn only(field: &str, value: &Value, wanted: &Value) -> Check {
    if value == wanted { Ok(()) } else { fault(field, format!("must be {wanted} or left out, not {value}")) }
}

fn object<'a>(field: &str, value: &'a Value) -> Result<&'a Map<String, Value>, TemplateFault> {
    value.as_object().ok_or_else(|| TemplateFault { field: field.to_owned(), message: "must be an object".into() })
}

fn array<'a>(field: &str, value: &'a Value) -> Result<&'a Vec<Value>, TemplateFault> {
    value.as_array().ok_or_else(|| TemplateFault { field: field.to_owned(), message: "must be a list".into() })
}

fn not_allowed(field: &str, allowed: &[&str]) -> Check {
    let allowed = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
    fault(field, format!("is not allowed in a member's template: remove it; allowed in its place: {allowed}"))
}

/// A Kubernetes quantity, as a number or a text.
fn quantity(field: &str, value: &Value) -> Check {
    const UNITS: [&str; 14] = ["", "m", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E", "Ei"];
    let good = match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number >= 0.0),
        Value::String(text) => {
            let number = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
            let unit = text.get(number.len()..).unwrap_or_default();
            let digits = number.chars().filter(char::is_ascii_digit).count();
            let points = number.chars().filter(|c| *c == '.').count();
            digits > 0 && points <= 1 && digits + points == number.chars().count() && UNITS.contains(&unit)
        }
        _ => false,
    };
    if good {
        Ok(())
    } else {
        fault(
            field,
            format!("must be a quantity, a number with a unit if any, as 512Mi, 2Gi, 1.5 or 500m; not {value}"),
        )
    }
}

fn fault(field: impl Into<String>, message: impl Into<String>) -> Check {
    Err(TemplateFault { field: field.into(), message: message.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::pool;
    use serde_json::json;

    fn with(change: impl FnOnce(&mut Value)) -> Check {
        judged(change, &Allowed::default())
    }

    fn judged(change: impl FnOnce(&mut Value), allowed: &Allowed) -> Check {
        let mut pool = pool("p");
        let mut spec = Value::Object(pool.spec.template.kube_virt.clone().unwrap().spec);
        change(&mut spec);
        pool.spec.template.kube_virt.as_mut().unwrap().spec = spec.as_object().unwrap().clone();
        check_template(&pool, allowed)
    }

    #[test]
    fn an_ordinary_template_passes() {
        assert_eq!(with(|_| {}), Ok(()));
        assert_eq!(
            with(|spec| {
                spec["nodeSelector"] = json!({"a": "b"});
                spec["tolerations"] = json!([{"key": "k"}]);
                spec["evictionStrategy"] = json!("None");
                spec["domain"]["devices"]["tpm"] = json!({});
                spec["domain"]["devices"]["rng"] = json!({});
                spec["domain"]["firmware"] = json!({"bootloader": {"efi": {"secureBoot": false}}});
                spec["domain"]["devices"]["disks"][0]["bootOrder"] = json!(1);
                spec["volumes"].as_array_mut().unwrap().push(json!({"name": "w", "emptyDisk": {"capacity": "1Gi"}}));
                let disks = spec["domain"]["devices"]["disks"].as_array_mut().unwrap();
                disks.push(json!({"name": "w", "disk": {"bus": "virtio"}}));
            }),
            Ok(())
        );
    }

    #[test]
    fn everything_that_is_not_listed_is_refused_by_name() {
        type Change = fn(&mut Value);
        let cases: Vec<(Change, &str)> = vec![
            (|s| s["volumes"][0] = json!({"name": "image", "secret": {"secretName": "x"}}), "volumes[0].secret"),
            (|s| s["volumes"][0] = json!({"name": "image", "hostDisk": {"path": "/"}}), "volumes[0].hostDisk"),
            (
                |s| s["volumes"][0] = json!({"name": "image", "persistentVolumeClaim": {"claimName": "x"}}),
                "volumes[0].persistentVolumeClaim",
            ),
            (|s| s["volumes"][0] = json!({"name": "image", "serviceAccount": {}}), "volumes[0].serviceAccount"),
            (
                |s| s["volumes"][0]["containerDisk"]["imagePullSecret"] = json!("s"),
                "volumes[0].containerDisk.imagePullSecret",
            ),
            (|s| s["accessCredentials"] = json!([]), "accessCredentials"),
            (|s| s["hostname"] = json!("h"), "hostname"),
            (|s| s["evictionStrategy"] = json!("LiveMigrate"), "evictionStrategy"),
            (|s| s["terminationGracePeriodSeconds"] = json!(30), "terminationGracePeriodSeconds"),
            (|s| s["domain"]["firmware"] = json!({"kernelBoot": {}}), "domain.firmware.kernelBoot"),
            (|s| s["domain"]["firmware"] = json!({"uuid": "u"}), "domain.firmware.uuid"),
            (
                |s| s["domain"]["firmware"] = json!({"bootloader": {"efi": {"persistent": true}}}),
                "domain.firmware.bootloader.efi.persistent",
            ),
            (|s| s["domain"]["firmware"] = json!({"bootloader": {"bios": {}}}), "domain.firmware.bootloader.bios"),
            (|s| s["domain"]["devices"]["hostDevices"] = json!([]), "domain.devices.hostDevices"),
            (|s| s["domain"]["devices"]["gpus"] = json!([]), "domain.devices.gpus"),
            (|s| s["domain"]["devices"]["autoattachVSOCK"] = json!(true), "domain.devices.autoattachVSOCK"),
            (|s| s["domain"]["devices"]["filesystems"] = json!([]), "domain.devices.filesystems"),
            (|s| s["domain"]["devices"]["tpm"] = json!({"persistent": true}), "domain.devices.tpm.persistent"),
            (|s| s["domain"]["machine"] = json!({"type": "pc"}), "domain.machine.type"),
            (|s| s["domain"]["launchSecurity"] = json!({}), "domain.launchSecurity"),
            (
                |s| s["domain"]["resources"] = json!({"limits": {"nvidia.com/gpu": 1}}),
                "domain.resources.limits.nvidia.com/gpu",
            ),
            (|s| s["domain"]["devices"]["disks"][0]["serial"] = json!("x"), "disks[0].serial"),
            (|s| s["domain"]["devices"]["disks"][0]["bootOrder"] = json!(2), "disks[0].bootOrder"),
            (|s| s["domain"]["devices"]["disks"][0]["name"] = json!("other"), "volumes[0].name"),
            (
                |s| {
                    s["volumes"][0]["name"] = json!("banlieue-enrol");
                    s["domain"]["devices"]["disks"][0]["name"] = json!("banlieue-enrol");
                },
                "volumes[0].name",
            ),
            (|s| s["volumes"] = json!([]), "volumes"),
            (
                |s| {
                    s["domain"]["devices"]["interfaces"] = json!([{"name": "default", "bridge": {}}]);
                    s["networks"] = json!([{"name": "default", "pod": {}}]);
                },
                "interfaces[0].bridge",
            ),
            (
                |s| {
                    s["domain"]["devices"]["interfaces"] = json!([{"name": "default", "masquerade": {}}]);
                    s["networks"] = json!([{"name": "default", "multus": {"networkName": "x"}}]);
                },
                "networks[0].multus",
            ),
        ];
        for (change, field) in cases {
            let fault = with(change).expect_err(field);
            assert!(fault.field.ends_with(field), "{} does not name {field}", fault.field);
        }
    }

    #[test]
    fn an_absent_or_null_value_is_never_taken_for_the_wanted_one() {
        type Change = fn(&mut Value);
        let interface = |s: &mut Value, interface: Value| {
            s["domain"]["devices"]["interfaces"] = json!([interface]);
            s["networks"] = json!([{"name": "default", "pod": {}}]);
        };
        assert_eq!(with(|s| interface(s, json!({"name": "default", "masquerade": {}}))), Ok(()));
        for bad in [json!(null), json!(true), json!([]), json!("")] {
            let fault = with(|s| interface(s, json!({"name": "default", "masquerade": bad}))).unwrap_err();
            assert!(fault.message.contains("masquerade: {}"), "{fault}");
        }
        assert!(with(|s| interface(s, json!({"name": "default"}))).is_err());
        let cases: Vec<(Change, &str)> = vec![
            (|s| s["networks"] = json!([{"name": "default", "pod": null}]), "networks[0].pod"),
            (|s| s["networks"] = json!([{"name": "default"}]), "networks[0]"),
            (|s| s["networks"] = json!(null), "networks"),
            (|s| s["domain"]["devices"]["interfaces"] = json!(null), "interfaces"),
            (|s| s["domain"] = json!(null), "domain"),
            (|s| s["domain"]["devices"] = json!(null), "devices"),
            (|s| s["domain"]["machine"] = json!({"type": null}), "machine.type"),
            (|s| s["domain"]["firmware"] = json!(null), "firmware"),
            (|s| s["domain"]["firmware"] = json!({"bootloader": null}), "bootloader"),
            (|s| s["domain"]["firmware"] = json!({"bootloader": {}}), "bootloader"),
            (|s| s["domain"]["firmware"] = json!({"bootloader": {"efi": null}}), "efi"),
            (|s| s["domain"]["firmware"] = json!({"bootloader": {"efi": {"secureBoot": null}}}), "secureBoot"),
            (|s| s["domain"]["firmware"] = json!({"bootloader": {"efi": {"persistent": null}}}), "persistent"),
            (|s| s["domain"]["devices"]["tpm"] = json!(null), "tpm"),
            (|s| s["domain"]["devices"]["tpm"] = json!({"persistent": null}), "tpm.persistent"),
            (|s| s["domain"]["devices"]["autoattachSerialConsole"] = json!({"a": 1}), "autoattachSerialConsole"),
            (|s| s["domain"]["devices"]["autoattachGraphicsDevice"] = json!(null), "autoattachGraphicsDevice"),
            (|s| s["domain"]["devices"]["disks"][0]["disk"] = json!(null), "disks[0].disk"),
            (|s| s["domain"]["devices"]["disks"][0]["disk"] = json!({"readonly": null}), "disk.readonly"),
            (|s| s["domain"]["devices"]["disks"][0]["bootOrder"] = json!(null), "bootOrder"),
            (|s| s["domain"]["features"] = json!({"smm": null}), "features.smm"),
            (|s| s["domain"]["features"] = json!({"smm": {"enabled": null}}), "features.smm.enabled"),
            (|s| s["volumes"][0]["containerDisk"] = json!(null), "containerDisk"),
            (|s| s["volumes"][0] = json!({"name": "image", "emptyDisk": null}), "emptyDisk"),
            (|s| s["evictionStrategy"] = json!(null), "evictionStrategy"),
            (|s| s["terminationGracePeriodSeconds"] = json!(null), "terminationGracePeriodSeconds"),
            (|s| s["priorityClassName"] = json!(null), "priorityClassName"),
        ];
        for (change, field) in cases {
            let fault = with(change).expect_err(field);
            assert!(fault.field.ends_with(field), "{} does not name {field}", fault.field);
        }
    }

    /// The words of a refusal must not offer what is refused too.
    #[test]
    fn a_refusal_says_what_is_allowed_and_all_of_that_is() {
        for (path, allowed) in [
            ("", SPEC.as_slice()),
            ("/domain", &DOMAIN),
            ("/domain/features", &FEATURES),
            ("/domain/cpu", &CPU),
            ("/domain/devices", &DEVICES),
        ] {
            let set = |name: &str, value: Value| {
                with(|s| {
                    s["domain"]["features"] = json!({});
                    s.pointer_mut(path).unwrap()[name] = value;
                })
            };
            let refused = set("bogus", json!(null)).unwrap_err();
            assert!(refused.message.ends_with(&format!("in its place: {}", allowed.join(", "))), "{refused}");
            for name in allowed {
                if let Err(fault) = set(name, json!(null)) {
                    assert!(!fault.message.contains("is not allowed in"), "{fault}");
                }
            }
        }
        let fault = with(|s| s["volumes"][0]["secret"] = json!({})).unwrap_err();
        assert!(fault.message.ends_with("in its place: name, containerDisk, emptyDisk"), "{fault}");
    }

    #[test]
    fn a_quantity_is_one_before_anybody_is_asked() {
        type Place = fn(&mut Value) -> &mut Value;
        let places: [(Place, &str); 4] = [
            (|s| &mut s["domain"]["memory"]["guest"], "domain.memory.guest"),
            (|s| &mut s["domain"]["memory"]["hugepages"]["pageSize"], "memory.hugepages.pageSize"),
            (|s| &mut s["domain"]["resources"]["limits"]["cpu"], "resources.limits.cpu"),
            (
                |s| {
                    s["volumes"][1]["name"] = json!("x");
                    &mut s["volumes"][1]["emptyDisk"]["capacity"]
                },
                "volumes[1].emptyDisk.capacity",
            ),
        ];
        for (place, field) in places {
            let judge = |value: Value| {
                with(|s| {
                    let volume = json!({"name": "x", "emptyDisk": {}});
                    s["volumes"].as_array_mut().unwrap().push(volume);
                    s["domain"]["devices"]["disks"].as_array_mut().unwrap().push(json!({"name": "x"}));
                    *place(s) = value;
                })
            };
            for good in [json!("512Mi"), json!("2Gi"), json!("1.5"), json!("500m"), json!(2)] {
                assert_eq!(judge(good.clone()), Ok(()), "{field} {good}");
            }
            for bad in [json!("abc"), json!(""), json!("-1"), json!("1..2"), json!("1 Gi"), json!("2GB"), json!(null)] {
                let fault = judge(bad.clone()).expect_err(field);
                assert!(fault.field.ends_with(field) && fault.message.contains("512Mi"), "{fault}");
                assert!(fault.message.contains(&bad.to_string()), "{fault}");
            }
        }
    }

    #[test]
    fn words_of_the_machine_are_words_and_paths_stay_inside() {
        let feature = |name: &str, policy: &str| {
            with(|s| {
                s["domain"]["cpu"] = json!({"model": "host-model", "features": [{"name": name, "policy": policy}]})
            })
        };
        assert_eq!(feature("avx512-bf16", "require"), Ok(()));
        assert!(feature("x' injected='1", "require").unwrap_err().field.ends_with("cpu.features[0].name"));
        assert!(feature("vmx", "a b").unwrap_err().field.ends_with("cpu.features[0].policy"));
        for bad in [json!("a,b"), json!(""), json!(1), json!("x".repeat(64))] {
            assert!(with(|s| s["domain"]["cpu"]["model"] = bad).unwrap_err().field.ends_with("cpu.model"));
        }
        let path = |path: &str| with(|s| s["volumes"][0]["containerDisk"]["path"] = json!(path));
        assert_eq!(path("/disk/guest.img"), Ok(()));
        assert!(path("/../../../../etc/shadow").unwrap_err().field.ends_with("containerDisk.path"));
    }

    #[test]
    fn a_priority_class_is_the_operators_to_allow() {
        let system = |s: &mut Value| s["priorityClassName"] = json!("system-node-critical");
        let fault = with(system).unwrap_err();
        assert!(fault.message.contains("system-node-critical") && fault.message.contains("--allow-priority-class"));
        let allowed = Allowed { priority_classes: vec!["sandbox".into()], ..Allowed::default() };
        assert!(judged(system, &allowed).is_err());
        assert_eq!(judged(|s| s["priorityClassName"] = json!("sandbox"), &allowed), Ok(()));
    }

    #[test]
    fn metadata_is_an_allow_list() {
        let judge = |key: &str, allowed: &Allowed| {
            let mut annotated = pool("p");
            annotated.spec.template.metadata.annotations.insert(key.into(), "v".into());
            let mut labelled = pool("p");
            labelled.spec.template.metadata.labels.insert(key.into(), "v".into());
            let (annotation, label) = (check_template(&annotated, allowed), check_template(&labelled, allowed));
            assert_eq!(annotation.is_ok(), label.is_ok(), "{key}");
            annotation
        };
        let allowed = Allowed { key_prefixes: vec!["example.com/".into(), "team".into()], ..Allowed::default() };
        for key in [
            "hooks.kubevirt.io/hookSidecars",
            "k8s.v1.cni.cncf.io/networks",
            "v1.multus-cni.io/default-network",
            "cni.projectcalico.org/ipAddrs",
            "io.kubernetes.cri-o.Devices",
            "io.katacontainers.config.hypervisor.path",
            "vault.hashicorp.com/agent-inject",
            "linkerd.io/inject",
            "sidecar-injector",
            "app.kubernetes.io.evil/x",
            "kubernetes.io/x",
        ] {
            for allowed in [&Allowed::default(), &allowed] {
                let fault = judge(key, allowed).expect_err(key);
                assert!(fault.message.contains(key), "{fault}");
            }
        }
        assert_eq!(judge("app.kubernetes.io/name", &Allowed::default()), Ok(()));
        assert!(judge("example.com/cost", &Allowed::default()).is_err());
        assert!(judge("team", &Allowed::default()).is_err());
        assert_eq!(judge("example.com/cost", &allowed), Ok(()));
        assert_eq!(judge("team", &allowed), Ok(()));
        // Ours stay ours, whatever the operator allows.
        let all = Allowed { key_prefixes: vec!["banlieue".into(), "app".into()], ..Allowed::default() };
        for key in ["banlieue.io/state", "app.kubernetes.io/managed-by"] {
            assert!(judge(key, &all).is_err(), "{key}");
        }
    }

    #[test]
    fn mode_none_is_asked_for_twice_and_kata_comes_later() {
        let mut none = pool("p");
        none.metadata.annotations = None;
        assert_eq!(check_template(&none, &Allowed::default()).unwrap_err().field, "attestation.mode");
        let mut kata = pool("p");
        kata.spec.template.kube_virt = None;
        kata.spec.template.kata =
            serde_json::from_value(json!({"podTemplate": {}, "runtimeClassName": "kata"})).unwrap();
        assert_eq!(check_template(&kata, &Allowed::default()).unwrap_err().field, "template.kata");
    }
}
