//! The plugin's own configuration (`plugin_data` of SPIRE's server).

use banlieue_protocol::names::{Cluster, TrustDomain};
use serde::Deserialize;

/// As written in HCL.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Name of this cluster inside the trust domain.
    pub cluster: String,
    /// Path of a kubeconfig; without it the pod's service account is used.
    pub kubeconfig: Option<String>,
    /// Address to serve liveness, readiness and metrics on, as `host:port`; none by default.
    pub metrics: Option<String>,
    /// Streams that may be open at once; default 64.
    pub max_streams: Option<usize>,
    /// Of these, how many only members with a pinned key may take; default a quarter.
    pub reserved_streams: Option<usize>,
    /// Refused attempts that a member may make in ten minutes; default 20.
    pub attempts: Option<u32>,
}

/// Checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this cluster.
    pub cluster: Cluster,
    /// SPIRE's trust domain.
    pub trust_domain: TrustDomain,
    /// Path of a kubeconfig.
    pub kubeconfig: Option<String>,
    /// Address of liveness, readiness and metrics.
    pub metrics: Option<std::net::SocketAddr>,
    /// Bounds.
    pub limits: super::limits::Bounds,
}

impl Config {
    /// Checks what was written.
    ///
    /// # Errors
    /// One sentence that names the attribute.
    pub fn check(written: Written, trust_domain: &str) -> Result<Self, String> {
        let max_streams = written.max_streams.unwrap_or(64);
        let reserved = written.reserved_streams.unwrap_or(max_streams / 4);
        if max_streams == 0 || reserved >= max_streams {
            return Err("max_streams must be above 0 and above reserved_streams".to_owned());
        }
        Ok(Self {
            cluster: Cluster::parse(&written.cluster).map_err(|error| format!("cluster: {error}"))?,
            trust_domain: TrustDomain::parse(trust_domain).map_err(|error| format!("trust_domain: {error}"))?,
            kubeconfig: written.kubeconfig,
            metrics: written
                .metrics
                .map(|text| text.parse().map_err(|error| format!("metrics must be address:port: {error}")))
                .transpose()?,
            limits: super::limits::Bounds {
                streams: max_streams,
                reserved,
                attempts: written.attempts.unwrap_or(20),
                ..super::limits::Bounds::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(cluster: &str) -> Written {
        Written {
            cluster: cluster.to_owned(),
            kubeconfig: None,
            metrics: None,
            max_streams: None,
            reserved_streams: None,
            attempts: None,
        }
    }

    #[test]
    fn wrong_words_are_named() {
        assert!(Config::check(written("local"), "banlieue.local").is_ok());
        assert!(Config::check(written("a.b"), "banlieue.local").unwrap_err().starts_with("cluster"));
        assert!(Config::check(written("local"), "a/b").unwrap_err().starts_with("trust_domain"));
        let metrics = Written { metrics: Some("nowhere".to_owned()), ..written("local") };
        assert!(Config::check(metrics, "td").unwrap_err().starts_with("metrics"));
        let streams = Written { max_streams: Some(4), reserved_streams: Some(4), ..written("local") };
        assert!(Config::check(streams, "td").unwrap_err().starts_with("max_streams"));
    }
}
