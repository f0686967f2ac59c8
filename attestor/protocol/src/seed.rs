//! The seed: what a member is told before its first boot, by its enrolment Secret and so by its seed volume.
//!
//! The volume is a read-only ISO 9660 file system with one file for each key. Nothing on it is measured by firmware;
//! the guest therefore reports [`seed_digest`] of what it read, inside the quote, and the server compares it with what
//! the controller wrote on the member before the instance existed.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::digest;
use jiff::Timestamp;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::names::{Cluster, MemberName, NameError, Namespace, TrustDomain, Uid};

/// Serial of that disk (KubeVirt's `disk.serial`), by which the guest finds it.
pub const DISK_SERIAL: &str = "BANLIEUE-ENROL";
/// The only file of a volume that asks for a golden recording in place of an enrolment.
pub const RECORD_MEASUREMENTS: &str = "record-measurements";
/// Most bytes in one seed, names and values together.
pub const MAX_BYTES: usize = 64 * 1024;
/// Most bytes in `bundle.pem`.
pub const MAX_BUNDLE: usize = 48 * 1024;
/// `agent-ttl` of a seed that has none, in seconds: what SPIRE's configuration of this product says by default.
pub const AGENT_TTL_SECONDS: u32 = 600;
/// Most seconds in `agent-ttl`: a day.
pub const MAX_AGENT_TTL_SECONDS: u32 = 24 * 3600;

/// Key and file names.
pub mod key {
    /// Member name.
    pub const MEMBER: &str = "member";
    /// Namespace of the member.
    pub const NAMESPACE: &str = "namespace";
    /// Uid of the member.
    pub const UID: &str = "uid";
    /// Enrolment secret: 64 lower-case hexadecimal digits.
    pub const SECRET: &str = "secret";
    /// When the seed was made: RFC 3339, UTC, whole seconds.
    pub const ISSUED_AT: &str = "issued-at";
    /// When the enrolment secret stops to count: RFC 3339, UTC, whole seconds.
    pub const EXPIRES_AT: &str = "expires-at";
    /// SPIFFE trust domain.
    pub const TRUST_DOMAIN: &str = "trust-domain";
    /// Cluster name.
    pub const CLUSTER: &str = "cluster";
    /// SPIRE trust bundle: certificates in PEM.
    pub const BUNDLE: &str = "bundle.pem";
    /// SPIRE server as `host:port`.
    pub const SPIRE_SERVER: &str = "spire-server";
    /// Broker as `host:port`, or empty.
    pub const BROKER: &str = "broker";
    /// Life of an agent's SVID, as SPIRE is configured: whole seconds. The only key that may be absent.
    pub const AGENT_TTL: &str = "agent-ttl";
    /// All of them, sorted.
    pub const ALL: [&str; 12] = [
        AGENT_TTL,
        BROKER,
        BUNDLE,
        CLUSTER,
        EXPIRES_AT,
        ISSUED_AT,
        MEMBER,
        NAMESPACE,
        SECRET,
        SPIRE_SERVER,
        TRUST_DOMAIN,
        UID,
    ];
}

/// A seed as stored: key to bytes. Sorted by key, which is the order [`seed_digest`] needs.
pub type SeedMap = BTreeMap<String, Vec<u8>>;

/// Why a seed is refused. Never holds the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeedError {
    /// A key that must be there is not.
    #[error("seed has no {0:?}")]
    Missing(&'static str),
    /// A key that nobody knows.
    #[error("seed has the unknown key {0:?}")]
    Unknown(String),
    /// More than [`MAX_BYTES`] in all.
    #[error("seed is larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// A value of the wrong shape.
    #[error("seed key {key:?} must be {rule}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What it should have been.
        rule: &'static str,
    },
    /// A word that may not enter a SPIFFE id.
    #[error("seed key {key:?}: {source}")]
    Name {
        /// Which key.
        key: &'static str,
        /// What is wrong with the word.
        source: NameError,
    },
}

impl SeedError {
    /// Fixed word for metrics and conditions.
    pub fn category(&self) -> &'static str {
        "seed"
    }
}

/// The enrolment secret. Wiped when dropped; never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EnrolmentSecret([u8; 32]);

