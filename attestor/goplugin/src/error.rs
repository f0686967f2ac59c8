//! Why a plugin could not be served.

use std::io;

use thiserror::Error;

use crate::handshake::HandshakeError;

/// Why a plugin could not be served.
#[derive(Debug, Error)]
pub enum Error {
    /// Not started by SPIRE, or no socket.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The system refused something a process needs.
    #[error("cannot {act}: {source}")]
    System {
        /// What was tried.
        act: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Serving ended with an error.
    #[error("the plugin's server ended: {0}")]
    Transport(#[from] tonic::transport::Error),
}

pub(crate) fn system(act: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System { act, source }
}
