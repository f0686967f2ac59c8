//! The local cluster: Kubernetes, KubeVirt and SPIRE control planes from their own binaries, our programs on top, under
//! their own accounts. One library for the demo, for every test and for benchmarks.
//!
//! ```no_run
//! # async fn example() -> banlieue_cluster::Result<()> {
//! use banlieue_cluster::{Cluster, Identity};
//!
//! let cluster = Cluster::builder().nodes("w-1=weightless").controller().start().await?;
//! let client = cluster.kube(&Identity::PoolAuthor).await?;
//! cluster.stop().await
//! # }
//! ```
//! [`Builder`] says which parts; `control_plane`, `kubevirt`, `spire` and `product` know how each is started;
//! [`idp`] starts identity providers and logs people in;
//! `process` waits for readiness; `pki` and [`identity`] say who is who; `apply` brings manifests in; [`audit`] reads
//! back who did what. Everything runs under one `banlieue-supervisor` and ends with it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apply;
pub mod audit;
mod builder;
mod cluster;
pub mod component;
mod control_plane;
mod error;
pub mod identity;
pub mod idp;
mod kubevirt;
mod namespaces;
mod pki;
mod ports;
mod probe;
mod process;
mod product;
pub mod programs;
pub mod progress;
mod settings;
mod spire;

pub use audit::Audit;
pub use banlieue_supervisor::Signal;
pub use builder::Builder;
pub use cluster::{Cluster, down};
pub use error::{Error, Result};
pub use identity::Identity;
pub use idp::Provider;
pub use namespaces::ISSUER;
pub use progress::Progress;
pub use settings::Settings;
pub use spire::Spire;
