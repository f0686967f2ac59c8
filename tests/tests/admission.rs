//! Who may do what: the admission policies and roles of the chart, each tried by whom it lets and by whom it stops. Here is
//! what holds for all kinds; each kind has a file of its own.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod api;
#[path = "admission/claims.rs"]
mod claims;
#[path = "admission/members.rs"]
mod members;
#[path = "admission/pools.rs"]
mod pools;
#[path = "admission/reports.rs"]
mod reports;

use api::objects::{claim, member, pool};
use api::{Fixture, eventually, no_right, post, refused, test};
use banlieue_cluster::Identity;
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A patch that sets an annotation, or takes it away with null.
fn annotate(key: &str, value: Value) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

#[test]
fn every_policy_type_checks() {
    test(async |at: Fixture| {
        let api: Api<ValidatingAdmissionPolicy> = Api::all(at.cluster.admin());
        let names =
            ["pools", "members", "claims", "claim-limits", "endorsement-reports", "member-objects", "no-way-in"];
        for name in names {
            let name = format!("{name}.banlieue.io");
            eventually(&format!("policy {name} is type-checked"), async || {
                let policy = api.get(&name).await.unwrap();
                policy.status.is_some_and(|status| status.observed_generation == policy.metadata.generation)
            })
            .await;
            let checked = api.get(&name).await.unwrap().status.unwrap().type_checking.unwrap_or_default();
            assert_eq!(checked.expression_warnings.unwrap_or_default(), [], "{name}");
        }
    });
}

#[test]
fn a_namespace_with_members_can_be_deleted() {
    test(async |at: Fixture| {
        use k8s_openapi::api::core::v1::Namespace;
        at.api::<PoolMember>(Identity::Controller).await.create(&post(), &member("m")).await.unwrap();
        at.api::<VirtualMachineClaim>(Identity::Broker).await.create(&post(), &claim("c")).await.unwrap();
        at.api::<VirtualMachinePool>(Identity::PoolAuthor).await.create(&post(), &pool("p")).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(at.cluster.admin());
        namespaces.delete(&at.namespace, &DeleteParams::default()).await.unwrap();
        eventually("the namespace controller emptied and removed the namespace", async || {
            namespaces.get_opt(&at.namespace).await.unwrap().is_none()
        })
        .await;
    });
}

#[test]
fn nobody_enters_a_pod_of_a_pool_namespace() {
    test(async |at: Fixture| {
        let admin = at.cluster.admin();
        let attempt = async |namespace: &str, what: &str| {
            let path = format!("/api/v1/namespaces/{namespace}/pods/none/{what}");
            admin.request_text(http::Request::post(path).body(vec![]).unwrap()).await
        };
        let ways = ["exec?command=ls", "attach?stdin=true", "portforward?ports=22", "proxy/"];
        at.api::<VirtualMachinePool>(Identity::PoolAuthor).await.create(&post(), &pool("p")).await.unwrap();
        let says = "holds the pool p: its members cannot be entered or moved";
        eventually("the pool is known to the policy", async || {
            matches!(attempt(&at.namespace, ways[0]).await, Err(kube::Error::Api(status)) if status.code == 403)
        })
        .await;
        for way in ways {
            refused(attempt(&at.namespace, way).await, says);
            // Where no pool is, the policy has no say: the pod is looked for.
            let answer = attempt("default", way).await;
            assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 404), "{answer:?}");
        }
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(admin.clone(), &at.namespace);
        let pod = json!({ "metadata": { "name": "launcher" }, "spec": { "containers": [{ "name": "c", "image": "i" }], "automountServiceAccountToken": false } });
        eventually("the namespace's service account is there", async || {
            pods.create(&post(), &serde_json::from_value(pod.clone()).unwrap()).await.is_ok()
        })
        .await;
        let debug = Patch::Strategic(json!({ "spec": { "ephemeralContainers": [{ "name": "d", "image": "i" }] } }));
        refused(pods.patch_ephemeral_containers("launcher", &PatchParams::default(), &debug).await, says);
    });
}

#[test]
fn secrets_are_read_in_pool_namespaces_and_by_name_only() {
    test(async |at: Fixture| {
        let lists = kube::api::ListParams::default();
        for who in [Identity::Controller, Identity::AttestorPlugin, Identity::Broker] {
            let here: Api<Secret> = at.api(who.clone()).await;
            no_right(here.list(&lists).await);
            assert!(here.get_opt("none").await.unwrap().is_none());
            let elsewhere: Api<Secret> = Api::namespaced(at.client(who.clone()).await, "kube-system");
            no_right(elsewhere.get("none").await);
        }
        for who in [
            Identity::AttestorController,
            Identity::NodeReporter("sec-1".into()),
            Identity::PoolAuthor,
            Identity::Alice,
            Identity::Operator,
        ] {
            if let Identity::NodeReporter(node) = &who {
                let nodes: Api<Node> = Api::all(at.cluster.admin());
                nodes
                    .create(&post(), &serde_json::from_value(json!({ "metadata": { "name": node } })).unwrap())
                    .await
                    .unwrap();
            }
            no_right(at.api::<Secret>(who).await.get("none").await);
        }
    });
}

/// The chart's policies, bound once more with parameters that do not exist, to this namespace alone.
#[test]
fn missing_parameters_deny_what_is_ours_and_nothing_else() {
    test(async |at: Fixture| {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(at.cluster.admin());
        for policy in ["pools", "members", "claims", "endorsement-reports", "member-objects"] {
            let name = format!("{policy}.banlieue.io");
            let chart = bindings.get(&name).await.unwrap();
            let mut spec = chart.spec.unwrap();
            let params = spec.param_ref.as_mut().unwrap();
            assert_eq!(params.parameter_not_found_action.as_deref(), Some("Deny"), "{name}");
            params.name = Some("nowhere".into());
            let here =
                json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": at.namespace } } });
            spec.match_resources = Some(serde_json::from_value(here).unwrap());
            let metadata = ObjectMeta { name: Some(format!("{policy}-{}", at.namespace)), ..ObjectMeta::default() };
            let binding = ValidatingAdmissionPolicyBinding { metadata, spec: Some(spec) };
            bindings.create(&post(), &binding).await.unwrap();
        }
        let attempt = PostParams { dry_run: true, ..post() };
        let says = "no params found for policy binding with `Deny` parameterNotFoundAction";
        let pools: Api<VirtualMachinePool> = at.api(Identity::PoolAuthor).await;
        let members: Api<PoolMember> = at.api(Identity::Controller).await;
        let claims: Api<VirtualMachineClaim> = at.api(Identity::Broker).await;
        let secrets: Api<Secret> = at.api(Identity::Controller).await;
        let ours = json!({ "metadata": { "name": "x", "labels": { "banlieue.io/pool": "p" } } });
        let ours: Secret = serde_json::from_value(ours).unwrap();
        // The API server takes bindings up in any order.
        eventually("each binding without parameters denies", async || {
            says_so(pools.create(&attempt, &pool("p")).await, says)
                && says_so(members.create(&attempt, &member("m")).await, says)
                && says_so(claims.create(&attempt, &claim("c")).await, says)
                && says_so(secrets.create(&attempt, &ours).await, says)
        })
        .await;
        // The rest of the cluster goes on, and the parameters can be put back.
        let foreign = json!({ "metadata": { "name": "x" } });
        secrets.create(&attempt, &serde_json::from_value(foreign).unwrap()).await.unwrap();
    });
}

/// Whether an attempt was refused in these words, for attempts that come too early as well.
fn says_so<T>(result: kube::Result<T>, says: &str) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.message.contains(says))
}
