//! SPIFFE ids and SPIRE entry ids, and the checked words they are made of.
//!
//! An id is only ever built from checked words, so no value that came from a cluster object or from the network can
//! add a path segment, a query or another trust domain to it. This module is the only place that knows the paths.

use std::fmt;

/// Node attestor type: the plugin's name on both sides and the first segment of every agent id.
pub const ATTESTOR_TYPE: &str = "banlieue_vtpm";

/// A word that may not enter a SPIFFE id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {rule}; got {shown}")]
pub struct NameError {
    what: &'static str,
    rule: &'static str,
    shown: String,
}

impl NameError {
    fn new(what: &'static str, rule: &'static str, value: &str) -> Self {
        // Hostile input ends up in logs through this message: escaped and cut, never raw.
        let cut: String = value.chars().take(64).collect();
        let more = if value.chars().nth(64).is_some() { "…" } else { "" };
        Self { what, rule, shown: format!("{cut:?}{more}") }
    }

    /// Fixed word for metrics and conditions.
    pub fn category(&self) -> &'static str {
        "name"
    }
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Checks every character; nothing is trimmed, folded or decoded.
            pub fn parse(value: &str) -> Result<Self, NameError> {
                let check: fn(&[u8]) -> bool = $check;
                if check(value.as_bytes()) {
                    Ok(Self(value.to_owned()))
                } else {
                    Err(NameError::new($what, $rule, value))
                }
            }

            /// The word itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(value: &str) -> Result<Self, NameError> {
                Self::parse(value)
            }
        }
    };
}

word!(
    /// A SPIFFE trust domain: 1 to 255 of lower-case letters, digits, dot, dash, underscore (SPIFFE-ID, 2.1).
    TrustDomain, "trust domain", "1 to 255 lower-case letters, digits, '.', '-' or '_'",
    |b| (1..=255).contains(&b.len()) && b.iter().all(|c| lower_or_digit(*c) || matches!(c, b'.' | b'-' | b'_'))
);
word!(
    /// Name of a cluster inside its trust domain: a DNS label, so it has no dot, which ends it in entry ids.
    Cluster, "cluster name", "a DNS label (1 to 63 lower-case letters, digits or '-', no '-' at the ends)", dns_label
);
word!(
    /// A Kubernetes namespace: a DNS label (RFC 1123).
    Namespace, "namespace", "a DNS label (1 to 63 lower-case letters, digits or '-', no '-' at the ends)", dns_label
);
word!(
    /// Name of a member, which is also the name of its instance: a DNS subdomain (RFC 1123), at most 253 bytes.
    MemberName, "member name", "a DNS subdomain (labels of lower-case letters, digits or '-', joined by '.')",
    |b| (1..=253).contains(&b.len()) && b.split(|c| *c == b'.').all(dns_label)
);
word!(
    /// A Kubernetes object uid: a UUID in lower-case hexadecimal, 8-4-4-4-12.
    Uid, "uid", "a UUID of lower-case hexadecimal digits (8-4-4-4-12)", uuid
);

fn lower_or_digit(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn dns_label(b: &[u8]) -> bool {
    (1..=63).contains(&b.len())
        && b.iter().all(|c| lower_or_digit(*c) || *c == b'-')
        && b.first() != Some(&b'-')
        && b.last() != Some(&b'-')
}

fn uuid(b: &[u8]) -> bool {
    b.len() == 36
        && b.iter().enumerate().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => *c == b'-',
            _ => matches!(c, b'0'..=b'9' | b'a'..=b'f'),
        })
}

/// A SPIFFE id this module built: `spiffe://<trust domain><path>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    whole: String,
    path_at: usize,
}

impl SpiffeId {
    fn build(trust_domain: &TrustDomain, path: &str) -> Self {
        let mut whole = format!("spiffe://{trust_domain}");
        let path_at = whole.len();
        whole.push_str(path);
        Self { whole, path_at }
    }

    /// The whole URI.
    pub fn as_str(&self) -> &str {
        &self.whole
    }

    /// The path, with its leading slash: what SPIRE's API wants beside the trust domain.
    pub fn path(&self) -> &str {
        self.whole.get(self.path_at..).unwrap_or_default()
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whole)
    }
}

