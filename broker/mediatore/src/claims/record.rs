//! From an accepted request to the claim object, and back: is this object what that request would make? Pure.
//!
//! A name is taken by whoever creates it first, and people with rights in the namespace can create claims. So an object
//! that stands under the name of a retried request is compared as a whole, never by its annotations alone.

use banlieue_crds::{
    NameRef, VirtualMachineClaim, VirtualMachineClaimSpec,
    claim::{Subject, WhenEmpty, Workload},
    names::{finalizers, labels},
};
use banlieue_identity::{Caller, SubjectKey};
use kube::{Resource, api::ObjectMeta};

use super::name::{Digest, Parts};

/// Annotation: digest of the request that the claim answers. A hint until the grant is there, which has it sealed.
pub const REQUEST_DIGEST: &str = "banlieue.io/request-digest";
/// Annotation: the slot that the claim holds, as `<lease name>/<lease uid>/<resource version when taken>`. A hint: see
/// [`slots`](super::slots).
pub const SLOT: &str = "banlieue.io/slot";
/// Value of [`labels::MANAGED_BY`] on what mediatore makes.
pub const MANAGED_BY_VALUE: &str = "mediatore";
/// Seconds that a claim may wait for a member, unless its pool allows less.
const BIND_DEADLINE: u32 = 60;
/// Seconds that a finished claim stays readable, unless its pool allows less.
const RETENTION: u32 = 300;

/// What a caller asked for, with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Namespace of the pool.
    pub namespace: String,
    /// Name of the pool.
    pub pool: String,
    /// Seconds from bind.
    pub ttl_seconds: u32,
    /// Downstream services.
    pub audiences: Vec<String>,
    /// What runs.
    pub workload: Workload,
    /// Longest wait that the pool allows.
    pub max_bind_deadline: u32,
    /// Longest retention that the pool allows.
    pub max_retention: u32,
}

/// What a caller is in a claim. Longer names are cut: they are for show.
#[must_use]
pub fn subject(caller: &Caller) -> Subject {
    let display: String = caller.display.as_deref().unwrap_or_default().chars().take(256).collect();
    Subject {
        issuer: caller.issuer.clone(),
        id: caller.id.clone(),
        display,
        azp: caller.azp.clone().unwrap_or_default(),
    }
}

/// The subject key of a claim, by the one function that makes it.
#[must_use]
pub fn subject_key(claim: &VirtualMachineClaim) -> SubjectKey {
    SubjectKey::of(&claim.spec.subject.issuer, &claim.spec.subject.id)
}

/// Digest of a request, over everything in it that makes a difference.
#[must_use]
pub fn request_digest(wanted: &Wanted) -> Digest {
    let mut parts = Parts::new("claim request");
    parts.add(&wanted.namespace);
    parts.add(&wanted.pool);
    parts.add(wanted.ttl_seconds.to_be_bytes());
    parts.add((wanted.audiences.len() as u64).to_be_bytes());
    for audience in &wanted.audiences {
        parts.add(audience);
    }
    parts.add(workload_digest(&wanted.workload).as_str());
    parts.finish()
}

/// Digest of a workload. Its parts are named one by one: a field that a later version adds must not change the digest
/// of claims that do not use it, for they would lose their identity.
#[must_use]
pub fn workload_digest(workload: &Workload) -> Digest {
    let mut parts = Parts::new("workload");
    parts.add(&workload.image);
    parts.add((workload.args.len() as u64).to_be_bytes());
    for arg in &workload.args {
        parts.add(arg);
    }
    parts.add((workload.env.len() as u64).to_be_bytes());
    for variable in &workload.env {
        parts.add(&variable.name);
        parts.add(&variable.value);
    }
    parts.add(format!("{:?}", workload.restart_policy));
    let resources = &workload.resources;
    for quantity in [&resources.cpu, &resources.memory] {
        parts.add(quantity.as_ref().map_or("", |quantity| quantity.0.as_str()));
    }
    parts.add(resources.pids.map_or(String::new(), |pids| pids.to_string()));
    parts.finish()
}

/// The object. `slot` is the annotation's value. The protection finalizer is set from the start, which saves the
/// controller a write.
#[must_use]
pub fn claim(name: &str, wanted: &Wanted, subject: Subject, slot: &str) -> VirtualMachineClaim {
    let spec = VirtualMachineClaimSpec {
        pool_ref: NameRef { name: wanted.pool.clone() },
        subject,
        ttl_seconds: wanted.ttl_seconds,
        bind_deadline_seconds: BIND_DEADLINE.min(wanted.max_bind_deadline),
        when_empty: WhenEmpty::Wait,
        priority: 0,
        audiences: wanted.audiences.clone(),
        workload: wanted.workload.clone(),
        retention_seconds: RETENTION.min(wanted.max_retention),
    };
    let mut claim = VirtualMachineClaim::new(name, spec);
    *claim.meta_mut() = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(wanted.namespace.clone()),
        labels: Some([(labels::MANAGED_BY.to_owned(), MANAGED_BY_VALUE.to_owned())].into()),
        annotations: Some(
            [
                (REQUEST_DIGEST.to_owned(), request_digest(wanted).as_str().to_owned()),
                (SLOT.to_owned(), slot.to_owned()),
            ]
            .into(),
        ),
        finalizers: Some(vec![finalizers::CLAIM_PROTECTION.to_owned()]),
        ..ObjectMeta::default()
    };
    claim
}

