//! Who holds rights that reach into a member: KubeVirt's subresources (console, VNC, port-forward, …), and exec, attach
//! and their kin on pods of pool namespaces.
//!
//! The chart's policies refuse their use on members; this list is for the case that a policy is absent, and for a person
//! to wonder why somebody holds them at all.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject as RbacSubject};

const KUBEVIRT: &str = "subresources.kubevirt.io";
/// Of every one of their subresources: which there are differs between KubeVirt's versions.
const MACHINES: [&str; 2] = ["virtualmachineinstances", "virtualmachines"];
/// Subresources of a pod that reach into it.
const POD: [&str; 5] = ["attach", "ephemeralcontainers", "exec", "portforward", "proxy"];

/// Verbs that open or change something. Collectors of garbage and counters of quota list and watch everything.
const VERBS: [&str; 5] = ["*", "create", "get", "patch", "update"];
/// Subresources of every kind that reach into nothing.
const HARMLESS: [&str; 3] = ["finalizers", "scale", "status"];

/// Rules by namespace (none for cluster roles) and role name.
#[derive(Debug, Default)]
pub(super) struct Rules(BTreeMap<(Option<String>, String), Vec<PolicyRule>>);

impl Rules {
    pub(super) fn insert(&mut self, namespace: Option<String>, role: &str, rules: Vec<PolicyRule>) {
        self.0.insert((namespace, role.to_owned()), rules);
    }
}

/// A role given to somebody, in a namespace or everywhere.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) namespace: Option<String>,
    pub(super) role: (Option<String>, String),
    subjects: Vec<String>,
}

impl Binding {
    pub(super) fn new(namespace: Option<String>, role: &RoleRef, subjects: &[RbacSubject]) -> Self {
        let role_namespace = if role.kind == "ClusterRole" { None } else { namespace.clone() };
        let subjects = subjects
            .iter()
            .map(|subject| match &subject.namespace {
                Some(namespace) => format!("{} {namespace}/{}", subject.kind, subject.name),
                None => format!("{} {}", subject.kind, subject.name),
            })
            .collect();
        Self { namespace, role: (role_namespace, role.name.clone()), subjects }
    }
}

/// Somebody who could reach into a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// Kind and name.
    pub(super) who: String,
    /// Where: `in namespace x` or `everywhere`.
    pub(super) place: String,
    /// Which subresources, with their resource.
    pub(super) what: Vec<String>,
}

/// Everybody who could, sorted. Of pods, only where pools are.
pub(super) fn subjects(rules: &Rules, bindings: &[Binding], pool_namespaces: &[String]) -> Vec<Subject> {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for binding in bindings {
        let here = binding.namespace.as_ref().is_none_or(|namespace| pool_namespaces.contains(namespace));
        let of_role = rules.0.get(&binding.role).into_iter().flatten();
        let what: BTreeSet<String> = of_role.flat_map(|rule| reaches(rule, here)).collect();
        if what.is_empty() {
            continue;
        }
        let place = match &binding.namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None => "everywhere".to_owned(),
        };
        for subject in &binding.subjects {
            found.entry((subject.clone(), place.clone())).or_default().extend(what.iter().cloned());
        }
    }
    found.into_iter().map(|((who, place), what)| Subject { who, place, what: what.into_iter().collect() }).collect()
}