impl PartialEq for EnrolmentSecret {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for EnrolmentSecret {}

impl EnrolmentSecret {
    /// Takes 32 bytes from a secure random source.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads 64 lower-case hexadecimal digits.
    pub fn parse(hexadecimal: &[u8]) -> Option<Self> {
        let mut bytes = [0u8; 32];
        if hexadecimal.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        hex::decode_to_slice(hexadecimal, &mut bytes).ok()?;
        let secret = Self(bytes);
        bytes.zeroize();
        Some(secret)
    }

    /// The raw bytes, for the proof's HMAC.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for EnrolmentSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnrolmentSecret(…)")
    }
}

/// `host:port` with a DNS name, an IPv4 address or a bracketed IPv6 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Reads `host:port`; no scheme, no path, no blanks, port 1 to 65535 without leading zeros.
    pub fn parse(value: &str) -> Option<Self> {
        let (host, digits) = value.rsplit_once(':')?;
        let port: u16 = digits.parse().ok()?;
        if port == 0 || digits != port.to_string() {
            return None;
        }
        let sound = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => MemberName::parse(host).is_ok(),
        };
        sound.then(|| Self { host: host.to_owned(), port })
    }

    /// The host; an IPv6 address keeps its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// One member's seed, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// Member name.
    pub member: MemberName,
    /// Namespace of the member.
    pub namespace: Namespace,
    /// Uid of the member.
    pub uid: Uid,
    /// One-time enrolment secret.
    pub secret: EnrolmentSecret,
    /// When the seed was made, whole seconds.
    pub issued_at: Timestamp,
    /// When the enrolment secret stops to count, whole seconds, after `issued_at`.
    pub expires_at: Timestamp,
    /// SPIFFE trust domain.
    pub trust_domain: TrustDomain,
    /// Cluster name.
    pub cluster: Cluster,
    /// SPIRE trust bundle, PEM.
    pub bundle_pem: String,
    /// SPIRE server as the guest reaches it.
    pub spire_server: HostPort,
    /// Broker as the guest reaches it; none yet when absent.
    pub broker: Option<HostPort>,
    /// Life of an agent's SVID in seconds, 1 to [`MAX_AGENT_TTL_SECONDS`]: a guest whose identity does not come back
    /// for so long ends.
    pub agent_ttl_seconds: u32,
}

impl Seed {
    /// Reads a seed. Every key but `agent-ttl` must be there, no other may, values have no blanks or newline around them.
    pub fn parse(map: &SeedMap) -> Result<Self, SeedError> {
        let size: usize = map.iter().map(|(name, value)| name.len().saturating_add(value.len())).sum();
        if size > MAX_BYTES {
            return Err(SeedError::TooLarge);
        }
        if let Some(name) = map.keys().find(|name| !key::ALL.contains(&name.as_str())) {
            return Err(SeedError::Unknown(name.chars().take(64).collect()));
        }
        let seed = Self {
            member: word(map, key::MEMBER, MemberName::parse)?,
            namespace: word(map, key::NAMESPACE, Namespace::parse)?,
            uid: word(map, key::UID, Uid::parse)?,
            secret: value(map, key::SECRET, "64 lower-case hexadecimal digits", |v| {
                EnrolmentSecret::parse(v.as_bytes())
            })?,
            issued_at: value(map, key::ISSUED_AT, TIME_RULE, time)?,
            expires_at: value(map, key::EXPIRES_AT, TIME_RULE, time)?,
            trust_domain: word(map, key::TRUST_DOMAIN, TrustDomain::parse)?,
            cluster: word(map, key::CLUSTER, Cluster::parse)?,
            bundle_pem: value(map, key::BUNDLE, "certificates in PEM, at most 48 KiB", bundle)?,
            spire_server: value(map, key::SPIRE_SERVER, "host:port", HostPort::parse)?,
            broker: value(map, key::BROKER, "host:port, or empty", |v| {
                if v.is_empty() { Some(None) } else { HostPort::parse(v).map(Some) }
            })?,
            agent_ttl_seconds: match map.contains_key(key::AGENT_TTL) {
                true => value(map, key::AGENT_TTL, "whole seconds, 1 to 86400", agent_ttl)?,
                false => AGENT_TTL_SECONDS,
            },
        };
        if seed.expires_at <= seed.issued_at {
            return Err(SeedError::Value { key: key::EXPIRES_AT, rule: "later than \"issued-at\"" });
        }
        Ok(seed)
    }

