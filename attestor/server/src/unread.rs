//! Objects of lists and watches that do not fit their type: each version is said and counted once.
//!
//! Such an object exists, and nothing else is known of it. So nothing that it may stand for is taken away, and it stops
//! nobody else's.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use banlieue_crds::received::{Received, Unreadable};
use kube::{Resource, ResourceExt};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Objects remembered; when more are broken, some are said twice.
const MOST: usize = 10_000;

/// A kind of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    /// Its plural.
    pub kind: String,
}

/// What was said. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Unread {
    /// By uid, or by name where not even that is known: the version that was said last.
    said: Arc<Mutex<HashMap<String, Option<String>>>>,
    counts: Family<Kind, Counter>,
}

impl Unread {
    /// With its counter in a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let unread = Self::default();
        registry.register(
            "unreadable_objects",
            "Versions of objects that could not be read, by kind",
            unread.counts.clone(),
        );
        unread
    }

    /// Says and counts it, unless this version was. Answers whether it did.
    pub fn note<K: Resource<DynamicType = ()>>(&self, object: &Unreadable) -> bool {
        let kind = K::plural(&()).into_owned();
        let meta = &object.metadata;
        let name = || {
            format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
        };
        let key = format!("{kind} {}", meta.uid.clone().unwrap_or_else(name));
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= MOST {
            said.clear();
        }
        if said.insert(key, meta.resource_version.clone()) == Some(meta.resource_version.clone()) {
            return false;
        }
        tracing::warn!(
            kind,
            error = %object,
            "an object is left out, and nothing that it stands for is taken away. If a newer version wrote it, update this one; \
             else mend or delete it"
        );
        self.counts.get_or_create(&Kind { kind }).inc();
        true
    }
}

/// The object, if it was read.
pub fn read<K>(received: &Received<K>) -> Option<&K> {
    match received {
        Received::Read(object) => Some(object),
        Received::Unreadable(_) => None,
    }
}

/// Whether an object that was not read may be the one of that name: it is, or it hides its own.
pub fn may_be<K: Resource<DynamicType = ()>>(received: &Received<K>, namespace: Option<&str>, name: &str) -> bool {
    let Received::Unreadable(object) = received else { return false };
    let meta = &object.metadata;
    meta.name.is_none() || (meta.name.as_deref() == Some(name) && received.namespace().as_deref() == namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use banlieue_crds::PoolMember;
    use serde_json::json;

    fn broken(name: &str, version: &str) -> Received<PoolMember> {
        let meta = json!({ "name": name, "namespace": "ns", "uid": format!("u-{name}"), "resourceVersion": version });
        let text = json!({ "metadata": meta, "spec": { "poolRef": 1 } }).to_string();
        serde_json::from_str(&text).unwrap()
    }

    fn note(unread: &Unread, object: &Received<PoolMember>) -> bool {
        let Received::Unreadable(object) = object else { panic!("it was read") };
        unread.note::<PoolMember>(object)
    }

    #[test]
    fn each_version_is_said_and_counted_once() {
        let mut registry = Registry::default();
        let unread = Unread::register(&mut registry);
        assert!(note(&unread, &broken("a", "1")));
        assert!(!note(&unread, &broken("a", "1")), "a list brings it again");
        assert!(note(&unread, &broken("a", "2")));
        assert!(note(&unread, &broken("b", "2")));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("unreadable_objects_total{kind=\"poolmembers\"} 3"), "{text}");
    }

    #[test]
    fn it_may_be_what_bears_its_name_and_without_one_anything() {
        let object = broken("a", "1");
        assert!(may_be(&object, Some("ns"), "a"));
        assert!(!may_be(&object, Some("ns"), "b") && !may_be(&object, Some("other"), "a"));
        let nameless: Received<PoolMember> = serde_json::from_str("{}").unwrap();
        assert!(read(&nameless).is_none() && may_be(&nameless, Some("ns"), "b"));
    }
}
