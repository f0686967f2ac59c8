//! Deciding, sweeping and ending, as tables.

use std::{collections::BTreeSet, sync::Arc};

use banlieue_crds::{
    EndorsementReport, EndorsementReportSpec, EndorsementReportStatus, PoolMember, VirtualMachineClaim,
    conditions::{MemberCondition, MemberReason, Status},
    member::{InstanceRef, PinnedEndorsement, PoolMemberStatus},
    received::{Received, Unreadable},
    report::ReportedInstance,
};
use banlieue_policy::{
    Digest,
    document::{Program, Programs},
};
use banlieue_protocol::names::{Cluster, Namespace, TrustDomain, Uid};
use banlieue_spire::{agents::Agent as Listed, entries::Entry, sweep::Plan};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use serde_json::json;

use super::{
    claims,
    decide::{Agent, DUPLICATE, Intent, Pool, Record, Refused, Settings, Snapshot, Spire, Stands, decide},
    metrics::Metrics,
    reports::{Fate, fate, is_tombstone_of, may_count_later, member_of},
    sweep::{Living, Missing, sweep},
};

const UID: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";
const CLAIM: &str = "11111111-2222-3333-4444-555555555555";
const NODE: &str = "local.attestor.node.0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";
const EGRESS: &str = "local.attestor.egress.0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_000_000 + second).unwrap()
}

fn settings() -> Settings {
    Settings {
        trust_domain: TrustDomain::parse("banlieue.local").unwrap(),
        cluster: Cluster::parse("local").unwrap(),
        svid_ttl: 300,
    }
}

/// A living member whose evidence was accepted at 0, with agent and entries in SPIRE.
fn attested() -> Snapshot {
    let program = |path: &str| Program { path: path.to_owned(), sha256: Digest([1; 32]), uid: 0 };
    Snapshot {
        uid: Uid::parse(UID).unwrap(),
        namespace: Namespace::parse("sandboxes").unwrap(),
        deleting: false,
        claim: None,
        record: Some(Record { verified_at: at(0), policy: "aa".repeat(32), image: Some("bb".repeat(32)) }),
        refusal: None,
        duplicate: None,
        needs_evidence: true,
        max_age: SignedDuration::from_secs(3600),
        dead: None,
        pool: Some(Pool { revoked: vec![] }),
        programs: Some(Programs { node: program("/usr/bin/banlieue-guest"), egress: Some(program("/usr/bin/egress")) }),
        attested: None,
        revoked: None,
        spire: Spire { entries: Some([NODE, EGRESS].map(str::to_owned).into()), agent: Agent::Present },
    }
}

fn verdict(snapshot: &Snapshot, now: Timestamp) -> Option<(MemberCondition, Status, String)> {
    decide(snapshot, &settings(), now).into_iter().find_map(|intent| match intent {
        Intent::Say(kind, status, reason, _) => Some((kind, status, reason)),
        _ => None,
    })
}

fn refused(at: Timestamp, reason: &str) -> Refused {
    Refused { at, reason: reason.to_owned(), message: String::new() }
}

fn no(reason: &str) -> Option<(MemberCondition, Status, String)> {
    Some((MemberCondition::Attested, Status::False, reason.to_owned()))
}

#[test]
fn entries_are_made_before_there_is_evidence() {
    let mut snapshot = attested();
    snapshot.record = None;
    snapshot.spire = Spire::default();
    let intents = decide(&snapshot, &settings(), at(0));
    let Some(Intent::CreateEntries(entries)) = intents.first() else { panic!("{intents:?}") };
    let ids: Vec<_> = entries.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(ids, [NODE, EGRESS]);
    let node = &entries[0];
    assert_eq!(node.spiffe_id.as_str(), format!("spiffe://banlieue.local/banlieue/node/{UID}"));
    assert_eq!(node.parent.path(), format!("/spire/agent/banlieue_vtpm/local/sandboxes/{UID}"));
    assert!(node.selectors.contains(&("unix".to_owned(), "path:/usr/bin/banlieue-guest".to_owned())));
    assert!(node.selectors.contains(&("unix".to_owned(), "uid:0".to_owned())));
    assert!(node.selectors.contains(&("unix".to_owned(), format!("sha256:{}", "01".repeat(32)))));
    assert_eq!(verdict(&snapshot, at(0)), no("Attesting"));

    // One of them is there already.
    snapshot.spire.entries = Some([NODE.to_owned()].into());
    let intents = decide(&snapshot, &settings(), at(0));
    assert!(matches!(&intents[0], Intent::CreateEntries(entries) if entries.len() == 1 && entries[0].id == EGRESS));
}

