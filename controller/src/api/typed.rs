//! Typed calls over [`Api`]: the shapes of requests, in one place.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Api, ApiError, Kind, Operation, Request};

/// A typed view of an [`Api`]. Cloning is cheap.
#[derive(Clone)]
pub struct Typed {
    api: Arc<dyn Api>,
}

impl Typed {
    /// Wraps `api`.
    pub fn new(api: Arc<dyn Api>) -> Self {
        Self { api }
    }

    /// Reads one object; `None` when it is not there.
    pub async fn get<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        match self.call(kind, namespace, name, Operation::Get, None).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the objects with these labels.
    pub async fn list<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        labels: String,
    ) -> Result<Vec<T>, ApiError> {
        #[derive(serde::Deserialize)]
        struct Items<T> {
            items: Vec<T>,
        }
        let list: Items<T> = self.call(kind, namespace, "", Operation::List { labels }, None).await?;
        Ok(list.items)
    }

    /// Creates `object`, whose name and namespace stand in its metadata.
    pub async fn create<T: DeserializeOwned>(
        &self,
        kind: Kind,
        manager: &'static str,
        object: Value,
    ) -> Result<T, ApiError> {
        let (namespace, name) = names(&object);
        self.call(kind, &namespace, &name, Operation::Create { dry_run: false, manager }, Some(object)).await
    }

    /// Runs validation and admission of a create without storing anything.
    pub async fn validate(&self, kind: Kind, manager: &'static str, object: Value) -> Result<(), ApiError> {
        let (namespace, name) = names(&object);
        let operation = Operation::Create { dry_run: true, manager };
        self.api.call(Request { kind, namespace, name, operation, body: Some(object) }).await.map(drop)
    }

    /// Server-side apply of an object (its `apiVersion` and `kind` are added here).
    pub async fn apply<T: DeserializeOwned>(
        &self,
        kind: Kind,
        manager: &'static str,
        status: bool,
        mut object: Value,
    ) -> Result<T, ApiError> {
        let (api_version, kind_name) = kind.type_meta();
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".into(), json!(api_version));
            map.insert("kind".into(), json!(kind_name));
        }
        let (namespace, name) = names(&object);
        self.call(kind, &namespace, &name, Operation::Apply { manager, status }, Some(object)).await
    }

    /// Merge patch. Put `metadata.resourceVersion` into the patch to make it conditional.
    pub async fn merge<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        manager: &'static str,
        status: bool,
        patch: Value,
    ) -> Result<T, ApiError> {
        self.call(kind, namespace, name, Operation::Merge { manager, status }, Some(patch)).await
    }

    /// Deletes with a uid precondition and, when given, a resourceVersion precondition.
    ///
    /// Answers the object as it stands afterwards when finalizers keep it, `None` when it is gone.
    pub async fn delete<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        uid: &str,
        resource_version: Option<String>,
    ) -> Result<Option<T>, ApiError> {
        let operation = Operation::Delete { uid: uid.to_owned(), resource_version };
        let request = Request { kind, namespace: namespace.to_owned(), name: name.to_owned(), operation, body: None };
        let text = match self.api.call(request).await {
            Ok(text) => text,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        // The answer is a Status when the object is gone, and the object itself when a finalizer keeps it; some
        // kinds answer the object in either case, then its deletionTimestamp or finalizers tell.
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(_) => return Ok(None),
        };
        let kept = value.pointer("/metadata/deletionTimestamp").is_some()
            && value.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty());
        Ok(if kept { serde_json::from_value(value).ok() } else { None })
    }

    async fn call<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        operation: Operation,
        body: Option<Value>,
    ) -> Result<T, ApiError> {
        let request = Request { kind, namespace: namespace.to_owned(), name: name.to_owned(), operation, body };
        let what = super::kubernetes::describe(&request);
        let text = self.api.call(request).await?;
        serde_json::from_str(&text).map_err(|e| ApiError::Unreadable { what, message: e.to_string() })
    }
}

fn names(object: &Value) -> (String, String) {
    let at = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (at("/metadata/namespace"), at("/metadata/name"))
}

/// The selector for the launcher pods that virt-controller made for an instance.
pub fn created_by_selector(instance_uid: &str) -> String {
    format!("kubevirt.io/created-by={instance_uid}")
}
