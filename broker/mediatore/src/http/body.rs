//! Reading a body: one JSON object whatever its Content-Type says (the reference's plain `curl -d` sends a form type),
//! within size, depth and time, and [strictly](super::strict).

use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use super::{
    answer::{Code, Failure},
    strict,
};

/// How large a body may be and how long it may take.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// In bytes.
    pub bytes: usize,
    /// For all of it.
    pub time: Duration,
}

/// What is read beyond the limit, and thrown away: who is still sending when a connection is closed learns of that, and
/// not why.
const BEYOND: usize = 1024 * 1024;

/// Reads a body as `T`.
///
/// # Errors
/// `request_timeout`, `payload_too_large` or `invalid_request`.
pub async fn read<T: DeserializeOwned>(mut body: Body, limits: BodyLimits) -> Result<T, Failure> {
    let too_long = || {
        let detail = format!("the body is longer than {} bytes", limits.bytes);
        Failure::new(Code::PayloadTooLarge, detail)
    };
    let most = limits.bytes.saturating_add(BEYOND);
    // One that is said to be much too long is not waited for.
    if body.size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let (mut bytes, mut length) = (Vec::new(), 0_usize);
    let reading = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            length = length.saturating_add(data.len());
            if length <= limits.bytes {
                bytes.extend_from_slice(&data);
            } else if length > most {
                break;
            }
        }
        Ok::<(), axum::Error>(())
    };
    let read = tokio::time::timeout(limits.time, reading).await;
    match read {
        _ if length > limits.bytes => Err(too_long()),
        Err(_) => Err(Failure::new(Code::RequestTimeout, "the body did not arrive in time")),
        Ok(Err(_)) => Err(Failure::new(Code::InvalidRequest, "the body ended before it was complete")),
        Ok(Ok(())) => parse(&bytes),
    }
}

/// Parses a body as `T`.
///
/// # Errors
/// `invalid_request`, with where and what.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    if bytes.is_empty() {
        return Err(Failure::new(Code::InvalidRequest, "the body is empty; send a JSON object"));
    }
    strict::from_slice(bytes).map_err(|error| {
        // It may quote what was sent, back to whoever sent it; cut, for it also says what is wrong.
        let detail: String = format!("the body is not what this route takes: {error}").chars().take(500).collect();
        Failure::new(Code::InvalidRequest, detail)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Small {
        a: u8,
        #[serde(default)]
        inner: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        word: Word,
        #[serde(default)]
        any: Value,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        c: u8,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        #[default]
        One,
        Two,
    }

    fn limits() -> BodyLimits {
        BodyLimits { bytes: 256, time: Duration::from_secs(60) }
    }

    fn nested(levels: usize) -> String {
        // The object itself is the first level.
        format!(r#"{{"a":1,"any":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1))
    }

    #[tokio::test]
    async fn what_is_refused_and_how() {
        let code = async |text: &str| read::<Small>(Body::from(text.to_owned()), limits()).await.unwrap_err().code;
        for text in [
            "",
            " ",
            "{",
            "[]",
            "[1]",
            r#"[1, null, [], "one", null]"#,
            "null",
            "1",
            r#""a""#,
            r#"{"a":1,"z":2}"#,
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":1}"#,
            r#"{"a":1,"any":{"x":[{"y":1,"y":1}]}}"#,
            r#"{"a":1,"inner":{"c":1,"c":1}}"#,
            r#"{"a":1,"inner":[2]}"#,
            r#"{"a":1,"list":[[2]]}"#,
            r#"{"a":1,"list":{"c":2}}"#,
            r#"{"a":1,"word":{"two":null}}"#,
            r#"{"a":1,"word":"three"}"#,
            r#"{"a":256}"#,
            r#"{"a":1.0}"#,
            r#"{"a":"1"}"#,
            r#"{"a":1} x"#,
            r#"{"a":1}{"a":1}"#,
            "{\"a\":1}\0",
            "\u{feff}{\"a\":1}",
            &nested(strict::DEEPEST + 1),
        ] {
            assert_eq!(code(text).await, Code::InvalidRequest, "{text}");
        }
        assert_eq!(read::<Small>(Body::from(vec![b'{', 0xff]), limits()).await.unwrap_err().code, Code::InvalidRequest);
        assert_eq!(code(&" ".repeat(257)).await, Code::PayloadTooLarge);
        let slow = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        let soon = BodyLimits { time: Duration::from_millis(1), ..limits() };
        assert_eq!(read::<Small>(slow, soon).await.unwrap_err().code, Code::RequestTimeout);
    }

    #[test]
    fn what_is_taken() {
        let full =
            r#" {"a":1,"inner":{"c":2,"more":[{}]},"list":[{"c":3}],"word":"two","any":{"x":[null,true,-1,0.5]}} "#;
        let wanted = Small {
            a: 1,
            inner: Some(Inner { c: 2 }),
            list: vec![Inner { c: 3 }],
            word: Word::Two,
            any: json!({ "x": [null, true, -1, 0.5] }),
        };
        assert_eq!(parse::<Small>(full.as_bytes()).unwrap(), wanted);
        for text in [r#"{"a":1}"#, "{\"a\":1,\"inner\":null}\r\n", &nested(strict::DEEPEST)] {
            assert!(parse::<Small>(text.as_bytes()).is_ok(), "{text}");
        }
    }
}
