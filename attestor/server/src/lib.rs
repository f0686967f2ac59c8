//! The server half of attestation: SPIRE plugin, attestor controller, tools.
