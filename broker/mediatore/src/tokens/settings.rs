//! What an operator says of providers that make or confirm tokens, and what is wrong with it.

use std::path::PathBuf;

use serde::Deserialize;

use super::{certificate::ClientCertificate, material::Material};
use crate::config::{Audience, Backend, Config, Reserved, SecretError, secret};

/// How mediatore asks one issuer for tokens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Name of the issuer entry.
    pub issuer: String,
    /// What it is asked for: `dex-refresh` or `entra-obo`.
    pub backend: Backend,
    /// `dex-refresh`: the client that people's refresh tokens are of, one of the issuer's `clients`.
    #[serde(default)]
    pub client_id: Option<String>,
    /// `dex-refresh`: a file with that client's secret; absent for a public client.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// `entra-obo`: the certificate that is registered for mediatore's own application, PEM.
    #[serde(default)]
    pub certificate_file: Option<PathBuf>,
    /// `entra-obo`: its RSA key, PEM.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// The resource of a scope that names one, `<resource>/<scope>`.
#[must_use]
pub fn resource_of(scope: &str) -> Option<&str> {
    let (resource, word) = scope.rsplit_once('/')?;
    let plain = scope.len() <= 512 && scope.bytes().all(|byte| byte.is_ascii_graphic());
    (plain && !word.is_empty() && !resource.is_empty() && !resource.ends_with('/')).then_some(resource)
}

/// The secret of a client: a text without spaces, with or without a line end.
///
/// # Errors
/// When the file has anything else.
pub fn client_secret(path: &std::path::Path) -> Result<Material, SecretError> {
    let bytes = secret(path)?;
    let text = std::str::from_utf8(&bytes).map(|text| text.trim_end_matches(['\r', '\n'])).unwrap_or_default();
    if text.is_empty() || text.chars().any(char::is_control) {
        let what = "must hold the client's secret, one line of text".to_owned();
        return Err(SecretError::Content { path: path.to_owned(), what });
    }
    Ok(Material::from(text.to_owned()))
}

/// Every problem that shows without reading other files.
#[must_use]
pub fn problems(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, upstream) in config.upstreams.iter().enumerate() {
        let at = format!("upstreams[{at}] ({})", upstream.issuer);
        if config.upstreams.iter().filter(|other| other.issuer == upstream.issuer).count() > 1 {
            problems.push(format!("{at}: issuer stands there twice"));
        }
        let Some(issuer) = config.issuers.iter().find(|issuer| issuer.name == upstream.issuer) else {
            problems.push(format!("{at}: there is no issuer of this name"));
            continue;
        };
        let dex = upstream.client_id.is_some() || upstream.secret_file.is_some();
        let entra = upstream.certificate_file.is_some() || upstream.key_file.is_some();
        match upstream.backend {
            Backend::Sts => problems.push(format!("{at}: backend must be dex-refresh or entra-obo; sts asks nobody")),
            Backend::DexRefresh => {
                let known = |id: &String| issuer.clients.contains(id);
                if !upstream.client_id.as_ref().is_some_and(known) {
                    problems.push(format!(
                        "{at}: client_id must be one of the issuer's clients, the one whose refresh tokens people bring"
                    ));
                }
                if issuer.accepts != banlieue_identity::Accepts::IdToken {
                    problems.push(format!(
                        "{at}: backend dex-refresh needs an issuer that accepts id_token, for a refresh is judged by its ID \
                         token"
                    ));
                }
                if entra {
                    problems.push(format!("{at}: certificate_file and key_file are for backend entra-obo"));
                }
            }
            Backend::EntraObo => {
                if upstream.certificate_file.is_none() || upstream.key_file.is_none() {
                    problems.push(format!("{at}: backend entra-obo needs certificate_file and key_file"));
                }
                if dex {
                    problems.push(format!("{at}: client_id and secret_file are for backend dex-refresh"));
                }
                if issuer.accepts != banlieue_identity::Accepts::AccessToken {
                    problems.push(format!("{at}: backend entra-obo needs an issuer that accepts access_token"));
                }
            }
        }
    }
    problems
}

/// What is wrong with the backend of an audience, after its name.
#[must_use]
pub fn audience_problems(config: &Config, audience: &Audience, reserved: &Reserved) -> Vec<String> {
    let mut problems = Vec::new();
    let word = audience.backend.as_str();
    if audience.backend != Backend::EntraObo && config.sts.is_none() {
        problems.push(format!("backend {word} needs the section sts, with an issuer and key_files"));
    }
    if audience.backend != Backend::Sts && !config.upstreams.iter().any(|upstream| upstream.backend == audience.backend)
    {
        problems.push(format!("backend {word} needs an item of upstreams with that backend"));
    }
    match (audience.backend, audience.scope.as_deref()) {
        (Backend::EntraObo, None) => problems.push(format!(
            "backend {word} needs scope, what is asked for at the provider, such as {}/.default",
            audience.id
        )),
        (Backend::EntraObo, Some(scope)) => match resource_of(scope) {
            None => problems.push("scope must be <resource>/<scope>, one of them".to_owned()),
            Some(resource) => {
                if let Some(reason) = reserved.reason(resource) {
                    problems.push(format!("scope is of {reason}; no sandbox may have a token for it"));
                }
            }
        },
        (_, Some(_)) => problems.push(format!("scope is for backend entra-obo, not for {word}")),
        (_, None) => {}
    }
    problems
}

/// Every problem of the files that upstreams refer to.
#[must_use]
pub fn file_problems(upstreams: &[Upstream]) -> Vec<String> {
    let mut problems = Vec::new();
    for upstream in upstreams {
        let mut note = |outcome: Result<(), SecretError>| {
            if let Err(error) = outcome {
                problems.push(format!("upstreams ({}): {error}", upstream.issuer));
            }
        };
        if let Some(file) = &upstream.secret_file {
            note(client_secret(file).map(drop));
        }
        if let (Some(certificate), Some(key)) = (&upstream.certificate_file, &upstream.key_file) {
            note(ClientCertificate::read(certificate, key).map(drop));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("api://trading-data/.default", Some("api://trading-data"))]
    #[case("api://trading-data/read", Some("api://trading-data"))]
    #[case("https://graph.microsoft.com/.default", Some("https://graph.microsoft.com"))]
    #[case("read", None)]
    #[case("api://a/x api://b/y", None)]
    #[case("api://", None)]
    #[case("api://a/", None)]
    #[case("/x", None)]
    fn a_scope_names_one_resource(#[case] scope: &str, #[case] expected: Option<&str>) {
        assert_eq!(resource_of(scope), expected);
    }
}
