//! The sealed grant: proof that mediatore made a claim, for whom, for which audiences and which workload. Pure.
//!
//! A claim alone proves nothing, since anyone with rights in the namespace can write one. The grant stands in a Secret
//! that the claim owns, sealed by AES-256-GCM under a key that only mediatore has, with the claim's uid as associated
//! data: it opens for no other claim. Whoever can write Secrets can remove a grant, which takes rights away, and cannot
//! make one.
//!
//! Format: `01`, length of the key's id (1 byte), the id, 12 bytes nonce, ciphertext with its 16 bytes of tag.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use banlieue_crds::VirtualMachineClaim;
use banlieue_identity::{Caller, Path};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    name::Digest,
    record::{Wanted, request_digest, subject, workload_digest},
};
use crate::config::{Audience, Config};

const VERSION: u8 = 1;
const NONCE: usize = 12;
/// What is sealed is small; whatever is longer was not sealed here.
const LONGEST: usize = 512 * 1024;
/// Key of the Secret that holds it.
pub const SECRET_KEY: &str = "grant";

/// What was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// `metadata.uid` of the claim.
    pub claim_uid: String,
    /// Issuer of the subject.
    pub issuer: String,
    /// Id of the subject there.
    pub id: String,
    /// The agent that asked for the person, or empty.
    pub azp: String,
    /// On which path it was asked for.
    pub path: Path,
    /// The client that asked the issuer for the caller's token.
    pub client: String,
    /// Audiences, in the claim's order.
    pub audiences: Vec<String>,
    /// Digest of the workload.
    pub workload: Digest,
    /// Name of the slot that the claim holds. Absent in grants of earlier versions.
    #[serde(default)]
    pub slot: Option<String>,
    /// Digest of the request that the claim answers. Absent in grants of earlier versions.
    #[serde(default)]
    pub request: Option<Digest>,
}

impl Grant {
    /// What a caller is granted with the claim that mediatore made for them. The claim's own words on who it is for are
    /// not asked.
    #[must_use]
    pub fn of(caller: &Caller, claim: &VirtualMachineClaim, wanted: &Wanted, slot: &str) -> Option<Self> {
        let subject = subject(caller);
        Some(Self {
            claim_uid: claim.metadata.uid.clone()?,
            issuer: subject.issuer,
            id: subject.id,
            azp: subject.azp,
            path: caller.path,
            client: caller.client.clone(),
            audiences: wanted.audiences.clone(),
            workload: workload_digest(&wanted.workload),
            slot: Some(slot.to_owned()),
            request: Some(request_digest(wanted)),
        })
    }

    /// Whether this grant is what that caller would be given, under whichever slot and for whichever length of life.
    #[must_use]
    pub fn is_for_the_caller_of(&self, other: &Self) -> bool {
        *self == Self { slot: self.slot.clone(), request: self.request.clone(), ..other.clone() }
    }

    /// Whether this subject may have tokens for an audience: services only when they are listed.
    #[must_use]
    pub fn may_have(&self, config: &Config, audience: &Audience) -> bool {
        self.path != Path::Service || config.is_listed(audience, &self.issuer, &self.client)
    }

    /// Whether the claim is what was granted.
    #[must_use]
    pub fn covers(&self, claim: &VirtualMachineClaim) -> bool {
        let subject = &claim.spec.subject;
        claim.metadata.uid.as_deref() == Some(self.claim_uid.as_str())
            && subject.issuer == self.issuer
            && subject.id == self.id
            && subject.azp == self.azp
            && claim.spec.audiences == self.audiences
            && workload_digest(&claim.spec.workload) == self.workload
    }
}

/// Why a sealed grant does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is not in our format.
    #[error("the sealed grant is damaged")]
    Format,
    /// Its key is not configured (any more).
    #[error("the key {0:?} of the sealed grant is not among sealing_keys")]
    Key(String),
    /// It was changed, or belongs to another claim.
    #[error("the sealed grant does not belong to this claim")]
    Seal,
}

