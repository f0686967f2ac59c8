//! The measurements document (`measurements.yaml`), read strictly.
//!
//! ```yaml
//! apiVersion: measurements.banlieue.io/v1
//! image: {name: guest, version: 0.1.0, digest: "sha256:…"}
//! pcrs:                       # SHA-256 bank; each of 0 to 15 has exactly one rule
//!   0: {digest: …}
//!   1:
//!     events:                 # where firmware varies: all events of the PCR, in order
//!       - {type: EV_SEPARATOR, digests: […]}
//!       - {type: EV_EFI_VARIABLE_BOOT2, variable: BootOrder, optional: true, repeated: true}
//!       - {type: EV_EFI_ACTION, text: Calling EFI Application from Boot Option}
//!   8: {zero: true}
//!   10: {bootAggregate: true} # computed from the other PCRs, as the kernel's IMA does; or a digest
//!   15: {latch: true}
//! reference:                  # events of the golden boot: they decide nothing, they name the event that differs
//!   events: [{pcr: 4, type: EV_EFI_ACTION, digest: …, about: Calling EFI Application from Boot Option}]
//! programs:                   # what gets identities in a member
//!   node: {path: /usr/bin/banlieue-guest, sha256: …, uid: 0}
//! ```

use std::collections::BTreeMap;

use banlieue_tpm::eventlog::EventKind;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::rule::{Matcher, Pattern, Rule};

/// `apiVersion` of measurements documents.
pub const API_VERSION: &str = "measurements.banlieue.io/v1";
/// Key of the document in its ConfigMap.
pub const CONFIG_MAP_KEY: &str = "measurements.yaml";
/// Most bytes in a document; a ConfigMap holds at most 1 MiB.
pub const MAX_DOCUMENT: usize = 256 * 1024;
/// How many PCRs have rules: 0 to 15.
pub const RULED: u8 = 16;
/// PCRs that are extended without an event in the firmware's log: 10 by the kernel's IMA, 15 by the guest agent.
pub const UNLOGGED: u32 = 1 << 10 | 1 << 15;

/// Why a document is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Above the limit.
    #[error("measurements have {size} bytes, at most {max} are allowed")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// Not YAML of this shape.
    #[error("measurements are not a document of this kind: {0}")]
    Shape(String),
    /// Another version.
    #[error("measurements have apiVersion {0:?}, only {API_VERSION:?} is known")]
    Version(String),
    /// A PCR without exactly one rule.
    #[error("measurements, PCR {pcr}: {why}")]
    Rule {
        /// Which PCR.
        pcr: u8,
        /// What is wrong.
        why: &'static str,
    },
    /// The reference contradicts a rule.
    #[error("measurements, PCR {0}: the reference events do not replay to the rule's digest")]
    Reference(u8),
    /// Any other field.
    #[error("measurements, {field}: {why}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What is wrong.
        why: &'static str,
    },
}

impl DocumentError {
    /// Fixed word for metrics and conditions.
    pub fn category(&self) -> &'static str {
        "document"
    }
}

/// An image's name and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
}

/// How SPIRE recognises a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Absolute path.
    pub path: String,
    /// SHA-256 of the file.
    pub sha256: Digest,
    /// User it runs as.
    pub uid: u32,
}

/// The programs that get identities in a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// The guest agent: the node identity.
    pub node: Program,
    /// The egress proxy; absent in an image that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Program>,
}

/// One event of the golden boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceEvent {
    /// PCR.
    pub pcr: u8,
    /// Type, by the specification's name.
    #[serde(rename = "type")]
    pub kind: String,
    /// Digest.
    pub digest: Digest,
    /// What people call it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
}

/// Events of the golden boot, to name the one that differs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reference {
    /// Locality at which the TPM was started: what PCR 0 starts from.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub startup_locality: u8,
    /// In the log's order.
    pub events: Vec<ReferenceEvent>,
}

fn is_zero(value: &u8) -> bool {
    *value == 0
}

/// A checked document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurements {
    /// The image.
    pub image: Image,
    /// Rules of PCR 0 to 15.
    pub rules: [Rule; RULED as usize],
    /// Events of the golden boot; may be empty.
    pub reference: Reference,
    /// Programs that get identities.
    pub programs: Programs,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    image: Image,
    pcrs: BTreeMap<u8, RuleDocument>,
    #[serde(default)]
    reference: Reference,
    programs: Programs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zero: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot_aggregate: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latch: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    events: Option<Vec<PatternDocument>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PatternDocument {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digests: Option<Vec<Digest>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    repeated: bool,
}

