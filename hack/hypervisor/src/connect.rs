//! Carries one connection of a guest to a host endpoint.
//!
//! QEMU's user-mode network starts this program for each connection a guest makes to an allowed endpoint and gives it the
//! connection as standard input and output (one socket).

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy};
use tokio::net::TcpStream;

/// Copies both directions until both ends are done.
///
/// # Errors
/// The endpoint does not answer, or one of the two sides broke in the middle.
pub async fn carry(endpoint: SocketAddr) -> std::io::Result<()> {
    let stream = TcpStream::connect(endpoint).await?;
    stream.set_nodelay(true)?;
    exchange(tokio::io::stdin(), tokio::io::stdout(), stream).await
}

/// Ends as soon as the endpoint has closed and its last bytes are out: standard input of a dead guest may stay open, and a
/// process that waits for it would outlive its connection.
async fn exchange(
    mut input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    stream: TcpStream,
) -> std::io::Result<()> {
    let (mut from, mut to) = stream.into_split();
    let outward = async {
        copy(&mut input, &mut to).await?;
        to.shutdown().await
    };
    let inward = async {
        copy(&mut from, &mut output).await?;
        output.flush().await
    };
    tokio::pin!(outward, inward);
    tokio::select! {
        done = &mut inward => done,
        done = &mut outward => { done?; inward.await }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn both_directions_and_half_close() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            peer.read_to_end(&mut asked).await.unwrap();
            peer.write_all(b"answer to ").await.unwrap();
            peer.write_all(&asked).await.unwrap();
        });
        let mut out = Vec::new();
        exchange(&b"question"[..], &mut out, TcpStream::connect(address).await.unwrap()).await.unwrap();
        server.await.unwrap();
        assert_eq!(out, b"answer to question");
    }
}