/// Path prefix, with its last slash, of all agents of one cluster: `/spire/agent/banlieue_vtpm/<cluster>/`.
pub fn agent_path_prefix(cluster: &Cluster) -> String {
    format!("/spire/agent/{ATTESTOR_TYPE}/{cluster}/")
}

/// Agent identity: `spiffe://<td>/spire/agent/banlieue_vtpm/<cluster>/<namespace>/<member uid>`.
pub fn agent(trust_domain: &TrustDomain, cluster: &Cluster, namespace: &Namespace, member: &Uid) -> SpiffeId {
    SpiffeId::build(trust_domain, &format!("{}{namespace}/{member}", agent_path_prefix(cluster)))
}

/// Node identity, of the guest agent: `spiffe://<td>/banlieue/node/<member uid>`.
pub fn node(trust_domain: &TrustDomain, member: &Uid) -> SpiffeId {
    SpiffeId::build(trust_domain, &format!("/banlieue/node/{member}"))
}

/// Identity of the guest's egress proxy: `spiffe://<td>/banlieue/egress/<member uid>`.
pub fn egress(trust_domain: &TrustDomain, member: &Uid) -> SpiffeId {
    SpiffeId::build(trust_domain, &format!("/banlieue/egress/{member}"))
}

/// Claim identity, of the jailed workload: `spiffe://<td>/banlieue/claim/<claim uid>`.
pub fn claim(trust_domain: &TrustDomain, claim: &Uid) -> SpiffeId {
    SpiffeId::build(trust_domain, &format!("/banlieue/claim/{claim}"))
}

/// The SPIRE server itself, as its peers see it: `spiffe://<td>/spire/server`.
pub fn spire_server(trust_domain: &TrustDomain) -> SpiffeId {
    SpiffeId::build(trust_domain, "/spire/server")
}

/// mediatore, towards guests, workloads and SPIRE: `spiffe://<td>/mediatore`.
pub fn mediatore(trust_domain: &TrustDomain) -> SpiffeId {
    SpiffeId::build(trust_domain, "/mediatore")
}

/// What one of our SPIFFE ids names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// An agent of a member.
    Agent {
        /// Cluster of the member.
        cluster: Cluster,
        /// Namespace of the member.
        namespace: Namespace,
        /// Uid of the member.
        member: Uid,
    },
    /// The guest agent of a member, by the member's uid.
    Node(Uid),
    /// The egress proxy of a member, by the member's uid.
    Egress(Uid),
    /// The workload of a claim, by the claim's uid.
    Claim(Uid),
}

/// Reads a SPIFFE path (with its leading slash) of ours; `None` for every other path.
pub fn read_path(path: &str) -> Option<Named> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let mut next = || parts.next();
    let named = match (next()?, next()?) {
        ("spire", "agent") => {
            if next()? != ATTESTOR_TYPE {
                return None;
            }
            Named::Agent {
                cluster: Cluster::parse(next()?).ok()?,
                namespace: Namespace::parse(next()?).ok()?,
                member: Uid::parse(next()?).ok()?,
            }
        }
        ("banlieue", kind) => {
            let uid = Uid::parse(next()?).ok()?;
            match kind {
                "node" => Named::Node(uid),
                "egress" => Named::Egress(uid),
                "claim" => Named::Claim(uid),
                _ => return None,
            }
        }
        _ => return None,
    };
    if next().is_some() { None } else { Some(named) }
}

/// Reads a whole SPIFFE id of ours in the given trust domain.
pub fn read_id(trust_domain: &TrustDomain, id: &str) -> Option<Named> {
    read_path(id.strip_prefix("spiffe://")?.strip_prefix(trust_domain.as_str())?)
}

/// Who writes SPIRE entries; the second part of an entry id, on which SPIRE's policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writer {
    /// The attestor controller: node and egress entries.
    Attestor,
    /// The broker: claim entries.
    Mediatore,
}

impl Writer {
    /// The word in entry ids.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attestor => "attestor",
            Self::Mediatore => "mediatore",
        }
    }
}

/// Start of every entry id of one writer in one cluster: `<cluster>.<writer>.`.
/// Clusters have no dot, so no cluster's prefix starts another's.
pub fn entry_prefix(cluster: &Cluster, writer: Writer) -> String {
    format!("{cluster}.{}.", writer.as_str())
}