    /// The Secret's data. Holds the secret in plain bytes: keep it short-lived.
    pub fn to_map(&self) -> SeedMap {
        let mut secret = hex::encode(self.secret.expose());
        let map = [
            (key::MEMBER, self.member.to_string()),
            (key::NAMESPACE, self.namespace.to_string()),
            (key::UID, self.uid.to_string()),
            (key::SECRET, secret.clone()),
            (key::ISSUED_AT, whole_seconds(self.issued_at)),
            (key::EXPIRES_AT, whole_seconds(self.expires_at)),
            (key::TRUST_DOMAIN, self.trust_domain.to_string()),
            (key::CLUSTER, self.cluster.to_string()),
            (key::BUNDLE, self.bundle_pem.clone()),
            (key::SPIRE_SERVER, self.spire_server.to_string()),
            (key::BROKER, self.broker.as_ref().map(ToString::to_string).unwrap_or_default()),
            (key::AGENT_TTL, self.agent_ttl_seconds.to_string()),
        ]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.into_bytes()))
        .collect();
        secret.zeroize();
        map
    }
}

/// SHA-256 over the sorted entries, each as u32 big-endian length and name, u32 big-endian length and value.
/// The guest computes it over every file it finds, before it parses any.
pub fn seed_digest(map: &SeedMap) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    for (name, value) in map {
        for part in [name.as_bytes(), value.as_slice()] {
            // Lengths above u32 cannot occur: both sides bound a seed by MAX_BYTES; saturating keeps it total.
            hash.update(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part);
        }
    }
    let mut out = [0u8; 32];
    out.copy_from_slice(hash.finish().as_ref());
    out
}

const TIME_RULE: &str = "a time like 2026-11-30T20:00:00Z";

fn text<'m>(map: &'m SeedMap, name: &'static str, rule: &'static str) -> Result<&'m str, SeedError> {
    let bytes = map.get(name).ok_or(SeedError::Missing(name))?;
    std::str::from_utf8(bytes).map_err(|_| SeedError::Value { key: name, rule })
}

