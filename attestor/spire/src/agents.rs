//! Agents: SPIRE's record of who attested.

use banlieue_protocol::names::{ATTESTOR_TYPE, SpiffeId};
use tonic::Code;

use crate::{
    Client, Error,
    client::limited,
    proto::spire::api::{
        server::agent::v1::{
            AgentX509svidParams, AttestAgentRequest, BanAgentRequest, DeleteAgentRequest, GetAgentRequest,
            ListAgentsRequest, agent_client::AgentClient, attest_agent_request, list_agents_request,
        },
        types,
    },
    to_proto,
};

const PAGE: i32 = 500;
const MOST_PAGES: usize = 2_000;

/// An agent as SPIRE knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Path of its id.
    pub path: String,
    /// Whether it was banned.
    pub banned: bool,
    /// When its SVID ends, in seconds since 1970.
    pub expires_at: i64,
    /// Values of its selectors, without the type.
    pub selectors: Vec<String>,
}

/// What a probe of the plugin found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// The plugin answered as it does when it can decide.
    Serving,
    /// The plugin does not answer, or says that it cannot decide now.
    Down(String),
}

impl Client {
    /// Every agent that our attestor admitted, of every cluster. Complete, or an error.
    ///
    /// # Errors
    /// When any page is missing.
    pub async fn list_agents(&self) -> Result<Vec<Agent>, Error> {
        const CALL: &str = "listing agents";
        let filter =
            list_agents_request::Filter { by_attestation_type: ATTESTOR_TYPE.to_owned(), ..Default::default() };
        let mask = types::AgentMask { banned: true, x509svid_expires_at: true, ..Default::default() };
        let mut client = AgentClient::new(self.channel());
        let mut agents = Vec::new();
        let mut page_token = String::new();
        for _ in 0..MOST_PAGES {
            let request = ListAgentsRequest {
                filter: Some(filter.clone()),
                output_mask: Some(mask),
                page_size: PAGE,
                page_token,
            };
            let page = limited(CALL, client.list_agents(request)).await?.into_inner();
            agents.extend(page.agents.into_iter().map(read));
            if page.next_page_token.is_empty() {
                return Ok(agents);
            }
            page_token = page.next_page_token;
        }
        Err(Error::Answer { call: CALL, what: "the list does not end".to_owned() })
    }

    /// One agent, or `None` when SPIRE has none of that id.
    ///
    /// # Errors
    /// When SPIRE cannot be asked.
    pub async fn get_agent(&self, id: &SpiffeId) -> Result<Option<Agent>, Error> {
        let request = GetAgentRequest { id: Some(to_proto(self.trust_domain(), id)), output_mask: None };
        let mut client = AgentClient::new(self.channel());
        match limited("reading an agent", client.get_agent(request)).await {
            Ok(agent) => Ok(Some(read(agent.into_inner()))),
            Err(error) if error.code() == Some(Code::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Bans an agent. `false` when SPIRE has none of that id: then nothing was banned.
    ///
    /// # Errors
    /// When SPIRE cannot be asked.
    pub async fn ban_agent(&self, id: &SpiffeId) -> Result<bool, Error> {
        let request = BanAgentRequest { id: Some(to_proto(self.trust_domain(), id)) };
        let mut client = AgentClient::new(self.channel());
        found(limited("banning an agent", client.ban_agent(request)).await)
    }

    /// Deletes the record of an agent, which also lifts a ban. `false` when there was none.
    ///
    /// # Errors
    /// When SPIRE cannot be asked.
    pub async fn delete_agent(&self, id: &SpiffeId) -> Result<bool, Error> {
        let request = DeleteAgentRequest { id: Some(to_proto(self.trust_domain(), id)) };
        let mut client = AgentClient::new(self.channel());
        found(limited("deleting an agent", client.delete_agent(request)).await)
    }

    /// Sends `payload` through SPIRE to our plugin, as an agent that wants to be admitted would.
    ///
    /// A serving plugin answers with `Aborted`, a code that neither SPIRE nor go-plugin gives for a plugin that is
    /// dead, missing or not configured.
    ///
    /// # Errors
    /// When SPIRE itself cannot be reached: that says nothing about the plugin.
    pub async fn probe_plugin(&self, payload: &[u8]) -> Result<Probe, Error> {
        const CALL: &str = "probing the plugin";
        let params = attest_agent_request::Params {
            data: Some(types::AttestationData { r#type: ATTESTOR_TYPE.to_owned(), payload: payload.to_vec() }),
            // SPIRE wants some bytes here and reads them only after an admission.
            params: Some(AgentX509svidParams { csr: vec![0] }),
        };
        let request = AttestAgentRequest { step: Some(attest_agent_request::Step::Params(params)) };
        let mut client = AgentClient::new(self.channel());
        let outcome = limited(CALL, async {
            let mut answers = client.attest_agent(tokio_stream::iter([request])).await?.into_inner();
            answers.message().await
        })
        .await;
        match outcome {
            Ok(_) => Err(Error::Answer { call: CALL, what: "the probe was not refused".to_owned() }),
            Err(Error::Call { status, .. }) if status.code() == Code::Aborted => Ok(Probe::Serving),
            Err(Error::Call { status, .. }) if from_spire(&status) => Ok(Probe::Down(status.message().to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// SPIRE prefixes what a plugin or its loader said with the plugin's kind and name, and names a plugin it lacks.
fn from_spire(status: &tonic::Status) -> bool {
    let message = status.message().to_lowercase();
    message.contains("nodeattestor") || message.contains("node attestor")
}

fn found(outcome: Result<tonic::Response<()>, Error>) -> Result<bool, Error> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(Code::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read(agent: types::Agent) -> Agent {
    Agent {
        path: agent.id.unwrap_or_default().path,
        banned: agent.banned,
        expires_at: agent.x509svid_expires_at,
        selectors: agent.selectors.into_iter().map(|selector| selector.value).collect(),
    }
}
