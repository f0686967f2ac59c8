//! Manifests into the API server: server-side apply of whatever kind, in an order that works.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta, TypeMeta};
use kube::discovery::{self, ApiCapabilities, Scope};
use kube::{Api, Client};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::process::until;

/// Field manager of everything that the harness applies.
const MANAGER: &str = "banlieue-cluster";

/// Objects and where each came from.
#[derive(Default)]
pub(crate) struct Manifests {
    objects: Vec<(String, DynamicObject)>,
}

/// What discovery says of a kind.
type Kind = (ApiResource, ApiCapabilities);

impl Manifests {
    /// Parses YAML documents; `source` names them in errors.
    pub fn parse(source: &str, text: &str) -> Result<Self> {
        let wrong = |what: String| Error::Manifest { path: source.to_owned(), what };
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| wrong(error.to_string()))?;
        let mut objects = Vec::new();
        for document in documents.into_iter().filter(|it| !it.is_null()) {
            let object: DynamicObject = serde_json::from_value(document).map_err(|error| wrong(error.to_string()))?;
            if object.types.is_none() || object.metadata.name.is_none() {
                return Err(wrong("a document lacks apiVersion, kind or metadata.name".into()));
            }
            objects.push((source.to_owned(), object));
        }
        Ok(Self { objects })
    }

    /// Reads every `*.yaml` of a folder. Nothing when there is no such folder.
    pub fn folder(path: &Path) -> Result<Self> {
        let Ok(entries) = std::fs::read_dir(path) else { return Ok(Self::default()) };
        let mut files: Vec<PathBuf> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
        files.retain(|it| it.extension().is_some_and(|it| it == "yaml"));
        files.sort();
        let mut all = Self::default();
        for path in files {
            let text = std::fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
            all = all.and(Self::parse(&path.display().to_string(), &text)?);
        }
        Ok(all)
    }

    /// Both.
    pub fn and(mut self, other: Self) -> Self {
        self.objects.extend(other.objects);
        self
    }

    /// Puts every object into a namespace, as `kubectl apply -n` does.
    pub fn within(mut self, namespace: &str) -> Self {
        for (_, object) in &mut self.objects {
            object.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
        }
        self
    }

    /// Applies all of them: what others need first, the rest side by side.
    pub async fn apply(self, client: &Client) -> Result<()> {
        let mut ranks: BTreeMap<usize, Vec<(String, DynamicObject)>> = BTreeMap::new();
        for (source, object) in self.objects {
            ranks.entry(rank(&object)).or_default().push((source, object));
        }
        for objects in ranks.into_values() {
            let kinds = kinds(client, &objects).await?;
            let applied = objects.iter().map(|(source, object)| apply_one(client, &kinds, source, object));
            futures::future::try_join_all(applied).await?;
        }
        Ok(())
    }
}

/// Looks every kind up once.
async fn kinds(client: &Client, objects: &[(String, DynamicObject)]) -> Result<BTreeMap<(String, String), Kind>> {
    let mut wanted = BTreeMap::new();
    for (source, object) in objects {
        let types = object.types.clone().unwrap_or_default();
        wanted.entry((types.api_version, types.kind)).or_insert(source);
    }
    let found = wanted.into_iter().map(async |((version, kind), source)| {
        let wrong = || Error::Manifest { path: source.clone(), what: format!("{version} is no apiVersion") };
        let types = TypeMeta { api_version: version.clone(), kind: kind.clone() };
        let gvk = GroupVersionKind::try_from(&types).map_err(|_| wrong())?;
        // A kind that was defined a moment ago may not be discoverable yet.
        let seen = Mutex::new(None);
        let served = format!("{kind} of {version}, which {source} uses, is served");
        let discovered = until(&served, async || {
            let answer = discovery::pinned_kind(client, &gvk).await.ok();
            let found = answer.is_some();
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = answer;
            found
        });
        discovered.await?;
        let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok::<_, Error>(((version, kind), seen.ok_or_else(|| Error::Waited(format!("{source} is applied")))?))
    });
    Ok(futures::future::try_join_all(found).await?.into_iter().collect())
}

async fn apply_one(
    client: &Client,
    kinds: &BTreeMap<(String, String), Kind>,
    source: &str,
    object: &DynamicObject,
) -> Result<()> {
    let types = object.types.clone().unwrap_or_default();
    let name = object.metadata.name.clone().unwrap_or_default();
    let act = format!("apply {} {name} of {source}", types.kind);
    let wrong = |what: String| Error::Manifest { path: source.to_owned(), what };
    let Some((resource, capabilities)) = kinds.get(&(types.api_version.clone(), types.kind.clone())) else {
        return Err(wrong(format!("{} is not served", types.kind)));
    };
    let api: Api<DynamicObject> = match (&capabilities.scope, &object.metadata.namespace) {
        (Scope::Cluster, _) => Api::all_with(client.clone(), resource),
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), namespace, resource),
        (Scope::Namespaced, None) => return Err(wrong(format!("{} {name} has no namespace", types.kind))),
    };
    let params = PatchParams::apply(MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(object)).await.map_err(Error::api(act))?;
    if types.kind == "CustomResourceDefinition" {
        established(client, &name).await?;
    }
    Ok(())
}

/// Namespaces, definitions, accounts and roles before what refers to them.
fn rank(object: &DynamicObject) -> usize {
    const ORDER: [&str; 5] = ["Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role"];
    let kind = object.types.as_ref().map_or("", |it| it.kind.as_str());
    ORDER.iter().position(|it| *it == kind).unwrap_or(ORDER.len())
}

/// Creates definitions from the text of a generator and waits until their kinds are served. Neither the text nor the
/// answers are parsed as definitions: KubeVirt's are 4 MB, and the API server reads YAML.
pub(crate) async fn create_definitions(client: &Client, text: &str) -> Result<()> {
    let documents = text.split("---\n").filter(|it| !it.trim().is_empty());
    let names = futures::future::try_join_all(documents.map(async |document| {
        let request = Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
            .header("content-type", "application/yaml")
            .header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
            .body(document.as_bytes().to_vec())
            .map_err(|error| Error::Manifest { path: "definition".into(), what: error.to_string() })?;
        let created = client.request::<PartialObjectMeta<CustomResourceDefinition>>(request).await;
        let created = created.map_err(Error::api("create a definition of KubeVirt"))?;
        Ok::<_, Error>(created.metadata.name.unwrap_or_default())
    }))
    .await?;
    let groups: BTreeSet<&str> = names.iter().filter_map(|it| Some(it.split_once('.')?.1)).collect();
    until("KubeVirt's kinds are served", async || {
        let mut served = BTreeSet::new();
        for group in &groups {
            let Ok(group) = discovery::group(client, group).await else { return false };
            let group_name = group.name().to_owned();
            for version in group.versions() {
                let resources = group.versioned_resources(version);
                served.extend(resources.into_iter().map(|(it, _)| format!("{}.{group_name}", it.plural)));
            }
        }
        names.iter().all(|name| served.contains(name))
    })
    .await
}

async fn established(client: &Client, name: &str) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    until(&format!("{name} is established"), async || {
        let Ok(definition) = definitions.get(name).await else { return false };
        let conditions = definition.status.and_then(|it| it.conditions).unwrap_or_default();
        conditions.iter().any(|it| it.type_ == "Established" && it.status == "True")
    })
    .await
}
