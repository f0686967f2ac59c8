//! What of a KubeVirt instance's spec a template may set, field by field.

use banlieue_crds::names;
use serde_json::{Map, Value};

use super::value::{array, boolean, keys, name_of, not_allowed, object, only, quantity, string, word};
use super::{Allowed, Check, fault};

/// What is allowed where, for the words of a refusal. What is not matched below is refused, whatever stands here.
pub(super) const SPEC: [&str; 11] = [
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
pub(super) const DOMAIN: [&str; 7] = ["cpu", "memory", "machine", "resources", "features", "firmware", "devices"];
pub(super) const FEATURES: [&str; 3] = ["acpi", "apic", "smm"];
pub(super) const CPU: [&str; 5] = ["cores", "sockets", "threads", "model", "features"];
pub(super) const DEVICES: [&str; 7] = [
    "disks",
    "interfaces",
    "tpm",
    "rng",
    "autoattachGraphicsDevice",
    "autoattachMemBalloon",
    "autoattachSerialConsole",
];

pub(super) fn spec(spec: &Map<String, Value>, allowed: &Allowed) -> Check {
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
