//! The OpenAPI 3.1 document, from the table that the router is made from and the types that are parsed. Pure.

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    answer::Code,
    route::{Described, Who},
};

/// An error.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ErrorResponse {
    /// One stable word.
    pub error: String,
    /// What is wrong and what to do.
    pub detail: String,
}

/// Whether mediatore runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}

/// The document of these routes, with the schemas of what they take and give.
#[must_use]
pub fn document(title: &str, description: &str, routes: &[Described], schemas: &Map<String, Value>) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let at = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(at) = at.as_object_mut() {
            at.insert(route.method.as_str().to_lowercase(), operation(route));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "description": description,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": schemes(routes),
        },
    })
}

/// How callers show who they are, as far as these routes ask.
fn schemes(routes: &[Described]) -> Value {
    let mut schemes = Map::new();
    for route in routes {
        let (name, scheme) = match route.who {
            Who::Anyone => continue,
            Who::Bearer => (
                "bearer",
                json!({
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "A token of a configured issuer whose audience is mediatore.",
                }),
            ),
            Who::Svid => (
                "svid",
                json!({
                    "type": "mutualTLS",
                    "description": "An X.509 SVID of the trust domain. mediatore's own is spiffe://<trust domain>/mediatore.",
                }),
            ),
        };
        schemes.insert(name.to_owned(), scheme);
    }
    Value::Object(schemes)
}

fn reference(schema: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

fn operation(route: &Described) -> Value {
    let mut responses: BTreeMap<u16, Value> = BTreeMap::new();
    let mut success = json!({ "description": route.success.description });
    if let (Some(schema), Some(success)) = (route.success.schema, success.as_object_mut()) {
        success.insert("content".to_owned(), reference(schema));
    }
    responses.insert(route.success.status.as_u16(), success);
    let mut errors: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    // Every route may run into its deadline.
    for code in route.errors.iter().chain([&Code::Unavailable]) {
        let words = errors.entry(code.status().as_u16()).or_default();
        if !words.contains(&code.as_str()) {
            words.push(code.as_str());
        }
    }
    for (status, words) in errors {
        let mut response = json!({ "description": words.join(", "), "content": reference("ErrorResponse") });
        if status == 401
            && let Some(response) = response.as_object_mut()
        {
            let header = json!({ "required": true, "schema": { "type": "string" } });
            response.insert("headers".to_owned(), json!({ "WWW-Authenticate": header }));
        }
        responses.insert(status, response);
    }
    let responses: Map<String, Value> =
        responses.into_iter().map(|(status, value)| (status.to_string(), value)).collect();
    let mut operation = json!({ "operationId": route.id, "summary": route.summary, "responses": responses });
    if let Some(operation) = operation.as_object_mut() {
        let security = match route.who {
            Who::Anyone => json!([]),
            Who::Bearer => json!([{ "bearer": [] }]),
            Who::Svid => json!([{ "svid": [] }]),
        };
        operation.insert("security".to_owned(), security);
        if !route.parameters.is_empty() {
            operation.insert("parameters".to_owned(), Value::from(route.parameters.clone()));
        }
        if let Some(schema) = route.request {
            operation.insert("requestBody".to_owned(), json!({ "required": true, "content": reference(schema) }));
        }
    }
    operation
}

/// Schemas by name: those that every side has, and those that `add` adds.
pub fn schemas(add: impl FnOnce(&mut SchemaGenerator)) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = SchemaGenerator::new(settings);
    generator.subschema_for::<ErrorResponse>();
    generator.subschema_for::<Health>();
    add(&mut generator);
    let mut schemas = generator.take_definitions(true);
    schemas.insert("OpenApi".to_owned(), json!({ "type": "object", "description": "OpenAPI 3.1." }));
    schemas
}

/// Schemas that are referred to and not there, for tests of each side.
#[cfg(test)]
pub(crate) fn dangling(document: &Value) -> Vec<String> {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match (key.as_str(), value.as_str()) {
                        ("$ref", Some(target)) => found.push(target.to_owned()),
                        _ => references(value, found),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(document, &mut found);
    assert!(found.len() > 10, "it refers to schemas");
    found.retain(|target| document.pointer(target.trim_start_matches('#')).is_none());
    found
}
