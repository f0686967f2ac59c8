//! Attacks on real machines: a stolen enrolment, a swapped seed volume, a reset, a pressed power button, a lost identity.
//! Each machine boots the image of the demo under QEMU, OVMF and swtpm; all share one cluster, for booting is what takes
//! the time.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test ends at what it did not expect

mod machines;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use banlieue_cluster::{Cluster, component};
use banlieue_crds::claim::ClaimPhase;
use banlieue_crds::conditions::ClaimReason;
use banlieue_crds::member::MemberPhase;
use banlieue_crds::{PoolMember, VirtualMachineClaim, conditions};
use k8s_openapi::ByteString;
use kube::ResourceExt;
use machines::{Files, World, config, eventually, line_with};
use tokio::net::{TcpListener, TcpStream};

/// Members prove themselves again at half of it, and a guest without identity for so long powers off: long enough for a
/// boot on a busy host, short enough to be waited for.
const AGENT_TTL: Duration = Duration::from_secs(90);
/// Where the guest of a swapped seed is sent instead of SPIRE's server.
const RELAY: &str = "10.0.2.101:8081";

#[tokio::test(flavor = "multi_thread")]
async fn machines_under_attack() {
    let relay = Relay::start().await;
    let builder = Cluster::builder()
        .agent_ttl(AGENT_TTL)
        .args(component::HYPERVISOR, ["--allow", &format!("{RELAY}={}", relay.address)])
        .args(component::ATTESTOR_CONTROLLER, ["--agent-ttl-seconds", &AGENT_TTL.as_secs().to_string()]);
    let world = World::start(builder).await;
    relay.lead_to(world.cluster.spire().unwrap().port);

    for pool in ["victim", "pressed", "banned"] {
        world.pool(pool).await;
    }
    let victim = world.made("victim").await;
    let stolen = world.enrolment(&victim).await;
    let (pressed, banned) = (world.made("pressed").await, world.made("banned").await);
    for member in [&victim, &pressed, &banned] {
        world.ready(member).await;
    }
    tokio::join!(
        async {
            // Made while no node takes them, so that their enrolments can be swapped before their machines are built.
            world.cordon(true).await;
            for pool in ["thief", "swapped"] {
                world.pool(pool).await;
            }
            let (thief, swapped) = (world.made("thief").await, world.made("swapped").await);
            world.replace_enrolment(&thief, stolen).await;
            let honest = swap_seed(&world, &swapped).await;
            world.cordon(false).await;
            tokio::join!(
                another_members_enrolment(&world, &thief, &victim),
                a_swapped_seed(&world, &swapped, honest, &relay)
            );
        },
        the_power_button(&world, &pressed),
        a_lost_identity(&world, &banned),
    );
    world.cluster.stop().await.unwrap();
}

/// A machine with another member's enrolment is nobody: not that member, whose key is pinned, and not itself.
async fn another_members_enrolment(world: &World, thief: &PoolMember, victim: &PoolMember) {
    let log = world.cluster.log(component::SPIRE_SERVER);
    eventually("the thief is refused", async || line_with(&log, &["EkNotPinned", &victim.name_any()])).await;
    let member = world.member(victim).await.unwrap().status.unwrap();
    assert!(conditions::is_true(&member.conditions, "Ready"), "its victim is as it was");
    assert_eq!(member.attestation.as_ref().unwrap().refusal, None);

    let reset = a_reset(world, victim);
    let thief_ends = async {
        world.powered_off(thief).await;
        let status = world.member(thief).await.unwrap().status.unwrap();
        assert!(status.endorsement.is_none() && status.attestation.is_none(), "it never attested: {status:?}");
        assert!(!conditions::is_true(&status.conditions, "Attested"));
        assert!(status.phase_times.unwrap().ready.is_none());
        assert!(!world.spire(&["agent", "list"]).contains(&thief.uid().unwrap()));
        let why = format!("no node identity for {} s", AGENT_TTL.as_secs());
        assert!(world.console(thief).contains(&why), "{}", world.console(thief));
    };
    tokio::join!(reset, thief_ends);
}

/// Puts a seed with another bundle and another server in the place of the member's own, which is returned.
async fn swap_seed(world: &World, swapped: &PoolMember) -> Files {
    let honest = world.enrolment(swapped).await;
    let foreign = config(&world.cluster, "kubevirt", "kubevirt-ca", "ca-bundle").await;
    let mut files = honest.clone();
    let bundle = files.get_mut("bundle.pem").unwrap();
    bundle.0.extend_from_slice(format!("{}\n", foreign.trim_end()).as_bytes());
    files.insert("spire-server".to_owned(), ByteString(RELAY.into()));
    world.replace_enrolment(swapped, files).await;
    honest
}

