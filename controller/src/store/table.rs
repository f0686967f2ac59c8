//! One kind's objects, newest version each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::ObjectKey;
use crate::schedule::Key;

/// Where an object came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The kind's watch.
    Watch,
    /// The reply to one of our calls.
    Reply,
}

/// An object with the version it was stored at.
#[derive(Debug)]
pub struct Stored<T> {
    /// The object.
    pub object: Arc<T>,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion as a number; Kubernetes defines them as comparable integers since 1.35 and etcd's
    /// revisions always were. Zero when it does not parse, then every update is taken.
    pub version: u64,
    /// The relist during which it was last seen.
    seen: u64,
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Self { object: Arc::clone(&self.object), uid: self.uid.clone(), version: self.version, seen: self.seen }
    }
}

/// Tombstones kept. A uid never returns, so this only has to outlast replies and events that are still on their way.
const TOMBSTONES: usize = 16_384;

/// Objects of one kind by key.
#[derive(Debug)]
pub struct Table<T> {
    objects: BTreeMap<ObjectKey, Stored<T>>,
    gone: BTreeSet<String>,
    gone_order: VecDeque<String>,
    /// Number of the newest relist of each scope: a namespace, or empty for all of them.
    lists: BTreeMap<String, u64>,
    /// Scopes that were listed completely once.
    synced: BTreeSet<String>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
            lists: BTreeMap::new(),
            synced: BTreeSet::new(),
        }
    }
}

impl<T> Table<T> {
    /// Takes an object unless a newer version, or the end, of the same life is known. Answers what stood there before
    /// when it was taken.
    pub fn upsert(&mut self, key: ObjectKey, uid: &str, version: &str, object: T) -> Option<Option<Stored<T>>> {
        if self.gone.contains(uid) {
            return None;
        }
        let version: u64 = version.parse().unwrap_or(0);
        let list = self.lists.get(&key.namespace).or_else(|| self.lists.get("")).copied().unwrap_or(0);
        if let Some(old) = self.objects.get_mut(&key)
            && version != 0
            && old.version >= version
        {
            // A repeat or an older event. In a relist it still proves that the object is there.
            if old.uid == uid {
                old.seen = list;
            }
            return None;
        }
        let stored = Stored { object: Arc::new(object), uid: uid.to_owned(), version, seen: list };
        let before = self.objects.insert(key, stored);
        if let Some(old) = &before
            && old.uid != uid
        {
            let old_uid = old.uid.clone();
            self.bury(old_uid);
        }
        Some(before)
    }

    /// Forgets one life of a name for ever. Answers it when it stood there.
    pub fn remove(&mut self, key: &ObjectKey, uid: &str) -> Option<Stored<T>> {
        self.bury(uid.to_owned());
        if self.objects.get(key).is_some_and(|stored| stored.uid == uid) { self.objects.remove(key) } else { None }
    }

    /// A list or event showed this life of a name, though not so that it could be read: it is still there. Concerns
    /// nobody.
    pub fn keep(&mut self, key: &ObjectKey, uid: &str) -> Vec<Key> {
        let list = self.lists.get(&key.namespace).or_else(|| self.lists.get("")).copied().unwrap_or(0);
        if let Some(old) = self.objects.get_mut(key).filter(|old| old.uid == uid) {
            old.seen = list;
        }
        Vec::new()
    }

    /// A scope is not watched any more: nothing is known of it.
    pub fn forget_scope(&mut self, scope: &str) {
        self.synced.remove(scope);
        self.objects.retain(|key, _| key.namespace != scope);
    }

    /// A relist of a scope begins.
    pub fn begin_list(&mut self, scope: &str) {
        let list = self.lists.entry(scope.to_owned()).or_default();
        *list = list.wrapping_add(1);
    }

