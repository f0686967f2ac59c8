//! What a pool says about itself: counts and conditions, from one snapshot.

use banlieue_crds::conditions::{self, PoolCondition, PoolReason, condition};
use banlieue_crds::names::labels;
use banlieue_crds::pool::{AttestationMode, VirtualMachinePoolStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::attestor::silent;
use super::budget::Budget;
use super::member::image_trouble;
use super::population::Population;
use crate::store::{MemberSnapshot, PoolSnapshot};

/// What keeps a pool from making members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Being deleted.
    Draining,
    /// `spec.paused`.
    Paused,
    /// Template or KubeVirt's judgement of it.
    Template(String),
    /// Measurements missing or of other content.
    Measurements(String),
    /// The trust bundle is not there.
    Bundle,
    /// Members could not reach SPIRE or the broker through their NetworkPolicy.
    Egress(String),
    /// ConfigMaps and NetworkPolicies of the namespace cannot be listed, yet.
    Namespace,
    /// Something is being asked for; a moment.
    Preparing,
    /// `maxReplicas` leaves no room.
    MaxReplicas,
    /// A quota refused the last member.
    Quota(String),
}

/// Builds the whole status that we own. Conditions of other writers are not in it.
pub(super) fn status(
    snapshot: &PoolSnapshot,
    revision: &str,
    population: &Population<'_>,
    budget: &Budget,
    trouble: Option<Trouble>,
    now: Timestamp,
) -> VirtualMachinePoolStatus {
    let pool = &snapshot.pool;
    let standing = pool.status.clone().unwrap_or_default();
    let standing_conditions = standing.conditions.clone();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let is_current = |member: &&&MemberSnapshot| member.member.spec.revision == revision;
    let mut status = VirtualMachinePoolStatus {
        observed_generation: pool.metadata.generation,
        replicas: number(population.living - population.expected.min(population.living)),
        warm: number(population.warm.len()),
        provisioning: number(population.provisioning.len().saturating_sub(population.attesting)),
        attesting: number(population.attesting),
        bound: number(population.bound),
        terminating: number(population.terminating),
        failed: number(population.failed.len()),
        updated: number(population.warm.iter().filter(is_current).count()),
        current_revision: Some(revision.to_owned()),
        selector: Some(format!("{}={}", labels::POOL, snapshot.key.name)),
        runtime: pool.spec.template.runtime(),
        pending_claims: number(snapshot.waiting),
        hit_percent: snapshot.hit_percent,
        recommended_warm: standing.recommended_warm,
        failures: (!budget.record.counted.is_empty() || budget.record.consecutive > 0).then(|| budget.record.clone()),
        conditions: standing
            .conditions
            .iter()
            .filter(|condition| condition.type_ != PoolCondition::AttestorReachable.as_str())
            .cloned()
            .collect(),
    };
    let mut say = |type_: PoolCondition, holds: bool, reason: PoolReason, message: String| {
        let new = condition(type_, holds, reason, message, pool.metadata.generation, now);
        conditions::set(&mut status.conditions, new);
    };
    let wanted = usize::try_from(pool.spec.warm_replicas).unwrap_or(usize::MAX);
    let short = population.warm.len() < wanted;
    let failing = (budget.record.consecutive > 0)
        .then(|| format!("{} failures in a row, the last: {}", budget.record.consecutive, budget.record.last_message));
    let unschedulable = unschedulable(population);
    let full = format!(
        "maxReplicas is {} and as many members live: raise it, or wait for some to end",
        pool.spec.max_replicas
    );

    match &trouble {
        Some(Trouble::Template(message)) => {
            say(PoolCondition::TemplateValid, false, PoolReason::TemplateInvalid, message.clone());
        }
        Some(Trouble::Measurements(message)) => {
            say(PoolCondition::TemplateValid, false, PoolReason::MeasurementsNotFound, message.clone());
        }
        Some(Trouble::Preparing | Trouble::Namespace | Trouble::Bundle | Trouble::Egress(_) | Trouble::Draining) => {}
        _ => {
            let evidence = match pool.spec.attestation.mode {
                AttestationMode::Vtpm => ", and its measurements are the ones that are named",
                AttestationMode::Pod | AttestationMode::None => "",
            };
            let text = format!("the template is allowed and KubeVirt accepts it{evidence}");
            say(PoolCondition::TemplateValid, true, PoolReason::Accepted, text);
        }
    }
    match (&trouble, &unschedulable) {
        (Some(Trouble::MaxReplicas), _) => {
            say(PoolCondition::Capacity, false, PoolReason::MaxReplicasReached, full.clone());
        }
        (Some(Trouble::Quota(message)), _) => {
            say(PoolCondition::Capacity, false, PoolReason::QuotaExceeded, message.clone());
        }
        (_, Some((reason, message))) => say(PoolCondition::Capacity, false, *reason, message.clone()),
        _ => {
            let text = format!(
                "{} of at most {} members live, and none waits for room, quota or a node",
                population.living - population.expected.min(population.living),
                pool.spec.max_replicas
            );
            say(PoolCondition::Capacity, true, PoolReason::Sufficient, text);
        }
    }
    if budget.spent {
        let next = match budget.pause_until.filter(|until| *until > now) {
            Some(until) => format!("the next attempt is not before {until:.0}"),
            None if population.provisioning.len() + population.expected > 0 => "an attempt is under way".to_owned(),
            None => "one at a time is tried until a member has lived long enough to count".to_owned(),
        };
        let text = format!("{}; {next}", failing.clone().unwrap_or_default());
        say(PoolCondition::ProvisioningHalted, true, PoolReason::FailureBudgetSpent, text);
    } else {
        let most = pool.spec.failure_budget.consecutive;
        let text = match &failing {
            Some(failing) => format!("{failing}; provisioning halts after {most}"),
            None => format!("no failure since a member proved itself; provisioning halts after {most} in a row"),
        };
        say(PoolCondition::ProvisioningHalted, false, PoolReason::WithinBudget, text);
    }

    let (reason, message) = match (&trouble, &unschedulable) {
        _ if !short && !matches!(trouble, Some(Trouble::Draining)) => {
            (PoolReason::Warm, format!("{} members are warm, {wanted} are wanted", population.warm.len()))
        }
        (Some(Trouble::Draining), _) => {
            (PoolReason::Draining, format!("the pool is deleted; {} members are not gone yet", population.living))
        }
        (Some(Trouble::Paused), _) => (PoolReason::Paused, "spec.paused is true".into()),
        (Some(Trouble::Template(message)), _) => (PoolReason::TemplateInvalid, message.clone()),
        (Some(Trouble::Measurements(message)), _) => (PoolReason::MeasurementsNotFound, message.clone()),
        (Some(Trouble::Egress(message)), _) => (PoolReason::EgressUndefined, message.clone()),
        (Some(Trouble::Bundle), _) => {
            (PoolReason::Filling, "waits for SPIRE's trust bundle in its ConfigMap".into())
        }
        (Some(Trouble::Namespace), _) => (
            PoolReason::Filling,
            "waits for the list of ConfigMaps and NetworkPolicies of its namespace; if this stays, bind the ClusterRole \
             banlieue-controller-pool-namespace to the controller there"
                .into(),
        ),
        (Some(Trouble::Preparing), _) => preparing(&standing_conditions, pool.metadata.generation),
        _ if budget.spent => (PoolReason::FailureBudgetSpent, failing.clone().unwrap_or_default()),
        (Some(Trouble::Quota(message)), _) => (PoolReason::QuotaExceeded, message.clone()),
        (_, Some((reason, message))) => (*reason, message.clone()),
        (Some(Trouble::MaxReplicas), _) => (PoolReason::MaxReplicasReached, full),
        _ if silent(&snapshot.pool).is_some() => (PoolReason::NotAnswering, silent(&snapshot.pool).unwrap_or_default()),
        _ => {
            let cause = failing.clone().map(|text| format!("; {text}")).unwrap_or_default();
            (PoolReason::Filling, format!("{} of {wanted} are warm{cause}", population.warm.len()))
        }
    };
    let ready = !short && !matches!(trouble, Some(Trouble::Draining));
    say(PoolCondition::Ready, ready, reason, message.clone());
    let moving = !population.provisioning.is_empty()
        || population.expected > 0
        || population.terminating > 0
        || !population.replaceable.is_empty();
    if moving {
        let text = format!(
            "{} members are on their way, {} end, {} are to be replaced",
            population.provisioning.len() + population.expected,
            population.terminating,
            population.replaceable.len()
        );
        say(PoolCondition::Progressing, true, if short { reason } else { PoolReason::Filling }, text);
    } else if short {
        say(PoolCondition::Progressing, false, reason, message);
    } else {
        let text = "no member is being made, replaced or ended".to_owned();
        say(PoolCondition::Progressing, false, PoolReason::Settled, text);
    }
    status
}

