//! The chart's plain files agree with the names in this crate, and give no program more than it should have. Whether the
//! API server thinks so too is tested in `tests/tests/admission.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

use banlieue_crds::names::{accounts, annotations, finalizers, labels};
use serde_json::Value;
use std::path::Path;

struct Document {
    file: String,
    object: Value,
}

impl Document {
    fn kind(&self) -> &str {
        self.object["kind"].as_str().unwrap()
    }

    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }
}

fn chart() -> Vec<Document> {
    let mut documents = vec![];
    for folder in ["files", "pool-namespace"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/banlieue").join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let file = path.file_name().unwrap().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).unwrap();
                let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
                documents.extend(read.into_iter().map(|object| Document { file: file.clone(), object }));
            }
        }
    }
    assert!(documents.len() > 30, "the chart's files were not found");
    documents
}

fn words<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    rule[key].as_array().into_iter().flatten().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn accounts_are_those_of_the_types() {
    let mut found: Vec<_> =
        chart().iter().filter(|it| it.kind() == "ServiceAccount").map(|it| it.name().to_owned()).collect();
    found.sort();
    let mut wanted = accounts::ALL.map(String::from).to_vec();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn no_role_is_wide() {
    for document in chart().iter().filter(|it| ["Role", "ClusterRole"].contains(&it.kind())) {
        let at = format!("{} in {}", document.name(), document.file);
        for rule in document.object["rules"].as_array().unwrap() {
            let (groups, resources, verbs) = (words(rule, "apiGroups"), words(rule, "resources"), words(rule, "verbs"));
            for list in [&groups, &resources, &verbs] {
                assert!(!list.is_empty() && !list.contains(&"*"), "{at} has a wildcard or an empty list");
            }
            for verb in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!verbs.contains(&verb), "{at} may {verb}");
            }
            assert!(!groups.contains(&"subresources.kubevirt.io"), "{at} may enter instances");
            for way_in in ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "pods/ephemeralcontainers"] {
                assert!(!resources.contains(&way_in), "{at} may use {way_in}");
            }
            if resources.contains(&"secrets") {
                assert!(!verbs.contains(&"list") && !verbs.contains(&"watch"), "{at} may read Secrets it cannot name");
                assert!(at.contains("pool-namespace"), "{at} gives Secrets outside pool namespaces");
            }
        }
    }
}

#[test]
fn nothing_with_secrets_is_bound_to_the_whole_cluster() {
    for binding in chart().iter().filter(|it| ["RoleBinding", "ClusterRoleBinding"].contains(&it.kind())) {
        let role = binding.object["roleRef"]["name"].as_str().unwrap();
        assert_ne!(role, "cluster-admin", "{}", binding.file);
        if binding.kind() == "ClusterRoleBinding" {
            assert!(!role.ends_with("-pool-namespace"), "{role} is bound everywhere in {}", binding.file);
        }
        let known = chart().iter().any(|it| ["Role", "ClusterRole"].contains(&it.kind()) && it.name() == role);
        assert!(known, "{} binds {role}, which is not there", binding.file);
        for subject in binding.object["subjects"].as_array().unwrap() {
            assert!(accounts::ALL.contains(&subject["name"].as_str().unwrap()), "{subject}");
            assert_eq!(subject["namespace"], accounts::SYSTEM_NAMESPACE);
        }
    }
}

#[test]
fn every_policy_is_bound_and_denies() {
    let chart = chart();
    let of = |kind: &str| chart.iter().filter(|it| it.kind() == kind).collect::<Vec<_>>();
    let policies = of("ValidatingAdmissionPolicy");
    assert_eq!(policies.len(), 8);
    for policy in policies {
        let at = policy.name();
        assert_eq!(policy.object["spec"]["failurePolicy"], "Fail", "{at}");
        for validation in policy.object["spec"]["validations"].as_array().unwrap() {
            let says = validation.get("message").or_else(|| validation.get("messageExpression")).unwrap_or_else(|| {
                panic!("{at} refuses without a word: {}", validation["expression"]);
            });
            assert!(
                says.as_str().unwrap().contains(':') || says.as_str().unwrap().contains("alone"),
                "{at} does not say what to do: {says}"
            );
        }
        let bindings = of("ValidatingAdmissionPolicyBinding");
        let binding = bindings.iter().find(|it| it.object["spec"]["policyName"] == at).unwrap();
        assert_eq!(binding.object["spec"]["validationActions"], serde_json::json!(["Deny"]), "{at}");
        let parameters = binding.object["spec"].get("paramRef");
        assert_eq!(parameters.is_some(), policy.object["spec"].get("paramKind").is_some(), "{at}");
        if let Some(parameters) = parameters {
            let wanted = if parameters["name"].is_string() { "Deny" } else { "Allow" };
            assert_eq!(parameters["parameterNotFoundAction"], wanted, "{at}");
        }
    }
}

/// A parameter that a policy reads and the ConfigMap lacks would deny everything, a misspelt one would know nobody.
#[test]
fn policies_read_the_parameters_that_are_there() {
    let chart = chart();
    let parameters = chart.iter().find(|it| it.name() == "banlieue-admission" && it.kind() == "ConfigMap").unwrap();
    let given: Vec<&String> = parameters.object["data"].as_object().unwrap().keys().collect();
    let mut read = vec![];
    for policy in chart.iter().filter(|it| it.kind() == "ValidatingAdmissionPolicy") {
        let text = policy.object.to_string();
        for rest in text.split("params.data.").skip(1) {
            let name: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            assert!(given.contains(&&name), "{} reads {name}", policy.name());
            read.push(name);
        }
    }
    for name in given {
        assert!(read.contains(name), "no policy reads {name}");
    }
    for account in accounts::ALL {
        let user = accounts::username(accounts::SYSTEM_NAMESPACE, account);
        assert!(parameters.object["data"].to_string().contains(&user), "{user} is not known to the policies");
    }
}

#[test]
fn policies_spell_our_keys_as_the_programs_do() {
    let text: String =
        chart().iter().filter(|it| it.kind() == "ValidatingAdmissionPolicy").map(|it| it.object.to_string()).collect();
    let known = [
        annotations::ALLOW_UNATTESTED,
        annotations::DRAIN,
        annotations::QUARANTINE,
        annotations::FORCE_RELEASE,
        labels::POOL,
        labels::STATE,
        finalizers::DESTROY,
        finalizers::DRAIN,
        finalizers::CLAIM_PROTECTION,
    ];
    for rest in text.split("banlieue.io/").skip(1) {
        let key: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let key = format!("banlieue.io/{key}");
        assert!(key == "banlieue.io/v1alpha1" || known.contains(&key.as_str()), "{key} is no key of ours");
    }
}
