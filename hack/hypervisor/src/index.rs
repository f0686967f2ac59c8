//! What the watches have shown, joined by the instance's uid. Synchronous; every change names the instances it touches.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use banlieue_crds::kubevirt::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::pod;

/// The objects around one instance.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Its launcher pod on one of our nodes.
    pub pod: Option<Arc<Pod>>,
    /// The instance itself.
    pub instance: Known,
}

/// What is known of an instance.
#[derive(Clone, Debug, Default)]
pub enum Known {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It is there.
    There(Arc<VirtualMachineInstance>),
    /// It was there, or never will be.
    Gone,
}

/// The joined watches.
#[derive(Debug, Default)]
pub struct Index {
    nodes: HashSet<String>,
    /// By uid of their instance.
    pods: HashMap<String, Arc<Pod>>,
    /// By uid.
    instances: HashMap<String, Arc<VirtualMachineInstance>>,
    /// uids of instances that ended while somebody here still cared.
    gone: HashSet<String>,
}

/// A watch's event, with relists folded into one.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// Added or modified.
    Apply(K),
    /// Deleted.
    Delete(K),
    /// All there is.
    Reset(Vec<K>),
}

fn uid<K: kube::Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

impl Index {
    /// An index for these nodes.
    pub fn new(nodes: impl IntoIterator<Item = String>) -> Self {
        Self { nodes: nodes.into_iter().collect(), ..Self::default() }
    }

    /// Whether a pod is bound to one of our nodes.
    pub fn is_ours(&self, pod: &Pod) -> bool {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(|node| self.nodes.contains(node))
    }

    /// Takes a change of pods; returns the instances touched.
    pub fn pods(&mut self, change: Change<Pod>) -> BTreeSet<String> {
        match change {
            Change::Apply(pod) => self.apply_pod(pod).into_iter().collect(),
            Change::Delete(pod) => self.delete_pod(&pod).into_iter().collect(),
            Change::Reset(all) => {
                let mut touched: BTreeSet<String> = self.pods.drain().map(|(instance, _)| instance).collect();
                touched.extend(all.into_iter().filter_map(|pod| self.apply_pod(pod)));
                touched
            }
        }
    }

    fn apply_pod(&mut self, pod: Pod) -> Option<String> {
        let instance = pod::instance_uid(&pod).filter(|_| self.is_ours(&pod))?.to_owned();
        self.pods.insert(instance.clone(), Arc::new(pod));
        Some(instance)
    }

    fn delete_pod(&mut self, pod: &Pod) -> Option<String> {
        let instance = pod::instance_uid(pod)?.to_owned();
        // A late deletion of an older pod must not remove a newer one.
        if self.pods.get(&instance).is_none_or(|held| uid(&**held) != uid(pod)) {
            return None;
        }
        self.pods.remove(&instance);
        Some(instance)
    }

    /// Takes a change of instances; returns those touched.
    pub fn instances(&mut self, change: Change<VirtualMachineInstance>) -> BTreeSet<String> {
        match change {
            Change::Apply(instance) => [self.apply_instance(instance)].into(),
            Change::Delete(instance) => {
                let uid = uid(&instance);
                self.instances.remove(&uid);
                self.gone.insert(uid.clone());
                [uid].into()
            }
            Change::Reset(all) => {
                let before: BTreeSet<String> = self.instances.drain().map(|(uid, _)| uid).collect();
                let now: BTreeSet<String> = all.into_iter().map(|instance| self.apply_instance(instance)).collect();
                self.gone.extend(before.difference(&now).cloned());
                before.into_iter().chain(now).collect()
            }
        }
    }

    fn apply_instance(&mut self, instance: VirtualMachineInstance) -> String {
        let uid = uid(&instance);
        self.instances.insert(uid.clone(), Arc::new(instance));
        uid
    }

    /// Notes that an instance is not on the API server.
    pub fn declare_gone(&mut self, uid: &str) {
        if !self.instances.contains_key(uid) {
            self.gone.insert(uid.to_owned());
        }
    }

