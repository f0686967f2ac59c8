//! What to do next about one instance: a pure function from what is seen to one step.
//!
//! The order of the steps is KubeVirt's. While the machine lives its pod must stay, for virt-controller takes a missing
//! pod as the machine's failure; the pod goes last, and with it virt-controller lets the instance's finalizer go.

use std::time::Duration;

use banlieue_crds::kubevirt::InstancePhase;
use jiff::Timestamp;

/// How often a power button is pressed again: a guest that still boots misses the first one (virt-handler does the same).
const PRESS_AGAIN: Duration = Duration::from_secs(5);

/// What is known about one instance on one of our nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its launcher pod on our node.
    pub pod: Option<PodView>,
    /// The instance.
    pub instance: InstanceView,
    /// The machine behind it.
    pub machine: Machine,
}

/// A launcher pod bound to one of our nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Its phase.
    pub phase: PodPhase,
    /// Whether it should be shown ready and is not yet: all its readiness gates are true.
    pub ready_is_due: bool,
    /// When its grace ends, once it is being deleted.
    pub deleted_by: Option<Timestamp>,
    /// Whether it was deleted without any grace: then the API server removes it by itself.
    pub vanishing: bool,
}

/// Phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Bound, not started.
    Pending,
    /// Started.
    Running,
    /// Ended either way.
    Over,
}

/// The instance as the API server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceView {
    /// Not seen yet; a pod may arrive before the instance it belongs to.
    Unknown,
    /// Gone for good.
    Gone,
    /// There.
    There {
        /// Its phase.
        phase: InstancePhase,
        /// Whether it was given to this node.
        ours: bool,
        /// When its grace ends, once it is being deleted.
        deleted_by: Option<Timestamp>,
    },
}

/// The machine behind an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// None.
    Absent,
    /// A start that was interrupted; its files and perhaps its vTPM are there.
    Partial,
    /// Running.
    Up {
        /// When the power button was last pressed.
        pressed: Option<Timestamp>,
    },
    /// Ended, its state still on disk.
    Ended(End),
    /// Ended, and its state wiped.
    Wiped(End),
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest powered off, or it was stopped at once as asked.
    PoweredOff,
    /// It ended otherwise; the text says how.
    Failed(String),
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing until something changes.
    Rest,
    /// Nothing until then, or until something changes.
    Until(Timestamp),
    /// Ask the API server whether the instance exists.
    LookUp,
    /// Report the pod running.
    AdmitPod,
    /// Report the pod ready.
    ReadyPod,
    /// Start the machine.
    Start,
    /// Report the instance running.
    ReportRunning,
    /// Press the machine's power button.
    PressPower,
    /// Stop the machine at once.
    Kill(End),
    /// Remove what the machine left: vTPM state, disks, sockets.
    Wipe,
    /// Report the instance's end.
    ReportEnd(End),
    /// Report the pod's end.
    EndPod(End),
    /// Remove the pod.
    RemovePod,
    /// Everything is gone.
    Forget,
}

/// Decides.
pub fn decide(seen: &Seen, now: Timestamp) -> Step {
    match &seen.machine {
        Machine::Up { pressed } => running(seen, *pressed, now),
        Machine::Ended(_) => Step::Wipe,
        Machine::Absent => without_machine(seen, None),
        // Only a start may go on with what is there; the vTPM's key has perhaps been reported.
        Machine::Partial => match without_machine(seen, None) {
            step @ (Step::Start | Step::LookUp) => step,
            _ => Step::Wipe,
        },
        Machine::Wiped(end) => without_machine(seen, Some(end)),
    }
}

fn running(seen: &Seen, pressed: Option<Timestamp>, now: Timestamp) -> Step {
    let lost = |why: &str| Step::Kill(End::Failed(why.to_owned()));
    let deleted_by = match &seen.instance {
        // The pod that owns the machine tells what to do until the instance is seen.
        InstanceView::Unknown => None,
        InstanceView::Gone => return Step::Kill(End::PoweredOff),
        InstanceView::There { phase: InstancePhase::Succeeded | InstancePhase::Failed, .. } => {
            return lost("the instance was declared over");
        }
        InstanceView::There { ours: false, .. } => return lost("the instance was given to another node"),
        InstanceView::There { deleted_by, .. } => *deleted_by,
    };
    let Some(pod) = &seen.pod else { return lost("its launcher pod is gone") };
    if pod.phase == PodPhase::Over {
        return lost("its launcher pod is over");
    }
    // The earlier of the two graces counts; virt-controller gives the pod some more than the instance.
    match [deleted_by, pod.deleted_by].into_iter().flatten().min() {
        Some(end) => shutting_down(end, deleted_by.is_some(), pressed, now),
        None if matches!(&seen.instance, InstanceView::There { phase: InstancePhase::Scheduled, .. }) => {
            Step::ReportRunning
        }
        None if pod.ready_is_due => Step::ReadyPod,
        None => Step::Rest,
    }
}

