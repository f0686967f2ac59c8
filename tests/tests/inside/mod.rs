//! Running the test program itself inside a cluster, where SPIRE's agent can see who it is.
#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests, though not functions of a test

use std::collections::BTreeMap;

use banlieue_cluster::Cluster;
use banlieue_supervisor::{Spec, State};
pub use banlieue_tests::spire::command as spire;

const ROLE: &str = "BANLIEUE_TEST_ROLE";

/// Where a program inside finds SPIRE.
pub struct Place {
    pub server: String,
    pub workload_api: String,
    pub trust_domain: String,
}

impl Place {
    fn of(cluster: &Cluster) -> Self {
        let spire = cluster.spire().unwrap();
        Self {
            server: format!("127.0.0.1:{}", spire.port),
            workload_api: format!("unix://{}", spire.workload_api.display()),
            trust_domain: cluster.settings().trust_domain.clone(),
        }
    }

    /// As this program was told.
    pub fn ours() -> Self {
        let told = |name| std::env::var(name).unwrap();
        Self { server: told("SERVER"), workload_api: told("WORKLOAD_API"), trust_domain: told("TRUST_DOMAIN") }
    }
}

/// What this process is to play, if it runs inside.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs this program inside as `role`, and passes on how it ended.
pub async fn run(cluster: &Cluster, role: &str, more: &[(&str, &str)]) {
    let place = Place::of(cluster);
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    let told = [
        (ROLE, role),
        ("SERVER", &place.server),
        ("WORKLOAD_API", &place.workload_api),
        ("TRUST_DOMAIN", &place.trust_domain),
    ];
    for (name, value) in told.iter().chain(more) {
        env.insert((*name).to_owned(), (*value).to_owned());
    }
    let name = format!("test-{role}");
    let log = cluster.log(&name);
    let argv = vec![std::env::current_exe().unwrap().display().to_string()];
    let spec = Spec { name: name.clone(), argv, env, log: log.clone(), ..Spec::default() };
    cluster.supervisor().spawn(spec).await.unwrap();
    let status = cluster.supervisor().wait(&name).await.unwrap();
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    cluster.supervisor().forget(&name).await.unwrap();
    assert!(status.state == State::Exited { code: 0 }, "{role}: {:?}\n{text}", status.state);
}

/// Lets this program have an identity on the agent beside the server.
pub fn admit(cluster: &Cluster, path: &str, more: &[&str]) {
    let agents = spire(cluster, &["agent", "list"]);
    let parent = agents.split_whitespace().find(|word| word.contains("/join_token/")).unwrap();
    let own = format!("unix:path:{}", std::env::current_exe().unwrap().display());
    let id = format!("spiffe://{}{path}", cluster.settings().trust_domain);
    let mut arguments = vec!["entry", "create", "-parentID", parent, "-spiffeID", &id, "-selector", &own];
    arguments.extend(more);
    let said = spire(cluster, &arguments);
    assert!(said.contains("Entry ID"), "{said}");
}
