//! What the API server itself makes of our kinds: defaults, rules, columns, subresources. No admission policy is needed
//! for any of it; they are in force here all the same, so everything is written by whom it belongs to.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod api;

use api::objects::{HEX, HEX2, WHEN, claim, member, pool, report, with};
use api::{Fixture, merge, merge_status, post, refused, test};
use banlieue_cluster::Identity;
use banlieue_crds::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

#[test]
fn defaults_of_the_api_server_are_those_of_the_types() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let made = api.create(&post(), &pool("p")).await.unwrap();
        // Reading the short form into the type fills the same defaults in as the API server did.
        assert_eq!(made.spec, pool("p").spec);

        let claims: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let stored = serde_json::to_value(claims.create(&post(), &claim("c")).await.unwrap().spec).unwrap();
        assert_eq!(stored, serde_json::to_value(claim("c").spec).unwrap());
        assert_eq!(stored["bindDeadlineSeconds"], 60);
    });
}

#[test]
fn raw_objects_get_their_defaults() {
    test(async |at: Fixture| {
        let client = at.client(Identity::PoolAuthor).await;
        let body = json!({
            "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachinePool", "metadata": { "name": "p" },
            "spec": { "maxReplicas": 1, "warmReplicas": null, "template": { "kata": { "podTemplate": {} } },
                      "attestation": { "mode": "Pod", "measurements": null } }
        });
        let path = format!("/apis/banlieue.io/v1alpha1/namespaces/{}/virtualmachinepools", at.namespace);
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&body).unwrap())
            .unwrap();
        let made: Value = client.request(request).await.unwrap();
        let spec = &made["spec"];
        assert_eq!(spec["warmReplicas"], 1, "an explicit null counts as not set");
        assert_eq!(spec["maxSurge"], 2);
        assert_eq!(spec["provisioningTimeoutSeconds"], 600);
        assert_eq!(spec["maxIdleSeconds"], 86400);
        assert_eq!(spec["networkPolicy"], "Managed");
        assert_eq!(spec["updateStrategy"], json!({ "type": "RollingUpdate", "maxUnavailable": 1 }));
        assert_eq!(spec["failureBudget"], json!({ "consecutive": 5, "backoffMaxSeconds": 600, "keepFailed": 1 }));
        assert_eq!(spec["claimPolicy"]["maxTtlSeconds"], 28800);
        assert_eq!(spec["attestation"]["timeoutSeconds"], 120);
        assert_eq!(spec["template"]["kata"]["runtimeClassName"], "kata");
        assert_eq!(spec["paused"], false);
    });
}

