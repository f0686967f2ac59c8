//! A small API server: objects with versions, preconditions, finalizers, subresources, server-side apply, the
//! write-once rules of our kinds, and a log of events for each kind.

use std::collections::{BTreeMap, BTreeSet};

use banlieue_controller::api::{ApiError, Kind, Operation, Refusal, Request};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub type Name = (Kind, String, String);

/// One event of a kind's log.
#[derive(Debug, Clone)]
pub struct Logged {
    pub deleted: bool,
    pub object: Value,
}

/// One write that was done, for counting and for the invariants.
#[derive(Debug, Clone)]
pub struct Done {
    pub name: Name,
    pub verb: &'static str,
    pub before: Option<Value>,
    pub after: Option<Value>,
    /// The controller did it.
    pub by_us: bool,
}

#[derive(Default)]
pub struct Server {
    pub objects: BTreeMap<Name, Value>,
    pub nodes: BTreeMap<String, Value>,
    pub log: BTreeMap<Kind, Vec<Logged>>,
    pub node_log: Vec<Logged>,
    applied: BTreeMap<(Name, &'static str, bool), BTreeSet<String>>,
    version: u64,
    uids: u64,
    pub done: Vec<Done>,
    /// KubeVirt's webhooks refuse instances of this image.
    pub refused_image: Option<String>,
}

impl Server {
    /// Performs a call at a moment. `by_us` writes are remembered for the invariants.
    pub fn call(&mut self, request: &Request, now: Timestamp) -> Result<Value, ApiError> {
        let name = (request.kind, request.namespace.clone(), request.name.clone());
        let what = format!("{} {}/{}", request.operation.verb(), request.kind.plural(), request.name);
        match &request.operation {
            Operation::Get => self.objects.get(&name).cloned().ok_or(ApiError::NotFound { what }),
            Operation::List { labels } => {
                let (key, value) = labels.split_once('=').unwrap();
                let items: Vec<Value> = self
                    .objects
                    .iter()
                    .filter(|((kind, namespace, _), object)| {
                        *kind == request.kind
                            && *namespace == request.namespace
                            && object["metadata"]["labels"][key] == json!(value)
                    })
                    .map(|(_, object)| object.clone())
                    .collect();
                Ok(json!({ "items": items }))
            }
            Operation::Create { dry_run, .. } => {
                let body = request.body.clone().unwrap();
                if request.kind == Kind::Instance && self.refuses(&body) {
                    let message = "admission webhook denied the request: no such image".into();
                    return Err(ApiError::Refused { what, refusal: Refusal::Invalid, message });
                }
                if *dry_run {
                    return Ok(body);
                }
                if self.objects.contains_key(&name) {
                    return Err(ApiError::AlreadyExists { what });
                }
                Ok(self.insert(name, body, now))
            }
            Operation::Merge { status, .. } => {
                let before = self.current(&name, request.body.as_ref(), &what)?;
                let mut after = before.clone();
                let patch = request.body.clone().unwrap();
                merge_into(&mut after, &patch, *status);
                self.store(name, "patch", before, after, &what)
            }
            // Of the kinds that are applied, this one is made so too.
            Operation::Apply { .. } if request.kind == Kind::NetworkPolicy && !self.objects.contains_key(&name) => {
                Ok(self.insert(name, request.body.clone().unwrap(), now))
            }
            Operation::Apply { manager, status } => {
                let before = self.current(&name, request.body.as_ref(), &what)?;
                let mut after = before.clone();
                let mut body = request.body.clone().unwrap();
                let part = if *status {
                    json!({ "status": body["status"].take() })
                } else {
                    json!({ "metadata": { "labels": body["metadata"]["labels"].take() } })
                };
                let mut leaves = BTreeSet::new();
                apply_into(&mut after, &part, String::new(), &mut leaves);
                // What this manager applied before and leaves out now is removed.
                let key = (name.clone(), *manager, *status);
                for gone in self.applied.get(&key).into_iter().flatten().filter(|leaf| !leaves.contains(*leaf)) {
                    remove_leaf(&mut after, gone);
                }
                let stored = self.store(name, "patch", before, after, &what)?;
                self.applied.insert(key, leaves);
                Ok(stored)
            }
            Operation::Delete { uid, resource_version } => {
                let Some(before) = self.objects.get(&name).cloned() else { return Err(ApiError::NotFound { what }) };
                if before["metadata"]["uid"] != json!(uid)
                    || resource_version
                        .as_ref()
                        .is_some_and(|version| before["metadata"]["resourceVersion"] != json!(version))
                {
                    return Err(ApiError::Conflict { what });
                }
                Ok(self.delete(&name, now))
            }
        }
    }