struct Key {
    id: String,
    key: RandomizedNonceKey,
}

/// Keys for grants: the first seals, all open.
pub struct SealingKeys(Vec<Key>);

impl std::fmt::Debug for SealingKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

impl SealingKeys {
    /// From ids and keys, the sealing one first. Nothing when there is none, or an id is longer than 255 bytes.
    #[must_use]
    pub fn new(keys: Vec<(String, Zeroizing<[u8; 32]>)>) -> Option<Self> {
        let made: Option<Vec<Key>> = keys
            .into_iter()
            .map(|(id, bytes)| {
                u8::try_from(id.len()).ok()?;
                Some(Key { id, key: RandomizedNonceKey::new(&AES_256_GCM, bytes.as_slice()).ok()? })
            })
            .collect();
        made.filter(|keys| !keys.is_empty()).map(Self)
    }

    /// Seals a grant for its claim.
    ///
    /// # Errors
    /// When the library refuses, which is a defect.
    pub fn seal(&self, grant: &Grant) -> Result<Vec<u8>, SealError> {
        let text = serde_json::to_vec(grant).map_err(|_| SealError::Format)?;
        self.seal_text(grant.claim_uid.as_bytes(), Zeroizing::new(text))
    }

    /// Seals a text, bound to what it belongs to.
    ///
    /// # Errors
    /// When the library refuses, which is a defect.
    pub fn seal_text(&self, bound_to: &[u8], mut text: Zeroizing<Vec<u8>>) -> Result<Vec<u8>, SealError> {
        let first = self.0.first().ok_or_else(|| SealError::Key(String::new()))?;
        // Room for the tag, so that the text is not left behind where it stood before.
        text.reserve_exact(AES_256_GCM.tag_len());
        let nonce = first.key.seal_in_place_append_tag(Aad::from(bound_to), &mut *text).map_err(|_| SealError::Seal)?;
        let length = u8::try_from(first.id.len()).map_err(|_| SealError::Key(first.id.clone()))?;
        let mut sealed = vec![VERSION, length];
        sealed.extend_from_slice(first.id.as_bytes());
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&text);
        Ok(sealed)
    }

    /// Opens what was sealed for the claim of this uid.
    ///
    /// # Errors
    /// For anything else.
    pub fn open(&self, claim_uid: &str, sealed: &[u8]) -> Result<Grant, SealError> {
        let plain = self.open_text(claim_uid.as_bytes(), sealed)?;
        let grant: Grant = serde_json::from_slice(&plain).map_err(|_| SealError::Format)?;
        if grant.claim_uid == claim_uid { Ok(grant) } else { Err(SealError::Seal) }
    }

    /// Opens a text that was sealed for exactly this.
    ///
    /// # Errors
    /// For anything else.
    pub fn open_text(&self, bound_to: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        if sealed.len() > LONGEST {
            return Err(SealError::Format);
        }
        let (id, nonce, text) = take_apart(sealed).ok_or(SealError::Format)?;
        let key = self.0.iter().find(|key| key.id.as_bytes() == id);
        let key = key.ok_or_else(|| SealError::Key(String::from_utf8_lossy(id).into_owned()))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Format)?;
        let mut text = Zeroizing::new(text.to_vec());
        let length = key.key.open_in_place(nonce, Aad::from(bound_to), &mut text).map_err(|_| SealError::Seal)?.len();
        text.truncate(length);
        Ok(text)
    }
}

