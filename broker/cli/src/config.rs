//! Where mediatore and the identity provider are: one YAML file, unknown keys refused.

use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use serde::Deserialize;
use url::{Host, Url};

use crate::fault::{Fault, Kind};

/// Largest file that is read, in bytes.
const LARGEST: u64 = 64 * 1024;

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// mediatore's user side, `https://…`.
    #[serde(default)]
    pub server: Option<String>,
    /// Authorities that are trusted for it besides the system's, PEM. Relative paths are from the file's folder.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// How people log in.
    #[serde(default)]
    pub login: Option<Provider>,
}

/// How people log in: what whoever runs mediatore says of the issuer in its configuration, from the client's side.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// The issuer, byte for byte as its discovery document has it.
    pub issuer: String,
    /// This program's client there, a public one.
    pub client_id: String,
    /// What to ask for: `api://mediatore/sandbox.access` at Entra ID, `openid audience:server:client_id:mediatore` at Dex.
    pub scope: String,
    /// Which token of the answer is for mediatore.
    pub token: Wanted,
    /// Where the provider sends the browser back to, on the loopback address. A port of the moment is added.
    #[serde(default = "redirect_uri")]
    pub redirect_uri: String,
    /// Authorities that are trusted for the provider besides the system's, PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

fn redirect_uri() -> String {
    "http://127.0.0.1/callback".to_owned()
}

/// Which token is for mediatore: what `accepts` says in mediatore's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// At Entra ID and others.
    AccessToken,
    /// At Dex, whose access tokens are opaque.
    IdToken,
}

/// A file in the folder for configuration of whoever runs this.
///
/// # Errors
/// When there is no home.
pub fn default_path() -> Result<PathBuf, Fault> {
    Ok(folders()?.config_dir().join("mediatore/cli.yaml"))
}

/// The folders of whoever runs this (XDG Base Directory Specification).
pub(crate) fn folders() -> Result<impl BaseStrategy, Fault> {
    etcetera::choose_base_strategy().map_err(|_| Fault::new(Kind::Usage, "no home folder is known: set HOME"))
}

