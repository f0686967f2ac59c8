//! Watching members and claims as a person would: one line for each change, with the time since the watch began.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use banlieue_crds::{PoolMember, VirtualMachineClaim, VirtualMachinePool};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// Namespace of the demo's pool.
pub const NAMESPACE: &str = "sandboxes";

/// Time between two looks. The demo tells a story; nothing is decided by this.
const LOOK: Duration = Duration::from_millis(200);

/// What the demo looks at, as the person who runs it may.
pub struct Watch {
    /// Pools, as their author.
    pub pools: Api<VirtualMachinePool>,
    /// Members, read by an operator.
    pub members: Api<PoolMember>,
    /// Claims, read by an operator.
    pub claims: Api<VirtualMachineClaim>,
    /// State printed last, by pool and member: only members of the pool that is looked at can be missed in a look.
    seen: BTreeMap<(String, String), String>,
    started: Instant,
}

impl Watch {
    /// Begins to count time.
    pub fn new(author: &Client, operator: &Client) -> Self {
        Self {
            pools: Api::namespaced(author.clone(), NAMESPACE),
            members: Api::namespaced(operator.clone(), NAMESPACE),
            claims: Api::namespaced(operator.clone(), NAMESPACE),
            seen: BTreeMap::new(),
            started: Instant::now(),
        }
    }

    /// Counts time from now on.
    pub fn restart(&mut self) {
        self.started = Instant::now();
    }

    /// Prints one line with the time.
    pub fn say(&self, line: &str) {
        println!("   {:>7.1} s  {line}", self.started.elapsed().as_secs_f64());
    }

    /// Looks until `done` answers with a value, printing every change of a member of `pool` meanwhile.
    ///
    /// # Errors
    /// When `limit` passes first; the message says what was waited for and what was seen last.
    pub async fn until<T>(
        &mut self,
        pool: &str,
        what: &str,
        limit: Duration,
        done: impl AsyncFn(&[PoolMember]) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            let members = self.of_pool(pool).await?;
            self.print_changes(pool, &members);
            if let Some(value) = done(&members).await? {
                return Ok(value);
            }
            if begun.elapsed() > limit {
                bail!(
                    "waited {} s for {what}; last seen: {}",
                    limit.as_secs(),
                    members.iter().map(|m| format!("{} {}", m.name_any(), state(m))).collect::<Vec<_>>().join("; ")
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The members of a pool, as they are now.
    pub async fn of_pool(&self, pool: &str) -> anyhow::Result<Vec<PoolMember>> {
        let ours = ListParams::default().labels(&format!("{}={pool}", banlieue_crds::names::labels::POOL));
        let listed = self.members.list(&ours).await;
        Ok(listed.with_context(|| format!("listing the members of pool {NAMESPACE}/{pool}"))?.items)
    }

    fn print_changes(&mut self, pool: &str, members: &[PoolMember]) {
        for member in members {
            let (name, now) = (member.name_any(), state(member));
            let key = (pool.to_owned(), name);
            if self.seen.get(&key) != Some(&now) {
                self.say(&format!("{:<14} {now}", key.1));
                self.seen.insert(key, now);
            }
        }
        let gone: Vec<(String, String)> = self
            .seen
            .keys()
            .filter(|(of, name)| of == pool && !members.iter().any(|member| member.name_any() == *name))
            .cloned()
            .collect();
        for key in gone {
            self.say(&format!("{:<14} gone", key.1));
            self.seen.remove(&key);
        }
    }
}

/// A member's state as its columns show it: what happens to it before what it was.
pub fn state(member: &PoolMember) -> String {
    if member.metadata.deletion_timestamp.is_some() {
        return "Ending".to_owned();
    }
    if let Some(claim) = &member.spec.claim_ref {
        return format!("Bound to {}", claim.name);
    }
    match member.status.as_ref().and_then(|status| status.phase) {
        Some(phase) => format!("{phase:?}"),
        None => "Created".to_owned(),
    }
}

/// Status, reason and message of one condition, if it is there.
pub fn condition<'a>(
    conditions: impl IntoIterator<Item = &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
    kind: &str,
) -> Option<(String, String, String)> {
    conditions
        .into_iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| (condition.status.clone(), condition.reason.clone(), condition.message.clone()))
}