fn take_apart(sealed: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let ([VERSION, length], rest) = sealed.split_first_chunk::<2>().map(|(head, rest)| (*head, rest))? else {
        return None;
    };
    let (id, rest) = rest.split_at_checked(usize::from(length))?;
    let (nonce, text) = rest.split_at_checked(NONCE)?;
    Some((id, nonce, text))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::claims::record;

    pub(crate) fn keys(ids: &[&str]) -> SealingKeys {
        SealingKeys::new(ids.iter().map(|id| ((*id).to_owned(), Zeroizing::new([id.as_bytes()[0]; 32]))).collect())
            .unwrap()
    }

    pub(crate) fn claim() -> VirtualMachineClaim {
        let mut claim = record::claim("c-1", &record::tests::wanted(), record::tests::alice(), "s");
        claim.metadata.uid = Some("uid-1".into());
        claim
    }

    pub(crate) fn grant() -> Grant {
        let claim = claim();
        Grant {
            claim_uid: "uid-1".into(),
            issuer: claim.spec.subject.issuer.clone(),
            id: claim.spec.subject.id.clone(),
            azp: String::new(),
            path: Path::Person,
            client: "cli".into(),
            audiences: claim.spec.audiences.clone(),
            workload: workload_digest(&claim.spec.workload),
            slot: Some("slot-pool-a-k-0".into()),
            request: Some(request_digest(&record::tests::wanted())),
        }
    }

    #[test]
    fn it_opens_for_its_claim_under_old_and_new_keys() {
        let (old, both, new) = (keys(&["a"]), keys(&["b", "a"]), keys(&["b"]));
        let sealed = old.seal(&grant()).unwrap();
        assert_eq!(both.open("uid-1", &sealed).unwrap(), grant());
        assert_eq!(new.open("uid-1", &sealed), Err(SealError::Key("a".into())));
        assert_eq!(both.open("uid-2", &sealed), Err(SealError::Seal));
        let later = both.seal(&grant()).unwrap();
        assert_eq!(new.open("uid-1", &later).unwrap(), grant());
        assert_ne!(sealed, old.seal(&grant()).unwrap(), "a nonce is used once");
        // A key of the same name and other content.
        let impostor = SealingKeys::new(vec![("a".into(), Zeroizing::new([9; 32]))]).unwrap();
        assert_eq!(impostor.open("uid-1", &sealed), Err(SealError::Seal));
    }

    #[test]
    fn it_covers_nothing_but_what_was_granted() {
        assert!(grant().covers(&claim()));
        let edits: [fn(&mut VirtualMachineClaim); 7] = [
            |c| c.metadata.uid = Some("uid-2".into()),
            |c| c.spec.subject.issuer.push('/'),
            |c| c.spec.subject.id = "bob".into(),
            |c| c.spec.subject.azp = "bot".into(),
            |c| c.spec.audiences.push("more".into()),
            |c| c.spec.workload.args.push("more".into()),
            |c| c.metadata.uid = None,
        ];
        for edit in edits {
            let mut other = claim();
            edit(&mut other);
            assert!(!grant().covers(&other), "{:?}", other.spec);
        }
        let mut longer = claim();
        longer.spec.ttl_seconds += 1;
        longer.spec.subject.display = "another name".into();
        assert!(grant().covers(&longer));
    }

    #[test]
    fn grants_of_an_earlier_version_open() {
        let mut old = serde_json::to_value(grant()).unwrap();
        old.as_object_mut().unwrap().retain(|key, _| !matches!(key.as_str(), "slot" | "request"));
        let old: Grant = serde_json::from_value(old).unwrap();
        assert_eq!(old, Grant { slot: None, request: None, ..grant() });
        assert!(old.covers(&claim()) && old.is_for_the_caller_of(&grant()));
        assert!(!old.is_for_the_caller_of(&Grant { client: "other".into(), ..grant() }));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_opens_nothing(at in 0_usize..1000, bit in 0_u8..8) {
            let keys = keys(&["a"]);
            let mut sealed = keys.seal(&grant()).unwrap();
            let at = at % sealed.len();
            sealed[at] ^= 1 << bit;
            prop_assert!(keys.open("uid-1", &sealed).is_err());
        }

        #[test]
        fn foreign_bytes_open_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(keys(&["a"]).open("uid-1", &bytes).is_err());
        }
    }
}
