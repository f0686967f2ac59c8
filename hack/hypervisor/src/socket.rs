//! Unix sockets in folders whose path is longer than a socket address can hold.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

/// `sun_path` holds 108 bytes, one of them the final zero (unix(7)).
const ADDRESS_LIMIT: usize = 107;

/// Connects to a socket, however long its path is.
///
/// # Errors
/// Nothing listens there.
pub async fn connect(path: &Path) -> std::io::Result<UnixStream> {
    if path.as_os_str().len() <= ADDRESS_LIMIT {
        return UnixStream::connect(path).await;
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    // The folder's descriptor names it in a few bytes and must stay open for the call.
    let folder = std::fs::File::open(folder)?;
    UnixStream::connect(PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_longer_than_an_address() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        let opened = std::fs::File::open(&folder).unwrap();
        let short = format!("/proc/self/fd/{}/s", opened.as_raw_fd());
        let _listener = tokio::net::UnixListener::bind(short).unwrap();
        connect(&folder.join("s")).await.unwrap();
        assert!(connect(&folder.join("t")).await.is_err());
    }
}