#[test]
fn bad_pools_are_refused_in_words() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let good = pool("p");
        let kata = json!({ "podTemplate": {} });
        let both = with(&good, "/spec/template/kata", kata.clone());
        let none = with(&good, "/spec/template/kubeVirt", Value::Null);
        let podded = with(&good, "/spec/attestation/mode", json!("Pod"));
        for (bad, says) in [
            (both, "template needs exactly one runtime: set either kubeVirt or kata, not both and not none"),
            (none, "template needs exactly one runtime: set either kubeVirt or kata, not both and not none"),
            (
                with(&good, "/spec/maxReplicas", json!(1)),
                "maxReplicas must be at least warmReplicas: raise maxReplicas or lower warmReplicas",
            ),
            (
                with(&good, "/spec/attestation/measurements", Value::Null),
                "attestation.mode VTPM needs measurements: name the ConfigMap",
            ),
            (podded, "attestation.mode Pod is for kata templates"),
            (
                with(&good, "/spec/autoscaling", json!({ "minWarm": 3, "maxWarm": 2 })),
                "autoscaling.maxWarm must be at least minWarm",
            ),
            (
                with(&good, "/spec/autoscaling", json!({ "minWarm": 1, "maxWarm": 9 })),
                "autoscaling.maxWarm must not exceed maxReplicas",
            ),
            (with(&good, "/spec/maxSurge", json!(0)), "spec.maxSurge in body should be greater than or equal to 1"),
            (
                with(&good, "/spec/attestation/measurements/sha256", json!("beef")),
                "sha256 is 64 lower-case hex digits without a prefix: what `sha256sum measurements.yaml` prints",
            ),
            (
                with(&good, "/spec/attestation/measurements/sha256", json!(format!("sha256:{HEX}"))),
                "spec.attestation.measurements.sha256: Invalid value: sha256 is 64 lower-case hex digits",
            ),
            (
                with(&good, "/spec/attestation/revoked", json!([{ "digest": HEX.to_uppercase(), "reason": "r" }])),
                "a revoked digest is 64 lower-case hex digits without a prefix",
            ),
            (
                with(&good, "/spec/claimPolicy/allowedImages", json!(["a*b"])),
                "spec.claimPolicy.allowedImages: Invalid value: an entry of allowedImages is a whole image, or its beginning",
            ),
            (with(&good, "/spec/claimPolicy/allowedImages", json!([""])), "an entry of allowedImages is a whole image"),
            (
                with(&good, "/spec/claimPolicy/allowedImages", json!(["a b"])),
                "an entry of allowedImages is a whole image",
            ),
            (with(&good, "/spec/claimPolicy/allowedImages", json!(["a", "a"])), "Duplicate value"),
        ] {
            refused(api.create(&post(), &bad).await, says);
        }
        api.create(&post(), &good).await.unwrap();
        for (patch, says) in [
            (
                json!({ "spec": { "warmReplicas": -1 } }),
                "spec.warmReplicas in body should be greater than or equal to 0",
            ),
            (json!({ "spec": { "maxReplicas": -1 } }), "spec.maxReplicas in body should be greater than or equal to 0"),
            (json!({ "spec": { "claimPolicy": { "maxTtlSeconds": 0 } } }), "spec.claimPolicy.maxTtlSeconds"),
            (
                json!({ "spec": { "attestation": { "mode": "vtpm" } } }),
                "Unsupported value: \"vtpm\": supported values: \"VTPM\", \"Pod\", \"None\"",
            ),
            (json!({ "spec": { "maxReplicas": null } }), "spec.maxReplicas: Required value"),
            (json!({ "spec": { "attestation": { "mode": "None" } } }), "attestation.mode is immutable"),
            (
                json!({ "spec": { "attestation": { "endorsement": "FirstUse" } } }),
                "attestation.endorsement never gets weaker",
            ),
        ] {
            refused(merge(&api, "p", patch).await, says);
        }
    });
}

#[test]
fn the_scale_subresource_writes_warm_replicas_within_the_cap() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        api.create(&post(), &pool("p")).await.unwrap();
        let status = json!({ "warm": 2, "replicas": 3, "selector": "banlieue.io/pool=p" });
        let controller: Api<VirtualMachinePool> = at.api(Identity::Controller).await;
        merge_status(&controller, "p", status).await.unwrap();
        let scale = api.get_scale("p").await.unwrap();
        assert_eq!(scale.spec.unwrap().replicas, Some(2));
        let status = scale.status.unwrap();
        assert_eq!((status.replicas, status.selector.as_deref()), (2, Some("banlieue.io/pool=p")));
        let to = |n: i32| Patch::Merge(json!({ "spec": { "replicas": n } }));
        api.patch_scale("p", &PatchParams::default(), &to(4)).await.unwrap();
        assert_eq!(api.get("p").await.unwrap().spec.warm_replicas, 4);
        refused(api.patch_scale("p", &PatchParams::default(), &to(5)).await, "raise maxReplicas or lower warmReplicas");
        refused(api.patch_scale("p", &PatchParams::default(), &to(-1)).await, "greater than or equal to 0");
    });
}

