//! Objects that are there and cannot be read: which, so that somebody is told.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::ObjectKey;
use super::watch::{Change, ChangeEvent};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// The kind's plural.
    pub kind: &'static str,
    /// Where it stands.
    pub object: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// The parser's words.
    pub why: String,
}

/// All of them, by kind and place.
#[derive(Debug, Default)]
pub struct Unreadables {
    /// With whether the list that runs has shown it.
    objects: BTreeMap<(&'static str, ObjectKey), (Unread, bool)>,
}

/// What an event says about that.
enum Facet<'a> {
    Begins,
    Ends,
    Fine(ObjectKey),
    Unreadable(&'a banlieue_crds::received::Unreadable),
}

fn facet<'a, K: ResourceExt>(event: &Event<K>) -> Facet<'a> {
    match event {
        Event::Init => Facet::Begins,
        Event::InitDone => Facet::Ends,
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => Facet::Fine(ObjectKey::of(object)),
    }
}

impl ChangeEvent {
    fn facet(&self) -> Facet<'_> {
        match self {
            ChangeEvent::Pool(event) => facet(event),
            ChangeEvent::Member(event) => facet(event),
            ChangeEvent::Claim(event) => facet(event),
            ChangeEvent::Instance(event) => facet(event),
            ChangeEvent::Pod(event) => facet(event),
            ChangeEvent::Node(event) => facet(event),
            ChangeEvent::ConfigMap(event) => facet(event),
            ChangeEvent::NetworkPolicy(event) => facet(event),
            ChangeEvent::Unreadable { object, .. } => Facet::Unreadable(object),
        }
    }
}

impl Unreadables {
    /// Takes one watch event. Answers an object that was not known as one of them.
    pub fn see(&mut self, change: &Change) -> Option<Unread> {
        let kind = change.event.kind();
        if self.objects.is_empty() && !matches!(change.event, ChangeEvent::Unreadable { .. }) {
            return None;
        }
        let of_scope = |(of, key): &(&'static str, ObjectKey)| {
            *of == kind && (change.scope.is_empty() || key.namespace == change.scope)
        };
        match change.event.facet() {
            Facet::Begins => {
                let listed = self.objects.iter_mut().filter(|(at, _)| of_scope(at));
                listed.for_each(|(_, (_, shown))| *shown = false);
            }
            Facet::Ends => self.objects.retain(|at, (_, shown)| *shown || !of_scope(at)),
            Facet::Fine(key) => {
                self.objects.remove(&(kind, key));
            }
            Facet::Unreadable(object) => {
                let meta = &object.metadata;
                let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
                let key = ObjectKey::new(namespace.unwrap_or_default(), name.unwrap_or_default());
                let uid = meta.uid.clone().unwrap_or_default();
                if object.deleted {
                    self.objects.remove(&(kind, key));
                    return None;
                }
                let unread = Unread { kind, object: key.clone(), uid, why: object.why.clone() };
                let before = self.objects.insert((kind, key), (unread.clone(), true));
                return before.is_none_or(|(before, _)| before.uid != unread.uid).then_some(unread);
            }
        }
        None
    }

    /// How many of a kind there are.
    pub fn count(&self, kind: &str) -> usize {
        self.objects.keys().filter(|(of, _)| *of == kind).count()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Unread> {
        self.objects.values().map(|(unread, _)| unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::pool;
    use banlieue_crds::received::Unreadable;

    #[test]
    fn each_is_told_once_and_counted_until_it_is_gone_or_read() {
        const POOLS: &str = "virtualmachinepools";
        let mut all = Unreadables::default();
        let mut see = |event| {
            let new = all.see(&Change { scope: String::new(), event }).is_some();
            (new, all.count(POOLS))
        };
        let object = pool("p");
        let bad = |deleted| ChangeEvent::Unreadable {
            kind: POOLS,
            object: Box::new(Unreadable { metadata: object.metadata.clone(), why: "no".into(), deleted }),
        };
        assert_eq!(see(ChangeEvent::Pool(Event::Init)), (false, 0));
        assert_eq!(see(bad(false)), (true, 1));
        assert_eq!(see(ChangeEvent::Pool(Event::InitDone)), (false, 1));
        assert_eq!(see(bad(false)), (false, 1), "told once");
        // A list of another kind, and one that shows it still.
        assert_eq!(see(ChangeEvent::Claim(Event::Init)), (false, 1));
        assert_eq!(see(ChangeEvent::Claim(Event::InitDone)), (false, 1));
        assert_eq!(see(ChangeEvent::Pool(Event::Init)), (false, 1));
        assert_eq!(see(bad(false)), (false, 1));
        assert_eq!(see(ChangeEvent::Pool(Event::InitDone)), (false, 1));
        // Deleted; mended; and gone while nobody watched.
        assert_eq!(see(bad(true)), (false, 0));
        assert_eq!(see(bad(false)), (true, 1));
        assert_eq!(see(ChangeEvent::Pool(Event::Apply(object.clone()))), (false, 0));
        assert_eq!(see(bad(false)), (true, 1));
        assert_eq!(see(ChangeEvent::Pool(Event::Init)), (false, 1));
        assert_eq!(see(ChangeEvent::Pool(Event::InitDone)), (false, 0));
    }
}
