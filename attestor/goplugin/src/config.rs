//! The plugin's configuration, as SPIRE hands it over: HCL text plus what SPIRE knows of itself.

use serde::de::DeserializeOwned;
use tonic::Status;

use crate::plugin_config::{ConfigureRequest, CoreConfiguration};

/// Reads flat attributes (`name = "value"`) into `T`. SPIRE writes HCL version 1; for flat attributes the two agree.
///
/// # Errors
/// `InvalidArgument` with the parser's message, or when SPIRE names no trust domain.
pub fn parse<T: DeserializeOwned>(request: &ConfigureRequest) -> Result<(T, String), Status> {
    let Some(CoreConfiguration { trust_domain }) = request.core_configuration.clone() else {
        return Err(Status::invalid_argument("SPIRE sent no core configuration"));
    };
    if trust_domain.is_empty() {
        return Err(Status::invalid_argument("SPIRE's trust domain is empty"));
    }
    let config = hcl::from_str(&unquote_keys(&request.hcl_configuration))
        .map_err(|error| Status::invalid_argument(format!("the plugin's configuration is wrong: {error}")))?;
    Ok((config, trust_domain))
}

/// HCL 1 allows quoted attribute names, and SPIRE prints them so when its own configuration is JSON; HCL 2 does not.
fn unquote_keys(text: &str) -> String {
    text.lines()
        .map(|line| {
            let bare = line.trim_start().strip_prefix('"').and_then(|rest| {
                let (key, value) = rest.split_once('"')?;
                let word = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                (word && value.trim_start().starts_with('=')).then(|| format!("{key}{value}\n"))
            });
            bare.unwrap_or_else(|| format!("{line}\n"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        name: String,
        limit: Option<u32>,
    }

    fn request(hcl: &str, trust_domain: &str) -> ConfigureRequest {
        ConfigureRequest {
            core_configuration: Some(CoreConfiguration { trust_domain: trust_domain.to_owned() }),
            hcl_configuration: hcl.to_owned(),
        }
    }

    #[test]
    fn flat_attributes_are_read() {
        let (config, domain) = parse::<Sample>(&request("name = \"x\"\nlimit = 3", "td")).unwrap();
        assert_eq!(config, Sample { name: "x".to_owned(), limit: Some(3) });
        assert_eq!(domain, "td");
        // As SPIRE prints it when its own configuration is JSON.
        let (config, _) = parse::<Sample>(&request("\"name\" = \"x\"", "td")).unwrap();
        assert_eq!(config.limit, None);
    }

    #[test]
    fn wrong_configuration_is_refused() {
        for (hcl, domain) in [("nome = \"x\"", "td"), ("name = ", "td"), ("name = \"x\"", "")] {
            assert_eq!(parse::<Sample>(&request(hcl, domain)).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