fn value<T>(
    map: &SeedMap,
    name: &'static str,
    rule: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, SeedError> {
    read(text(map, name, rule)?).ok_or(SeedError::Value { key: name, rule })
}

fn word<T>(map: &SeedMap, name: &'static str, read: fn(&str) -> Result<T, NameError>) -> Result<T, SeedError> {
    read(text(map, name, "plain text")?).map_err(|source| SeedError::Name { key: name, source })
}

fn whole_seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn time(value: &str) -> Option<Timestamp> {
    let at: Timestamp = value.parse().ok()?;
    // One spelling only: offsets, fractions and blanks would give one time many digests.
    (whole_seconds(at) == value).then_some(at)
}

/// One spelling only: no sign, no leading zero.
fn agent_ttl(value: &str) -> Option<u32> {
    let seconds: u32 = value.parse().ok()?;
    (1..=MAX_AGENT_TTL_SECONDS).contains(&seconds).then_some(seconds).filter(|seconds| seconds.to_string() == value)
}

fn bundle(value: &str) -> Option<String> {
    let sound = value.len() <= MAX_BUNDLE
        && value.bytes().all(|c| c == b'\n' || (b' '..=b'~').contains(&c))
        && value.contains("-----BEGIN CERTIFICATE-----\n");
    sound.then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed() -> Seed {
        Seed {
            member: MemberName::parse("guest-x7k2p").unwrap(),
            namespace: Namespace::parse("sandboxes").unwrap(),
            uid: Uid::parse("0b7a3a3e-8a8f-4f0e-9a0b-0123456789ab").unwrap(),
            secret: EnrolmentSecret::new([7; 32]),
            issued_at: "2026-11-30T20:00:00Z".parse().unwrap(),
            expires_at: "2026-11-30T20:15:00Z".parse().unwrap(),
            trust_domain: TrustDomain::parse("banlieue.local").unwrap(),
            cluster: Cluster::parse("local").unwrap(),
            bundle_pem: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".into(),
            spire_server: HostPort::parse("10.0.2.2:8081").unwrap(),
            broker: None,
            agent_ttl_seconds: 90,
        }
    }

    #[test]
    fn a_seed_survives_its_map_and_has_exactly_the_known_keys() {
        for broker in [None, HostPort::parse("broker.example:443")] {
            let seed = Seed { broker, ..seed() };
            let map = seed.to_map();
            assert_eq!(map.keys().map(String::as_str).collect::<Vec<_>>(), key::ALL);
            assert_eq!(Seed::parse(&map).unwrap(), seed);
        }
    }

    #[test]
    fn the_digest_is_the_documented_one() {
        let map = SeedMap::from([("b".into(), b"xy".to_vec()), ("a".into(), Vec::new())]);
        let bytes = [0, 0, 0, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 1, b'b', 0, 0, 0, 2, b'x', b'y'];
        assert_eq!(seed_digest(&map), *digest::digest(&digest::SHA256, &bytes).as_ref());
    }

    #[test]
    fn the_digest_sees_every_byte_and_every_boundary() {
        let one = seed_digest(&SeedMap::from([("ab".into(), b"c".to_vec())]));
        assert_ne!(one, seed_digest(&SeedMap::from([("a".into(), b"bc".to_vec())])));
        let map = seed().to_map();
        for name in key::ALL {
            let mut changed = map.clone();
            changed.get_mut(name).unwrap().push(b' ');
            assert_ne!(seed_digest(&map), seed_digest(&changed), "{name}");
        }
    }

    #[test]
    fn anything_missing_unknown_or_misshapen_is_refused() {
        let map = seed().to_map();
        for name in key::ALL {
            let mut without = map.clone();
            without.remove(name);
            match name {
                key::AGENT_TTL => assert_eq!(Seed::parse(&without).unwrap().agent_ttl_seconds, AGENT_TTL_SECONDS),
                _ => assert_eq!(Seed::parse(&without), Err(SeedError::Missing(name))),
            }
            let mut trailing = map.clone();
            trailing.get_mut(name).unwrap().push(if name == key::BUNDLE { 0 } else { b'\n' });
            assert!(Seed::parse(&trailing).is_err(), "{name} with a trailing byte");
            let mut raw = map.clone();
            raw.insert(name.into(), vec![0xff, 0xfe]);
            assert!(Seed::parse(&raw).is_err(), "{name} not UTF-8");
        }
        let mut more = map.clone();
        more.insert("user-data".into(), vec![]);
        assert_eq!(Seed::parse(&more), Err(SeedError::Unknown("user-data".into())));
        let mut large = map.clone();
        large.insert(key::BUNDLE.into(), vec![b'a'; MAX_BYTES]);
        assert_eq!(Seed::parse(&large), Err(SeedError::TooLarge));
        for (name, bad) in [
            (key::SECRET, "00"),
            (key::SECRET, "AA07070707070707070707070707070707070707070707070707070707070707"),
            (key::ISSUED_AT, "2026-11-30T20:00:00+00:00"),
            (key::ISSUED_AT, "2026-11-30T20:00:00.5Z"),
            (key::ISSUED_AT, "2026-11-30 20:00:00Z"),
            (key::EXPIRES_AT, "2026-11-30T20:00:00Z"),
            (key::SPIRE_SERVER, ""),
            (key::SPIRE_SERVER, "host"),
            (key::SPIRE_SERVER, "host:0"),
            (key::SPIRE_SERVER, "host:080"),
            (key::SPIRE_SERVER, "host:65536"),
            (key::AGENT_TTL, ""),
            (key::AGENT_TTL, "0"),
            (key::AGENT_TTL, "090"),
            (key::AGENT_TTL, "+90"),
            (key::AGENT_TTL, "90s"),
            (key::AGENT_TTL, "86401"),
            (key::SPIRE_SERVER, "ho st:1"),
            (key::SPIRE_SERVER, "https://host:1"),
            (key::SPIRE_SERVER, "[::g]:1"),
            (key::UID, "../../x"),
            (key::BUNDLE, "no certificate"),
        ] {
            let mut changed = map.clone();
            changed.insert(name.into(), bad.as_bytes().to_vec());
            assert!(Seed::parse(&changed).is_err(), "{name} = {bad:?}");
        }
        let mut six = map;
        six.insert(key::SPIRE_SERVER.into(), b"[fd00::1]:8081".to_vec());
        assert_eq!(Seed::parse(&six).unwrap().spire_server.to_string(), "[fd00::1]:8081");
    }

    #[test]
    fn the_secret_is_never_printed() {
        let shown = format!("{:?}", seed());
        assert!(!shown.contains("0707") && !shown.contains("7, 7"), "{shown}");
    }
}
