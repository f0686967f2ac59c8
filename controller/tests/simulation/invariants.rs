//! The invariants of `binding.md`, checked after every write that was done.

use std::collections::BTreeMap;

use banlieue_controller::api::Kind;
use serde_json::Value;

use crate::server::{Done, Name, Server};

/// What has to be remembered between checks.
#[derive(Default)]
pub struct Invariants {
    /// Writes by the controller per claim uid and per member uid since it was bound.
    pub claim_writes: BTreeMap<String, u32>,
    pub bound_after: BTreeMap<String, u32>,
    /// Writes that said why a claim waits, or moved its deadline.
    waited: BTreeMap<String, u32>,
    claim_of_member: BTreeMap<String, String>,
    /// Whether to check them at the end.
    pub costs: bool,
}

fn text<'a>(object: &'a Value, path: &str) -> Option<&'a str> {
    object.pointer(path).and_then(Value::as_str)
}

pub fn is_deleting(object: &Value) -> bool {
    text(object, "/metadata/deletionTimestamp").is_some()
}

/// Whoever looks at an object reads why: no condition that we write is without a sentence, whether it holds or not.
fn spoken(done: &Done) -> Result<(), String> {
    let conditions = |object: &Option<Value>| {
        object.as_ref().and_then(|object| object.pointer("/status/conditions")?.as_array().cloned()).unwrap_or_default()
    };
    let before = conditions(&done.before);
    let new = conditions(&done.after).into_iter().filter(|condition| !before.contains(condition));
    let mut mute = new.filter(|condition| text(condition, "/message").is_none_or(str::is_empty));
    match mute.next() {
        Some(condition) => Err(format!("{} of {:?} has no message: {condition}", condition["type"], done.name)),
        None => Ok(()),
    }
}

impl Invariants {
    /// Checks one write; `by_us` when the controller did it.
    pub fn check(&mut self, server: &Server, done: &Done, by_us: bool, caps: bool) -> Result<(), String> {
        match done.name.0 {
            Kind::Member => self.member(server, done, by_us)?,
            Kind::Claim => self.claim(server, done)?,
            _ => {}
        }
        if by_us {
            spoken(done)?;
            self.count(server, done);
        }
        if caps && done.name.0 == Kind::Member && done.before.is_none() {
            self.caps(server, done.after.as_ref().unwrap())?;
        }
        Ok(())
    }