/// Whoever may write a pool must not stop every reader of pools, nor fill its memory.
#[test]
fn a_template_holds_what_its_schema_knows_and_nothing_deep() {
    test(async |at: Fixture| {
        let client = at.client(Identity::PoolAuthor).await;
        let nested = (0..200).fold(String::from("1"), |inner, _| format!("{{\"a\":{inner}}}"));
        let text = serde_json::to_string(&pool("deep")).unwrap();
        let post = |validation: &str, text: &str| {
            let path = format!(
                "/apis/banlieue.io/v1alpha1/namespaces/{}/virtualmachinepools?fieldValidation={validation}",
                at.namespace
            );
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(text.as_bytes().to_vec()).unwrap();
            let client = client.clone();
            async move { client.request_text(request).await }
        };
        for (n, at) in ["\"affinity\":", "\"tolerations\":", "\"unknown\":"].into_iter().enumerate() {
            let value = if at.contains("tolerations") { format!("[{nested}]") } else { nested.clone() };
            let bad = text.replace("\"domain\":", &format!("{at}{value},\"domain\":"));
            let bad = bad.replace("\"deep\"", &format!("\"deep-{n}\""));
            assert_ne!(bad, text);
            let refusal = post("Strict", &bad).await.unwrap_err().to_string();
            assert!(refusal.contains("unknown field \"spec.template.kubeVirt.spec."), "{refusal}");
            // A client that does not ask for strictness gets a pool without it.
            let kept = post("Ignore", &bad).await.unwrap();
            assert!(!kept.contains("\"a\":{\"a\""), "{kept}");
        }
        let kata = r#"{"podTemplate":{"spec":{"containers":[]}}}"#;
        let bad = text.replace(r#""kubeVirt":{"spec":{"domain":{"devices":{}}}}"#, &format!(r#""kata":{kata}"#));
        assert!(bad.contains("podTemplate"));
        assert!(!post("Ignore", &bad.replace("\"deep\"", "\"kata\"")).await.unwrap().contains("containers\":[]}}"));
        // All of them are there, and everybody reads them.
        let pools: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        assert_eq!(pools.list(&Default::default()).await.unwrap().items.len(), 4);
    });
}

#[test]
fn what_the_controller_refuses_by_name_reaches_it() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let spec = json!({
            "domain": { "devices": { "tpm": {}, "hostDevices": [{ "name": "x", "deviceName": "gpu" }] } },
            "volumes": [{ "name": "s", "secret": { "secretName": "s" } }],
            "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "a": "b" } } },
            ] } },
        });
        let made = api.create(&post(), &with(&pool("p"), "/spec/template/kubeVirt/spec", spec.clone())).await.unwrap();
        let kept = serde_json::to_value(made.spec.template.kube_virt.unwrap().spec).unwrap();
        assert_eq!(kept["affinity"], spec["affinity"]);
        assert_eq!(kept["domain"]["devices"], json!({ "tpm": {}, "hostDevices": [{}] }));
        assert_eq!(kept["volumes"], json!([{ "name": "s", "secret": {} }]));
        let feature = |name: &str| json!({ "domain": { "cpu": { "features": [{ "name": name }] } } });
        let bad = with(&pool("q"), "/spec/template/kubeVirt/spec", feature("x' injected='1"));
        refused(api.create(&post(), &bad).await, "spec.template.kubeVirt.spec.domain.cpu.features[0].name");
    });
}

#[test]
fn names_of_pools_leave_room_for_their_members() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        api.create(&post(), &pool(&"a".repeat(57))).await.unwrap();
        let says = "the name of a pool has at most 57 characters";
        refused(api.create(&post(), &pool(&"a".repeat(58))).await, says);
    });
}

#[test]
fn what_a_workload_is_told_is_bounded_as_a_whole() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let args = |count: usize| with(&claim("c"), "/spec/workload/args", json!(vec!["x".repeat(4096); count]));
        let says = "args and env together have at most 65536 characters";
        refused(api.create(&post(), &args(17)).await, says);
        let variable = json!([{ "name": "A", "value": "x" }]);
        refused(api.create(&post(), &with(&args(16), "/spec/workload/env", variable)).await, says);
        api.create(&post(), &args(16)).await.unwrap();
    });
}

