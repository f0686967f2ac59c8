//! Carrying out sweeps: SPIRE's records compared with what lives.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    sync::Arc,
};

use banlieue_crds::{PoolMember, VirtualMachineClaim, names::managers, pool::AttestationMode, received::Received};
use banlieue_protocol::names::{Named, SpiffeId, Uid, agent, egress_entry, node_entry, read_path};
use banlieue_spire::sweep::Plan;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::ListParams,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde::de::DeserializeOwned;

use super::{
    claims,
    member::{MemberError, by_uid, dead},
    run::{Options, Parts},
    sweep::{self, Living, Missing},
};
use crate::{cluster::CALL_LIMIT, unread::read};

impl Parts {
    /// Sweeps for ever, entries, agents and reports.
    pub(super) async fn sweeps(&self, options: &Options) {
        let (mut missing, mut unreported) = (Missing::default(), Missing::default());
        loop {
            if self.context.leadership.works() {
                if let Err(error) = self.sweep(options, &mut missing).await {
                    tracing::warn!(%error, "no sweep: a list is not complete");
                }
                self.sweep_reports(options, &mut unreported).await;
            }
            tokio::time::sleep(options.sweep_every).await;
        }
    }

    async fn sweep(&self, options: &Options, missing: &mut Missing) -> Result<(), MemberError> {
        let context = &self.context;
        // SPIRE first: what it shows was made for an object that existed before.
        let entries = context.spire.list_entries().await?;
        let agents = context.spire.list_agents().await?;
        if context.members.wait_until_ready().await.is_err() {
            return Ok(());
        }
        let Some(claims) = self.claims.filled().map(|store| store.state()) else { return Ok(()) };
        let members = by_uid(&context.members.state());
        let now = Timestamp::now();

        // One that cannot be read is not known to be over.
        let is_over = |claim: &&Arc<_>| read(claim).is_some_and(|claim| claims::is_over(claim, now));
        let (over, live): (Vec<_>, Vec<_>) = claims.iter().partition(is_over);
        let uids = |claims: Vec<&Arc<Received<_>>>| claims.iter().filter_map(|claim| claim.uid()).collect();
        let mut living =
            Living { members: members.keys().cloned().collect(), claims: uids(live), claims_over: uids(over) };
        self.compare_entries(&members, &entries);

        let cluster = &context.settings.cluster;
        let keep = SignedDuration::try_from(options.svid_ttl).unwrap_or(SignedDuration::from_secs(300));
        let mut found = sweep::sweep(&entries, &agents, &living, missing, cluster, keep, now);
        if !found.is_idle() {
            // A watch may lag behind by more than anybody waits, and hide the uid of what it could not read.
            self.add_living(&mut living).await?;
            found = sweep::sweep(&entries, &agents, &living, missing, cluster, keep, now);
        }
        if let Some(ids) = self.allowed("entries", found.entries) {
            context.may_write()?;
            for result in context.spire.delete_entries(&ids).await? {
                context.metrics.count("delete-entry", result.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        for path in self.allowed("agents", found.ban).unwrap_or_default() {
            if let Some(id) = self.agent_of(&path) {
                context.may_write()?;
                let outcome = context.spire.ban_agent(&id).await;
                context.metrics.count("ban", outcome.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        for path in found.delete {
            if let Some(id) = self.agent_of(&path) {
                context.may_write()?;
                let outcome = context.spire.delete_agent(&id).await;
                context.metrics.count("delete-agent", outcome.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        Ok(())
    }

    /// Adds what lives by the API server's own word, of which no part needs to be understood.
    async fn add_living(&self, living: &mut Living) -> Result<(), MemberError> {
        living.members.extend(self.uids_of::<PoolMember>().await?);
        let claims = self.uids_of::<VirtualMachineClaim>().await?;
        living.claims.extend(claims.into_iter().filter(|uid| !living.claims_over.contains(uid)));
        Ok(())
    }

    async fn uids_of<K>(&self) -> Result<Vec<String>, MemberError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let all = Api::<K>::all(self.context.client.clone());
        let params = ListParams::default();
        let failed = |why: String| MemberError::Kubernetes { act: format!("list {}", K::plural(&())), why };
        let list = tokio::time::timeout(CALL_LIMIT, all.list_metadata(&params)).await;
        let list =
            list.map_err(|_| failed("no answer in time".to_owned()))?.map_err(|error| failed(error.to_string()))?;
        Ok(list.items.into_iter().filter_map(|object| object.metadata.uid).collect())
    }

    fn agent_of(&self, path: &str) -> Option<SpiffeId> {
        match read_path(path)? {
            Named::Agent { cluster, namespace, member } if cluster == self.context.settings.cluster => {
                Some(agent(&self.context.settings.trust_domain, &cluster, &namespace, &member))
            }
            _ => None,
        }
    }

    fn allowed(&self, what: &'static str, plan: Plan) -> Option<Vec<String>> {
        match plan {
            Plan::Remove(ids) => {
                self.context.metrics.stays(what, 0);
                if !ids.is_empty() {
                    tracing::info!(what, count = ids.len(), "sweeps what nothing stands for");
                }
                Some(ids)
            }
            Plan::Stop { surprising, of } => {
                self.context.metrics.stopped_sweeps.inc();
                tracing::error!(
                    what,
                    surprising,
                    of,
                    "the sweep stops: more than a tenth of SPIRE's records stand for nothing that is seen. If that is \
                     true, delete them by hand; if not, look why objects are not seen"
                );
                if self.context.metrics.stays(what, surprising) {
                    self.tell_of_stop(what, surprising, of);
                }
                None
            }
        }
    }

    /// An event on every pool whose members have identities, without waiting.
    fn tell_of_stop(&self, what: &str, surprising: usize, of: usize) {
        let pools = self.context.pools.filled().map(|store| store.state()).unwrap_or_default();
        let reporter = Reporter { controller: managers::ATTESTOR_CONTROLLER.to_owned(), instance: None };
        let recorder = Recorder::new(self.context.client.clone(), reporter);
        let event = Event {
            type_: EventType::Warning,
            reason: "SweepStopped".to_owned(),
            note: Some(format!(
                "{surprising} of {of} {what} of this cluster in SPIRE stand for no member or claim that is seen: too many \
                 to be removed unasked. Identities of members that were removed by force stay until somebody deletes them"
            )),
            action: "Sweep".to_owned(),
            secondary: None,
        };
        tokio::spawn(async move {
            for pool in pools
                .iter()
                .filter_map(|pool| read(pool))
                .filter(|pool| pool.spec.attestation.mode == AttestationMode::Vtpm)
            {
                let reference = pool.object_ref(&());
                let told = tokio::time::timeout(CALL_LIMIT, recorder.publish(&event, &reference)).await;
                if !matches!(told, Ok(Ok(()))) {
                    tracing::debug!(pool = %pool.name_any(), "an event could not be written");
                }
            }
        });
    }

    /// Takes SPIRE's complete list for what is known, and looks again at members whose entries are not there.
    fn compare_entries(
        &self,
        members: &HashMap<String, Arc<Received<PoolMember>>>,
        entries: &[banlieue_spire::entries::Entry],
    ) {
        let ids: BTreeSet<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let cluster = &self.context.settings.cluster;
        let mut known = HashMap::new();
        for (uid, member) in members {
            let Ok(parsed) = Uid::parse(uid) else { continue };
            let own = [node_entry(cluster, &parsed), egress_entry(cluster, &parsed)];
            let there: BTreeSet<String> = own.into_iter().filter(|id| ids.contains(id.as_str())).collect();
            // A dead one is to have none.
            let dead = read(member).is_some_and(|member| dead(member).is_some());
            if there.is_empty() && !dead && member.meta().deletion_timestamp.is_none() {
                let _ = self.context.again.send(());
            }
            // An ending member's claim entry is not in this set, so what is known about ending ones is nothing.
            if member.meta().deletion_timestamp.is_none() {
                known.insert(uid.clone(), there);
            }
        }
        self.context.replace_entries(known);
    }
}
