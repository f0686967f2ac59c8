//! Carrying out sweeps: SPIRE's records compared with what lives.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use banlieue_crds::{PoolMember, VirtualMachineClaim, names::managers, pool::AttestationMode};
use banlieue_protocol::names::{Named, SpiffeId, Uid, agent, egress_entry, node_entry, read_path};
use banlieue_spire::sweep::Plan;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::cluster::CALL_LIMIT;

use super::{
    claims,
    member::by_uid,
    run::{Options, Parts},
    sweep::{self, Living, Missing},
};

impl Parts {
    /// Sweeps for ever, entries, agents and reports.
    pub(super) async fn sweeps(&self, options: &Options) {
        let (mut missing, mut unreported) = (Missing::default(), Missing::default());
        loop {
            if let Err(error) = self.sweep(options, &mut missing).await {
                tracing::warn!(%error, "no sweep: a list is not complete");
            }
            self.sweep_reports(options, &mut unreported).await;
            tokio::time::sleep(options.sweep_every).await;
        }
    }

    async fn sweep(&self, options: &Options, missing: &mut Missing) -> Result<(), banlieue_spire::Error> {
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

        let (over, live): (Vec<_>, Vec<_>) = claims.iter().partition(|claim| claims::is_over(claim, now));
        let uids = |claims: Vec<&Arc<VirtualMachineClaim>>| claims.iter().filter_map(|claim| claim.uid()).collect();
        let living = Living { members: members.keys().cloned().collect(), claims: uids(live), claims_over: uids(over) };
        self.compare_entries(&members, &entries);

        let cluster = &context.settings.cluster;
        let keep = SignedDuration::try_from(options.svid_ttl).unwrap_or(SignedDuration::from_secs(300));
        let found = sweep::sweep(&entries, &agents, &living, missing, cluster, keep, now);
        if let Some(ids) = self.allowed("entries", found.entries) {
            for result in context.spire.delete_entries(&ids).await? {
                context.metrics.count("delete-entry", result.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        for path in self.allowed("agents", found.ban).unwrap_or_default() {
            if let Some(id) = self.agent_of(&path) {
                let outcome = context.spire.ban_agent(&id).await;
                context.metrics.count("ban", outcome.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        for path in found.delete {
            if let Some(id) = self.agent_of(&path) {
                let outcome = context.spire.delete_agent(&id).await;
                context.metrics.count("delete-agent", outcome.as_ref().err().map_or("ok", |error| error.category()));
            }
        }
        Ok(())
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
            for pool in pools.iter().filter(|pool| pool.spec.attestation.mode == AttestationMode::Vtpm) {
                let reference = pool.object_ref(&());
                let told = tokio::time::timeout(CALL_LIMIT, recorder.publish(&event, &reference)).await;
                if !matches!(told, Ok(Ok(()))) {
                    tracing::debug!(pool = %pool.name_any(), "an event could not be written");
                }
            }
        });
    }

    /// Takes SPIRE's complete list for what is known, and looks again at members whose entries are not there.
    fn compare_entries(&self, members: &HashMap<String, Arc<PoolMember>>, entries: &[banlieue_spire::entries::Entry]) {
        let ids: BTreeSet<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let cluster = &self.context.settings.cluster;
        let mut known = HashMap::new();
        for (uid, member) in members {
            let Ok(parsed) = Uid::parse(uid) else { continue };
            let own = [node_entry(cluster, &parsed), egress_entry(cluster, &parsed)];
            let there: BTreeSet<String> = own.into_iter().filter(|id| ids.contains(id.as_str())).collect();
            if there.is_empty() && member.metadata.deletion_timestamp.is_none() {
                let _ = self.context.again.send(());
            }
            // An ending member's claim entry is not in this set, so what is known about ending ones is nothing.
            if member.metadata.deletion_timestamp.is_none() {
                known.insert(uid.clone(), there);
            }
        }
        self.context.replace_entries(known);
    }
}