fn reaches(rule: &PolicyRule, pods_too: bool) -> Vec<String> {
    if !rule.verbs.iter().any(|verb| VERBS.contains(&verb.as_str())) {
        return Vec::new();
    }
    let groups = rule.api_groups.as_deref().unwrap_or_default();
    let of_group = |wanted: &str| groups.iter().any(|group| group == wanted || group == "*");
    let resources = rule.resources.as_deref().unwrap_or_default();
    let mut found = Vec::new();
    for named in resources {
        // `*` is every resource and subresource, `*/x` the subresource of every resource.
        let (resource, sub) = match named.split_once('/') {
            Some((resource, sub)) => (resource, sub),
            None if named == "*" => ("*", "*"),
            None => continue,
        };
        if HARMLESS.contains(&sub) {
            continue;
        }
        let covers = |wanted: &str| resource == wanted || resource == "*";
        if of_group(KUBEVIRT) {
            found.extend(MACHINES.iter().filter(|machine| covers(machine)).map(|machine| format!("{machine}/{sub}")));
        }
        if of_group("") && pods_too && covers("pods") {
            let subs = POD.iter().filter(|reach| sub == **reach || sub == "*");
            found.extend(subs.map(|reach| format!("pods/{reach}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn subjects_are_found_through_every_kind_of_role_and_wildcard() {
        let rule = |value| vec![serde_json::from_value::<PolicyRule>(value).unwrap()];
        let of = |group: &str, resource: &str| {
            rule(json!({"apiGroups": [group], "resources": [resource], "verbs": ["get"]}))
        };
        let mut rules = Rules::default();
        rules.insert(None, "console", of(KUBEVIRT, "virtualmachineinstances/console"));
        rules.insert(None, "restart", of(KUBEVIRT, "virtualmachines/restart"));
        rules.insert(None, "root", rule(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})));
        rules.insert(Some("a".into()), "local", of(KUBEVIRT, "virtualmachineinstances/*"));
        rules.insert(None, "reader", of("kubevirt.io", "*"));
        rules.insert(None, "pods", of("", "pods"));
        rules.insert(None, "exec", of("", "pods/exec"));
        rules.insert(None, "any-exec", of("*", "*/exec"));
        rules.insert(None, "scaler", of("*", "*/scale"));
        let counting = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]});
        rules.insert(None, "counter", rule(counting));
        let to = |kind: &str, name: &str| RoleRef { kind: kind.into(), name: name.into(), ..RoleRef::default() };
        let user = |name: &str| vec![RbacSubject { kind: "User".into(), name: name.into(), ..RbacSubject::default() }];
        let bindings = [
            Binding::new(Some("a".into()), &to("ClusterRole", "console"), &user("eve")),
            Binding::new(Some("a".into()), &to("ClusterRole", "restart"), &user("eve")),
            Binding::new(Some("a".into()), &to("ClusterRole", "exec"), &user("eve")),
            Binding::new(Some("a".into()), &to("Role", "local"), &user("mallory")),
            Binding::new(None, &to("ClusterRole", "root"), &user("root")),
            Binding::new(None, &to("ClusterRole", "reader"), &user("reader")),
            Binding::new(None, &to("ClusterRole", "pods"), &user("reader")),
            Binding::new(None, &to("ClusterRole", "scaler"), &user("reader")),
            Binding::new(None, &to("ClusterRole", "counter"), &user("reader")),
            // No pools there, so nothing to reach.
            Binding::new(Some("b".into()), &to("ClusterRole", "exec"), &user("dev")),
            Binding::new(Some("b".into()), &to("Role", "local"), &user("nobody")),
            Binding::new(None, &to("ClusterRole", "any-exec"), &user("support")),
        ];
        let found = subjects(&rules, &bindings, &["a".to_owned()]);
        let told: Vec<(&str, &str, String)> =
            found.iter().map(|s| (s.who.as_str(), s.place.as_str(), s.what.join(" "))).collect();
        let pods = "pods/attach pods/ephemeralcontainers pods/exec pods/portforward pods/proxy";
        assert_eq!(
            told,
            [
                (
                    "User eve",
                    "in namespace a",
                    "pods/exec virtualmachineinstances/console virtualmachines/restart".to_owned()
                ),
                ("User mallory", "in namespace a", "virtualmachineinstances/*".to_owned()),
                ("User root", "everywhere", format!("{pods} virtualmachineinstances/* virtualmachines/*")),
                (
                    "User support",
                    "everywhere",
                    "pods/exec virtualmachineinstances/exec virtualmachines/exec".to_owned()
                ),
            ]
        );
    }
}