impl Config {
    /// The file that was named, which must be there; or the default one, which need not.
    ///
    /// # Errors
    /// Everything that is wrong with it, with its path.
    pub fn load(named: Option<&Path>) -> Result<Self, Fault> {
        let path = named.map_or_else(default_path, |path| Ok(path.to_owned()))?;
        let fail = |what: String| Fault::new(Kind::Usage, format!("the configuration {}: {what}", path.display()));
        match std::fs::metadata(&path) {
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(fail(error.to_string())),
            Ok(found) if found.len() > LARGEST => return Err(fail(format!("it has more than {LARGEST} bytes"))),
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
        let mut config: Self = serde_saphyr::from_str(&text).map_err(|error| fail(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let files = [config.ca_file.as_mut(), config.login.as_mut().and_then(|login| login.ca_file.as_mut())];
        for file in files.into_iter().flatten() {
            *file = folder.join(&*file);
        }
        if let Some(login) = &config.login {
            login.check().map_err(|what| fail(format!("login.{what}")))?;
        }
        Ok(config)
    }

    /// mediatore's address.
    ///
    /// # Errors
    /// When nobody said it, or it is none.
    pub fn server(&self, named: Option<&str>) -> Result<Url, Fault> {
        let text = named.or(self.server.as_deref()).ok_or_else(|| {
            Fault::new(
                Kind::Usage,
                "where is mediatore? Say --server, set MEDIATORE_SERVER, or write server: into the configuration",
            )
        })?;
        let wrong = |what: &str| Fault::new(Kind::Usage, format!("mediatore's address {text:?} {what}"));
        let url = Url::parse(text).map_err(|error| wrong(&format!("is none: {error}")))?;
        if url.scheme() != "https" {
            return Err(wrong("must begin with https://: your token goes there"));
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("must have neither user, query nor fragment"));
        }
        Ok(url)
    }

    /// How people log in.
    ///
    /// # Errors
    /// When the file does not say.
    pub fn login(&self) -> Result<&Provider, Fault> {
        self.login.as_ref().ok_or_else(|| {
            let file = default_path().map_or_else(|_| "the configuration".to_owned(), |it| it.display().to_string());
            Fault::new(
                Kind::Usage,
                format!("where do you log in? Write login: with issuer, client_id, scope and token into {file}"),
            )
        })
    }
}

impl Provider {
    fn check(&self) -> Result<(), String> {
        let issuer = Url::parse(&self.issuer).map_err(|error| format!("issuer: {error}"))?;
        if issuer.scheme() != "https" {
            return Err("issuer: must begin with https://".to_owned());
        }
        if self.client_id.is_empty() {
            return Err("client_id: is empty".to_owned());
        }
        let back = Url::parse(&self.redirect_uri).map_err(|error| format!("redirect_uri: {error}"))?;
        let is_loopback = match back.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        if back.scheme() != "http" || !is_loopback || back.port().is_some() || back.query().is_some() {
            return Err(
                "redirect_uri: must be http:// on localhost, 127.0.0.1 or [::1], without port and query".to_owned()
            );
        }
        if self.token == Wanted::IdToken && !self.scope.split(' ').any(|word| word == "openid") {
            return Err("scope: must have openid in it, for there is no id_token otherwise".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const DEX: &str = "server: https://mediatore.example\nca_file: ca.pem\nlogin:\n  issuer: https://dex.example\n  \
                       client_id: mediatore-cli\n  scope: openid audience:server:client_id:mediatore\n  token: id_token\n";

    fn load(text: &str) -> Result<Config, Fault> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cli.yaml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path))
    }

    #[test]
    fn a_whole_file() {
        let config = load(DEX).unwrap();
        assert_eq!(config.server(None).unwrap().as_str(), "https://mediatore.example/");
        assert_eq!(config.server(Some("https://other")).unwrap().as_str(), "https://other/");
        let login = config.login().unwrap();
        assert_eq!((login.token, login.redirect_uri.as_str()), (Wanted::IdToken, "http://127.0.0.1/callback"));
        assert!(config.ca_file.unwrap().is_absolute());
    }

    #[rstest]
    #[case::a_typing_error("id_token", "idtoken", "idtoken")]
    #[case::another_key("ca_file", "ca_fiel", "ca_fiel")]
    #[case::plain_http("issuer: https", "issuer: http", "login.issuer")]
    #[case::no_openid("scope: openid ", "scope: ", "login.scope")]
    #[case::elsewhere("client_id: m", "redirect_uri: http://10.0.0.1/c\n  client_id: m", "login.redirect_uri")]
    #[case::a_name("client_id: m", "redirect_uri: http://localhost.evil/c\n  client_id: m", "login.redirect_uri")]
    #[case::a_port("client_id: m", "redirect_uri: http://localhost:80/c\n  client_id: m", "")]
    #[case::another_port("client_id: m", "redirect_uri: http://localhost:81/c\n  client_id: m", "login.redirect_uri")]
    fn wrong(#[case] from: &str, #[case] to: &str, #[case] named: &str) {
        let outcome = load(&DEX.replace(from, to));
        if named.is_empty() {
            outcome.unwrap(); // the port that http has anyway
        } else {
            let fault = outcome.unwrap_err();
            assert_eq!(fault.kind, Kind::Usage);
            assert!(fault.detail.contains(named) && fault.detail.contains("cli.yaml"), "{fault}");
        }
    }

    #[rstest]
    #[case("http://mediatore.example")]
    #[case("mediatore.example")]
    #[case("https://user@mediatore.example")]
    #[case("https://mediatore.example/?x")]
    fn addresses_that_are_none(#[case] text: &str) {
        assert_eq!(Config::default().server(Some(text)).unwrap_err().kind, Kind::Usage);
    }
}
