//! SPIRE's policy with each caller's real SVID: what each of our programs may do on the server API, and what nobody may.
//!
//! The agent resolves callers in the cluster's own process namespace, so this program starts itself in there, once for
//! each caller.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a test with a `main` of its own

mod inside;

use std::sync::Arc;

use banlieue_cluster::{Cluster, progress};
use banlieue_protocol::names::{self, Cluster as ClusterName, Namespace, TrustDomain, Uid};
use banlieue_spire::entries::{Created, NewEntry};
use banlieue_spire::proto::spire::api::server::agent::v1::{BanAgentRequest, agent_client::AgentClient};
use banlieue_spire::proto::spire::api::server::entry::v1::{BatchCreateEntryRequest, entry_client::EntryClient};
use banlieue_spire::proto::spire::api::types;
use banlieue_spire::{Client, Error};
use spiffe::x509_source::SvidPicker;
use spiffe::{X509Source, X509Svid};
use tonic::Code;

const UID: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";

struct Named(String);

impl SvidPicker for Named {
    fn pick_svid(&self, svids: &[Arc<X509Svid>]) -> Option<usize> {
        svids.iter().position(|svid| svid.spiffe_id().path() == self.0)
    }
}

/// A client with the SVID of `path`.
async fn caller(path: &str) -> Client {
    let at = inside::Place::ours();
    let source = X509Source::builder()
        .endpoint(&at.workload_api)
        .picker(Named(path.to_owned()))
        .initial_sync_timeout(std::time::Duration::from_secs(60))
        .build()
        .await
        .unwrap();
    let domain = TrustDomain::parse(&at.trust_domain).unwrap();
    let client = Client::with_source(&at.server, &domain, source).unwrap();
    assert_eq!(client.own_id().unwrap(), format!("spiffe://{domain}{path}"));
    client
}

struct World {
    domain: TrustDomain,
    cluster: ClusterName,
    uid: Uid,
}

impl World {
    fn agent(&self) -> names::SpiffeId {
        names::agent(&self.domain, &self.cluster, &Namespace::parse("sandboxes").unwrap(), &self.uid)
    }

    fn entry(&self, id: String, spiffe_id: names::SpiffeId) -> NewEntry {
        let selectors = vec![("unix".to_owned(), "uid:0".to_owned())];
        NewEntry { id, spiffe_id, parent: self.agent(), selectors, x509_svid_ttl: 60, expires_at: 0 }
    }

    fn node(&self) -> NewEntry {
        self.entry(names::node_entry(&self.cluster, &self.uid), names::node(&self.domain, &self.uid))
    }

    fn claim(&self) -> NewEntry {
        self.entry(names::claim_entry(&self.cluster, &self.uid), names::claim(&self.domain, &self.uid))
    }
}

fn denied<T: std::fmt::Debug>(what: &str, outcome: Result<T, Error>) {
    match outcome {
        Err(error) => assert_eq!(error.code(), Some(Code::PermissionDenied), "{what}: {error}"),
        Ok(done) => panic!("{what}: allowed, {done:?}"),
    }
}