#[test]
fn attested_means_record_agent_and_entries() {
    let whole = attested();
    let yes = Some((MemberCondition::Attested, Status::True, "Verified".to_owned()));
    assert_eq!(verdict(&whole, at(1)), yes);
    assert!(decide(&whole, &settings(), at(1)).contains(&Intent::Wake(at(3600))), "looks again when it gets stale");
    assert_eq!(verdict(&whole, at(3599)), yes);
    assert_eq!(verdict(&whole, at(3600)), no("AttestationStale"));

    let with = |edit: fn(&mut Snapshot)| {
        let mut snapshot = attested();
        edit(&mut snapshot);
        verdict(&snapshot, at(10))
    };
    assert_eq!(with(|s| s.spire.agent = Agent::Absent), no("Attesting"));
    assert_eq!(with(|s| s.spire.agent = Agent::Banned), no("AttestationRefused"));
    assert_eq!(with(|s| s.spire.entries = None), no("Attesting"));
    assert_eq!(with(|s| s.duplicate = Some("sandboxes/other".to_owned())), no("DuplicateEndorsementKey"));
    assert_eq!(with(|s| s.refusal = Some(refused(at(5), "PolicyMismatch"))), no("AttestationRefused"));
    assert_eq!(with(|s| s.refusal = Some(refused(at(5), DUPLICATE))), no(DUPLICATE));
    // Also when the other one is gone: nobody can tell which was the copy.
    let stands = |reason: &str| Stands { holds: false, reason: reason.to_owned(), message: "m".to_owned() };
    let mut alone = attested();
    alone.attested = Some(stands(DUPLICATE));
    assert_eq!(verdict(&alone, at(10)), None, "it stands");
    alone.attested = Some(stands("AttestationStale"));
    assert_eq!(verdict(&alone, at(10)), yes);
    // Evidence was accepted since.
    assert_eq!(with(|s| s.refusal = Some(refused(at(-5), "PolicyMismatch"))), yes);
    let revoke =
        |s: &mut Snapshot, digest: &str| s.pool.as_mut().unwrap().revoked.push((digest.repeat(32), "x".into()));
    let mut policy = attested();
    revoke(&mut policy, "aa");
    assert_eq!(verdict(&policy, at(10)), no("PolicyRevoked"));
    let mut image = attested();
    revoke(&mut image, "bb");
    assert_eq!(verdict(&image, at(10)), no("PolicyRevoked"));
    let mut other = attested();
    revoke(&mut other, "cc");
    assert_eq!(verdict(&other, at(10)), yes);
}

#[test]
fn what_stands_is_not_said_again() {
    let mut snapshot = attested();
    let said = decide(&snapshot, &settings(), at(1));
    let Some(Intent::Say(_, _, reason, message)) = said.first().cloned() else { panic!("{said:?}") };
    snapshot.attested = Some(Stands { holds: true, reason, message });
    assert_eq!(verdict(&snapshot, at(1)), None);
}

#[test]
fn spire_is_asked_before_it_is_judged() {
    let mut snapshot = attested();
    snapshot.spire.agent = Agent::Unknown;
    let intents = decide(&snapshot, &settings(), at(1));
    assert!(matches!(intents.as_slice(), [Intent::ReadAgent(_)]), "{intents:?}");
}

#[test]
fn members_that_need_no_evidence_get_nothing() {
    for deleting in [false, true] {
        let mut snapshot = attested();
        snapshot.needs_evidence = false;
        snapshot.deleting = deleting;
        assert_eq!(verdict(&snapshot, at(1)), no("NotRequired"));
        assert_eq!(decide(&snapshot, &settings(), at(1)).len(), 1);
    }
}

#[test]
fn a_dead_member_is_not_attested_any_more() {
    let mut dead = attested();
    dead.dead = Some((MemberReason::InstanceFailed, "its instance powered off".to_owned()));
    assert_eq!(verdict(&dead, at(1)), no("InstanceFailed"));
    // What its evidence was refused for says more.
    dead.pool.as_mut().unwrap().revoked.push(("aa".repeat(32), "x".into()));
    assert_eq!(verdict(&dead, at(1)), no("PolicyRevoked"));
    dead.refusal = Some(refused(at(5), "PolicyMismatch"));
    assert_eq!(verdict(&dead, at(10)), no("AttestationRefused"));
}