/// Whether the object under the name of a retried request is the answer to that request. `granted` is the digest in its
/// grant, when it has one; its annotation is asked only before that.
#[must_use]
pub fn answers(found: &VirtualMachineClaim, wanted: &Wanted, subject: &Subject, granted: Option<&Digest>) -> bool {
    let digest = request_digest(wanted);
    let noted = granted.map(Digest::as_str).or_else(|| annotation(found, REQUEST_DIGEST));
    noted == Some(digest.as_str())
        && found.spec.pool_ref.name == wanted.pool
        && found.spec.subject.issuer == subject.issuer
        && found.spec.subject.id == subject.id
        && found.spec.subject.azp == subject.azp
        && found.spec.audiences == wanted.audiences
        && found.spec.workload == wanted.workload
        // It may grow afterwards.
        && found.spec.ttl_seconds >= wanted.ttl_seconds
}

/// An annotation of a claim.
#[must_use]
pub fn annotation<'a>(claim: &'a VirtualMachineClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether mediatore made it, by its own word: never proof of anything, see [`grant`](super::grant).
#[must_use]
pub fn says_ours(claim: &VirtualMachineClaim) -> bool {
    claim.metadata.labels.as_ref().and_then(|labels| labels.get(labels::MANAGED_BY)).map(String::as_str)
        == Some(MANAGED_BY_VALUE)
}

#[cfg(test)]
pub(crate) mod tests {
    use banlieue_crds::claim::EnvVar;

    use super::*;

    pub(crate) fn wanted() -> Wanted {
        Wanted {
            namespace: "sandboxes".into(),
            pool: "pool-a".into(),
            ttl_seconds: 600,
            audiences: vec!["a".into(), "b".into()],
            workload: Workload {
                image: "registry.internal:5000/sandbox/claude:latest".into(),
                args: vec!["x".into(), "y z".into()],
                env: vec![EnvVar { name: "A".into(), value: "1".into() }],
                ..Workload::default()
            },
            max_bind_deadline: 600,
            max_retention: 3600,
        }
    }

    pub(crate) fn alice() -> Subject {
        Subject {
            issuer: "https://idp.example".into(),
            id: "alice".into(),
            display: "Alice".into(),
            azp: String::new(),
        }
    }

    fn edits() -> Vec<fn(&mut Wanted)> {
        vec![
            |w| w.namespace = "other".into(),
            |w| w.pool = "pool-b".into(),
            |w| w.ttl_seconds = 601,
            |w| w.audiences = vec!["ab".into()],
            |w| w.audiences = vec!["b".into(), "a".into()],
            |w| w.workload.image.push('x'),
            |w| w.workload.args = vec!["x y z".into()],
            |w| w.workload.args = vec!["x".into(), "y".into(), "z".into()],
            |w| w.workload.env[0].value = "2".into(),
            |w| w.workload.restart_policy = banlieue_crds::claim::RestartPolicy::Always,
            |w| w.workload.resources.pids = Some(1),
        ]
    }

    #[test]
    fn every_difference_shows_in_the_digest() {
        let mut seen = vec![request_digest(&wanted())];
        for edit in edits() {
            let mut other = wanted();
            edit(&mut other);
            let digest = request_digest(&other);
            assert!(!seen.contains(&digest), "{other:?}");
            seen.push(digest);
        }
    }

    #[test]
    fn the_digest_of_a_workload_stays_what_it_is() {
        // Living claims of an earlier version would lose their identity otherwise.
        assert_eq!(
            workload_digest(&wanted().workload).as_str(),
            "e3248d707308310e63d56211a572fba760ea42cd3bf09f8cbfa65c5fca742f88"
        );
    }

    #[test]
    fn a_retry_is_answered_by_what_it_would_make_and_nothing_else() {
        let made = claim("c-1", &wanted(), alice(), "s/u/1");
        assert!(answers(&made, &wanted(), &alice(), None));
        let renamed = Subject { display: "Alice Somebody".into(), ..alice() };
        assert!(answers(&made, &wanted(), &renamed, None));
        for edit in edits().into_iter().skip(1) {
            let mut other = wanted();
            edit(&mut other);
            assert!(!answers(&made, &other, &alice(), None));
        }
        assert!(!answers(&made, &wanted(), &Subject { azp: "bot".into(), ..alice() }, None));
        // Somebody else's object with the right annotation.
        let mut forged = made.clone();
        forged.spec.workload.args = vec!["evil".into()];
        assert!(!answers(&forged, &wanted(), &alice(), None));
        // The annotation is a hint: what the grant says counts.
        let mut noted = made.clone();
        noted.metadata.annotations.as_mut().unwrap().insert(REQUEST_DIGEST.into(), "x".into());
        assert!(!answers(&noted, &wanted(), &alice(), None));
        assert!(answers(&noted, &wanted(), &alice(), Some(&request_digest(&wanted()))));
        let other = request_digest(&Wanted { ttl_seconds: 60, ..wanted() });
        assert!(!answers(&made, &wanted(), &alice(), Some(&other)));
        let mut longer = made;
        longer.spec.ttl_seconds += 60;
        assert!(answers(&longer, &wanted(), &alice(), None));
    }
}
