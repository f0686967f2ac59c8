//! hyper's own answers in our shape. What is no HTTP/1.1 request it answers by itself, before any route: a bare status
//! without a body. Here, between hyper and the connection, such an answer is given the body that every error has.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::answer::{Code, Failure};

/// How long, and how much, is read and thrown away after the last answer, until the other end closes too. Closing on
/// bytes that nobody read would take the answer away from whoever is still sending.
const LISTEN: (Duration, usize) = (Duration::from_secs(1), 1024 * 1024);

/// A connection whose errors have our shape, and arrive.
pub struct Shaped<S> {
    inner: S,
    /// What is still to be written in place of what hyper wrote.
    instead: Vec<u8>,
    /// Until when to listen, and how much still, once our side is closed.
    listening: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Shaped<S> {
    /// Over this connection.
    pub fn new(inner: S) -> Self {
        Self { inner, instead: Vec::new(), listening: None }
    }
}

/// What stands instead of these bytes, if they end in an answer of hyper's own. Such an answer is the last on its
/// connection, has no body, and is the only one of status 4xx that has none: each of ours has JSON. No other answer of
/// ours ends in an empty line, and none has a line end inside its body.
fn instead(bytes: &[u8]) -> Option<Vec<u8>> {
    const START: &[u8] = b"HTTP/1.1 4";
    const EMPTY: &str = "content-length: 0\r\n";
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let at = bytes.windows(START.len()).rposition(|part| part == START)?;
    let (before, head) = bytes.split_at_checked(at)?;
    let head = std::str::from_utf8(head).ok()?;
    if !head.contains(EMPTY) {
        return None;
    }
    let failure = match head.get(9..12)? {
        "431" => Failure::new(Code::HeadersTooLarge, "the request's head is longer, or has more fields, than is read"),
        _ => Failure::new(Code::InvalidRequest, "what was sent is no HTTP request"),
    };
    let body = failure.text();
    let close = if head.to_ascii_lowercase().contains("connection: close") { "" } else { "connection: close\r\n" };
    let length = format!(
        "content-type: application/json\r\ncache-control: no-store\r\n{close}content-length: {}\r\n",
        body.len()
    );
    let mut all = before.to_vec();
    all.extend_from_slice(head.replacen(EMPTY, &length, 1).as_bytes());
    all.extend_from_slice(&body);
    Some(all)
}

impl<S: AsyncWrite + Unpin> Shaped<S> {
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Shaped<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Shaped<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if let Some(instead) = instead(buf) {
            self.instead = instead;
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        let Self { inner, listening, .. } = &mut *self;
        if listening.is_none() {
            ready!(Pin::new(&mut *inner).poll_shutdown(cx))?;
        }
        let (until, most) = listening.get_or_insert_with(|| (Box::pin(sleep(LISTEN.0)), LISTEN.1));
        loop {
            let mut buffer = [0; 4096];
            let mut buffer = ReadBuf::new(&mut buffer);
            match Pin::new(&mut *inner).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() && *most > 0 => {
                    *most = most.saturating_sub(buffer.filled().len());
                }
                // The other end closed, or has said more than enough.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return until.as_mut().poll(cx).map(Ok),
            }
        }
    }

    // Not vectored: an answer's head and body come in one piece, which is looked at as a whole.
    fn is_write_vectored(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: x\r\n\r\n";

    fn shaped(text: &str) -> Option<String> {
        instead(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn only_an_answer_of_hypers_own_is_replaced() {
        let got = shaped(OWN).unwrap();
        let (head, body) = got.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 ") && head.contains("connection: close"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"], "headers_too_large");
        let before = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
        assert!(shaped(&format!("{before}{OWN}")).unwrap().starts_with(before), "what came before stays");
        for other in [
            before,
            "HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n",
            "{\"detail\": \"HTTP/1.1 431 x content-length: 0\"}",
        ] {
            assert_eq!(shaped(other), None, "{other}");
        }
    }
}
