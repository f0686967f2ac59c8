//! Compiles the plugin protos with protox, so that no `protoc` is needed.

use std::error::Error;

const PROTOS: &[&str] = &[
    "grpc/health/v1/health.proto",
    "plugin/grpc_broker.proto",
    "plugin/grpc_controller.proto",
    "plugin/grpc_stdio.proto",
    "spire/plugin/agent/nodeattestor/v1/nodeattestor.proto",
    "spire/plugin/server/nodeattestor/v1/nodeattestor.proto",
    "spire/service/common/config/v1/config.proto",
    "spire/service/private/init/v1/init.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure().include_file("protos.rs").compile_fds(descriptors)?;
    Ok(())
}