/// Entry id of a member's node identity.
pub fn node_entry(cluster: &Cluster, member: &Uid) -> String {
    format!("{}node.{member}", entry_prefix(cluster, Writer::Attestor))
}

/// Entry id of a member's egress identity.
pub fn egress_entry(cluster: &Cluster, member: &Uid) -> String {
    format!("{}egress.{member}", entry_prefix(cluster, Writer::Attestor))
}

/// Entry id of a claim's identity.
pub fn claim_entry(cluster: &Cluster, claim: &Uid) -> String {
    format!("{}claim.{claim}", entry_prefix(cluster, Writer::Mediatore))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab";

    fn words() -> (TrustDomain, Cluster, Namespace, Uid) {
        (
            TrustDomain::parse("banlieue.local").unwrap(),
            Cluster::parse("local").unwrap(),
            Namespace::parse("sandboxes").unwrap(),
            Uid::parse(UID).unwrap(),
        )
    }

    #[test]
    fn ids_are_the_documented_ones_and_read_back() {
        let (td, cluster, namespace, uid) = words();
        let id = agent(&td, &cluster, &namespace, &uid);
        assert_eq!(id.as_str(), format!("spiffe://banlieue.local/spire/agent/banlieue_vtpm/local/sandboxes/{UID}"));
        assert_eq!(id.path(), format!("/spire/agent/banlieue_vtpm/local/sandboxes/{UID}"));
        assert_eq!(
            read_id(&td, id.as_str()),
            Some(Named::Agent { cluster: cluster.clone(), namespace, member: uid.clone() })
        );
        assert_eq!(node(&td, &uid).as_str(), format!("spiffe://banlieue.local/banlieue/node/{UID}"));
        assert_eq!(read_path(node(&td, &uid).path()), Some(Named::Node(uid.clone())));
        assert_eq!(read_path(egress(&td, &uid).path()), Some(Named::Egress(uid.clone())));
        assert_eq!(read_path(claim(&td, &uid).path()), Some(Named::Claim(uid.clone())));
        assert_eq!(node_entry(&cluster, &uid), format!("local.attestor.node.{UID}"));
        assert_eq!(claim_entry(&cluster, &uid), format!("local.mediatore.claim.{UID}"));
    }

    #[test]
    fn ids_of_others_do_not_read() {
        let (td, ..) = words();
        for id in [
            "spiffe://banlieue.local.evil/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
            "spiffe://other/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
            "spiffe://banlieue.local/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab/",
            "spiffe://banlieue.local/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab/x",
            "spiffe://banlieue.local/banlieue/node/",
            "spiffe://banlieue.local/banlieue//0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
            "spiffe://banlieue.local/spire/agent/join_token/local/sandboxes/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
            "spiffe://banlieue.local",
            "banlieue.local/banlieue/node/0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab",
        ] {
            assert_eq!(read_id(&td, id), None, "{id}");
        }
    }

    #[test]
    fn hostile_characters_are_refused() {
        let long = "a".repeat(64);
        for bad in
            ["", "a/b", "..", ".", "a b", "a%2f", "A", "a\u{0}", "a\n", "ä", "a?b", "a#b", "-a", "a-", "a_b", &long]
        {
            assert!(Namespace::parse(bad).is_err(), "{bad:?}");
            assert!(Cluster::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "..", "a..b", ".a", "a.", "a/b", "a-.b", "A.b"] {
            assert!(MemberName::parse(bad).is_err(), "{bad:?}");
        }
        for bad in [
            "",
            "0B7A3A3E-8A8F-4F0E-9A0B-0123456789AB",
            "0b7a3a3e8a8f4f0e9a0b0123456789ab",
            "../../../../../../../../../../../../..",
        ] {
            assert!(Uid::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a/b", "A", "a:1", "a@b", "ä"] {
            assert!(TrustDomain::parse(bad).is_err(), "{bad:?}");
        }
        assert!(MemberName::parse("guest-x7k2p").is_ok());
    }

    #[test]
    fn an_error_shows_hostile_input_escaped_and_cut() {
        let message = Namespace::parse(&format!("a\n\u{1b}[31m{}", "x".repeat(9000))).unwrap_err().to_string();
        assert!(!message.contains('\n') && !message.contains('\u{1b}') && message.len() < 400, "{message}");
    }
}
