//! Which changes of conditions are worth an event. The steps that every member and pool goes through are not.

use banlieue_crds::conditions::{self, MemberCondition, MemberReason, PoolCondition, PoolReason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// A condition that says something new.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct News<'a> {
    /// The condition.
    pub condition: &'a Condition,
    /// Whether a person should look.
    pub warning: bool,
}

impl News<'_> {
    /// The condition's sentence, or its type and status when it has none.
    pub fn text(&self) -> String {
        if self.condition.message.is_empty() {
            format!("{} is {}", self.condition.type_, self.condition.status)
        } else {
            self.condition.message.clone()
        }
    }
}

/// Conditions whose status or reason is another than before.
fn changed<'a>(before: &'a [Condition], after: &'a [Condition]) -> impl Iterator<Item = (&'a Condition, bool)> {
    after.iter().filter_map(|new| {
        let old = conditions::find(before, &new.type_);
        let same = old.is_some_and(|old| old.status == new.status && old.reason == new.reason);
        (!same).then_some((new, old.is_some()))
    })
}

/// What is new about a pool, each reason once: Ready often repeats the reason of the condition that explains it.
pub fn pool_news<'a>(before: &'a [Condition], after: &'a [Condition]) -> Vec<News<'a>> {
    let mut news: Vec<News<'a>> = Vec::new();
    for (condition, was_there) in changed(before, after) {
        let is = |type_: PoolCondition| condition.type_ == type_.as_str();
        let says = |reason: PoolReason| condition.reason == reason.as_str();
        let good = (condition.status == "True") != is(PoolCondition::ProvisioningHalted);
        // It fills all the time, and what is good from the beginning surprises nobody but for the first Warm.
        let routine = is(PoolCondition::Progressing)
            || says(PoolReason::Filling)
            || (good && !was_there && !is(PoolCondition::Ready));
        if routine || news.iter().any(|other| other.condition.reason == condition.reason) {
            continue;
        }
        let wanted = says(PoolReason::Paused) || says(PoolReason::Draining);
        news.push(News { condition, warning: !good && !wanted });
    }
    news
}

/// What is new about a member: that it may be lent, and whatever keeps it from that other than being on its way.
pub fn member_news<'a>(before: &'a [Condition], after: &'a [Condition]) -> Vec<News<'a>> {
    const ON_ITS_WAY: [MemberReason; 3] = [MemberReason::Provisioning, MemberReason::Booting, MemberReason::Attesting];
    let was_ready = conditions::is_true(before, MemberCondition::Ready);
    changed(before, after)
        .filter(|(condition, _)| {
            let on_its_way = ON_ITS_WAY.iter().any(|reason| condition.reason == reason.as_str());
            match condition.type_.as_str() {
                type_ if type_ == MemberCondition::Ready.as_str() => was_ready || !on_its_way,
                type_ => type_ == MemberCondition::Destroyed.as_str(),
            }
        })
        .map(|(condition, _)| News { condition, warning: condition.status != "True" })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use conditions::condition;

    type Said = (PoolCondition, bool, PoolReason);

    fn list(said: &[Said]) -> Vec<Condition> {
        let at = jiff::Timestamp::UNIX_EPOCH;
        said.iter().map(|(type_, holds, reason)| condition(*type_, *holds, *reason, "", None, at)).collect()
    }

    #[test]
    fn a_pool_tells_what_a_person_would_want_to_know() {
        use PoolCondition::{Capacity, Progressing, ProvisioningHalted, Ready, TemplateValid};
        use PoolReason::*;
        type Case<'a> = (&'a [Said], &'a [Said], &'a [(&'a str, bool)]);
        let cases: [Case<'_>; 7] = [
            (&[], &[(TemplateValid, true, Accepted), (Ready, false, Filling), (Progressing, true, Filling)], &[]),
            (&[(Ready, false, Filling)], &[(Ready, true, Warm), (Progressing, false, Settled)], &[("Warm", false)]),
            (
                &[(TemplateValid, true, Accepted), (Ready, true, Warm)],
                &[(TemplateValid, false, TemplateInvalid), (Ready, false, TemplateInvalid)],
                &[("TemplateInvalid", true)],
            ),
            (&[], &[(TemplateValid, false, MeasurementsNotFound)], &[("MeasurementsNotFound", true)]),
            (
                &[(ProvisioningHalted, false, WithinBudget)],
                &[(ProvisioningHalted, true, FailureBudgetSpent)],
                &[("FailureBudgetSpent", true)],
            ),
            (&[(Capacity, false, Unschedulable)], &[(Capacity, true, Sufficient)], &[("Sufficient", false)]),
            (&[(Ready, true, Warm)], &[(Ready, false, Paused)], &[("Paused", false)]),
        ];
        for (before, after, told) in cases {
            let (before, after) = (list(before), list(after));
            let found = pool_news(&before, &after);
            let found: Vec<_> = found.iter().map(|news| (news.condition.reason.as_str(), news.warning)).collect();
            assert_eq!(found, told, "{before:?} -> {after:?}");
            assert!(pool_news(&after, &after).is_empty());
        }
    }

    #[test]
    fn a_member_tells_that_it_is_ready_and_what_went_wrong() {
        use MemberCondition::{Destroyed, Provisioned, Ready};
        use MemberReason::{AttestationRefused, Attesting, Booting, Ending, InstanceCreated, NodeUnavailable};
        let at = jiff::Timestamp::UNIX_EPOCH;
        let one = |type_: MemberCondition, holds: bool, reason: MemberReason| {
            vec![condition(type_, holds, reason, "", None, at)]
        };
        let ready = one(Ready, true, MemberReason::Ready);
        let booting = one(Ready, false, Booting);
        for (before, after, told) in [
            (&booting, one(Ready, false, Attesting), vec![]),
            (&booting, ready.clone(), vec![("Ready", false)]),
            (&ready, one(Ready, false, Attesting), vec![("Attesting", true)]),
            (&ready, one(Ready, false, NodeUnavailable), vec![("NodeUnavailable", true)]),
            (&booting, one(Ready, false, AttestationRefused), vec![("AttestationRefused", true)]),
            (&ready, one(Provisioned, true, InstanceCreated), vec![]),
            (&ready, one(Destroyed, false, Ending), vec![("Ending", true)]),
        ] {
            let found = member_news(before, &after);
            let found: Vec<_> = found.iter().map(|news| (news.condition.reason.as_str(), news.warning)).collect();
            assert_eq!(found, told, "{before:?} -> {after:?}");
        }
    }
}