/// A relay behind the swapped seed leads to the right server. Nothing on the volume is measured by firmware, so the quote
/// over what was read is all that shows it.
async fn a_swapped_seed(world: &World, swapped: &PoolMember, honest: Files, relay: &Relay) {
    // Swapped at the node alone: what the API server holds is what the controller wrote.
    let qmp = world.home(swapped).join("qmp.sock");
    eventually("the machine with the swapped seed is built", async || qmp.exists()).await;
    world.replace_enrolment(swapped, honest).await;

    let words = world.refused(swapped).await;
    assert!(words.contains("SeedMismatch: the guest read seed"), "{words}");
    assert!(relay.was_used(), "it came by the relay");
    let status = world.member(swapped).await.unwrap().status.unwrap();
    assert!(status.endorsement.is_none(), "nothing is pinned by it");
    eventually("it failed", async || {
        let status = world.member(swapped).await.unwrap().status.unwrap();
        status.phase == Some(MemberPhase::Failed)
    })
    .await;
}

/// A reset clears the latch, so it ends a member for good, though the machine boots again and asks again.
async fn a_reset(world: &World, member: &PoolMember) {
    let before = world.member(member).await.unwrap().status.unwrap().attestation.unwrap();
    world.qmp(member, "system_reset").await;
    let words = world.refused(member).await;
    assert!(words.contains("ResetCountChanged"), "{words}");
    eventually("it left the pool", async || {
        let status = world.member(member).await.unwrap().status.unwrap();
        status.phase == Some(MemberPhase::Failed) && !conditions::is_true(&status.conditions, "Ready")
    })
    .await;
    // From here on it is refused as a member that failed, however often it asks.
    let log = world.cluster.log(component::SPIRE_SERVER);
    eventually("it asked again", async || line_with(&log, &["MemberEnding", &member.name_any()])).await;
    let status = world.member(member).await.unwrap().status.unwrap();
    let attested = conditions::find(&status.conditions, "Attested").unwrap();
    assert!(attested.status == "False" && attested.message.contains("ResetCountChanged"), "{attested:?}");
    let record = status.attestation.unwrap();
    assert_eq!(record.reset_count, before.reset_count, "what was recorded stays");
    assert_eq!(record.refusal.unwrap().reason, "ResetCountChanged");
}

/// Whoever presses the power button of a lent machine ends the claim.
async fn the_power_button(world: &World, member: &PoolMember) {
    world.claim("pressed", "c").await;
    eventually("the claim is bound", async || {
        let claim = world.all::<VirtualMachineClaim>().get("c").await.unwrap();
        claim.status.unwrap_or_default().phase == Some(ClaimPhase::Bound)
    })
    .await;
    world.pause("pressed").await;
    world.qmp(member, "system_powerdown").await;
    eventually("the claim ended", async || {
        let claim = world.all::<VirtualMachineClaim>().get("c").await.unwrap();
        let status = claim.status.unwrap_or_default();
        if status.phase != Some(ClaimPhase::Failed) {
            return false;
        }
        assert_eq!(status.termination_reason, Some(ClaimReason::MemberLost));
        let bound = format!("{:?}", status.conditions);
        assert!(bound.contains("powered off"), "its instance succeeded: {bound}");
        true
    })
    .await;
    assert!(world.console(member).contains("powering off: the power button was pressed"));
    eventually("the member is gone", async || world.member(member).await.is_none()).await;
    assert!(!world.home(member).exists(), "and its machine with its vTPM");
}

/// An operator bans the agent: the guest loses its identity, cannot get it back, and powers off.
async fn a_lost_identity(world: &World, member: &PoolMember) {
    // Ready says that SPIRE knows the agent; the guest has its own identity a moment later.
    eventually("the guest has its identity", async || world.console(member).contains("node identity issued")).await;
    let id = world.agent_id(member);
    let said = world.spire(&["agent", "ban", "-spiffeID", &id]);
    assert!(said.contains("banned"), "{said}");
    world.powered_off(member).await;
    let console = world.console(member);
    for words in ["node identity lost", "powering off: no node identity for"] {
        assert!(console.contains(words), "{words} is not on the console:\n{console}");
    }
    let attested = world.condition(member, "Attested").await.unwrap();
    assert_eq!(attested.status, "False", "{attested:?}");
}

/// A host between a guest and SPIRE's server, which passes everything on.
struct Relay {
    address: SocketAddr,
    target: Arc<OnceLock<u16>>,
    used: Arc<OnceLock<()>>,
}

impl Relay {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (target, used) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let relay = Self { address, target: target.clone(), used: used.clone() };
        tokio::spawn(async move {
            while let Ok((mut guest, _)) = listener.accept().await {
                let Some(port) = target.get() else { continue };
                let _ = used.set(());
                let Ok(mut server) = TcpStream::connect(("127.0.0.1", *port)).await else { continue };
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut guest, &mut server).await });
            }
        });
        relay
    }

    fn lead_to(&self, port: u16) {
        self.target.set(port).unwrap();
    }

    fn was_used(&self) -> bool {
        self.used.get().is_some()
    }
}
