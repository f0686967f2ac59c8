use serde_json::Value;

use super::kubevirt::{CPU, DEVICES, DOMAIN, FEATURES, SPEC};
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
        with(|s| s["domain"]["cpu"] = json!({"model": "host-model", "features": [{"name": name, "policy": policy}]}))
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
    kata.spec.template.kata = serde_json::from_value(json!({"podTemplate": {}, "runtimeClassName": "kata"})).unwrap();
    assert_eq!(check_template(&kata, &Allowed::default()).unwrap_err().field, "template.kata");
}