/// While something is asked for, what was said of this generation stands: a process that starts asks everything anew,
/// and that is no news.
fn preparing(standing: &[Condition], generation: Option<i64>) -> (PoolReason, String) {
    let said = conditions::find(standing, PoolCondition::Ready)
        .filter(|ready| ready.status == "False" && ready.observed_generation == generation);
    let word = |ready: &Condition| PoolReason::ALL.iter().copied().find(|word| word.as_str() == ready.reason);
    match said.and_then(|ready| Some((word(ready)?, ready.message.clone()))) {
        Some((reason, message)) if !message.is_empty() => (reason, message),
        _ => (PoolReason::Filling, "its template, measurements and NetworkPolicy are being looked at".to_owned()),
    }
}

fn unschedulable(population: &Population<'_>) -> Option<(PoolReason, String)> {
    population.provisioning.iter().find_map(|member| {
        if let Some(text) = image_trouble(member) {
            return Some((PoolReason::ImagePullFailed, text));
        }
        let instance = member.own_instance();
        if instance.is_some_and(|instance| instance.is_running()) {
            return None;
        }
        if let Some(text) = member.pods.iter().find_map(|pod| pod.unschedulable.clone()) {
            return Some((PoolReason::Unschedulable, text));
        }
        let instance = instance?;
        let text = instance.trouble.clone()?;
        Some((if instance.over_quota { PoolReason::QuotaExceeded } else { PoolReason::Unschedulable }, text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing::{at, pool, pool_snapshot};
    use crate::decide::{PoolIntent, PoolPlan, Tuning};
    use banlieue_crds::pool::NetworkPolicyMode;
    use std::sync::Arc;

    fn said(plan: &PoolPlan, type_: PoolCondition) -> (String, String) {
        let found = conditions::find(&plan.status.conditions, type_).unwrap();
        (found.reason.clone(), found.message.clone())
    }

    fn plan(snapshot: &PoolSnapshot, tuning: &Tuning) -> PoolPlan {
        crate::decide::pool(snapshot, at(100), tuning)
    }

    fn creates(plan: &PoolPlan) -> bool {
        plan.intents.iter().any(|intent| matches!(intent, PoolIntent::Create { .. }))
    }

    fn applies(plan: &PoolPlan) -> bool {
        plan.intents.contains(&PoolIntent::ApplyNetworkPolicy)
    }

    #[test]
    fn no_member_before_its_network_policy_stands() {
        let tuning = Tuning::default();
        let pool = pool("p");
        let mut snapshot = pool_snapshot(&pool, vec![]);
        let settled = plan(&snapshot, &tuning);
        assert!(creates(&settled) && !applies(&settled));
        snapshot.network_policy = None;
        let absent = plan(&snapshot, &tuning);
        assert!(!creates(&absent) && applies(&absent));
        // Somebody's change, a policy of the same name made anew, and what an earlier process wrote: written again.
        for standing in [("uid-policy", 2), ("another", 1)] {
            snapshot.network_policy = Some((standing.0.into(), standing.1));
            let changed = plan(&snapshot, &tuning);
            assert!(creates(&changed) && applies(&changed), "{standing:?}");
        }
        snapshot.facts.network_policy = None;
        assert!(applies(&plan(&snapshot, &tuning)));
        let mut unmanaged = pool.clone();
        unmanaged.spec.network_policy = NetworkPolicyMode::Unmanaged;
        let mut snapshot = pool_snapshot(&unmanaged, vec![]);
        snapshot.network_policy = None;
        let unmanaged = plan(&snapshot, &tuning);
        assert!(creates(&unmanaged) && !applies(&unmanaged));
    }

    #[test]
    fn a_policy_that_cannot_say_where_spire_is_keeps_members_from_being_made() {
        let tuning = Tuning { egress_gap: Some("give --spire-peer".into()), ..Tuning::default() };
        let mut pool = pool("p");
        let gap = plan(&pool_snapshot(&pool, vec![]), &tuning);
        assert!(!creates(&gap));
        assert_eq!(said(&gap, PoolCondition::Ready), ("EgressUndefined".into(), "give --spire-peer".into()));
        pool.spec.network_policy = NetworkPolicyMode::Unmanaged;
        assert!(creates(&plan(&pool_snapshot(&pool, vec![]), &tuning)));
    }

    #[test]
    fn an_attestor_that_does_not_answer_is_the_reason_of_a_pool_that_asks_for_evidence() {
        let mut pool = pool("p");
        pool.status = Some(VirtualMachinePoolStatus {
            conditions: vec![condition(
                PoolCondition::AttestorReachable,
                false,
                PoolReason::NotAnswering,
                "no probe came back",
                Some(1),
                at(0),
            )],
            ..VirtualMachinePoolStatus::default()
        });
        let told = said(&plan(&pool_snapshot(&pool, vec![]), &Tuning::default()), PoolCondition::Ready);
        assert_eq!(told.0, "Filling", "mode None asks nobody");
        let mut snapshot = vtpm();
        Arc::make_mut(&mut snapshot.pool).status = pool.status;
        let told = said(&plan(&snapshot, &Tuning::default()), PoolCondition::Ready);
        assert_eq!(told.0, "NotAnswering");
        assert!(told.1.contains("no probe came back"), "{}", told.1);
        // A pool that is warm is warm.
        Arc::make_mut(&mut snapshot.pool).spec.warm_replicas = 0;
        assert_eq!(said(&plan(&snapshot, &Tuning::default()), PoolCondition::Ready).0, "Warm");
    }

    /// A pool of mode VTPM whose measurements and bundle are there.
    fn vtpm() -> PoolSnapshot {
        let mut pool = pool("p");
        pool.spec.attestation.mode = AttestationMode::Vtpm;
        pool.spec.attestation.measurements =
            serde_json::from_value(serde_json::json!({ "configMapRef": { "name": "m" }, "sha256": "ab" })).unwrap();
        let mut snapshot = pool_snapshot(&pool, vec![]);
        snapshot.facts.bundle = Some(true);
        snapshot.facts.policy = Some(("ab".into(), crate::decide::PolicyState::Copied));
        snapshot.policy_copies = vec![(banlieue_crds::names::policy_config_map("p", "ab"), "u".into())];
        snapshot
    }

    #[test]
    fn every_condition_has_a_sentence_whatever_it_says() {
        type Change = fn(&mut PoolSnapshot);
        let cases: [Change; 9] = [
            |_| {},
            |s| Arc::make_mut(&mut s.pool).spec.warm_replicas = 0,
            |s| Arc::make_mut(&mut s.pool).spec.max_replicas = 0,
            |s| Arc::make_mut(&mut s.pool).spec.paused = true,
            |s| s.namespace_seen = false,
            |s| s.facts = Default::default(),
            |s| s.facts.bundle = Some(false),
            |s| Arc::make_mut(&mut s.pool).spec.attestation.measurements = None,
            |s| {
                Arc::make_mut(&mut s.pool).metadata.deletion_timestamp =
                    Some(serde_json::from_str("\"2026-11-30T20:00:00Z\"").unwrap())
            },
        ];
        for (n, change) in cases.into_iter().enumerate() {
            let mut snapshot = vtpm();
            change(&mut snapshot);
            for condition in plan(&snapshot, &Tuning::default()).status.conditions {
                assert!(condition.message.len() > 10, "case {n}: {condition:?}");
            }
        }
        let accepted = said(&plan(&vtpm(), &Tuning::default()), PoolCondition::TemplateValid);
        assert_eq!(accepted.0, "Accepted");
        assert!(accepted.1.contains("measurements"), "{}", accepted.1);
    }

    #[test]
    fn a_process_that_starts_does_not_forget_what_a_pool_said() {
        let mut snapshot = pool_snapshot(&pool("p"), vec![]);
        let facts = std::mem::take(&mut snapshot.facts);
        assert_eq!(said(&plan(&snapshot, &Tuning::default()), PoolCondition::Ready).0, "Filling");
        let no = crate::decide::TemplateVerdict::Refused { message: "no such bus".into(), ask_again: at(1000) };
        snapshot.facts = facts.clone();
        snapshot.facts.template = Some((crate::decide::revision(&snapshot.pool), no));
        let refused = plan(&snapshot, &Tuning::default()).status;
        Arc::make_mut(&mut snapshot.pool).status = Some(refused.clone());
        // Asked anew: nothing is said that was not said, so nothing is told again.
        snapshot.facts = facts.clone();
        snapshot.facts.template = None;
        assert_eq!(plan(&snapshot, &Tuning::default()).status.conditions, refused.conditions);
        // Another generation may be another matter.
        Arc::make_mut(&mut snapshot.pool).metadata.generation = Some(2);
        assert_eq!(said(&plan(&snapshot, &Tuning::default()), PoolCondition::Ready).0, "Filling");
    }
}
