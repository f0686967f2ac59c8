//! After the deadline: each fact is asked of the one who owns it.

use std::path::Path;

use anyhow::{Context, bail};
use banlieue_crds::kubevirt::VirtualMachineInstance;
use banlieue_crds::{PoolMember, VirtualMachineClaim};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, Client};

use super::Stage;
use super::lend::Lent;
use super::watch::NAMESPACE;

/// Asks all of them, prints the answers, and fails when anything is left.
pub async fn verify(stage: &mut Stage, lent: &Lent) -> anyhow::Result<()> {
    // Only an admin may list Secrets: the story's people could not answer this.
    let admin = stage.cluster.admin();
    let mut left = Vec::new();
    let mut answer = |fact: &str, gone: bool, says: String| {
        println!("   {} {fact:<22} {says}", if gone { "gone" } else { "LEFT" });
        if !gone {
            left.push(fact.to_owned());
        }
    };
    let claim = api::<VirtualMachineClaim>(&admin).get_opt(&lent.claim).await.context("asking for the claim")?;
    let phase = claim.and_then(|claim| claim.status).and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    answer(
        "the claim's hold",
        phase.as_deref() != Some("Bound"),
        format!("API server: claim is {}", phase.as_deref().unwrap_or("deleted")),
    );

    for (fact, there) in [
        ("member", api::<PoolMember>(&admin).get_opt(&lent.member).await?.is_some()),
        ("instance", api::<VirtualMachineInstance>(&admin).get_opt(&lent.member).await?.is_some()),
        ("enrolment Secret", api::<Secret>(&admin).get_opt(&format!("{}-enrol", lent.member)).await?.is_some()),
    ] {
        answer(fact, !there, format!("API server: {}", if there { "still there" } else { "not found" }));
    }
    let launchers = ListParams::default().labels(&format!("kubevirt.io/created-by={}", lent.instance_uid));
    let pods = api::<Pod>(&admin).list(&launchers).await.context("asking for launcher pods")?.items.len();
    answer("launcher pod", pods == 0, format!("API server: {pods} pods were created by that instance"));

    let running = processes_naming(&lent.member_uid).context("reading the process table")?;
    answer("QEMU process", running == 0, format!("kernel: {running} processes name its UUID"));
    let state = files_naming(&stage.cluster.dir().join("vm"), &lent.member, &lent.instance_uid)?;
    answer("vTPM state", state == 0, format!("node: {state} files of that instance"));

    let agent = agent_state(stage, lent).await?;
    answer("right to an identity", agent != "active", format!("SPIRE server: agent is {agent}"));
    if left.is_empty() { Ok(()) } else { bail!("still there after the claim was over: {}", left.join(", ")) }
}

fn api<T>(client: &Client) -> Api<T>
where
    T: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    T::DynamicType: Default,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Processes whose command line holds the member's uid, which QEMU carries as the firmware's UUID.
fn processes_naming(uid: &str) -> std::io::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc")? {
        // A process may end between the listing and the read: then it does not count.
        let Ok(line) = entry.and_then(|entry| std::fs::read(entry.path().join("cmdline"))) else { continue };
        if String::from_utf8_lossy(&line).contains(uid) {
            count += 1;
        }
    }
    Ok(count)
}

/// Files under the hypervisor's state whose path names the member or its instance.
fn files_naming(state: &Path, member: &str, instance: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    let mut folders = vec![state.to_path_buf()];
    while let Some(folder) = folders.pop() {
        // Consoles and logs are kept for people until the cluster ends; they hold no state of a TPM.
        if folder == state.join("logs") {
            continue;
        }
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let text = path.to_string_lossy();
            if text.contains(member) || text.contains(instance) {
                count += 1;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            }
        }
    }
    Ok(count)
}

/// What SPIRE's server says of the member's agent: `active`, `banned` or `unknown`.
async fn agent_state(stage: &Stage, lent: &Lent) -> anyhow::Result<&'static str> {
    let program = banlieue_cluster::programs::tool("spire-server")?;
    let listed = tokio::process::Command::new(program)
        .args(["agent", "list", "-output", "json", "-socketPath"])
        .arg(&stage.cluster.spire()?.admin_socket)
        .output()
        .await
        .context("asking spire-server")?;
    let listed: serde_json::Value =
        serde_json::from_slice(&listed.stdout).context("spire-server's list of agents is no JSON")?;
    let agents = listed.get("agents").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    let ours = agents.iter().find(|agent| agent.to_string().contains(&lent.member_uid));
    Ok(match ours {
        None => "unknown",
        Some(agent) if agent.get("banned").and_then(serde_json::Value::as_bool) == Some(true) => "banned",
        Some(_) => "active",
    })
}
