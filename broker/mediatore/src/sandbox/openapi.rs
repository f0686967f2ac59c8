//! The sandbox side's OpenAPI 3.1 document, from the table that the router is made from and the types that are parsed.

use std::sync::LazyLock;

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::{me::Me, status::Report, token::TokenRequest, token::TokenResponse};
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
    let schemas = schemas(|generator| {
        generator.subschema_for::<Me>();
        generator.subschema_for::<Report>();
        generator.subschema_for::<TokenRequest>();
        generator.subschema_for::<TokenResponse>();
    });
    let description = "What a claimed member's guest and its workload ask.";
    document("mediatore, sandbox side", description, &super::routes().split().1, &schemas)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::openapi::dangling;

    #[test]
    fn every_reference_has_its_target() {
        assert_eq!(dangling(&made()), [""; 0]);
    }

    #[test]
    fn it_says_what_the_parser_does() {
        let document = made();
        for schema in ["Report", "TokenRequest"] {
            let closed = document.pointer(&format!("/components/schemas/{schema}/additionalProperties"));
            assert_eq!(closed, Some(&json!(false)), "{schema}");
        }
        let post = document.pointer("/paths/~1v1~1token/post").unwrap();
        for status in ["200", "400", "401", "403", "404", "408", "410", "413", "429", "503"] {
            assert!(post.pointer(&format!("/responses/{status}")).is_some(), "{status}");
        }
        assert_eq!(post.pointer("/security"), Some(&json!([{ "svid": [] }])));
        assert_eq!(document.pointer("/components/securitySchemes/svid/type"), Some(&json!("mutualTLS")));
    }
}
