//! Who calls: from a bearer token to a [`Caller`], or to a [`Refusal`] that says why not.
//!
//! Nothing here knows Kubernetes or SPIRE. Only [`discovery`] speaks HTTP and only [`provider`] reads a clock; everything
//! else is a pure function of its arguments.
//!
//! - [`subject`]: the subject key and the username, the one place that derives either.
//! - [`config`]: what an operator says of an issuer, and what is wrong with it.
//! - [`caller`]: who calls, on which of the three paths. - [`refusal`]: every reason to say no, with status and code.
//! - [`token`]: a compact JWS taken apart, strictly; a signature checked. - [`keys`]: an issuer's key set, bounded.
//! - [`judge`](mod@judge): a verified token against its issuer's entry.
//! - [`discovery`]: the provider's documents over TLS. - `cache`: when to fetch, when to wait, when to refuse.
//! - [`provider`]: one provider with what is held of it, for whoever verifies its tokens, downstream services too.
//! - [`issuers`]: all of it together, [`Issuers`].
//!
//! ```no_run
//! # async fn example(issuers: Vec<banlieue_identity::Issuer>, header: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
//! let issuers = banlieue_identity::Issuers::new(issuers)?; // once
//! let bearer = banlieue_identity::bearer(header)?; // the Authorization header
//! let caller = issuers.validate(bearer, std::time::SystemTime::now()).await?;
//! println!("{} for {}", caller.key, caller.client);
//! # Ok(())
//! # }
//! ```

mod cache;
pub mod caller;
mod claims;
pub mod config;
pub mod discovery;
pub mod issuers;
pub mod judge;
pub mod keys;
pub mod provider;
pub mod refusal;
pub mod subject;
pub mod token;

pub use cache::Limits;
pub use caller::{Caller, Path};
pub use config::{Accepts, Algorithm, Apps, Issuer, Require};
pub use issuers::{Issuers, SetupError};
pub use judge::{accept, judge};
pub use provider::{Provider, Status};
pub use refusal::{Code, Refusal, RefusalReason};
pub use subject::SubjectKey;
pub use token::bearer;
