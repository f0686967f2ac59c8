//! The tokens that sandboxes get, and the providers that make or confirm them.
//!
//! - [`keys`]: signing keys, their names, and the set that is published;
//! - [`sts`]: what stands in a token that mediatore signs, and how long it lives (pure);
//! - [`backends`]: what the routes ask of providers: `dex-refresh`, `entra-obo`;
//! - [`sessions`]: the one session of a subject, refreshed under a lock; [`session`]: its plan (pure); [`objects`]: where
//!   it stands;
//! - [`endpoint`]: a provider's token endpoint; [`upstream`]: what its answers mean (pure); [`certificate`]: how
//!   mediatore proves itself there;
//! - [`material`]: secrets on their way; [`settings`]: what an operator says of providers.

pub mod backends;
pub mod certificate;
pub mod endpoint;
pub mod keys;
pub mod material;
pub mod objects;
pub mod session;
pub mod sessions;
pub mod settings;
pub mod sts;
pub mod upstream;
