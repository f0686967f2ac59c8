//! The banlieue controller: pools, claims, members, deadlines.
//!
//! | module | what lives there |
//! |---|---|
//! | [`store`] | watches -> one synchronous index -> snapshots; no decisions |
//! | [`decide`] | snapshot + now -> intents; pure |
//! | [`act`] | intents -> API calls; no decisions |
//! | [`runtime`] | the objects a member consists of |
//! | [`schedule`] | work queue and deadlines, backoff, expectations, workers |
//! | [`api`] | the one door to the API server, which the simulation replaces |
//! | [`campaign`] | what a leader does before it works (the election is `banlieue-leader`'s) |
//! | [`run`], [`config`], [`http`], [`metrics`], [`doctor`] | the program around it |

pub mod act;
pub mod api;
pub mod campaign;
pub mod config;
pub mod decide;
pub mod doctor;
pub mod http;
pub mod metrics;
pub mod run;
pub mod runtime;
pub mod schedule;
pub mod store;
