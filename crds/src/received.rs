//! Objects as lists and watches bring them: one that cannot be read is told apart, and spoils no other.
//!
//! A list is decoded as a whole, so one object that does not fit its type would stop every reader of its kind, in every
//! namespace. What does not fit: an enum's word of a newer version, or nesting deeper than serde_json follows.

use std::borrow::Cow;

use kube::Resource;
use kube::api::ObjectMeta;
use kube::runtime::watcher::Event;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::{EndorsementReport, PoolMember, VirtualMachineClaim, VirtualMachinePool};

/// An object of a list or watch: `Api<Received<K>>` lists and watches the kind `K`.
#[derive(Clone, Debug)]
pub enum Received<K> {
    /// It was read.
    Read(K),
    /// It was not.
    Unreadable(Box<Unreadable>),
}

/// What is known of an object that could not be read.
#[derive(Clone, Debug, Default, PartialEq, thiserror::Error)]
#[error("{}/{} cannot be read: {why}", metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())]
pub struct Unreadable {
    /// Its metadata; empty when not even that could be read.
    pub metadata: ObjectMeta,
    /// The parser's words.
    pub why: String,
    /// Whether the event was its deletion.
    pub deleted: bool,
}

#[derive(Default, Deserialize)]
struct Skeleton {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Received<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As text first: passing over it needs no recursion, so its depth cannot fail what surrounds it.
        let text = Box::<RawValue>::deserialize(deserializer).map_err(D::Error::custom)?;
        Ok(match serde_json::from_str(text.get()) {
            Ok(object) => Self::Read(object),
            Err(error) => {
                let Skeleton { metadata } = serde_json::from_str(text.get()).unwrap_or_default();
                Self::Unreadable(Box::new(Unreadable { metadata, why: error.to_string(), deleted: false }))
            }
        })
    }
}

impl<K: Resource> Resource for Received<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }
    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }
    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }
    fn api_version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::api_version(dt)
    }
    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }
    fn metadata_api() -> bool {
        K::metadata_api()
    }
    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => object.meta(),
            Self::Unreadable(unreadable) => &unreadable.metadata,
        }
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Read(object) => object.meta_mut(),
            Self::Unreadable(unreadable) => &mut unreadable.metadata,
        }
    }
}

/// The event about an object that was read.
///
/// # Errors
/// What is known of the object that was not. Nobody needs to decide on it: what was known of it before still stands.
pub fn readable<K>(event: Event<Received<K>>) -> Result<Event<K>, Box<Unreadable>> {
    Ok(match event {
        Event::Apply(Received::Read(object)) => Event::Apply(object),
        Event::InitApply(Received::Read(object)) => Event::InitApply(object),
        Event::Delete(Received::Read(object)) => Event::Delete(object),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::Apply(Received::Unreadable(unreadable)) | Event::InitApply(Received::Unreadable(unreadable)) => {
            return Err(unreadable);
        }
        Event::Delete(Received::Unreadable(unreadable)) => {
            return Err(Box::new(Unreadable { deleted: true, ..*unreadable }));
        }
    })
}

/// Drops what no decision reads, so that whoever holds all objects of a kind holds little of each.
pub trait Lighten {
    /// Drops it. What is left says nothing about the rest, so it is never written back.
    fn lighten(&mut self);
}

/// Of metadata our own keys count alone.
fn lighten(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    for map in [&mut meta.annotations, &mut meta.labels].into_iter().flatten() {
        map.retain(|key, _| key.starts_with(crate::names::KEY_PREFIX));
    }
}

impl Lighten for VirtualMachinePool {
    fn lighten(&mut self) {
        lighten(&mut self.metadata);
    }
}

impl Lighten for PoolMember {
    fn lighten(&mut self) {
        lighten(&mut self.metadata);
    }
}

impl Lighten for EndorsementReport {
    fn lighten(&mut self) {
        lighten(&mut self.metadata);
    }
}

impl Lighten for VirtualMachineClaim {
    fn lighten(&mut self) {
        lighten(&mut self.metadata);
        self.spec.workload.args = Vec::new();
        self.spec.workload.env = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::{ObjectList, WatchEvent};
    use serde_json::json;

    fn pool(name: &str, extra: &str) -> String {
        let spec = format!(
            r#"{{"maxReplicas":1,"template":{{"kubeVirt":{{"spec":{{"affinity":{extra}}}}}}},"attestation":{{"mode":"None"}}}}"#
        );
        let meta = json!({"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "5"});
        format!(
            r#"{{"apiVersion":"banlieue.io/v1alpha1","kind":"VirtualMachinePool","metadata":{meta},"spec":{spec}}}"#
        )
    }

    fn nested(depth: usize) -> String {
        format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
    }

    /// A word that this version does not know, and nesting that serde_json does not follow.
    fn poison() -> [String; 2] {
        [pool("bad", "{}").replace("None", "Tomorrow"), pool("bad", &nested(10_000))]
    }

    #[test]
    fn one_bad_object_spoils_no_list() {
        for bad in poison() {
            let list = format!(
                r#"{{"apiVersion":"banlieue.io/v1alpha1","kind":"VirtualMachinePoolList","metadata":{{}},"items":[{},{bad},{}]}}"#,
                pool("a", "{}"),
                pool("z", "{}"),
            );
            // As it was: nobody sees any pool.
            assert!(serde_json::from_str::<ObjectList<VirtualMachinePool>>(&list).is_err());
            let list: ObjectList<Received<VirtualMachinePool>> = serde_json::from_str(&list).unwrap();
            let names: Vec<_> = list.items.iter().map(|it| it.meta().name.clone().unwrap()).collect();
            assert_eq!(names, ["a", "bad", "z"]);
            let read: Vec<bool> = list.items.iter().map(|it| matches!(it, Received::Read(_))).collect();
            assert_eq!(read, [true, false, true]);
        }
    }

    #[test]
    fn one_bad_object_ends_no_watch() {
        for bad in poison() {
            let line = format!(r#"{{"type":"DELETED","object":{bad}}}"#);
            assert!(serde_json::from_str::<WatchEvent<VirtualMachinePool>>(&line).is_err());
            let WatchEvent::Deleted(object) = serde_json::from_str(&line).unwrap() else { panic!() };
            let unreadable = readable::<VirtualMachinePool>(Event::Delete(object)).unwrap_err();
            assert!(unreadable.deleted);
            assert_eq!(unreadable.metadata.uid.as_deref(), Some("u"));
            assert!(unreadable.to_string().starts_with("ns/bad cannot be read: "), "{unreadable}");
        }
    }
}