#[test]
fn a_member_keeps_pool_revision_and_claim() {
    test(async |at: Fixture| {
        let api: Api<PoolMember> = at.api(Identity::Controller).await;
        api.create(&post(), &member("m")).await.unwrap();
        for (patch, says) in [
            (json!({ "spec": { "poolRef": { "name": "q" } } }), "poolRef is immutable: a member stays in the pool"),
            (json!({ "spec": { "poolRef": { "uid": "q" } } }), "poolRef is immutable"),
            (json!({ "spec": { "revision": "r2" } }), "revision is immutable: delete the member"),
        ] {
            refused(merge(&api, "m", patch).await, says);
        }
        merge(&api, "m", json!({ "spec": { "claimRef": { "name": "c", "uid": "1" } } })).await.unwrap();
        let says = "claimRef is set once and never changed or removed";
        for claim_ref in [json!({ "uid": "2" }), json!({ "name": "d" }), Value::Null] {
            refused(merge(&api, "m", json!({ "spec": { "claimRef": claim_ref } })).await, says);
        }
        // A whole replacement without the field is a removal too.
        let bound = api.get("m").await.unwrap();
        refused(api.replace("m", &post(), &with(&bound, "/spec/claimRef", Value::Null)).await, says);
        // Everything else may still change: the binder's label, the finalizer.
        merge(&api, "m", json!({ "metadata": { "labels": { "banlieue.io/state": "bound" } } })).await.unwrap();
    });
}

#[test]
fn write_once_fields_of_a_members_status() {
    test(async |at: Fixture| {
        let controller: Api<PoolMember> = at.api(Identity::Controller).await;
        let plugin: Api<PoolMember> = at.api(Identity::AttestorPlugin).await;
        controller.create(&post(), &member("m")).await.unwrap();
        let instance =
            json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "m", "uid": "1" });
        merge_status(
            &controller,
            "m",
            json!({ "phase": "Booting", "instanceRef": instance, "enrolment": { "seedDigest": HEX } }),
        )
        .await
        .unwrap();
        let endorsement = json!({ "source": "HostReported", "ekDigest": HEX, "pinnedAt": WHEN });
        merge_status(&plugin, "m", json!({ "endorsement": endorsement, "enrolment": { "consumedAt": WHEN } }))
            .await
            .unwrap();
        // Writing the same again is no change.
        merge_status(&plugin, "m", json!({ "endorsement": endorsement })).await.unwrap();
        let once = "is set once and never changed or removed";
        for status in [
            json!({ "instanceRef": { "uid": "2" } }),
            json!({ "instanceRef": null }),
            json!({ "enrolment": { "seedDigest": HEX2 } }),
            json!({ "enrolment": { "seedDigest": null } }),
        ] {
            refused(merge_status(&controller, "m", status).await, once);
        }
        for (status, says) in [
            (json!({ "endorsement": { "ekDigest": HEX2 } }), "is pinned once and never changed or removed"),
            (json!({ "endorsement": { "source": "FirstUse" } }), "is pinned once and never changed or removed"),
            (json!({ "endorsement": null }), "is pinned once and never changed or removed"),
            (json!({ "enrolment": { "consumedAt": null } }), once),
            (json!({ "enrolment": { "consumedAt": "2027-01-01T00:00:00Z" } }), once),
        ] {
            refused(merge_status(&plugin, "m", status).await, says);
        }
        // Dropping the status as a whole is no way around.
        refused(
            controller.patch_status("m", &PatchParams::default(), &Patch::Merge(json!({ "status": null }))).await,
            once,
        );
    });
}

