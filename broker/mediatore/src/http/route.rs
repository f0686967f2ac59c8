//! The table that both the router and the OpenAPI document are made from, so that neither has a route the other lacks.

use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts, Path, State},
    handler::Handler,
    response::IntoResponse,
    routing::{MethodFilter, MethodRouter},
};
use http::{Method, StatusCode, request::Parts};
use serde_json::Value;

use super::answer::{Code, Failure};

/// One answer that is no error.
#[derive(Clone)]
pub struct Success {
    /// Its status.
    pub status: StatusCode,
    /// Name of its schema in the document; nothing for an empty body.
    pub schema: Option<&'static str>,
    /// When.
    pub description: &'static str,
}

/// What a caller must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Nothing: anyone who can connect.
    Anyone,
    /// A bearer token.
    Bearer,
    /// An SVID of its kind, by mutual TLS.
    Svid,
}

/// One route, as documented.
#[derive(Clone)]
pub struct Described {
    /// Its method.
    pub method: Method,
    /// Its path, `{name}` for a parameter.
    pub path: &'static str,
    /// Name of the operation, for generated clients.
    pub id: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Who may ask.
    pub who: Who,
    /// Schema of its body.
    pub request: Option<&'static str>,
    /// Further parameters, as OpenAPI has them.
    pub parameters: Vec<Value>,
    /// What it answers.
    pub success: Success,
    /// Which errors it answers, besides those that any route may.
    pub errors: &'static [Code],
}

impl Described {
    /// A route that answers 200 without a body of its own, for anyone; what differs is said by whoever describes it.
    #[must_use]
    pub fn new(method: Method, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            path,
            id,
            summary,
            who: Who::Anyone,
            request: None,
            parameters: Vec::new(),
            success: Success { status: StatusCode::OK, schema: None, description: "Done" },
            errors: &[],
        }
    }
}

impl Success {
    /// 200 with a body of this schema.
    #[must_use]
    pub fn ok(schema: &'static str, description: &'static str) -> Self {
        Self { status: StatusCode::OK, schema: Some(schema), description }
    }

    /// 204.
    #[must_use]
    pub fn empty(description: &'static str) -> Self {
        Self { status: StatusCode::NO_CONTENT, schema: None, description }
    }
}

/// Routes with what is said of them.
pub struct Routes<S> {
    router: Router<S>,
    described: Vec<Described>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { router: Router::new(), described: Vec::new() }
    }

    /// One more.
    #[must_use]
    pub fn with<T: 'static>(mut self, described: Described, handler: impl Handler<T, S>) -> Self {
        // Only methods of our own table come here.
        let filter = MethodFilter::try_from(described.method.clone()).unwrap_or(MethodFilter::GET);
        self.router = self.router.route(described.path, MethodRouter::new().on(filter, handler));
        self.described.push(described);
        self
    }

    /// The router and the descriptions.
    pub fn split(self) -> (Router<S>, Vec<Described>) {
        (self.router, self.described)
    }
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// A name in the path. One that is not even text is no name of anything.
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(Failure::new(Code::NotFound, "there is nothing of this name")),
        }
    }
}

/// Whether a request's path is one of this route's.
#[must_use]
pub fn fits(pattern: &str, path: &str) -> bool {
    let (mut parts, mut words) = (pattern.split('/'), path.split('/'));
    loop {
        match (parts.next(), words.next()) {
            (None, None) => return true,
            (Some(part), Some(word)) if part == word || (part.starts_with('{') && !word.is_empty()) => {}
            _ => return false,
        }
    }
}

/// What stands at the end of a router: paths and methods that it does not have.
pub fn refuse_the_rest(router: Router, described: &[Described]) -> Router {
    let described = described.to_vec();
    router
        .fallback(async || Failure::new(Code::NotFound, "there is no such route; see /openapi.json"))
        .method_not_allowed_fallback(async move |State(()): State<()>, request: http::Request<Body>| {
            let path = request.uri().path();
            let at_path = described.iter().filter(|it| fits(it.path, path));
            let methods: Vec<&str> = at_path.map(|it| it.method.as_str()).collect();
            let allow = methods.join(", ");
            let detail = format!("this route takes {allow}");
            Failure { allow: Some(allow), ..Failure::new(Code::MethodNotAllowed, detail) }.into_response()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fit_their_routes() {
        assert!(fits("/v1/claims/{name}", "/v1/claims/c-1"));
        assert!(fits("/v1/claims", "/v1/claims"));
        for other in ["/v1/claims", "/v1/claims/", "/v1/claims/a/b", "/v1/pools/a", ""] {
            assert!(!fits("/v1/claims/{name}", other), "{other}");
        }
    }
}
