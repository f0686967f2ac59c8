//! Which half of a pair is served, and under which names.

/// Which half of the attestor pair is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In spire-server: `spire.plugin.server.nodeattestor.v1.NodeAttestor`.
    Server,
    /// In spire-agent: `spire.plugin.agent.nodeattestor.v1.NodeAttestor`.
    Agent,
}

impl Kind {
    /// The service names that `Init` reports to SPIRE.
    #[must_use]
    pub fn service_names(self) -> [&'static str; 2] {
        let attestor = match self {
            Self::Server => "spire.plugin.server.nodeattestor.v1.NodeAttestor",
            Self::Agent => "spire.plugin.agent.nodeattestor.v1.NodeAttestor",
        };
        [attestor, "spire.service.common.config.v1.Config"]
    }
}
