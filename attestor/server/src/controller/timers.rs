//! What runs on timers beside the passes: claims that end, and the probe of the plugin.

use std::{collections::BTreeSet, time::Duration};

use banlieue_protocol::names::{Uid, claim_entry};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{claims, probe, run::Parts};
use crate::unread::read;

/// The longest sleep between looks at claims.
const CLAIMS_EVERY: Duration = Duration::from_secs(30);
/// How soon a process that begins to lead looks at claims.
const FOLLOWS: Duration = Duration::from_secs(1);

impl Parts {
    /// Deletes the entries of claims that end, for ever.
    pub(super) async fn watch_claims(&self) {
        let mut dealt_with: BTreeSet<Uid> = BTreeSet::new();
        loop {
            let mut sleep = CLAIMS_EVERY;
            if !self.context.leadership.works() {
                sleep = FOLLOWS;
            } else if let Some(store) = self.claims.filled() {
                let (claims, now) = (store.state(), Timestamp::now());
                dealt_with.retain(|uid| claims.iter().any(|claim| claim.uid().as_deref() == Some(uid.as_str())));
                let over = claims::over(claims.iter().filter_map(|claim| read(claim)), &dealt_with, now);
                if !over.claims.is_empty() {
                    match self.delete_claim_entries(&over.claims).await {
                        Ok(()) => dealt_with.extend(over.claims),
                        Err(error) => {
                            tracing::warn!(%error, "entries of ended claims are still there");
                            sleep = Duration::from_secs(1);
                        }
                    }
                }
                let until_next = over.next.map(|next| next.duration_since(Timestamp::now()));
                if let Some(until) = until_next.and_then(|until| Duration::try_from(until).ok()) {
                    sleep = sleep.min(until.saturating_add(Duration::from_millis(5)));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(sleep) => {}
                () = self.claims.changed() => {}
            }
        }
    }

    async fn delete_claim_entries(&self, claims: &[Uid]) -> Result<(), banlieue_spire::Error> {
        let context = &self.context;
        let ids: Vec<_> = claims.iter().map(|claim| claim_entry(&context.settings.cluster, claim)).collect();
        let outcome = async {
            for result in context.spire.delete_entries(&ids).await? {
                result?;
            }
            Ok(())
        }
        .await;
        let word = outcome.as_ref().err().map_or("ok", banlieue_spire::Error::category);
        context.metrics.count("delete-entry", word);
        outcome
    }

    /// Asks the plugin and tells the pools, for ever.
    pub(super) async fn probes(&self, every: Duration) {
        let mut was = None;
        loop {
            let finding = probe::probe(&self.context.spire).await;
            if was != Some(finding.answering) {
                tracing::info!(answering = finding.answering, message = %finding.message, "the plugin");
                was = Some(finding.answering);
            }
            self.context.metrics.plugin_answering.set(i64::from(finding.answering));
            // What is found changes on the timer only; a new pool is told at once.
            let next = tokio::time::sleep(every);
            tokio::pin!(next);
            loop {
                self.tell(&finding).await;
                tokio::select! {
                    () = &mut next => break,
                    () = self.context.pools.changed() => {}
                }
            }
        }
    }

    async fn tell(&self, finding: &probe::Finding) {
        if !self.context.leadership.works() {
            return;
        }
        let pools = self.context.pools.filled().map(|store| store.state()).unwrap_or_default();
        for pool in pools.iter().filter_map(|pool| read(pool)) {
            if let Err(why) = probe::tell(&self.context.client, pool, finding).await {
                tracing::warn!(%why, "a pool was not told about the plugin");
            }
        }
    }
}