    fn member(&self, server: &Server, done: &Done, by_us: bool) -> Result<(), String> {
        let name = &done.name.2;
        let old = done.before.as_ref().and_then(|object| object.pointer("/spec/claimRef"));
        if let Some(after) = &done.after {
            let new = after.pointer("/spec/claimRef");
            // 1
            if old.is_some() && old != new {
                return Err(format!("invariant 1: claimRef of {name} changed from {old:?} to {new:?}"));
            }
            // 6
            if new.is_some() && text(after, "/metadata/labels/banlieue.io~1state") != Some("bound") {
                return Err(format!("invariant 6: {name} is spent and labelled otherwise"));
            }
            // 5: what stands on the member itself is guarded by its version, so it holds exactly.
            if old.is_none() && new.is_some() {
                let phase = text(after, "/status/phase");
                if phase != Some("Ready") || is_deleting(after) {
                    return Err(format!("invariant 5: {name} was bound in phase {phase:?}"));
                }
                let seeded = after.pointer("/status/enrolment/seedDigest").is_some();
                let attested = after["status"]["conditions"]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|c| c["type"] == "Attested" && c["status"] == "True"));
                if seeded && !attested {
                    return Err(format!("invariant 5: {name} was bound and is not attested"));
                }
                if after.pointer("/metadata/annotations/banlieue.io~1quarantine").is_some() {
                    return Err(format!("invariant 5: {name} was bound in quarantine"));
                }
            }
        }
        // 4: a bound member goes only when its claim has ended, or never counted.
        let asked =
            done.after.as_ref().is_none_or(is_deleting) && done.before.as_ref().is_some_and(|b| !is_deleting(b));
        if by_us
            && asked
            && done.verb == "delete"
            && let Some(claim_ref) = old
        {
            let claim =
                server.objects.get(&(Kind::Claim, done.name.1.clone(), claim_ref["name"].as_str().unwrap().to_owned()));
            let serves = claim.is_some_and(|claim| {
                claim["metadata"]["uid"] == claim_ref["uid"]
                    && text(claim, "/status/phase") == Some("Bound")
                    && claim.pointer("/status/memberRef/uid") == done.before.as_ref().unwrap().pointer("/metadata/uid")
            });
            if serves {
                return Err(format!("invariant 4: {name} was deleted while it served its claim"));
            }
        }
        Ok(())
    }

    fn claim(&self, server: &Server, done: &Done) -> Result<(), String> {
        let Some(after) = &done.after else { return Ok(()) };
        let before = done.before.as_ref();
        let old = before.and_then(|object| object.pointer("/status/memberRef"));
        let Some(new) = after.pointer("/status/memberRef") else { return Ok(()) };
        // 2: acknowledged only when the member names the claim.
        if old.is_none() {
            let member =
                server.objects.get(&(Kind::Member, done.name.1.clone(), new["name"].as_str().unwrap().to_owned()));
            let mutual = member.is_some_and(|member| {
                member["metadata"]["uid"] == new["uid"]
                    && member.pointer("/spec/claimRef/uid") == after.pointer("/metadata/uid")
            });
            if !mutual {
                return Err(format!("invariant 2: claim {} acknowledges a member that does not name it", done.name.2));
            }
            let others = server
                .of(Kind::Claim)
                .into_iter()
                .filter(|(other, object)| {
                    **other != done.name && object.pointer("/status/memberRef/uid") == Some(&new["uid"])
                })
                .count();
            if others > 0 {
                return Err(format!("invariant 2: member {} is acknowledged by two claims", new["name"]));
            }
        } else if old != Some(new) {
            return Err(format!("invariant 2: memberRef of {} changed", done.name.2));
        }
        // A terminal phase with a member is written only when that member is gone.
        let phase = text(after, "/status/phase");
        let was = before.and_then(|object| text(object, "/status/phase"));
        if matches!(phase, Some("Released" | "Failed")) && was != phase {
            let member =
                server.objects.get(&(Kind::Member, done.name.1.clone(), new["name"].as_str().unwrap().to_owned()));
            let lives = member.is_some_and(|member| member["metadata"]["uid"] == new["uid"]);
            let forced = after.pointer("/metadata/annotations/banlieue.io~1force-release").is_some();
            if lives && !forced {
                return Err(format!("promise 4: claim {} ended before its member was gone", done.name.2));
            }
            let instance =
                server.objects.get(&(Kind::Instance, done.name.1.clone(), new["name"].as_str().unwrap().to_owned()));
            if !forced && instance.is_some_and(|i| i["metadata"]["ownerReferences"][0]["uid"] == new["uid"]) {
                return Err(format!("promise 4: claim {} ended before its instance was gone", done.name.2));
            }
        }
        Ok(())
    }

    /// 3, at each create.
    fn caps(&mut self, server: &Server, created: &Value) -> Result<(), String> {
        let pool_name = created["spec"]["poolRef"]["name"].as_str().unwrap();
        let namespace = created["metadata"]["namespace"].as_str().unwrap();
        let Some(pool) = server.objects.get(&(Kind::Pool, namespace.into(), pool_name.into())) else { return Ok(()) };
        if pool["metadata"]["uid"] != created["spec"]["poolRef"]["uid"] {
            return Ok(());
        }
        let members: Vec<&Value> = server
            .of(Kind::Member)
            .into_iter()
            .map(|(_, object)| object)
            .filter(|object| object["spec"]["poolRef"]["uid"] == pool["metadata"]["uid"])
            .collect();
        let max = pool["spec"]["maxReplicas"].as_u64().unwrap() as usize;
        if members.len() > max {
            return Err(format!("invariant 3: {} members live, maxReplicas is {max}", members.len()));
        }
        let coming = members
            .iter()
            .filter(|member| {
                !is_deleting(member)
                    && member.pointer("/spec/claimRef").is_none()
                    && !matches!(text(member, "/status/phase"), Some("Ready" | "Failed" | "Quarantined"))
                    && member.pointer("/status/phaseTimes/ready").is_none()
            })
            .count();
        let surge = pool["spec"]["maxSurge"].as_u64().unwrap() as usize;
        if coming > surge {
            return Err(format!("invariant 3: {coming} members are provisioning, maxSurge is {surge}"));
        }
        Ok(())
    }

    /// At most two writes to Bound and ten in a life. A claim that had to say why it waited has said so in one more.
    pub fn check_costs(&self) -> Result<(), String> {
        for (claim, writes) in &self.claim_writes {
            let waited = self.waited.get(claim).copied().unwrap_or(0);
            if *writes > 10 + waited {
                return Err(format!("claim {claim} cost {writes} writes, {waited} of them to say why it waits"));
            }
        }
        for (claim, writes) in &self.bound_after {
            let waited = self.waited.get(claim).copied().unwrap_or(0);
            if *writes > 2 + waited {
                return Err(format!("claim {claim} was bound with {writes} writes, {waited} to say why it waits"));
            }
        }
        Ok(())
    }

    /// Writes of a claim's life: on the claim, and on its member and what belongs to it from the commit on.
    fn count(&mut self, server: &Server, done: &Done) {
        let (kind, namespace, name) = &done.name;
        let claim = match kind {
            Kind::Claim => {
                let object = done.before.as_ref().or(done.after.as_ref()).unwrap();
                text(object, "/metadata/uid").map(str::to_owned)
            }
            Kind::Member | Kind::Instance | Kind::Secret => {
                let member = name.strip_suffix("-enrol").unwrap_or(name).to_owned();
                let at: Name = (Kind::Member, namespace.clone(), member.clone());
                let object = if *kind == Kind::Member {
                    done.after.as_ref().or(done.before.as_ref())
                } else {
                    server.objects.get(&at)
                };
                object
                    .and_then(|object| text(object, "/spec/claimRef/uid"))
                    .map(str::to_owned)
                    .or_else(|| self.claim_of_member.get(&member).cloned())
            }
            _ => None,
        };
        let Some(claim) = claim else { return };
        if *kind == Kind::Member {
            self.claim_of_member.insert(name.clone(), claim.clone());
        }
        if *kind == Kind::Claim
            && let (Some(before), Some(after)) = (&done.before, &done.after)
        {
            let phase = |object: &Value| text(object, "/status/phase").unwrap_or("Pending").to_owned();
            let moved =
                before.pointer("/status/expiresAt") != after.pointer("/status/expiresAt") && phase(before) == "Bound";
            if (phase(before) == "Pending" && phase(after) == "Pending" && before["status"] != after["status"]) || moved
            {
                *self.waited.entry(claim.clone()).or_default() += 1;
            }
        }
        let count = self.claim_writes.entry(claim.clone()).or_default();
        *count += 1;
        if *kind == Kind::Claim && done.after.as_ref().is_some_and(|o| text(o, "/status/phase") == Some("Bound")) {
            let count = *count;
            self.bound_after.entry(claim).or_insert(count);
        }
    }
}