/// What no method of ours would send: flags, names and other things of a raw entry.
async fn raw(client: &Client, entry: &NewEntry, edit: impl Fn(&mut types::Entry)) -> Code {
    let id = |id: &names::SpiffeId| {
        Some(types::Spiffeid { trust_domain: client.trust_domain().to_string(), path: id.path().to_owned() })
    };
    let mut raw = types::Entry {
        id: entry.id.clone(),
        spiffe_id: id(&entry.spiffe_id),
        parent_id: id(&entry.parent),
        selectors: vec![types::Selector { r#type: "unix".into(), value: "uid:0".into() }],
        ..Default::default()
    };
    edit(&mut raw);
    let request = BatchCreateEntryRequest { entries: vec![raw], output_mask: None };
    match EntryClient::new(client.channel()).batch_create_entry(request).await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

/// Calls a method with an empty request: what counts is whether the caller gets as far as having it judged.
async fn call(client: &Client, method: &'static str) -> Code {
    let mut grpc = tonic::client::Grpc::new(client.channel());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
    match grpc.unary(tonic::Request::new(()), path, codec).await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

const MINT: [&str; 2] = ["/spire.api.server.svid.v1.SVID/MintX509SVID", "/spire.api.server.svid.v1.SVID/MintJWTSVID"];

#[tokio::main]
async fn main() {
    let world = || World {
        domain: TrustDomain::parse("banlieue.local").unwrap(),
        cluster: ClusterName::parse("local").unwrap(),
        uid: Uid::parse(UID).unwrap(),
    };
    match inside::role().as_deref() {
        Some("attestor") => attestor(&world()).await,
        Some("mediatore") => mediatore(&world()).await,
        Some("other") => another_admin(&world()).await,
        Some(other) => panic!("no such caller: {other}"),
        None => {
            let cluster = Cluster::builder().spire().progress(progress::print).start().await.unwrap();
            assert_eq!(cluster.settings().trust_domain, world().domain.as_str());
            let agents = inside::spire(&cluster, &["agent", "list"]);
            let parent = agents.split_whitespace().find(|word| word.contains("/join_token/")).unwrap();
            for (role, path) in [("attestor", ATTESTOR), ("mediatore", MEDIATORE), ("other", OTHER)] {
                inside::admit(&cluster, path, &["-admin"]);
                inside::run(&cluster, role, &[("PARENT", parent)]).await;
                println!("test {role} ... ok");
            }
            cluster.stop().await.unwrap();
        }
    }
}

const ATTESTOR: &str = "/banlieue/attestor-controller";
const MEDIATORE: &str = "/mediatore";
const OTHER: &str = "/somebody/else";

async fn attestor(world: &World) {
    let client = caller(ATTESTOR).await;
    let node = world.node();
    let made = client.create_entries(std::slice::from_ref(&node)).await.unwrap().remove(0).unwrap();
    assert_eq!(made, Created::New);
    let again = client.create_entries(std::slice::from_ref(&node)).await.unwrap().remove(0).unwrap();
    assert_eq!(again, Created::Existed(node.id.clone()));
    let listed = client.list_entries_of(&world.agent()).await.unwrap();
    assert_eq!(listed.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), [node.id.as_str()]);
    assert!(client.list_entries().await.unwrap().len() > 2, "lists everything");
    assert_eq!(client.list_agents().await.unwrap(), [], "of our attestor");

    denied("a claim entry", client.create_entries(&[world.claim()]).await);
    denied("one good and one bad", client.create_entries(&[world.node(), world.claim()]).await);
    let foreign = NewEntry { id: format!("other.attestor.node.{UID}"), ..world.node() };
    denied("an id of another cluster", client.create_entries(&[foreign]).await);
    let other = ClusterName::parse("other").unwrap();
    let parent = names::agent(&world.domain, &other, &Namespace::parse("sandboxes").unwrap(), &world.uid);
    denied("an agent of another cluster", client.create_entries(&[NewEntry { parent, ..world.node() }]).await);
    denied("nothing at all", client.create_entries(&[]).await);
    /// A field of an entry that grants more than its caller may.
    type Edit = (&'static str, fn(&mut types::Entry));
    let edits: [Edit; 7] = [
        ("admin", |entry| entry.admin = true),
        ("downstream", |entry| entry.downstream = true),
        ("stored", |entry| entry.store_svid = true),
        ("a DNS name", |entry| entry.dns_names.push("spire-server".into())),
        ("no selectors", |entry| entry.selectors.clear()),
        ("no id", |entry| entry.id.clear()),
        ("a longer path", |entry| entry.spiffe_id.as_mut().unwrap().path.push_str("/x")),
    ];
    for (what, edit) in edits {
        assert_eq!(raw(&client, &world.node(), edit).await, Code::PermissionDenied, "{what}");
    }
    denied("deleting another cluster's entry", client.delete_entries(&["other.attestor.node.x".into()]).await);
    denied("deleting somebody's entry", client.delete_entries(&["8a7b".into()]).await);
    client.delete_entries(&["local.mediatore.claim.x".into()]).await.unwrap().remove(0).unwrap();
    client.delete_entries(&[node.id]).await.unwrap().remove(0).unwrap();
    assert_eq!(client.list_entries_of(&world.agent()).await.unwrap(), []);

    assert!(!client.ban_agent(&world.agent()).await.unwrap(), "may ban, but there is none");
    assert!(!client.delete_agent(&world.agent()).await.unwrap(), "may delete, but there is none");
    let token = std::env::var("PARENT").unwrap();
    let path = token.trim_start_matches(&format!("spiffe://{}", world.domain)).to_owned();
    let id = Some(types::Spiffeid { trust_domain: world.domain.to_string(), path });
    let banned = AgentClient::new(client.channel()).ban_agent(BanAgentRequest { id }).await;
    assert_eq!(banned.unwrap_err().code(), Code::PermissionDenied, "an agent of somebody else");
    for method in MINT {
        assert_eq!(call(&client, method).await, Code::PermissionDenied, "{method}");
    }
}

async fn mediatore(world: &World) {
    let client = caller(MEDIATORE).await;
    let claim = world.claim();
    let made = client.create_entries(std::slice::from_ref(&claim)).await.unwrap().remove(0).unwrap();
    assert_eq!(made, Created::New);
    denied("a node entry", client.create_entries(&[world.node()]).await);
    denied("deleting the attestor's entry", client.delete_entries(&[world.node().id]).await);
    denied("banning", client.ban_agent(&world.agent()).await);
    denied("deleting an agent", client.delete_agent(&world.agent()).await);
    assert_eq!(raw(&client, &world.claim(), |entry| entry.admin = true).await, Code::PermissionDenied);
    for method in MINT {
        assert_eq!(call(&client, method).await, Code::PermissionDenied, "{method}");
    }
    client.delete_entries(&[claim.id]).await.unwrap().remove(0).unwrap();
}

/// Admin by SPIRE, but of no name that the policy knows.
async fn another_admin(world: &World) {
    let client = caller(OTHER).await;
    client.list_entries().await.unwrap();
    denied("a node entry", client.create_entries(&[world.node()]).await);
    denied("deleting an entry", client.delete_entries(&[world.node().id]).await);
    denied("banning", client.ban_agent(&world.agent()).await);
    for method in MINT {
        assert_eq!(call(&client, method).await, Code::PermissionDenied, "{method}");
    }
    let others = [
        "/spire.api.server.agent.v1.Agent/CreateJoinToken",
        "/spire.api.server.bundle.v1.Bundle/AppendBundle",
        "/spire.api.server.entry.v1.Entry/BatchUpdateEntry",
        "/spire.api.server.localauthority.v1.LocalAuthority/PrepareX509Authority",
        "/spire.api.server.svid.v1.SVID/NewJWTSVID",
    ];
    for method in others {
        assert_eq!(call(&client, method).await, Code::PermissionDenied, "{method}");
    }
}
