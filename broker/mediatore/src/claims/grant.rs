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
    record::{subject, workload_digest},
};
use crate::config::{Audience, Config};

const VERSION: u8 = 1;
const NONCE: usize = 12;
/// A grant is small; whatever is longer is none.
const LONGEST: usize = 64 * 1024;
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
}

impl Grant {
    /// What a caller is granted with the claim that mediatore made for them. The claim's own words on who it is for are
    /// not asked.
    #[must_use]
    pub fn of(caller: &Caller, claim: &VirtualMachineClaim) -> Option<Self> {
        let subject = subject(caller);
        Some(Self {
            claim_uid: claim.metadata.uid.clone()?,
            issuer: subject.issuer,
            id: subject.id,
            azp: subject.azp,
            path: caller.path,
            client: caller.client.clone(),
            audiences: claim.spec.audiences.clone(),
            workload: workload_digest(&claim.spec.workload),
        })
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is not in our format.
    #[error("the sealed grant is damaged")]
    Format,
    /// Its key is not configured (any more).
    #[error("the key of the sealed grant is not among sealing_keys")]
    Key,
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
        let first = self.0.first().ok_or(SealError::Key)?;
        let mut text = serde_json::to_vec(grant).map_err(|_| SealError::Format)?;
        let nonce = first
            .key
            .seal_in_place_append_tag(Aad::from(grant.claim_uid.as_bytes()), &mut text)
            .map_err(|_| SealError::Seal)?;
        let length = u8::try_from(first.id.len()).map_err(|_| SealError::Key)?;
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
        if sealed.len() > LONGEST {
            return Err(SealError::Format);
        }
        let (id, nonce, text) = take_apart(sealed).ok_or(SealError::Format)?;
        let key = self.0.iter().find(|key| key.id.as_bytes() == id).ok_or(SealError::Key)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Format)?;
        let mut text = text.to_vec();
        let plain =
            key.key.open_in_place(nonce, Aad::from(claim_uid.as_bytes()), &mut text).map_err(|_| SealError::Seal)?;
        let grant: Grant = serde_json::from_slice(plain).map_err(|_| SealError::Format)?;
        if grant.claim_uid == claim_uid { Ok(grant) } else { Err(SealError::Seal) }
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::claims::record;

    fn keys(ids: &[&str]) -> SealingKeys {
        SealingKeys::new(ids.iter().map(|id| ((*id).to_owned(), Zeroizing::new([id.as_bytes()[0]; 32]))).collect())
            .unwrap()
    }

    fn claim() -> VirtualMachineClaim {
        let mut claim = record::claim("c-1", &record::tests::wanted(), record::tests::alice(), "s");
        claim.metadata.uid = Some("uid-1".into());
        claim
    }

    fn grant() -> Grant {
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
        }
    }

    #[test]
    fn it_opens_for_its_claim_under_old_and_new_keys() {
        let (old, both, new) = (keys(&["a"]), keys(&["b", "a"]), keys(&["b"]));
        let sealed = old.seal(&grant()).unwrap();
        assert_eq!(both.open("uid-1", &sealed).unwrap(), grant());
        assert_eq!(new.open("uid-1", &sealed), Err(SealError::Key));
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
