//! The user side's OpenAPI 3.1 document, from the table that the router is made from and the types that are parsed.

use std::sync::LazyLock;

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::wire;
use crate::http::{
    answer,
    openapi::{document, schemas},
};

static DOCUMENT: LazyLock<Value> = LazyLock::new(made);

/// `GET /openapi.json`.
pub async fn get() -> Response {
    answer::json(StatusCode::OK, &*DOCUMENT)
}

fn made() -> Value {
    let mut schemas = schemas(|generator| {
        generator.subschema_for::<wire::ClaimRequest>();
        generator.subschema_for::<wire::ClaimResponse>();
        generator.subschema_for::<wire::ClaimList>();
        generator.subschema_for::<wire::PoolList>();
    });
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
    let description = "Claims attested sandboxes for people, agents and services.";
    document("mediatore", description, &super::routes().split().1, &schemas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::dangling;

    #[test]
    fn every_reference_has_its_target() {
        assert_eq!(dangling(&made()), [""; 0]);
    }

    #[test]
    fn it_says_what_the_parser_does() {
        let document = made();
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