#[test]
fn a_dead_member_loses_its_identity_before_it_is_deleted() {
    let mut dead = attested();
    dead.dead = Some((MemberReason::Quarantined, "suspicious".to_owned()));
    let acts = |snapshot: &Snapshot, now| {
        let mut intents = decide(snapshot, &settings(), now);
        intents.retain(|intent| !matches!(intent, Intent::Say(..)));
        intents
    };
    let found = acts(&dead, at(100));
    let [Intent::DeleteEntries(ids), Intent::Ban(_)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(*ids, [NODE, EGRESS]);
    // Never asked, or asked before: what SPIRE shows decides.
    dead.spire = Spire::default();
    let found = acts(&dead, at(100));
    assert!(matches!(found.as_slice(), [Intent::DeleteEntries(_), Intent::ReadAgent(_)]), "{found:?}");
    // Nothing makes the entries again, and a ban that may be overwritten is looked at again.
    dead.spire = Spire { entries: Some(BTreeSet::new()), agent: Agent::Banned };
    assert_eq!(acts(&dead, at(34)), [Intent::Wake(at(35))]);
    assert_eq!(acts(&dead, at(100)), []);
    // What its deletion waits for is still to be said then.
    dead.deleting = true;
    let said = (MemberCondition::IdentityRevoked, Status::True, "Revoked".to_owned());
    assert_eq!(verdict(&dead, at(100)), Some(said));
}

#[test]
fn an_ending_member_is_revoked_and_not_attested_any_more() {
    let mut ending = ending();
    ending.attested = Some(Stands { holds: true, reason: "Verified".to_owned(), message: String::new() });
    ending.spire = Spire { entries: Some(BTreeSet::new()), agent: Agent::Banned };
    let said = decide(&ending, &settings(), at(35));
    let says =
        |kind, status| said.iter().any(|intent| matches!(intent, Intent::Say(k, s, ..) if (*k, *s) == (kind, status)));
    assert!(says(MemberCondition::IdentityRevoked, Status::True) && says(MemberCondition::Attested, Status::False));
}

fn ending() -> Snapshot {
    let mut snapshot = attested();
    snapshot.deleting = true;
    snapshot.claim = Uid::parse(CLAIM).ok();
    snapshot
}

#[test]
fn an_ending_member_is_banned_and_its_entries_go() {
    let snapshot = ending();
    let intents = decide(&snapshot, &settings(), at(100));
    let Some(Intent::DeleteEntries(ids)) = intents.first() else { panic!("{intents:?}") };
    assert_eq!(*ids, [NODE.to_owned(), EGRESS.to_owned(), format!("local.mediatore.claim.{CLAIM}")]);
    assert!(matches!(intents[1], Intent::Ban(_)));

    let revoked = |reason: &str, status| Some((MemberCondition::IdentityRevoked, status, reason.to_owned()));
    let mut banned = ending();
    banned.spire = Spire { entries: Some(BTreeSet::new()), agent: Agent::Banned };
    assert_eq!(verdict(&banned, at(100)), revoked("Revoked", Status::True));
    // Entries first.
    let mut entries_left = banned.clone();
    entries_left.spire.entries = None;
    assert_eq!(verdict(&entries_left, at(100)), None);
    // The pool need not be there.
    let mut alone = banned.clone();
    alone.pool = None;
    assert_eq!(verdict(&alone, at(100)), revoked("Revoked", Status::True));
    // Done is done.
    banned.revoked = Some(Stands { holds: true, reason: "Revoked".into(), message: String::new() });
    assert_eq!(decide(&banned, &settings(), at(100)), []);
}

#[test]
fn a_ban_counts_once_no_attestation_can_be_in_flight() {
    let mut snapshot = ending();
    snapshot.spire = Spire { entries: Some(BTreeSet::new()), agent: Agent::Banned };
    let (kind, status, reason) = verdict(&snapshot, at(34)).unwrap();
    assert_eq!((kind, status, reason.as_str()), (MemberCondition::IdentityRevoked, Status::False, "Ending"));
    assert!(decide(&snapshot, &settings(), at(34)).contains(&Intent::Wake(at(35))));
    assert_eq!(verdict(&snapshot, at(35)).unwrap().1, Status::True);
    // Overwritten by one that was in flight: banned again.
    snapshot.spire.agent = Agent::Present;
    assert!(decide(&snapshot, &settings(), at(35)).iter().any(|intent| matches!(intent, Intent::Ban(_))));
    // Recorded by us, not by SPIRE: not yet, then done.
    snapshot.spire.agent = Agent::Absent;
    assert_eq!(verdict(&snapshot, at(34)).unwrap().1, Status::False);
    assert_eq!(verdict(&snapshot, at(35)).unwrap().1, Status::True);
}

#[test]
fn one_that_never_attested_is_done_at_once() {
    let mut snapshot = ending();
    snapshot.record = None;
    snapshot.spire = Spire { entries: Some(BTreeSet::new()), agent: Agent::Absent };
    let (_, status, reason) = verdict(&snapshot, at(0)).unwrap();
    assert_eq!((status, reason.as_str()), (Status::True, "NeverAttested"));
}

fn claim(phase: &str, status: serde_json::Value) -> Arc<VirtualMachineClaim> {
    let mut object = json!({
        "apiVersion": "banlieue.io/v1alpha1", "kind": "VirtualMachineClaim",
        "metadata": { "name": "c", "namespace": "sandboxes", "uid": CLAIM },
        "spec": {
            "poolRef": { "name": "guest" }, "subject": { "issuer": "i", "id": "s" },
            "ttlSeconds": 60, "workload": { "image": "x" },
        },
        "status": { "phase": phase, "memberRef": { "name": "m", "uid": UID } },
    });
    for (key, value) in status.as_object().unwrap() {
        object["status"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

#[test]
fn claims_past_their_deadline_are_over() {
    let bound = |expires: i64| {
        let (bound, expires) = (at(0).to_string(), at(expires).to_string());
        claim("Bound", json!({ "boundAt": bound, "expiresAt": expires }))
    };
    assert!(!claims::is_over(&bound(60), at(59)));
    assert!(claims::is_over(&bound(60), at(60)));
    // The smaller of both counts, whatever somebody wrote.
    assert!(claims::is_over(&bound(6000), at(60)));
    assert!(claims::is_over(&bound(10), at(10)));
    for phase in ["Releasing", "Released", "Failed"] {
        assert!(claims::is_over(&claim(phase, json!({})), at(0)), "{phase}");
    }
    assert!(!claims::is_over(&claim("Pending", json!({})), at(1_000_000)));

    let none = BTreeSet::new();
    let over = claims::over([bound(60).as_ref()], &none, at(0));
    assert_eq!((over.claims.len(), over.next), (0, Some(at(60))));
    let over = claims::over([bound(60).as_ref()], &none, at(60));
    assert_eq!(over.claims, [Uid::parse(CLAIM).unwrap()]);
    let dealt_with = [Uid::parse(CLAIM).unwrap()].into();
    assert_eq!(claims::over([bound(60).as_ref()], &dealt_with, at(60)).claims, []);
}

const KEY: &str = "kkkk";

/// What node `n` says about instance `u`.
fn report(instance: &str, node: &str, ended: Option<i64>) -> EndorsementReport {
    let mut report = EndorsementReport::new(
        "u.n",
        EndorsementReportSpec {
            instance_uid: instance.into(),
            instance_ref: ReportedInstance { name: "m".into(), ..Default::default() },
            node_name: node.into(),
            ek_digests: vec![KEY.into(), "somebody else's".into()],
            source: "swtpm".into(),
            observed_at: MicroTime(at(0)),
        },
    );
    let ek_digest = ended.map(|_| KEY.into());
    report.status = Some(EndorsementReportStatus { ended_at: ended.map(|second| MicroTime(at(second))), ek_digest });
    report
}

/// A member whose instance is `u` on node `n`, and whose key is proved.
fn member(deleted: bool) -> PoolMember {
    let mut member = PoolMember::new("m", Default::default());
    member.metadata.deletion_timestamp = deleted.then(|| Time(at(0)));
    member.status = Some(PoolMemberStatus {
        instance_ref: Some(InstanceRef { uid: "u".into(), ..Default::default() }),
        node_name: Some("n".into()),
        endorsement: Some(PinnedEndorsement { ek_digest: KEY.into(), ..Default::default() }),
        ..Default::default()
    });
    member
}

fn seen(member: PoolMember) -> Arc<Received<PoolMember>> {
    Arc::new(Received::Read(member))
}

#[test]
fn a_report_becomes_a_tombstone_and_then_goes() {
    let keep = SignedDuration::from_secs(900);
    let fate = |report: EndorsementReport, members: &[PoolMember], long, now| {
        let members: Vec<_> = members.iter().cloned().map(seen).collect();
        let about = member_of(&report, &members);
        fate(&report, about, long, keep, at(now))
    };
    let own = |ended| report("u", "n", ended);
    assert_eq!(fate(own(None), &[member(false)], true, 0), Fate::Keep);
    assert_eq!(fate(own(None), &[member(true)], false, 0), Fate::End(KEY.to_owned()), "the proved key, not the list");
    assert_eq!(fate(own(Some(0)), &[], true, 899), Fate::Keep);
    assert_eq!(fate(own(Some(0)), &[], true, 900), Fate::Delete);
    // One that proved nothing leaves no tombstone.
    let mut unproved = member(true);
    unproved.status.as_mut().unwrap().endorsement = None;
    assert_eq!(fate(own(None), &[unproved.clone()], false, 0), Fate::Keep);
    assert_eq!(fate(own(None), &[unproved], true, 0), Fate::Delete);
}

#[test]
fn a_nodes_word_counts_only_about_what_it_ran() {
    // Invented instances under a member's name, true ones from another node, and whatever is about nobody: however the
    // member stands, such a report never ends, so it never keeps anybody's key from anybody.
    let keep = SignedDuration::from_secs(900);
    for (instance, node) in [("invented", "n"), ("invented", "other"), ("u", "other")] {
        let report = report(instance, node, None);
        for members in [vec![seen(member(false))], vec![seen(member(true))], vec![]] {
            let about = member_of(&report, &members);
            assert!(about.is_none() && !may_count_later(&report, &members), "{instance} {node}");
            assert_eq!(fate(&report, about, false, keep, at(0)), Fate::Keep);
            assert_eq!(fate(&report, about, true, keep, at(0)), Fate::Delete);
        }
        assert!(!is_tombstone_of(&report, KEY));
    }
    let ended = report("u", "n", Some(0));
    assert!(is_tombstone_of(&ended, KEY) && !is_tombstone_of(&ended, "somebody else's"));
    // What it is compared with may be written late.
    let mut early = member(false);
    early.status.as_mut().unwrap().node_name = None;
    assert!(may_count_later(&report("u", "n", None), &[seen(early)]));
    let mut unrecorded = member(false);
    unrecorded.status = None;
    assert!(may_count_later(&report("u", "n", None), &[seen(unrecorded)]));
}

#[test]
fn a_report_stays_while_its_member_cannot_be_read() {
    let unreadable = |name: Option<&str>| {
        let metadata = ObjectMeta { name: name.map(str::to_owned), ..Default::default() };
        Arc::new(Received::Unreadable(Box::new(Unreadable { metadata, ..Default::default() })))
    };
    // Its metadata may be hidden too, then it may be anybody's.
    for name in [Some("m"), None] {
        assert!(may_count_later(&report("u", "n", None), &[unreadable(name)]), "{name:?}");
    }
    assert!(!may_count_later(&report("u", "n", None), &[unreadable(Some("another"))]));
}

fn entry(id: &str, path: &str) -> Entry {
    Entry { id: id.into(), path: path.into(), parent_path: String::new(), selectors: vec![] }
}

fn agent(cluster: &str, uid: &str, banned: bool, expires: i64) -> Listed {
    Listed {
        path: format!("/spire/agent/banlieue_vtpm/{cluster}/sandboxes/{uid}"),
        banned,
        expires_at: at(expires).as_second(),
        selectors: vec![],
    }
}

#[test]
fn sweeps_touch_only_what_is_ours_and_long_missing() {
    let cluster = Cluster::parse("local").unwrap();
    let keep = SignedDuration::from_secs(300);
    let node = entry(NODE, &format!("/banlieue/node/{UID}"));
    let foreign = [
        entry("other.attestor.node.x", &format!("/banlieue/node/{CLAIM}")),
        entry("local.attestor.node.y", "/somebody/else"),
        entry("8a7b", &format!("/banlieue/node/{CLAIM}")),
    ];
    let entries: Vec<_> = std::iter::once(node).chain(foreign).collect();
    let agents = [agent("local", UID, false, 600), agent("other", CLAIM, false, 600), agent("local", CLAIM, true, 600)];
    let mut missing = Missing::default();
    let nobody = Living::default();
    let mut go = |living: &Living, now| sweep(&entries, &agents, living, &mut missing, &cluster, keep, at(now));

    let first = go(&nobody, 0);
    assert_eq!((first.entries, first.ban, first.delete.len()), (Plan::Remove(vec![]), Plan::Remove(vec![]), 0));
    let later = go(&nobody, 30);
    assert_eq!(later.entries, Plan::Remove(vec![NODE.to_owned()]));
    assert_eq!(later.ban, Plan::Remove(vec![agents[0].path.clone()]));
    assert_eq!(later.delete, Vec::<String>::new(), "SVIDs of the banned agent are still valid");
    assert_eq!(go(&nobody, 900).delete, [agents[2].path.clone()]);
    // It was only the watch that lagged.
    let living = Living { members: [UID.to_owned()].into(), ..Living::default() };
    assert_eq!(go(&living, 901).entries, Plan::Remove(vec![]));
    assert_eq!(go(&nobody, 902).entries, Plan::Remove(vec![]), "missing starts anew");
}

#[test]
fn a_sweep_that_would_take_too_much_stops() {
    let cluster = Cluster::parse("local").unwrap();
    let keep = SignedDuration::from_secs(300);
    let uid = |n: u32| format!("00000000-0000-0000-0000-{n:012}");
    let entries: Vec<_> =
        (0..10).map(|n| entry(&format!("local.attestor.node.{n}"), &format!("/banlieue/node/{}", uid(n)))).collect();
    let agents: Vec<_> = (0..10).map(|n| agent("local", &uid(n), false, 600)).collect();
    let mut missing = Missing::default();
    let mut go = |now| sweep(&entries, &agents, &Living::default(), &mut missing, &cluster, keep, at(now));
    go(0);
    let found = go(30);
    assert_eq!(found.entries, Plan::Stop { surprising: 10, of: 10 });
    assert_eq!(found.ban, Plan::Stop { surprising: 10, of: 10 });
    let metrics = Metrics::default();
    assert!(metrics.stays("agents", 10) && !metrics.stays("agents", 9), "told once, when it begins");
    assert!(!metrics.stays("agents", 0) && metrics.stays("agents", 7));
}

#[test]
fn two_members_removed_by_force_from_a_small_cluster_lose_their_identity() {
    let cluster = Cluster::parse("local").unwrap();
    let keep = SignedDuration::from_secs(300);
    let entries: Vec<_> = [UID, CLAIM]
        .iter()
        .flat_map(|uid| ["node", "egress"].map(|of| (of, uid)))
        .map(|(of, uid)| entry(&format!("local.attestor.{of}.{uid}"), &format!("/banlieue/{of}/{uid}")))
        .collect();
    let agents = [agent("local", UID, false, 600), agent("local", CLAIM, false, 600)];
    let mut missing = Missing::default();
    let mut go = |now| sweep(&entries, &agents, &Living::default(), &mut missing, &cluster, keep, at(now));
    go(0);
    let found = go(30);
    assert!(matches!(found.entries, Plan::Remove(ids) if ids.len() == 4));
    assert!(matches!(found.ban, Plan::Remove(paths) if paths.len() == 2));
}

#[test]
fn entries_of_ended_claims_go_without_surprise() {
    let cluster = Cluster::parse("local").unwrap();
    let uid = |n: u32| format!("00000000-0000-0000-0000-{n:012}");
    let entries: Vec<_> =
        (0..10).map(|n| entry(&format!("local.mediatore.claim.{n}"), &format!("/banlieue/claim/{}", uid(n)))).collect();
    let living = Living { claims_over: (0..10).map(uid).collect(), ..Living::default() };
    let mut missing = Missing::default();
    let keep = SignedDuration::from_secs(300);
    let mut go = |now| sweep(&entries, &[], &living, &mut missing, &cluster, keep, at(now));
    go(0);
    assert!(matches!(go(30).entries, Plan::Remove(ids) if ids.len() == 10));
}