    fn refuses(&self, instance: &Value) -> bool {
        self.refused_image
            .as_deref()
            .is_some_and(|image| instance["spec"]["volumes"][0]["containerDisk"]["image"] == json!(image))
    }

    fn current(&self, name: &Name, body: Option<&Value>, what: &str) -> Result<Value, ApiError> {
        let Some(before) = self.objects.get(name) else { return Err(ApiError::NotFound { what: what.into() }) };
        for field in ["uid", "resourceVersion"] {
            if let Some(wanted) = body.and_then(|body| body["metadata"].get(field))
                && *wanted != before["metadata"][field]
            {
                return Err(ApiError::Conflict { what: what.into() });
            }
        }
        Ok(before.clone())
    }

    pub fn insert(&mut self, name: Name, mut object: Value, now: Timestamp) -> Value {
        self.uids += 1;
        let number = self.uids;
        object["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{number:012x}"));
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["namespace"] = json!(name.1);
        object["metadata"]["creationTimestamp"] = json!(format!("{now:.0}"));
        if let Some(map) = object.as_object_mut() {
            map.remove("status");
        }
        if name.0 == Kind::Instance {
            object["metadata"]["finalizers"] = json!(["foregroundDeleteVirtualMachine"]);
        }
        self.put(name, "create", None, object)
    }