    /// What is known around an instance.
    pub fn objects(&self, uid: &str) -> Objects {
        let instance = match self.instances.get(uid) {
            Some(instance) => Known::There(instance.clone()),
            None if self.gone.contains(uid) => Known::Gone,
            None => Known::Unknown,
        };
        Objects { pod: self.pods.get(uid).cloned(), instance }
    }

    /// The node of ours that an instance concerns: that of its pod, or the one it was given to.
    pub fn node(&self, uid: &str) -> Option<String> {
        let of_pod = self.pods.get(uid).and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        let given = || self.instances.get(uid).and_then(|instance| instance.node_name().map(str::to_owned));
        of_pod.or_else(given).filter(|node| self.nodes.contains(node))
    }

    /// Forgets that an instance is gone, once nobody here cares any more.
    pub fn forget(&mut self, uid: &str) {
        self.gone.remove(uid);
    }
}

/// Namespace and name of an instance, from whichever object shows them.
pub fn name_of(objects: &Objects) -> Option<(String, String)> {
    if let Known::There(instance) = &objects.instance {
        return Some((instance.namespace().unwrap_or_default(), instance.name_any()));
    }
    let pod = objects.pod.as_ref()?;
    Some((pod.namespace().unwrap_or_default(), pod::instance_name(pod)?.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, instance: &str, node: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": uid, "namespace": "a", "uid": uid,
                "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": instance},
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "m", "uid": instance, "controller": true}]
            },
            "spec": {"nodeName": node, "containers": []}
        }))
        .unwrap()
    }

    fn instance(uid: &str, node: Option<&str>) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "a", "uid": uid}, "spec": {"domain": {"devices": {}}}, "status": {"nodeName": node}
        }))
        .unwrap()
    }

    fn index() -> Index {
        Index::new(["ours".to_owned()])
    }

    #[test]
    fn pods_of_other_nodes_do_not_concern_us() {
        let mut index = index();
        assert!(index.pods(Change::Apply(pod("p", "i", "other"))).is_empty());
        assert_eq!(index.pods(Change::Apply(pod("p", "i", "ours"))), ["i".to_owned()].into());
        assert_eq!(index.node("i").as_deref(), Some("ours"));
        assert!(index.pods(Change::Delete(pod("older", "i", "ours"))).is_empty());
        assert!(index.objects("i").pod.is_some());
        assert_eq!(index.pods(Change::Delete(pod("p", "i", "ours"))), ["i".to_owned()].into());
        assert!(index.objects("i").pod.is_none());
    }

    #[test]
    fn what_vanished_during_a_relist_is_gone_and_what_was_never_seen_is_unknown() {
        let mut index = index();
        assert!(matches!(index.objects("i").instance, Known::Unknown));
        index.instances(Change::Apply(instance("i", None)));
        index.instances(Change::Apply(instance("j", Some("ours"))));
        assert_eq!(index.node("j").as_deref(), Some("ours"));
        let touched = index.instances(Change::Reset(vec![instance("j", Some("ours")), instance("k", None)]));
        assert_eq!(touched, ["i", "j", "k"].map(String::from).into());
        assert!(matches!(index.objects("i").instance, Known::Gone));
        index.declare_gone("k");
        assert!(matches!(index.objects("k").instance, Known::There(_)), "what is there cannot be declared gone");
        index.declare_gone("never");
        assert!(matches!(index.objects("never").instance, Known::Gone));
        index.forget("never");
        assert!(matches!(index.objects("never").instance, Known::Unknown));
    }

    #[test]
    fn a_relist_of_pods_drops_the_missing() {
        let mut index = index();
        index.pods(Change::Apply(pod("p", "i", "ours")));
        let touched = index.pods(Change::Reset(vec![pod("q", "j", "ours")]));
        assert_eq!(touched, ["i", "j"].map(String::from).into());
        assert!(index.objects("i").pod.is_none());
    }
}