/// `asked`: the instance itself is being deleted, so that an immediate end is what was wanted.
fn shutting_down(end: Timestamp, asked: bool, pressed: Option<Timestamp>, now: Timestamp) -> Step {
    match pressed {
        _ if end <= now => {
            let wanted = asked && pressed.is_none();
            let late = || End::Failed("the guest did not power off within its grace period".to_owned());
            Step::Kill(if wanted { End::PoweredOff } else { late() })
        }
        Some(at) if now.duration_since(at).unsigned_abs() < PRESS_AGAIN => {
            Step::Until(end.min(at.checked_add(PRESS_AGAIN).unwrap_or(end)))
        }
        _ => Step::PressPower,
    }
}

/// `end`: how the machine that was here ended.
fn without_machine(seen: &Seen, end: Option<&End>) -> Step {
    let (phase, ours, deleted) = match &seen.instance {
        InstanceView::There { phase, ours, deleted_by } => (Some(*phase), *ours, deleted_by.is_some()),
        InstanceView::Unknown | InstanceView::Gone => (None, false, false),
    };
    match phase {
        Some(InstancePhase::Running | InstancePhase::Scheduled) if ours => {
            if let Some(end) = end {
                return Step::ReportEnd(end.clone());
            }
            if deleted {
                return Step::ReportEnd(End::PoweredOff);
            }
            if phase == Some(InstancePhase::Running) {
                return Step::ReportEnd(End::Failed("its machine is not on the node any more".to_owned()));
            }
            match &seen.pod {
                Some(PodView { phase: PodPhase::Running, deleted_by: None, .. }) => return Step::Start,
                Some(PodView { phase: PodPhase::Pending, deleted_by: None, .. }) => {}
                Some(_) => {
                    return Step::ReportEnd(End::Failed("its launcher pod ended before the machine began".to_owned()));
                }
                // virt-controller declares it failed as soon as it sees that the pod is gone.
                None => return Step::Rest,
            }
        }
        _ => {}
    }
    let Some(pod) = &seen.pod else { return Step::Forget };
    if pod.vanishing {
        return Step::Rest;
    }
    if pod.deleted_by.is_some() {
        return Step::RemovePod;
    }
    match (&seen.instance, pod.phase) {
        (InstanceView::Gone, PodPhase::Over) => Step::Rest,
        (InstanceView::Gone, _) => Step::EndPod(end.cloned().unwrap_or(End::PoweredOff)),
        (InstanceView::Unknown, PodPhase::Running) => Step::LookUp,
        (_, PodPhase::Over) => Step::Rest,
        _ => match phase {
            Some(InstancePhase::Succeeded) => Step::EndPod(End::PoweredOff),
            Some(InstancePhase::Failed) => {
                Step::EndPod(end.cloned().unwrap_or_else(|| End::Failed("the instance failed".to_owned())))
            }
            _ if pod.phase == PodPhase::Pending => Step::AdmitPod,
            _ if pod.ready_is_due => Step::ReadyPod,
            _ => Step::Rest,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn pod(phase: PodPhase) -> Option<PodView> {
        Some(PodView { phase, ready_is_due: false, deleted_by: None, vanishing: false })
    }

    fn going(phase: PodPhase) -> Option<PodView> {
        Some(PodView { phase, ready_is_due: false, deleted_by: Some(at(15)), vanishing: false })
    }

    fn there(phase: InstancePhase) -> InstanceView {
        InstanceView::There { phase, ours: true, deleted_by: None }
    }

    fn deleting(phase: InstancePhase, by: i64) -> InstanceView {
        InstanceView::There { phase, ours: true, deleted_by: Some(at(by)) }
    }

    fn up() -> Machine {
        Machine::Up { pressed: None }
    }

    fn failed(why: &str) -> End {
        End::Failed(why.into())
    }

    use InstancePhase as P;
    use PodPhase::{Over, Pending, Running};

    #[test]
    fn one_step() {
        let table = [
            // a life
            (pod(Pending), InstanceView::Unknown, Machine::Absent, Step::AdmitPod),
            (pod(Pending), there(P::Scheduling), Machine::Absent, Step::AdmitPod),
            (pod(Running), there(P::Scheduling), Machine::Absent, Step::Rest),
            (pod(Running), there(P::Scheduled), Machine::Absent, Step::Start),
            (pod(Running), there(P::Scheduled), up(), Step::ReportRunning),
            (pod(Running), there(P::Running), up(), Step::Rest),
            (pod(Running), there(P::Running), Machine::Ended(End::PoweredOff), Step::Wipe),
            (pod(Running), there(P::Running), Machine::Wiped(End::PoweredOff), Step::ReportEnd(End::PoweredOff)),
            (pod(Running), there(P::Running), Machine::Wiped(failed("x")), Step::ReportEnd(failed("x"))),
            (pod(Running), there(P::Succeeded), Machine::Wiped(End::PoweredOff), Step::EndPod(End::PoweredOff)),
            (pod(Over), there(P::Succeeded), Machine::Wiped(End::PoweredOff), Step::Rest),
            (going(Over), deleting(P::Succeeded, 0), Machine::Wiped(End::PoweredOff), Step::RemovePod),
            (None, deleting(P::Succeeded, 0), Machine::Wiped(End::PoweredOff), Step::Forget),
            // deletion without grace, with pod deletion seen before or after
            (pod(Running), deleting(P::Running, 0), up(), Step::Kill(End::PoweredOff)),
            (going(Running), deleting(P::Running, 0), up(), Step::Kill(End::PoweredOff)),
            (
                going(Running),
                deleting(P::Running, 0),
                Machine::Wiped(End::PoweredOff),
                Step::ReportEnd(End::PoweredOff),
            ),
            (going(Running), deleting(P::Succeeded, 0), Machine::Wiped(End::PoweredOff), Step::RemovePod),
            // deletion with grace
            (going(Running), deleting(P::Running, 10), up(), Step::PressPower),
            (going(Running), deleting(P::Running, 10), Machine::Up { pressed: Some(NOW) }, Step::Until(at(5))),
            (going(Running), deleting(P::Running, 3), Machine::Up { pressed: Some(NOW) }, Step::Until(at(3))),
            // deletion before the start
            (pod(Pending), deleting(P::Scheduling, 0), Machine::Absent, Step::AdmitPod),
            (going(Pending), deleting(P::Scheduling, 0), Machine::Absent, Step::RemovePod),
            (going(Running), deleting(P::Scheduled, 0), Machine::Absent, Step::ReportEnd(End::PoweredOff)),
            // somebody deletes the pod alone
            (going(Running), there(P::Running), up(), Step::PressPower),
            (None, there(P::Running), up(), Step::Kill(failed("its launcher pod is gone"))),
            (None, there(P::Scheduled), Machine::Absent, Step::Rest),
            // after a restart of the hypervisor
            (pod(Running), InstanceView::Unknown, up(), Step::Rest),
            (pod(Running), InstanceView::Unknown, Machine::Absent, Step::LookUp),
            (None, InstanceView::Gone, up(), Step::Kill(End::PoweredOff)),
            (None, InstanceView::Gone, Machine::Ended(failed("x")), Step::Wipe),
            (None, InstanceView::Gone, Machine::Wiped(failed("x")), Step::Forget),
            (pod(Running), InstanceView::Gone, Machine::Absent, Step::EndPod(End::PoweredOff)),
            (
                pod(Running),
                there(P::Running),
                Machine::Absent,
                Step::ReportEnd(failed("its machine is not on the node any more")),
            ),
            (pod(Running), deleting(P::Running, 0), Machine::Absent, Step::ReportEnd(End::PoweredOff)),
            (pod(Running), there(P::Scheduled), Machine::Partial, Step::Start),
            (going(Running), deleting(P::Scheduled, 0), Machine::Partial, Step::Wipe),
            (None, InstanceView::Gone, Machine::Partial, Step::Wipe),
            // declared over by virt-controller (node unresponsive)
            (pod(Running), there(P::Failed), up(), Step::Kill(failed("the instance was declared over"))),
        ];
        for (pod, instance, machine, expected) in table {
            let seen = Seen { pod, instance, machine };
            assert_eq!(decide(&seen, NOW), expected, "{seen:?}");
        }
    }

    #[test]
    fn a_guest_that_ignores_its_power_button_is_killed_and_that_is_a_failure() {
        let seen = |pressed| Seen {
            pod: going(Running),
            instance: deleting(P::Running, 10),
            machine: Machine::Up { pressed },
        };
        assert_eq!(decide(&seen(Some(at(3))), at(9)), Step::PressPower);
        assert!(matches!(decide(&seen(Some(at(9))), at(10)), Step::Kill(End::Failed(_))));
    }

    #[test]
    fn a_pod_that_vanishes_by_itself_is_left_to_it() {
        let seen = |vanishing| Seen {
            pod: Some(PodView { phase: Over, ready_is_due: false, deleted_by: Some(NOW), vanishing }),
            instance: deleting(P::Succeeded, 0),
            machine: Machine::Wiped(End::PoweredOff),
        };
        assert_eq!(decide(&seen(false), NOW), Step::RemovePod);
        assert_eq!(decide(&seen(true), NOW), Step::Rest);
    }

    #[test]
    fn readiness_waits_for_the_gates() {
        let seen = |ready_is_due| Seen {
            pod: Some(PodView { phase: Running, ready_is_due, deleted_by: None, vanishing: false }),
            instance: there(P::Running),
            machine: up(),
        };
        assert_eq!(decide(&seen(true), NOW), Step::ReadyPod);
        assert_eq!(decide(&seen(false), NOW), Step::Rest);
    }

    #[test]
    fn the_pod_never_goes_before_the_machine_is_reported_over() {
        for machine in [up(), Machine::Ended(End::PoweredOff), Machine::Wiped(End::PoweredOff)] {
            for phase in [P::Scheduled, P::Running] {
                for instance in [there(phase), deleting(phase, 0), deleting(phase, 60)] {
                    let seen = Seen { pod: going(Running), instance, machine: machine.clone() };
                    assert!(!matches!(decide(&seen, NOW), Step::RemovePod | Step::EndPod(_)), "{seen:?}");
                }
            }
        }
    }
}
