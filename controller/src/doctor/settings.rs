//! The two ConfigMaps that the product reads: SPIRE's trust bundle, and whom the admission policies know.

use std::collections::BTreeMap;

use banlieue_crds::names::{self, accounts};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::report::Report;
use crate::config::DoctorArgs;

/// The admission policies' parameters.
const ADMISSION: &str = "banlieue-admission";
/// Its keys whose value is a list of names, one a line, with at least one.
const LISTS: [&str; 9] = [
    "controllers",
    "attestors",
    "attestorControllers",
    "brokers",
    "nodeReporters",
    "instanceWriters",
    "operators",
    "systemAccounts",
    "issuers",
];
/// Its keys that may be empty.
const WORDS: [&str; 2] = ["issuer", "usernamePrefix"];
/// Its key that holds a number.
const MAX_REPLICAS: &str = "maxReplicasPerPool";

/// Looks at both.
pub(super) async fn look(client: &Client, args: &DoctorArgs, report: &mut Report) -> kube::Result<()> {
    let namespace = &args.system_namespace;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let controller = accounts::username(namespace, accounts::CONTROLLER);
    let bundle = |data: &Data| judge_bundle(data);
    let admission = |data: &Data| judge_admission(data, &controller);
    let checks: [(&str, &str, &Judge<'_>); 2] = [
        (
            &args.bundle_configmap,
            "let SPIRE's server keep its trust bundle there: Notifier \"k8sbundle\" with this namespace, config_map and \
             config_map_key = \"bundle.crt\"",
            &bundle,
        ),
        (ADMISSION, "apply charts/banlieue/files/30-parameters.yaml, with your names", &admission),
    ];
    for (name, remedy, judge) in checks {
        let what = format!("ConfigMap {namespace}/{name}");
        match api.get_opt(name).await {
            Ok(None) => report.bad(format!("{what} does not exist: {remedy}")),
            Ok(Some(map)) => match judge(&map.data.unwrap_or_default()) {
                Ok(text) => report.good(format!("{what}: {text}")),
                Err(fault) => report.bad(format!("{what} {fault}: {remedy}")),
            },
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let role = accounts::CONTROLLER;
                report.bad(format!("{what} cannot be read: bind Role {role} of {namespace} ({})", status.message));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

type Data = BTreeMap<String, String>;
/// What it holds, in a few words, or what is at fault.
type Judge<'a> = dyn Fn(&Data) -> Result<String, String> + 'a;

fn judge_bundle(data: &Data) -> Result<String, String> {
    let key = names::BUNDLE_KEY;
    let text = data.get(key).map(|text| text.trim()).unwrap_or_default();
    if text.is_empty() {
        return Err(format!("has nothing under {key}"));
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let sound = certificate.map_err(|error| error.to_string());
        sound
            .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()))
            .map_err(|error| format!("has something under {key} that is no certificate ({error})"))?;
    }
    match roots.len() {
        0 => Err(format!("has no PEM certificate under {key}")),
        count => Ok(format!("trust bundle with {count} {}", if count == 1 { "authority" } else { "authorities" })),
    }
}

fn judge_admission(data: &Data, controller: &str) -> Result<String, String> {
    let names = |key: &str| {
        data.get(key).into_iter().flat_map(|list| list.lines()).map(str::trim).filter(|name| !name.is_empty())
    };
    if let Some(key) = LISTS.iter().chain(&WORDS).chain([&MAX_REPLICAS]).find(|key| !data.contains_key(**key)) {
        return Err(format!("has no key {key}, and the policies deny without it"));
    }
    if let Some(key) = LISTS.iter().find(|key| names(key).next().is_none()) {
        return Err(format!("has no name under {key}"));
    }
    let most = data.get(MAX_REPLICAS).map(|text| text.trim()).unwrap_or_default();
    if !most.parse::<u32>().is_ok_and(|most| most > 0) {
        return Err(format!("has {most:?} under {MAX_REPLICAS}, which is no number above zero"));
    }
    if !names("controllers").any(|name| name == controller) {
        return Err(format!("does not name {controller} under controllers, so that the policies refuse its writes"));
    }
    Ok(format!("{} brokers, {} operators", names("brokers").count(), names("operators").count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLER: &str = "system:serviceaccount:banlieue-system:banlieue-controller";

    fn chart() -> Data {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/banlieue/files/30-parameters.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let mut data = Data::new();
        let mut last = String::new();
        for line in text.lines().skip_while(|line| *line != "data:").skip(1) {
            let (indent, rest) = (line.len() - line.trim_start().len(), line.trim());
            if rest.starts_with('#') {
                continue;
            }
            match rest.split_once(':').filter(|_| indent == 2) {
                Some((key, value)) => {
                    last = key.to_owned();
                    let value = value.trim();
                    let value = if value == "|" { "" } else { value.trim_matches('"') };
                    data.insert(last.clone(), value.to_owned());
                }
                None => {
                    let list = data.get_mut(&last).unwrap();
                    list.push_str(rest);
                    list.push('\n');
                }
            }
        }
        data
    }

    #[test]
    fn the_chart_has_what_is_asked_for_and_nothing_that_is_not() {
        let data = chart();
        assert_eq!(judge_admission(&data, CONTROLLER), Ok("1 brokers, 2 operators".into()));
        let known: Vec<&str> = LISTS.iter().chain(&WORDS).chain([&MAX_REPLICAS]).copied().collect();
        let unknown: Vec<&String> = data.keys().filter(|key| !known.contains(&key.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn each_fault_is_named() {
        let faulty = |change: fn(&mut Data)| {
            let mut data = chart();
            change(&mut data);
            judge_admission(&data, CONTROLLER).unwrap_err()
        };
        let cut = faulty(|data| drop(data.remove("brokers")));
        assert!(cut.contains("no key brokers"), "{cut}");
        let empty = faulty(|data| drop(data.insert("operators".into(), " \n".into())));
        assert!(empty.contains("no name under operators"), "{empty}");
        let number = faulty(|data| drop(data.insert("maxReplicasPerPool".into(), "many".into())));
        assert!(number.contains("\"many\""), "{number}");
        let other = faulty(|data| drop(data.insert("controllers".into(), "somebody".into())));
        assert!(other.contains(CONTROLLER), "{other}");
    }

    #[test]
    fn a_bundle_is_certificates() {
        let bundle = |text: &str| judge_bundle(&Data::from([("bundle.crt".to_owned(), text.to_owned())]));
        assert!(judge_bundle(&Data::new()).unwrap_err().contains("nothing under bundle.crt"));
        assert!(bundle(" \n").unwrap_err().contains("nothing under"));
        assert!(bundle("hello").unwrap_err().contains("no PEM certificate"));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(bundle(broken).unwrap_err().contains("no certificate"));
    }
}