#[test]
fn a_claims_spec_is_fixed_but_for_a_growing_ttl() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        api.create(&post(), &claim("c")).await.unwrap();
        for (spec, says) in [
            (
                json!({ "poolRef": { "name": "q" } }),
                "poolRef is immutable: delete this claim and create one on the other pool",
            ),
            (json!({ "subject": { "id": "bob" } }), "subject is immutable"),
            (json!({ "subject": { "azp": "agent" } }), "subject is immutable"),
            (json!({ "ttlSeconds": 3599 }), "ttlSeconds may only grow: delete the claim to end it earlier"),
            (json!({ "bindDeadlineSeconds": 61 }), "bindDeadlineSeconds is immutable"),
            (json!({ "whenEmpty": "Fail" }), "whenEmpty is immutable"),
            (json!({ "priority": 1 }), "priority is immutable"),
            (json!({ "audiences": [] }), "audiences are immutable"),
            (json!({ "workload": { "image": "r/y:1" } }), "workload is immutable"),
            (json!({ "workload": { "env": [{ "name": "A", "value": "b" }] } }), "workload is immutable"),
            (json!({ "workload": { "resources": { "pids": 3 } } }), "workload is immutable"),
            (json!({ "retentionSeconds": 1 }), "retentionSeconds is immutable"),
        ] {
            refused(merge(&api, "c", json!({ "spec": spec })).await, says);
        }
        let longer = merge(&api, "c", json!({ "spec": { "ttlSeconds": 3601 } })).await.unwrap();
        assert_eq!(longer.spec.ttl_seconds, 3601);
    });
}

/// Every pair of phases, so that a hole in the rule shows.
#[test]
fn a_claims_phase_only_moves_forward() {
    test(async |at: Fixture| {
        let broker: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let api: Api<VirtualMachineClaim> = at.api(Identity::Controller).await;
        let bound = json!({ "memberRef": { "name": "m", "uid": "1" }, "boundAt": WHEN, "expiresAt": WHEN });
        let phase = |phase: &str| {
            let mut status = bound.clone();
            status["phase"] = json!(phase);
            status
        };
        let way = |to: &str| match to {
            "Pending" => vec!["Pending"],
            "Bound" => vec!["Bound"],
            "Failed" => vec!["Failed"],
            "Releasing" => vec!["Bound", "Releasing"],
            _ => vec!["Bound", "Releasing", "Released"],
        };
        let phases = ["Pending", "Bound", "Releasing", "Released", "Failed"];
        for from in phases {
            let name = format!("c-{}", from.to_lowercase());
            for to in phases {
                let allowed = from == to
                    || from == "Pending"
                    || (from, to) == ("Bound", "Releasing")
                    || (from == "Releasing" && ["Released", "Failed"].contains(&to));
                broker.create(&post(), &claim(&name)).await.unwrap();
                for step in way(from) {
                    merge_status(&api, &name, phase(step)).await.unwrap();
                }
                let moved = merge_status(&api, &name, phase(to)).await;
                if allowed {
                    moved.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
                } else {
                    refused(moved, "status.phase only moves forward");
                    refused(
                        merge_status(&api, &name, json!({ "phase": null })).await,
                        "status.phase only moves forward",
                    );
                }
                api.delete(&name, &DeleteParams::default()).await.unwrap();
            }
        }
    });
}

#[test]
fn write_once_fields_of_a_claims_status() {
    test(async |at: Fixture| {
        let broker: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let api: Api<VirtualMachineClaim> = at.api(Identity::Controller).await;
        broker.create(&post(), &claim("c")).await.unwrap();
        refused(
            merge_status(&api, "c", json!({ "phase": "Bound" })).await,
            "a claim is Bound only together with memberRef",
        );
        let bound =
            json!({ "phase": "Bound", "memberRef": { "name": "m", "uid": "1" }, "boundAt": WHEN, "expiresAt": WHEN });
        merge_status(&api, "c", bound).await.unwrap();
        for status in [json!({ "memberRef": { "uid": "2" } }), json!({ "memberRef": null }), json!({ "boundAt": null })]
        {
            refused(merge_status(&api, "c", status).await, "is set once and never changed or removed");
        }
        // The deadline moves when ttlSeconds grew.
        merge_status(&api, "c", json!({ "expiresAt": "2027-01-01T00:00:00Z" })).await.unwrap();
        merge_status(&api, "c", json!({ "phase": "Releasing", "terminationReason": "Expired" })).await.unwrap();
        merge_status(&api, "c", json!({ "phase": "Released", "terminationReason": "Expired" })).await.unwrap();
        for reason in [json!("Released"), Value::Null] {
            refused(
                merge_status(&api, "c", json!({ "terminationReason": reason })).await,
                "status.terminationReason of an ended claim never changes",
            );
        }
        refused(
            merge_status(&api, "c", json!({ "terminationReason": "Because" })).await,
            "Unsupported value: \"Because\"",
        );
    });
}

