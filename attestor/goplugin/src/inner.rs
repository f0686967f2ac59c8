//! What runs inside the worker: one HTTP/2 connection on standard input.
//!
//! The connection is transport and lifeline in one: when the parent dies, it ends, and so does the worker.

use std::os::fd::AsFd;

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::UnixStream;
use tonic::service::Routes;

use crate::{
    error::{Error, system},
    host::Health,
    proto::grpc::health::v1::health_server::HealthServer,
};

pub(crate) fn run<F>(services: F) -> Result<(), Error>
where
    F: FnOnce() -> Routes,
{
    // Ends even a stopped or spinning worker with its parent. A parent that died before this call is noticed by the
    // connection's end.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| system("ask for the parent's death signal")(error.into()))?;
    let connection = std::io::stdin().as_fd().try_clone_to_owned().map_err(system("take the parent's connection"))?;
    let connection = std::os::unix::net::UnixStream::from(connection);
    connection.set_nonblocking(true).map_err(system("take the parent's connection"))?;

    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(system("start the runtime"))?;
    runtime.block_on(async {
        let stream = UnixStream::from_std(connection).map_err(system("take the parent's connection"))?;
        let routes = services().add_service(HealthServer::new(Health)).prepare();
        let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await {
            tracing::debug!(%error, "the parent's connection ended");
        }
        Ok::<(), Error>(())
    })?;
    // Without this, blocking tasks in flight would keep the process.
    runtime.shutdown_background();
    Ok(())
}
