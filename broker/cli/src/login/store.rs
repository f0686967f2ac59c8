//! The token that login keeps: one file that only its owner can read.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::Session;
use crate::config::{Provider, folders};
use crate::fault::{Fault, Kind};

/// Largest file that is read, in bytes.
const LARGEST: u64 = 64 * 1024;
/// A token that ends sooner is not worth using.
const MARGIN: SignedDuration = SignedDuration::from_secs(30);

/// The file. Refresh tokens are never in it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Whose token it is: another provider, client or scope is another token.
    issuer: String,
    client_id: String,
    scope: String,
    token: Zeroizing<String>,
    expires_at: Option<Timestamp>,
}

/// The place of the kept token.
#[derive(Debug, Clone)]
pub struct Store(PathBuf);

impl Store {
    /// In the folder for state of whoever runs this.
    ///
    /// # Errors
    /// When there is no home.
    pub fn open() -> Result<Self, Fault> {
        let folders = folders()?;
        let folder = folders.state_dir().unwrap_or_else(|| folders.data_dir());
        Ok(Self(folder.join("mediatore/login.json")))
    }

    /// The kept token of this provider, if it is good for a while yet.
    ///
    /// # Errors
    /// When others could have read or written the file.
    pub fn token(&self, provider: &Provider, now: Timestamp) -> Result<Option<Zeroizing<String>>, Fault> {
        let Some(kept) = self.read()? else { return Ok(None) };
        let same =
            (&kept.issuer, &kept.client_id, &kept.scope) == (&provider.issuer, &provider.client_id, &provider.scope);
        let is_fresh = kept.expires_at.is_some_and(|end| now.checked_add(MARGIN).is_ok_and(|soon| soon < end));
        Ok((same && is_fresh).then_some(kept.token))
    }

    fn read(&self) -> Result<Option<Kept>, Fault> {
        let fail = |what: String| Fault::new(Kind::Login, format!("{}: {what}", self.0.display()));
        // A link could lead to a file of somebody else's choice.
        let options = fs::OpenOptions::new().read(true).custom_flags(nofollow()).open(&self.0);
        let file = match options {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error.to_string())),
        };
        let found = file.metadata().map_err(|error| fail(error.to_string()))?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(fail("others may read or write it. Delete it, and log in anew".to_owned()));
        }
        let mut text = Zeroizing::new(Vec::new());
        file.take(LARGEST).read_to_end(&mut text).map_err(|error| fail(error.to_string()))?;
        // A file of another version is no token.
        Ok(serde_json::from_slice(&text).ok())
    }

    /// Keeps a token; a crash leaves the one before or this one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, provider: &Provider, session: &Session) -> Result<(), Fault> {
        let fail = |error: std::io::Error| Fault::new(Kind::Other, format!("writing {}: {error}", self.0.display()));
        let folder = self.0.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fail)?;
        let kept = Kept {
            issuer: provider.issuer.clone(),
            client_id: provider.client_id.clone(),
            scope: provider.scope.clone(),
            token: session.token.clone(),
            expires_at: session.expires_at,
        };
        let text = Zeroizing::new(serde_json::to_vec(&kept).map_err(|error| fail(error.into()))?);
        // Made with 0600, whatever the umask is.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(fail)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o600)).map_err(fail)?;
        file.write_all(&text).map_err(fail)?;
        file.persist(&self.0).map_err(|error| fail(error.error))?;
        Ok(())
    }

    /// Forgets the token.
    ///
    /// # Errors
    /// When it cannot be deleted.
    pub fn forget(&self) -> Result<(), Fault> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Fault::new(Kind::Other, format!("deleting {}: {error}", self.0.display())))
            }
            _ => Ok(()),
        }
    }
}

fn nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Wanted;

    fn provider() -> Provider {
        Provider {
            issuer: "https://idp".into(),
            client_id: "cli".into(),
            scope: "openid".into(),
            token: Wanted::IdToken,
            redirect_uri: String::new(),
            ca_file: None,
        }
    }

    fn kept(folder: &Path, seconds: i64) -> Store {
        let store = Store(folder.join("a/b/login.json"));
        let expires_at = Some(Timestamp::now() + SignedDuration::from_secs(seconds));
        let session = Session { token: "t".to_owned().into(), expires_at, refresh_token: Some("r".to_owned().into()) };
        store.keep(&provider(), &session).unwrap();
        store
    }

    #[test]
    fn a_token_is_given_back_to_the_same_login_while_it_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let (store, now) = (kept(folder.path(), 600), Timestamp::now());
        assert_eq!(store.token(&provider(), now).unwrap().unwrap().as_str(), "t");
        let other = Provider { scope: "openid more".into(), ..provider() };
        assert!(store.token(&other, now).unwrap().is_none());
        assert!(store.token(&provider(), now + SignedDuration::from_secs(580)).unwrap().is_none(), "about to end");
        let text = fs::read_to_string(&store.0).unwrap();
        assert!(!text.contains("\"r\""), "the session is never kept: {text}");
        store.forget().unwrap();
        store.forget().unwrap();
        assert!(store.token(&provider(), now).unwrap().is_none());
    }

    #[test]
    fn nobody_else_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = kept(folder.path(), 600);
        assert_eq!(fs::metadata(&store.0).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(store.0.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&store.0, fs::Permissions::from_mode(0o640)).unwrap();
        let fault = store.token(&provider(), Timestamp::now()).unwrap_err();
        assert_eq!(fault.kind, Kind::Login);
        // The next login mends it.
        let store = kept(folder.path(), 600);
        assert!(store.token(&provider(), Timestamp::now()).unwrap().is_some());
        let link = Store(folder.path().join("link"));
        std::os::unix::fs::symlink(&store.0, &link.0).unwrap();
        assert!(link.token(&provider(), Timestamp::now()).is_err(), "a link was followed");
    }

    #[test]
    fn a_file_of_another_version_is_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let store = kept(folder.path(), 600);
        for text in ["", "{}", "[1]", "{\"token\": 1}"] {
            fs::write(&store.0, text).unwrap();
            assert!(store.token(&provider(), Timestamp::now()).unwrap().is_none());
        }
    }
}
