//! The schema of a template's VirtualMachineInstanceSpec, written out to its last field.
//!
//! It is what the controller's allow-list lets pass (`controller/src/decide/template/`), with bounds, and the fields
//! that people try most: those are known here only so that the controller can refuse them by name, and what they hold is
//! dropped. All else the API server drops, and tells clients that ask for strict validation, as kubectl does. Nothing is
//! kept unseen, for an object of any depth or size would reach every reader of pools. There are no defaults here: a
//! template stays as it was written.

use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// A kubevirt.io/v1 VirtualMachineInstanceSpec.
pub(super) fn instance_spec(_: &mut SchemaGenerator) -> Schema {
    let fields = [
        ("nodeSelector", map("Labels that the node must have.", 32, 63)),
        ("affinity", affinity()),
        ("tolerations", list("Taints of nodes that do not matter.", 32, toleration())),
        ("topologySpreadConstraints", list("How members spread over nodes.", 8, spread())),
        ("schedulerName", text("The scheduler.", 253)),
        ("priorityClassName", text("A PriorityClass that the operator of the controller allows.", 253)),
        ("evictionStrategy", text("`None`, which the controller sets.", 32)),
        ("terminationGracePeriodSeconds", integer("`0`, which the controller sets.")),
        ("domain", domain()),
        ("networks", list("Where the interface leads: the pod network.", 4, network())),
        ("volumes", list("What disks hold: the image, and scratch space.", 16, volume())),
        refused_list("accessCredentials"),
        refused("dnsConfig"),
        refused_text("dnsPolicy"),
        refused_text("hostname"),
        refused_text("subdomain"),
        refused("livenessProbe"),
        refused("readinessProbe"),
        refused_text("startStrategy"),
    ];
    let Value::Object(mut schema) = object("", fields) else { return Schema::default() };
    schema.remove("description");
    schema.into()
}

