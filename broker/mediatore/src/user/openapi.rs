//! The OpenAPI 3.1 document, from the table that the router is made from and the types that are parsed. Pure.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::response::Response;
use http::StatusCode;
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::wire;
use crate::http::{
    answer::{self, Code},
    route::Described,
};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| document(&super::routes().split().1));

/// `GET /openapi.json`.
pub async fn get() -> Response {
    answer::json(StatusCode::OK, &*DOCUMENT)
}

/// The document of these routes.
#[must_use]
pub fn document(routes: &[Described]) -> Value {
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
            "title": "mediatore",
            "description": "Claims attested sandboxes for people, agents and services.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "A token of a configured issuer whose audience is mediatore.",
                },
            },
        },
    })
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
        operation.insert("security".to_owned(), if route.bearer { json!([{ "bearer": [] }]) } else { json!([]) });
        if !route.parameters.is_empty() {
            operation.insert("parameters".to_owned(), Value::from(route.parameters.clone()));
        }
        if let Some(schema) = route.request {
            operation.insert("requestBody".to_owned(), json!({ "required": true, "content": reference(schema) }));
        }
    }
    operation
}

fn schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = SchemaGenerator::new(settings);
    generator.subschema_for::<wire::ClaimRequest>();
    generator.subschema_for::<wire::ClaimResponse>();
    generator.subschema_for::<wire::ClaimList>();
    generator.subschema_for::<wire::PoolList>();
    generator.subschema_for::<wire::ErrorResponse>();
    generator.subschema_for::<wire::Health>();
    let mut schemas = generator.take_definitions(true);
    schemas.insert(
        "JsonWebKeySet".to_owned(),
        json!({
            "type": "object", "description": "RFC 7517.", "required": ["keys"],
            "properties": { "keys": { "type": "array", "items": { "type": "object" } } },
        }),
    );
    schemas.insert(
        "IssuerMetadata".to_owned(),
        json!({
            "type": "object", "description": "OpenID Connect Discovery 1.0.", "required": ["issuer", "jwks_uri"],
            "properties": { "issuer": { "type": "string" }, "jwks_uri": { "type": "string" } },
        }),
    );
    schemas.insert("OpenApi".to_owned(), json!({ "type": "object", "description": "OpenAPI 3.1." }));
    schemas
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn every_reference_has_its_target() {
        let document = document(&super::super::routes().split().1);
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for target in found {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
        }
    }

    #[test]
    fn it_says_what_the_parser_does() {
        let document = document(&super::super::routes().split().1);
        let request = document.pointer("/components/schemas/ClaimRequest").unwrap();
        assert_eq!(request.pointer("/additionalProperties"), Some(&json!(false)));
        assert_eq!(request.pointer("/required"), Some(&json!(["pool_ref", "workload"])));
        let post = document.pointer("/paths/~1v1~1claims/post").unwrap();
        for status in ["201", "400", "401", "403", "404", "408", "409", "413", "429", "503"] {
            assert!(post.pointer(&format!("/responses/{status}")).is_some(), "{status}");
        }
        assert_eq!(post.pointer("/security"), Some(&json!([{ "bearer": [] }])));
        assert_eq!(document.pointer("/paths/~1openapi.json/get/security"), Some(&json!([])));
    }
}
