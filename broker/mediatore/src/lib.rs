//! mediatore, the broker: decides who may claim a sandbox, and hands its workload short-lived tokens that say for whom
//! it works.
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`] | one YAML file: what is in it, what is wrong with it, the secrets it refers to |
//! | [`http`] | the shape of errors, bodies, limits, listeners, the table of routes |
//! | [`user`] | the callers' side: claims, pools, discovery, OpenAPI |
//! | [`claims`] | the record: names, grants, slots, the two-way check, watches, the keeper |
//! | [`sandbox`] | the members' side: what a guest learns, what it reports, tokens for its workload |
//! | [`entries`] | claim entries in SPIRE |
//! | [`tokens`] | signing keys and what stands in a token |
//! | [`audit`], [`metrics`] | what was decided, and what is counted |
//! | [`operators`] | probes and metrics, on a port of their own |
//! | [`broker`], [`serve`], [`revoke`] | what routes work with; starting and stopping it; taking rights away |
//!
//! A claim on its way: [`user::auth`] (who is it) -> [`user::create`] (slot, claim, grant) -> the controller binds it.
//! Who somebody is, is decided in `banlieue-identity` alone; what a claim may have, in the pure parts of [`claims`].

pub mod audit;
pub mod broker;
pub mod claims;
pub mod config;
pub mod entries;
pub mod http;
pub mod metrics;
pub mod operators;
pub mod revoke;
pub mod sandbox;
pub mod serve;
pub mod tokens;
pub mod user;