fn affinity() -> Value {
    let nodes = || {
        let rule = object("", [("key", text("A label of nodes.", 316)), ("operator", text("How.", 32)), values()]);
        let terms =
            [("matchExpressions", list("By label.", 16, rule.clone())), ("matchFields", list("By field.", 4, rule))];
        object("Nodes.", terms)
    };
    let weighed = |name, term: Value| {
        let weight = integer("1 to 100.");
        list("What is liked.", 16, object("", [("weight", weight), (name, term)]))
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let pods = |says| {
        object(
            says,
            [
                (required, list("What is needed.", 16, pod_term(""))),
                (preferred, weighed("podAffinityTerm", pod_term("Pods."))),
            ],
        )
    };
    let terms = list("Any of them.", 16, nodes());
    let node = object(
        "By nodes.",
        [
            (required, object("What is needed.", [("nodeSelectorTerms", terms)])),
            (preferred, weighed("preference", nodes())),
        ],
    );
    object(
        "Which nodes and neighbours are wanted.",
        [
            ("nodeAffinity", node),
            ("podAffinity", pods("Near these pods.")),
            ("podAntiAffinity", pods("Away from these pods.")),
        ],
    )
}

fn pod_term(says: &str) -> Value {
    object(
        says,
        [
            ("labelSelector", selector("Which pods.")),
            ("namespaceSelector", selector("Of which namespaces.")),
            ("namespaces", list("Of these namespaces.", 16, text("", 63))),
            ("topologyKey", text("A label of nodes: one value is one place.", 316)),
            ("matchLabelKeys", list("Labels that must be equal.", 16, text("", 316))),
            ("mismatchLabelKeys", list("Labels that must differ.", 16, text("", 316))),
        ],
    )
}

fn selector(says: &str) -> Value {
    let rule = object("", [("key", text("A label.", 316)), ("operator", text("How.", 32)), values()]);
    object(
        says,
        [("matchLabels", map("Exact labels.", 32, 63)), ("matchExpressions", list("Rules about labels.", 16, rule))],
    )
}

fn values() -> (&'static str, Value) {
    ("values", list("With these values.", 64, text("", 253)))
}

fn toleration() -> Value {
    object(
        "",
        [
            ("key", text("Key of the taint.", 316)),
            ("operator", text("`Exists` or `Equal`.", 32)),
            ("value", text("Value of the taint.", 63)),
            ("effect", text("Effect of the taint.", 32)),
            ("tolerationSeconds", integer("For how long.")),
        ],
    )
}

fn spread() -> Value {
    object(
        "",
        [
            ("maxSkew", integer("How uneven it may be.")),
            ("minDomains", integer("Fewest places.")),
            ("topologyKey", text("A label of nodes: one value is one place.", 316)),
            ("whenUnsatisfiable", text("`DoNotSchedule` or `ScheduleAnyway`.", 32)),
            ("labelSelector", selector("Which pods are counted.")),
            ("matchLabelKeys", list("Labels that must be equal.", 16, text("", 316))),
            ("nodeAffinityPolicy", text("Whether affinity counts.", 32)),
            ("nodeTaintsPolicy", text("Whether taints count.", 32)),
        ],
    )
}

fn domain() -> Value {
    let feature = |says| object(says, [("enabled", flag("Whether it is there."))]);
    let amounts = |says| object(says, [("cpu", amount("Processors.")), ("memory", amount("Bytes."))]);
    let efi = [("secureBoot", flag("Secure boot.")), ("persistent", flag("`false`."))];
    let bootloader = [("efi", object("EFI, which members boot by.", efi)), refused("bios")];
    let huge = object("Huge pages.", [("pageSize", text("Their size.", 32))]);
    let cpu_feature = [
        ("name", word("The feature.")),
        ("policy", text("`force`, `require`, `optional`, `disable` or `forbid`.", 16)),
    ];
    let cpu = [
        ("cores", integer("Cores of a socket.")),
        ("sockets", integer("Sockets.")),
        ("threads", integer("Threads of a core.")),
        ("model", word("The model.")),
        ("features", list("Features.", 64, object("", cpu_feature))),
    ];
    object(
        "The machine.",
        [
            ("cpu", object("Processors.", cpu)),
            ("memory", object("Memory.", [("guest", amount("What the guest sees.")), ("hugepages", huge)])),
            ("machine", object("Machine type.", [("type", text("`q35`.", 64))])),
            (
                "resources",
                object("Of the launcher pod.", [("requests", amounts("Requests.")), ("limits", amounts("Limits."))]),
            ),
            (
                "features",
                object("Features.", [("acpi", feature("ACPI.")), ("apic", feature("APIC.")), ("smm", feature("SMM."))]),
            ),
            (
                "firmware",
                object(
                    "Firmware.",
                    [
                        ("bootloader", object("The boot loader.", bootloader)),
                        refused_text("uuid"),
                        refused_text("serial"),
                        refused("kernelBoot"),
                    ],
                ),
            ),
            ("devices", devices()),
            refused("chassis"),
            refused("clock"),
            refused("ioThreads"),
            refused("launchSecurity"),
        ],
    )
}

fn devices() -> Value {
    let target = [("bus", text("The bus.", 32)), ("readonly", flag("Whether it cannot be written."))];
    let disk = [
        ("name", text("Name of the volume.", 63)),
        ("disk", object("A disk.", target)),
        ("bootOrder", integer("`1` on the image, which the controller sets.")),
        refused("cdrom"),
        refused("lun"),
        refused_text("serial"),
    ];
    let port =
        [("name", text("Its name.", 63)), ("protocol", text("`TCP` or `UDP`.", 8)), ("port", integer("Its number."))];
    let interface = [
        ("name", text("Name of the network.", 63)),
        ("masquerade", object("Behind the pod's address.", [])),
        ("model", word("The model.")),
        ("ports", list("Ports that are passed on; all when none is given.", 64, object("", port))),
        refused("bridge"),
        refused("binding"),
        refused("macvtap"),
        refused("passt"),
        refused("slirp"),
        refused("sriov"),
        refused_text("macAddress"),
    ];
    object(
        "Devices.",
        [
            ("disks", list("Disks, one for each volume.", 16, object("", disk))),
            ("interfaces", list("One interface.", 4, object("", interface))),
            ("tpm", object("A TPM, which the controller sets.", [("persistent", flag("`false`."))])),
            ("rng", object("A source of randomness.", [])),
            ("autoattachGraphicsDevice", flag("Whether there is a screen.")),
            ("autoattachMemBalloon", flag("Whether there is a balloon.")),
            ("autoattachSerialConsole", flag("Whether there is a serial console.")),
            ("autoattachVSOCK", flag(REFUSED)),
            ("autoattachInputDevice", flag(REFUSED)),
            refused("downwardMetrics"),
            refused_list("filesystems"),
            refused_list("gpus"),
            refused_list("hostDevices"),
            refused_list("inputs"),
            refused("sound"),
            refused("watchdog"),
        ],
    )
}

fn network() -> Value {
    let pod = [("vmNetworkCIDR", text("Addresses inside.", 64))];
    object(
        "",
        [("name", text("Name of the interface.", 63)), ("pod", object("The pod network.", pod)), refused("multus")],
    )
}

fn volume() -> Value {
    let container = [
        ("image", text("OCI image that holds the disk.", 512)),
        ("imagePullPolicy", text("When it is pulled.", 32)),
        ("path", text("Place of the disk in the image.", 512)),
        refused_text("imagePullSecret"),
    ];
    object(
        "",
        [
            ("name", text("Name of the disk.", 63)),
            ("containerDisk", object("The image.", container)),
            ("emptyDisk", object("Scratch space.", [("capacity", amount("Bytes."))])),
            refused("cloudInitConfigDrive"),
            refused("cloudInitNoCloud"),
            refused("configMap"),
            refused("dataVolume"),
            refused("downwardAPI"),
            refused("downwardMetrics"),
            refused("ephemeral"),
            refused("hostDisk"),
            refused("memoryDump"),
            refused("persistentVolumeClaim"),
            refused("secret"),
            refused("serviceAccount"),
            refused("sysprep"),
        ],
    )
}

const REFUSED: &str = "Not allowed: the controller refuses it by name, and what it holds is dropped.";

fn refused(name: &'static str) -> (&'static str, Value) {
    (name, object(REFUSED, []))
}

fn refused_list(name: &'static str) -> (&'static str, Value) {
    (name, list(REFUSED, 16, object("", [])))
}

fn refused_text(name: &'static str) -> (&'static str, Value) {
    (name, text(REFUSED, 253))
}

/// A schema with its description; items of lists have none.
fn described(says: &str, mut schema: Value) -> Value {
    if let (false, Some(map)) = (says.is_empty(), schema.as_object_mut()) {
        map.insert("description".into(), says.into());
    }
    schema
}

fn object<const N: usize>(says: &str, fields: [(&str, Value); N]) -> Value {
    let fields: Map<String, Value> = fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    described(says, json!({ "type": "object", "properties": fields }))
}

fn list(says: &str, most: u32, item: Value) -> Value {
    described(says, json!({ "type": "array", "maxItems": most, "x-kubernetes-list-type": "atomic", "items": item }))
}

fn map(says: &str, most: u32, length: u32) -> Value {
    let values = json!({ "type": "string", "maxLength": length });
    described(says, json!({ "type": "object", "maxProperties": most, "additionalProperties": values }))
}

fn text(says: &str, length: u32) -> Value {
    described(says, json!({ "type": "string", "maxLength": length }))
}

/// A word that ends in the machine's definition or on its hypervisor's command line.
fn word(says: &str) -> Value {
    described(says, json!({ "type": "string", "maxLength": 63, "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$" }))
}

fn integer(says: &str) -> Value {
    described(says, json!({ "type": "integer", "format": "int64" }))
}

fn flag(says: &str) -> Value {
    described(says, json!({ "type": "boolean" }))
}

/// A Kubernetes quantity. It has no type, being a number or a text.
fn amount(says: &str) -> Value {
    described(says, json!({ "x-kubernetes-int-or-string": true }))
}
