//! How the world must look once nothing happens any more.

use banlieue_controller::api::Kind as ObjectKind;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::invariants::is_deleting;
use crate::server::Server;

/// Invariants 7, 8 and 9: at rest nothing is left over, nothing is missing, nothing is overdue.
pub fn check(server: &Server, now: Timestamp, two_leaders: bool) -> Result<(), String> {
    for ((kind, _, name), object) in &server.objects {
        if is_deleting(object) {
            return Err(format!("invariant 8: {kind:?} {name} is still being deleted: {object}"));
        }
    }
    for (name, claim) in server.of(ObjectKind::Claim) {
        let phase = claim["status"]["phase"].as_str().unwrap_or("Pending");
        match phase {
            "Bound" => {
                let deadline: Timestamp = claim["status"]["expiresAt"].as_str().unwrap().parse().unwrap();
                if deadline < now - SignedDuration::from_secs(10) {
                    return Err(format!("invariant 7: claim {} is Bound past its deadline", name.2));
                }
                let member = claim.pointer("/status/memberRef/name").unwrap().as_str().unwrap();
                let at = (ObjectKind::Member, name.1.clone(), member.to_owned());
                if !server.objects.contains_key(&at) {
                    return Err(format!("claim {} is Bound to a member that is gone", name.2));
                }
            }
            "Pending" | "Releasing" => return Err(format!("claim {} rests in {phase}: {claim}", name.2)),
            _ => return Err(format!("claim {} outlived its retention", name.2)),
        }
    }
    for (_, pool) in server.of(ObjectKind::Pool) {
        let uid = &pool["metadata"]["uid"];
        let members: Vec<&Value> = server
            .of(ObjectKind::Member)
            .into_iter()
            .map(|(_, object)| object)
            .filter(|object| object["spec"]["poolRef"]["uid"] == *uid)
            .collect();
        let phases = |phase: &str| members.iter().filter(|m| m["status"]["phase"] == *phase).count();
        let wanted = pool["spec"]["warmReplicas"].as_u64().unwrap() as usize;
        let room = pool["spec"]["maxReplicas"].as_u64().unwrap() as usize - phases("Failed") - phases("Quarantined");
        let warm =
            members.iter().filter(|m| m["status"]["phase"] == "Ready" && m.pointer("/spec/claimRef").is_none()).count();
        // Two leaders may have made more than there is room for; nobody is sent away for that.
        let crowded = two_leaders && warm <= wanted;
        if warm != wanted.min(room) && !crowded {
            return Err(format!(
                "invariant 9: pool {} has {warm} warm members of {wanted}, room {room}: {}",
                pool["metadata"]["name"], pool["status"]
            ));
        }
        if pool["status"]["warm"].as_u64().unwrap_or(99) as usize != warm {
            return Err(format!("pool {} says {} and has {warm}", pool["metadata"]["name"], pool["status"]));
        }
        let revisions: std::collections::BTreeSet<String> = members
            .iter()
            .filter(|m| m["status"]["phase"] == "Ready")
            .map(|m| m["spec"]["revision"].to_string())
            .collect();
        if revisions.len() > 1 {
            return Err(format!(
                "pool {} rests with members of {} revisions",
                pool["metadata"]["name"],
                revisions.len()
            ));
        }
    }
    let members: Vec<String> = server.of(ObjectKind::Member).into_iter().map(|(name, _)| name.2.clone()).collect();
    for kind in [ObjectKind::Instance, ObjectKind::Pod, ObjectKind::Secret] {
        for (name, _) in server.of(kind) {
            let member = name.2.trim_start_matches("virt-launcher-").trim_end_matches("-enrol").to_owned();
            if !members.contains(&member) {
                return Err(format!("{kind:?} {} is left over", name.2));
            }
        }
    }
    Ok(())
}