#[test]
fn hostile_claims_are_bounded() {
    test(async |at: Fixture| {
        let api: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let good = claim("c");
        for (pointer, value, says) in [
            ("/spec/workload/image", json!(""), "spec.workload.image in body should be at least 1 chars long"),
            ("/spec/workload/image", json!("x".repeat(513)), "spec.workload.image: Too long"),
            ("/spec/workload/args", json!(vec!["x"; 257]), "spec.workload.args: Too many"),
            ("/spec/workload/args", json!(["x".repeat(4097)]), "spec.workload.args[0]: Too long"),
            ("/spec/workload/args", json!(vec!["x".repeat(3500); 19]), "together have at most 65536 characters"),
            (
                "/spec/workload/env",
                json!([{ "name": "A=B" }]),
                "the name of a variable is letters, digits and underscores",
            ),
            (
                "/spec/workload/env",
                json!([{ "name": "" }]),
                "the name of a variable is letters, digits and underscores",
            ),
            ("/spec/workload/env", json!([{ "name": "A" }, { "name": "A" }]), "Duplicate value"),
            (
                "/spec/workload/resources",
                json!({ "cpu": "-1" }),
                "spec.workload.resources.cpu: Invalid value: cpu is a number",
            ),
            ("/spec/workload/resources", json!({ "memory": "abc" }), "512Mi or 2G"),
            ("/spec/workload/resources", json!({ "memory": "" }), "512Mi or 2G"),
            ("/spec/audiences", json!(vec!["a"; 33]), "spec.audiences: Too many"),
            ("/spec/subject/issuer", json!(""), "spec.subject.issuer"),
            ("/spec/subject/id", json!("x".repeat(513)), "spec.subject.id: Too long"),
            ("/spec/ttlSeconds", json!(0), "spec.ttlSeconds in body should be greater than or equal to 1"),
        ] {
            refused(api.create(&post(), &with(&good, pointer, value)).await, says);
        }
        // The largest claim that the bounds allow is within the API server's budget for our rules.
        let large = with(&good, "/spec/workload/args", json!(vec!["x".repeat(256); 256]));
        api.create(&post(), &large).await.unwrap();
        merge(&api, "c", json!({ "spec": { "ttlSeconds": 3601 } })).await.unwrap();
    });
}

#[test]
fn a_report_is_named_after_what_it_says_and_stays() {
    test(async |at: Fixture| {
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(at.cluster.admin());
        let node = serde_json::from_value(json!({ "metadata": { "name": "rules-1" } })).unwrap();
        nodes.create(&post(), &node).await.unwrap();
        let api: Api<EndorsementReport> = at.api(Identity::NodeReporter("rules-1".into())).await;
        let good = report("rules-1");
        refused(
            api.create(&post(), &with(&good, "/metadata/name", json!("other"))).await,
            "a report must be named <spec.instanceUid>.<spec.nodeName>: change metadata.name",
        );
        for (pointer, value) in [
            ("/spec/instanceUid", json!("not a uid")),
            ("/spec/ekDigests", json!([])),
            ("/spec/ekDigests", json!(["beef"])),
            ("/spec/ekDigests", json!([HEX, HEX])),
        ] {
            refused(
                api.create(&post(), &with(&good, pointer, value)).await,
                pointer.trim_start_matches('/').replace('/', ".").as_str(),
            );
        }
        let made = api.create(&post(), &good).await.unwrap();
        let name = made.metadata.name.unwrap();
        // Nobody but the attestor controller may write reports at all; the rule holds for the cluster's admin as well.
        let admin: Api<EndorsementReport> = at.api(Identity::Admin).await;
        refused(merge(&admin, &name, json!({ "spec": { "ekDigests": [HEX2] } })).await, "a report is immutable");
        let ends: Api<EndorsementReport> = at.api(Identity::AttestorController).await;
        merge_status(&ends, &name, json!({ "endedAt": WHEN })).await.unwrap();
        for again in [Value::Null, json!("2027-01-01T00:00:00Z")] {
            refused(merge_status(&ends, &name, json!({ "endedAt": again })).await, "status.endedAt is set once");
        }
    });
}