impl Measurements {
    /// Reads a document of at most `limit` bytes ([`MAX_DOCUMENT`] for one).
    pub fn parse(bytes: &[u8], limit: usize) -> Result<Self, DocumentError> {
        let document: Document = read(bytes, limit)?;
        if document.api_version != API_VERSION {
            return Err(DocumentError::Version(document.api_version.chars().take(64).collect()));
        }
        check_image(&document.image)?;
        check_program("programs.node", &document.programs.node)?;
        if let Some(egress) = &document.programs.egress {
            check_program("programs.egress", egress)?;
        }
        if let Some(pcr) = document.pcrs.keys().find(|pcr| **pcr >= RULED) {
            return Err(DocumentError::Rule { pcr: *pcr, why: "only PCR 0 to 15 have rules" });
        }
        let rules = (0..RULED)
            .map(|pcr| {
                let rule = document.pcrs.get(&pcr).ok_or(DocumentError::Rule { pcr, why: "has no rule" })?;
                read_rule(pcr, rule).map_err(|why| DocumentError::Rule { pcr, why })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let rules = <[Rule; RULED as usize]>::try_from(rules)
            .map_err(|_| DocumentError::Field { field: "pcrs", why: "each of 0 to 15 needs one rule" })?;
        check_reference(&document.reference, &rules)?;
        Ok(Self { image: document.image, rules, reference: document.reference, programs: document.programs })
    }

    /// Writes the document.
    pub fn to_yaml(&self) -> Result<String, DocumentError> {
        let document = Document {
            api_version: API_VERSION.to_owned(),
            image: self.image.clone(),
            pcrs: (0..RULED).zip(self.rules.iter().map(write_rule)).collect(),
            reference: self.reference.clone(),
            programs: self.programs.clone(),
        };
        serde_saphyr::to_string(&document).map_err(|error| DocumentError::Shape(error.to_string()))
    }

    /// The rule of one PCR; `None` above 15.
    pub fn rule(&self, pcr: u8) -> Option<&Rule> {
        self.rules.get(usize::from(pcr))
    }
}

/// SHA-256 of a document's bytes: how a pool names it.
pub fn document_digest(bytes: &[u8]) -> Digest {
    Digest::of(bytes)
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, DocumentError> {
    if bytes.len() > limit {
        return Err(DocumentError::TooLarge { size: bytes.len(), max: limit });
    }
    // No anchors, so no aliases: nothing in a document can be larger than the document.
    let budget = serde_saphyr::budget! { max_anchors: 0, max_aliases: 0, max_documents: 1 };
    let options = serde_saphyr::options! { budget: budget };
    serde_saphyr::from_slice_with_options(bytes, options).map_err(|error| DocumentError::Shape(error.to_string()))
}

fn read_rule(pcr: u8, rule: &RuleDocument) -> Result<Rule, &'static str> {
    if [rule.zero, rule.boot_aggregate, rule.latch].contains(&Some(false)) {
        return Err("a rule that says false says nothing");
    }
    match (rule.digest, rule.zero, rule.boot_aggregate, rule.latch, &rule.events) {
        (Some(digest), None, None, None, None) => Ok(Rule::Digest(digest)),
        (None, Some(_), None, None, None) => Ok(Rule::Zero),
        (None, None, Some(_), None, None) if pcr == 10 => Ok(Rule::BootAggregate),
        (None, None, Some(_), None, None) => Err("only PCR 10 holds the boot aggregate"),
        (None, None, None, Some(_), None) if pcr == 15 => Ok(Rule::Latch),
        (None, None, None, Some(_), None) => Err("only PCR 15 is the latch"),
        (None, None, None, None, Some(_)) if UNLOGGED & (1 << pcr) != 0 => Err("has no events in the firmware's log"),
        (None, None, None, None, Some(patterns)) => {
            Ok(Rule::Events(patterns.iter().map(read_pattern).collect::<Result<_, _>>()?))
        }
        _ => Err("needs exactly one of digest, zero, bootAggregate, latch, events"),
    }
}

fn read_pattern(pattern: &PatternDocument) -> Result<Pattern, &'static str> {
    let kind = EventKind::from_name(&pattern.kind).ok_or("has an unknown event type")?;
    let matcher = match (&pattern.digests, &pattern.variable, &pattern.text) {
        (Some(digests), None, None) if !digests.is_empty() => Matcher::Digests(digests.clone()),
        (None, Some(name), None) => Matcher::Variable(name.clone()),
        (None, None, Some(text)) => Matcher::Text(text.clone()),
        _ => return Err("each event needs exactly one of digests (not empty), variable, text"),
    };
    if matcher.reads_data() && !kind.digest_is_hash_of_data() {
        return Err("reads the data of an event type whose digest is not the hash of that data; use digests");
    }
    if kind == EventKind::NO_ACTION {
        return Err("EV_NO_ACTION extends nothing");
    }
    Ok(Pattern { kind, matcher, optional: pattern.optional, repeated: pattern.repeated })
}

fn write_rule(rule: &Rule) -> RuleDocument {
    match rule {
        Rule::Digest(digest) => RuleDocument { digest: Some(*digest), ..RuleDocument::default() },
        Rule::Zero => RuleDocument { zero: Some(true), ..RuleDocument::default() },
        Rule::BootAggregate => RuleDocument { boot_aggregate: Some(true), ..RuleDocument::default() },
        Rule::Latch => RuleDocument { latch: Some(true), ..RuleDocument::default() },
        Rule::Events(patterns) => {
            RuleDocument { events: Some(patterns.iter().map(write_pattern).collect()), ..RuleDocument::default() }
        }
    }
}

fn write_pattern(pattern: &Pattern) -> PatternDocument {
    let mut document = PatternDocument {
        kind: pattern.kind.name(),
        digests: None,
        variable: None,
        text: None,
        optional: pattern.optional,
        repeated: pattern.repeated,
    };
    match &pattern.matcher {
        Matcher::Digests(digests) => document.digests = Some(digests.clone()),
        Matcher::Variable(name) => document.variable = Some(name.clone()),
        Matcher::Text(text) => document.text = Some(text.clone()),
    }
    document
}

pub(crate) fn check_image(image: &Image) -> Result<(), DocumentError> {
    let word = |text: &str| {
        (1..=128).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._+-:/".contains(&c))
    };
    if !word(&image.name) || !word(&image.version) {
        return Err(DocumentError::Field {
            field: "image",
            why: "name and version have 1 to 128 characters of [A-Za-z0-9._+-:/]",
        });
    }
    if image.digest.strip_prefix("sha256:").and_then(Digest::parse).is_none() {
        return Err(DocumentError::Field {
            field: "image.digest",
            why: "must be sha256: and 64 lower-case hexadecimal digits",
        });
    }
    Ok(())
}

fn check_program(field: &'static str, program: &Program) -> Result<(), DocumentError> {
    // The path becomes part of a SPIRE selector; nothing but plain path characters may enter it.
    let sound = program.path.starts_with('/')
        && program.path.len() <= 256
        && program.path.bytes().all(|c| c.is_ascii_alphanumeric() || b"._+-/".contains(&c))
        && !program.path.split('/').any(|part| part == "..");
    if sound { Ok(()) } else { Err(DocumentError::Field { field, why: "path must be absolute and plain" }) }
}

/// A reference that cannot explain its own digests would name wrong events.
fn check_reference(reference: &Reference, rules: &[Rule]) -> Result<(), DocumentError> {
    if reference.events.len() > banlieue_tpm::eventlog::MAX_EVENTS {
        return Err(DocumentError::Field { field: "reference.events", why: "has too many events" });
    }
    for (pcr, rule) in (0..RULED).zip(rules) {
        let mut value = [0u8; 32];
        if pcr == 0
            && let Some(last) = value.last_mut()
        {
            *last = reference.startup_locality;
        }
        let mut events = reference.events.iter().filter(|event| event.pcr == pcr).peekable();
        if events.peek().is_none() {
            continue;
        }
        for event in events {
            if EventKind::from_name(&event.kind).is_none() || event.about.len() > 512 {
                return Err(DocumentError::Field {
                    field: "reference.events",
                    why: "has an unknown type or a long text",
                });
            }
            value = banlieue_tpm::pcr::extend(&value, &event.digest.0);
        }
        match rule {
            Rule::Digest(digest) if digest.0 != value => return Err(DocumentError::Reference(pcr)),
            Rule::Zero | Rule::BootAggregate | Rule::Latch => return Err(DocumentError::Reference(pcr)),
            Rule::Digest(_) | Rule::Events(_) => {}
        }
    }
    Ok(())
}
