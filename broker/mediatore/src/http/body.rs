//! Reading a body: JSON whatever its Content-Type says (the reference's plain `curl -d` sends a form type), within size
//! and time, unknown fields refused, duplicate ones too.

use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::answer::{Code, Failure};

/// How large a body may be and how long it may take.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// In bytes.
    pub bytes: usize,
    /// For all of it.
    pub time: Duration,
}

/// Reads a body as `T`.
///
/// # Errors
/// `request_timeout`, `payload_too_large` or `invalid_request`.
pub async fn read<T: DeserializeOwned>(body: Body, limits: BodyLimits) -> Result<T, Failure> {
    let collected = tokio::time::timeout(limits.time, Limited::new(body, limits.bytes).collect()).await;
    let bytes = match collected {
        Err(_) => return Err(Failure::new(Code::RequestTimeout, "the body did not arrive in time")),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let detail = format!("the body is longer than {} bytes", limits.bytes);
            return Err(Failure::new(Code::PayloadTooLarge, detail));
        }
        Ok(Err(_)) => return Err(Failure::new(Code::InvalidRequest, "the body ended before it was complete")),
        Ok(Ok(collected)) => collected.to_bytes(),
    };
    parse(&bytes)
}

/// Parses a body as `T`.
///
/// # Errors
/// `invalid_request`, with where and what.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    if bytes.is_empty() {
        return Err(Failure::new(Code::InvalidRequest, "the body is empty; send a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        // It may quote what was sent, back to whoever sent it; cut, for it also says what is wrong.
        let detail: String = format!("the body is not what this route takes: {error}").chars().take(500).collect();
        Failure::new(Code::InvalidRequest, detail)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Small {
        #[allow(dead_code)]
        a: u8,
    }

    fn limits() -> BodyLimits {
        BodyLimits { bytes: 64, time: Duration::from_secs(5) }
    }

    #[tokio::test]
    async fn what_is_refused_and_how() {
        let code = async |text: &str| read::<Small>(Body::from(text.to_owned()), limits()).await.unwrap_err().code;
        assert_eq!(code("").await, Code::InvalidRequest);
        assert_eq!(code("{").await, Code::InvalidRequest);
        assert_eq!(code("[]").await, Code::InvalidRequest);
        assert_eq!(code(r#"{"a":1,"b":2}"#).await, Code::InvalidRequest);
        assert_eq!(code(r#"{"a":1,"a":2}"#).await, Code::InvalidRequest);
        assert_eq!(code(r#"{"a":1} x"#).await, Code::InvalidRequest);
        assert_eq!(code(&" ".repeat(65)).await, Code::PayloadTooLarge);
        assert!(read::<Small>(Body::from(r#"{"a":1}"#), limits()).await.is_ok());
        let slow = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        let soon = BodyLimits { time: Duration::from_millis(1), ..limits() };
        assert_eq!(read::<Small>(slow, soon).await.unwrap_err().code, Code::RequestTimeout);
    }
}