#[test]
fn kubectl_shows_the_columns() {
    test(async |at: Fixture| {
        let author: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        author.create(&post(), &pool("p")).await.unwrap();
        let controller: Api<VirtualMachinePool> = at.api(Identity::Controller).await;
        let ready = json!({
            "type": "Ready", "status": "False", "reason": "Filling", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"
        });
        let status = json!({
            "warm": 1, "bound": 3, "provisioning": 2, "terminating": 4, "failed": 1, "pendingClaims": 7, "runtime": "KubeVirt", "currentRevision": "r1", "hitPercent": 98,
            "conditions": [ready]
        });
        merge_status(&controller, "p", status).await.unwrap();
        let client = at.client(Identity::PoolAuthor).await;
        let table = |plural: &str| {
            let path = format!("/apis/banlieue.io/v1alpha1/namespaces/{}/{plural}", at.namespace);
            http::Request::get(path)
                .header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
                .body(vec![])
                .unwrap()
        };
        let answer: Value = client.request(table("virtualmachinepools")).await.unwrap();
        let columns: Vec<_> =
            answer["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(
            columns,
            [
                "Name",
                "Desired",
                "Max",
                "Warm",
                "Bound",
                "Pending",
                "Reason",
                "Age",
                "Provisioning",
                "Attesting",
                "Terminating",
                "Failed",
                "Revision",
                "Hit%",
                "Runtime"
            ]
        );
        let wide: Vec<_> = answer["columnDefinitions"].as_array().unwrap().iter().map(|c| c["priority"] == 1).collect();
        assert_eq!(wide, [[false; 8].as_slice(), &[true; 7]].concat());
        let cells = answer["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(cells[..7], json!(["p", 2, 4, 1, 3, 7, "Filling"]).as_array().unwrap()[..]);
        assert_eq!(cells[8..], json!([2, 0, 4, 1, "r1", 98, "KubeVirt"]).as_array().unwrap()[..]);

        // Why a claim waits and why it ended stand in one column.
        let claims: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        claims.create(&post(), &claim("c")).await.unwrap();
        let bound = json!({
            "type": "Bound", "status": "False", "reason": "PoolNotFound", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"
        });
        let writer: Api<VirtualMachineClaim> = at.api(Identity::Controller).await;
        merge_status(&writer, "c", json!({ "phase": "Pending", "queuePosition": 3, "conditions": [bound] }))
            .await
            .unwrap();
        let answer: Value = client.request(table("virtualmachineclaims")).await.unwrap();
        let columns: Vec<_> =
            answer["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(columns, ["Name", "Phase", "Pool", "Member", "Subject", "Expires", "Reason", "Age", "Place"]);
        let cells = answer["rows"][0]["cells"].as_array().unwrap();
        assert_eq!((&cells[1], &cells[6], &cells[8]), (&json!("Pending"), &json!("PoolNotFound"), &json!(3)));
    });
}

#[test]
fn short_names_are_ours_and_not_kubevirts() {
    test(async |at: Fixture| {
        use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
        let crds: Api<CustomResourceDefinition> = Api::all(at.cluster.admin());
        for (name, short) in [
            ("virtualmachinepools.banlieue.io", "bpool"),
            ("poolmembers.banlieue.io", "bmember"),
            ("virtualmachineclaims.banlieue.io", "bclaim"),
            ("endorsementreports.banlieue.io", "bereport"),
        ] {
            let crd = crds.get(name).await.unwrap();
            let accepted = crd.status.unwrap().accepted_names.unwrap();
            assert_eq!(accepted.short_names.unwrap(), [short]);
            assert_eq!(accepted.categories.unwrap(), ["banlieue"]);
            let conditions = crds.get(name).await.unwrap().status.unwrap().conditions.unwrap();
            assert!(
                !conditions.iter().any(|c| c.type_ == "NonStructuralSchema" && c.status == "True"),
                "{conditions:?}"
            );
        }
    });
}
