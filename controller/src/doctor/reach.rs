//! Who holds rights on KubeVirt's subresources (console, VNC, port-forward, …).
//!
//! They pass by our admission policies' protection of instances as ordinary connect requests, which the chart's policy
//! refuses on members; this list is for the case that the policy is absent, and for instances that are not members.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject as RbacSubject};

const GROUP: &str = "subresources.kubevirt.io";
const RESOURCE: &str = "virtualmachineinstances";
/// Subresources that reach into an instance or change it.
const REACHING: [&str; 12] = [
    "console",
    "vnc",
    "portforward",
    "vsock",
    "usbredir",
    "filesystemlist",
    "userlist",
    "guestosinfo",
    "softreboot",
    "reset",
    "pause",
    "addvolume",
];

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
    namespace: Option<String>,
    role: (Option<String>, String),
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

/// Somebody who could reach into an instance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// Kind and name.
    pub(super) who: String,
    /// Where: `in namespace x` or `everywhere`.
    pub(super) place: String,
    /// Which subresources.
    pub(super) what: Vec<String>,
}

/// Everybody who could, sorted.
pub(super) fn subjects(rules: &Rules, bindings: &[Binding]) -> Vec<Subject> {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for binding in bindings {
        let what: BTreeSet<String> = rules.0.get(&binding.role).into_iter().flatten().flat_map(reaches).collect();
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

fn reaches(rule: &PolicyRule) -> Vec<String> {
    let groups = rule.api_groups.as_deref().unwrap_or_default();
    if rule.verbs.is_empty() || !groups.iter().any(|group| group == GROUP || group == "*") {
        return Vec::new();
    }
    let resources = rule.resources.as_deref().unwrap_or_default();
    if resources.iter().any(|resource| resource == "*" || *resource == format!("{RESOURCE}/*")) {
        return REACHING.iter().map(|sub| (*sub).to_owned()).collect();
    }
    resources
        .iter()
        .filter_map(|resource| resource.split_once('/'))
        .filter(|(resource, sub)| (*resource == RESOURCE || *resource == "*") && REACHING.contains(sub))
        .map(|(_, sub)| sub.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn subjects_are_found_through_every_kind_of_role_and_wildcard() {
        let rule = |value| vec![serde_json::from_value::<PolicyRule>(value).unwrap()];
        let mut rules = Rules::default();
        rules.insert(
            None,
            "console",
            rule(json!({"apiGroups": [GROUP], "resources": ["virtualmachineinstances/console"], "verbs": ["get"]})),
        );
        rules.insert(None, "root", rule(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})));
        rules.insert(
            Some("a".into()),
            "local",
            rule(json!({"apiGroups": [GROUP], "resources": ["virtualmachineinstances/vnc"], "verbs": ["get"]})),
        );
        rules.insert(None, "reader", rule(json!({"apiGroups": ["kubevirt.io"], "resources": ["*"], "verbs": ["get"]})));
        let to = |kind: &str, name: &str| RoleRef { kind: kind.into(), name: name.into(), ..RoleRef::default() };
        let user = |name: &str| vec![RbacSubject { kind: "User".into(), name: name.into(), ..RbacSubject::default() }];
        let bindings = [
            Binding::new(Some("a".into()), &to("ClusterRole", "console"), &user("eve")),
            Binding::new(Some("a".into()), &to("Role", "local"), &user("eve")),
            Binding::new(None, &to("ClusterRole", "root"), &user("root")),
            Binding::new(None, &to("ClusterRole", "reader"), &user("reader")),
            Binding::new(Some("b".into()), &to("Role", "local"), &user("nobody")),
        ];
        let found = subjects(&rules, &bindings);
        let who: Vec<(&str, &str)> = found.iter().map(|s| (s.who.as_str(), s.place.as_str())).collect();
        assert_eq!(who, [("User eve", "in namespace a"), ("User root", "everywhere")]);
        assert_eq!(found[0].what, ["console", "vnc"]);
        assert_eq!(found[1].what.len(), REACHING.len());
    }
}