    /// Stores a changed object: rules, generation, version, and the end of one whose last finalizer went.
    fn store(
        &mut self,
        name: Name,
        verb: &'static str,
        before: Value,
        mut after: Value,
        what: &str,
    ) -> Result<Value, ApiError> {
        if let Err(rule) = write_once(name.0, &before, &after) {
            return Err(ApiError::Refused { what: what.into(), refusal: Refusal::Invalid, message: rule.into() });
        }
        if before == after {
            return Ok(after);
        }
        if before["spec"] != after["spec"] {
            let generation = before["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            after["metadata"]["generation"] = json!(generation);
        }
        if is_over(&after) {
            self.remove(&name, verb, before, after.clone());
            return Ok(after);
        }
        Ok(self.put(name, verb, Some(before), after))
    }

    /// Changes an object as somebody else than the controller.
    pub fn edit(&mut self, name: &Name, change: impl FnOnce(&mut Value)) {
        let Some(before) = self.objects.get(name).cloned() else { return };
        let mut after = before.clone();
        change(&mut after);
        let _ = self.store(name.clone(), "other", before, after, "edit");
    }

    pub fn delete(&mut self, name: &Name, now: Timestamp) -> Value {
        let Some(before) = self.objects.get(name).cloned() else { return Value::Null };
        if before["metadata"]["deletionTimestamp"].is_string() {
            return before;
        }
        let mut after = before.clone();
        after["metadata"]["deletionTimestamp"] = json!(format!("{now:.0}"));
        if is_over(&after) {
            self.remove(name, "delete", before, after.clone());
            return json!({ "kind": "Status", "status": "Success" });
        }
        self.put(name.clone(), "delete", Some(before), after)
    }

    fn put(&mut self, name: Name, verb: &'static str, before: Option<Value>, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(name.clone(), object.clone());
        self.log.entry(name.0).or_default().push(Logged { deleted: false, object: object.clone() });
        self.done.push(Done { name, verb, before, after: Some(object.clone()), by_us: false });
        object
    }

    fn remove(&mut self, name: &Name, verb: &'static str, before: Value, mut last: Value) {
        self.version += 1;
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.remove(name);
        self.applied.retain(|(other, _, _), _| other != name);
        self.log.entry(name.0).or_default().push(Logged { deleted: true, object: last });
        self.done.push(Done { name: name.clone(), verb, before: Some(before), after: None, by_us: false });
    }

    /// Nodes have no namespace and are nobody's but the world's.
    pub fn put_node(&mut self, node: &str, cordoned: bool) {
        self.version += 1;
        let object = json!({
            "metadata": { "name": node, "uid": format!("node-{node}"), "resourceVersion": self.version.to_string() },
            "spec": { "unschedulable": cordoned },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        self.nodes.insert(node.to_owned(), object.clone());
        self.node_log.push(Logged { deleted: false, object });
    }

    /// One dependent whose owner is gone, if there is one (Kubernetes' garbage collector).
    pub fn orphan(&self) -> Option<Name> {
        let uids: BTreeSet<&str> = self.objects.values().filter_map(|o| o["metadata"]["uid"].as_str()).collect();
        self.objects
            .iter()
            .find(|(_, object)| {
                !object["metadata"]["deletionTimestamp"].is_string()
                    && object["metadata"]["ownerReferences"]
                        .as_array()
                        .is_some_and(|owners| owners.iter().all(|owner| !uids.contains(owner["uid"].as_str().unwrap())))
            })
            .map(|(name, _)| name.clone())
    }

    pub fn of(&self, kind: Kind) -> Vec<(&Name, &Value)> {
        self.objects.iter().filter(|((other, ..), _)| *other == kind).collect()
    }
}

fn is_over(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
        && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
}

/// The write-once rules of `crds`.
fn write_once(kind: Kind, before: &Value, after: &Value) -> Result<(), &'static str> {
    let once = |path: &str| {
        let old = before.pointer(path).filter(|value| !value.is_null());
        old.is_none() || old == after.pointer(path)
    };
    match kind {
        Kind::Member => {
            if !once("/spec/claimRef") {
                return Err("claimRef is set once");
            }
            if !once("/status/instanceRef") || !once("/status/enrolment/seedDigest") {
                return Err("instanceRef and seedDigest are set once");
            }
        }
        Kind::Claim => {
            if !once("/status/memberRef") || !once("/status/boundAt") {
                return Err("memberRef and boundAt are set once");
            }
            let phase = |object: &Value| object["status"]["phase"].as_str().unwrap_or("Pending").to_owned();
            let (old, new) = (phase(before), phase(after));
            let forward = old == new
                || match old.as_str() {
                    "Pending" => ["Bound", "Failed", "Releasing", "Released"].contains(&new.as_str()),
                    "Bound" => new == "Releasing",
                    "Releasing" => ["Released", "Failed"].contains(&new.as_str()),
                    _ => false,
                };
            if !forward {
                return Err("phase only moves forward");
            }
        }
        _ => {}
    }
    Ok(())
}

fn merge_into(object: &mut Value, patch: &Value, status: bool) {
    if status {
        if let Some(part) = patch.get("status") {
            merge(&mut object["status"], part);
        }
        return;
    }
    let mut patch = patch.clone();
    if let Some(map) = patch.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "resourceVersion"] {
            metadata.remove(field);
        }
    }
    merge(object, &patch);
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(target.as_object_mut().unwrap().entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Server-side apply: maps merge, condition lists merge by type, everything else is a leaf.
fn apply_into(target: &mut Value, part: &Value, path: String, leaves: &mut BTreeSet<String>) {
    if path.ends_with("/conditions") {
        if !target.is_array() {
            *target = json!([]);
        }
        let list = target.as_array_mut().unwrap();
        for condition in part.as_array().unwrap() {
            leaves.insert(format!("{path}#{}", condition["type"].as_str().unwrap()));
            match list.iter_mut().find(|old| old["type"] == condition["type"]) {
                Some(old) => *old = condition.clone(),
                None => list.push(condition.clone()),
            }
        }
        return;
    }
    match part {
        Value::Object(map) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            for (key, value) in map {
                let at = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                if value.is_null() {
                    continue;
                }
                apply_into(
                    target.as_object_mut().unwrap().entry(key.clone()).or_insert(Value::Null),
                    value,
                    at,
                    leaves,
                );
            }
        }
        leaf => {
            leaves.insert(path);
            *target = leaf.clone();
        }
    }
}

fn remove_leaf(object: &mut Value, leaf: &str) {
    if let Some((list, type_)) = leaf.split_once('#') {
        if let Some(list) = object.pointer_mut(list).and_then(Value::as_array_mut) {
            list.retain(|condition| condition["type"] != json!(type_));
        }
        return;
    }
    let (parent, key) = leaf.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/").replace("~0", "~");
    if let Some(map) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        map.remove(&key);
    }
}