    /// A relist of a scope is complete: what it did not show is gone. Objects that a reply brought while it ran stay,
    /// since the list may be older than they are; the watch that follows will speak about them.
    pub fn end_list(&mut self, scope: &str) -> Vec<(ObjectKey, Stored<T>)> {
        self.synced.insert(scope.to_owned());
        let list = self.lists.get(scope).copied().unwrap_or(0);
        let missing: Vec<(ObjectKey, String)> = self
            .objects
            .iter()
            .filter(|(key, stored)| (scope.is_empty() || key.namespace == scope) && stored.seen != list)
            .map(|(key, stored)| (key.clone(), stored.uid.clone()))
            .collect();
        missing.into_iter().filter_map(|(key, uid)| self.remove(&key, &uid).map(|stored| (key, stored))).collect()
    }

    /// Whether so many scopes were listed completely once.
    pub fn is_synced(&self, scopes: usize) -> bool {
        self.synced.len() >= scopes
    }

    /// Whether this scope was listed completely once, alone or with all others.
    pub fn is_scope_synced(&self, scope: &str) -> bool {
        self.synced.contains(scope) || self.synced.contains("")
    }

    /// The object under a key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Stored<T>> {
        self.objects.get(key)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Stored<T>)> {
        self.objects.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn bury(&mut self, uid: String) {
        if self.gone.insert(uid.clone()) {
            self.gone_order.push_back(uid);
            if self.gone_order.len() > TOMBSTONES
                && let Some(oldest) = self.gone_order.pop_front()
            {
                self.gone.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("ns", "a")
    }

    #[test]
    fn newer_beats_older_whichever_way_it_comes() {
        let mut table = Table::default();
        assert!(table.upsert(key(), "u", "5", "reply").is_some());
        assert!(table.upsert(key(), "u", "4", "late event").is_none());
        assert!(table.upsert(key(), "u", "5", "the same event").is_none());
        assert_eq!(*table.get(&key()).unwrap().object, "reply");
        assert!(table.upsert(key(), "u", "10", "newer, though shorter as text than 9").is_some());
        assert!(table.upsert(key(), "u", "9", "older").is_none());
    }

    #[test]
    fn a_life_that_ended_never_comes_back() {
        let mut table = Table::default();
        table.upsert(key(), "u", "5", "first life");
        table.remove(&key(), "u");
        assert!(table.upsert(key(), "u", "6", "late reply").is_none());
        assert!(table.upsert(key(), "v", "7", "second life").is_some());
        table.remove(&key(), "u");
        assert_eq!(*table.get(&key()).unwrap().object, "second life", "a late deletion of the first life");
    }

    #[test]
    fn what_cannot_be_read_any_more_stands_as_it_was() {
        let mut table = Table::default();
        table.upsert(key(), "u", "5", "as it was");
        table.begin_list("");
        table.keep(&key(), "another life");
        table.keep(&key(), "u");
        assert!(table.end_list("").is_empty());
        assert_eq!(*table.get(&key()).unwrap().object, "as it was");
        table.begin_list("");
        assert_eq!(table.end_list("").len(), 1);
    }

    #[test]
    fn a_scope_that_is_not_watched_is_not_known() {
        let mut table = Table::default();
        for namespace in ["a", "b"] {
            table.begin_list(namespace);
            table.upsert(ObjectKey::new(namespace, "x"), namespace, "5", namespace);
            table.end_list(namespace);
        }
        table.forget_scope("a");
        assert!(!table.is_scope_synced("a") && table.is_scope_synced("b"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_relist_drops_what_it_does_not_show_but_not_what_came_meanwhile() {
        let mut table = Table::default();
        table.upsert(key(), "u", "5", "stays");
        table.upsert(ObjectKey::new("ns", "b"), "w", "5", "vanished");
        table.begin_list("");
        table.upsert(ObjectKey::new("ns", "c"), "x", "9", "a reply during the list");
        table.upsert(key(), "u", "5", "stays");
        let gone: Vec<String> = table.end_list("").into_iter().map(|(key, _)| key.name).collect();
        assert_eq!(gone, ["b"]);
        assert_eq!(table.len(), 2);
        assert!(table.is_synced(1));
    }
}
