//! Compiles the protos of SPIRE's server API with protox, so that no `protoc` is needed.

use std::error::Error;

const PROTOS: &[&str] = &[
    "spire/api/server/agent/v1/agent.proto",
    "spire/api/server/bundle/v1/bundle.proto",
    "spire/api/server/entry/v1/entry.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure().build_server(false).include_file("protos.rs").compile_fds(descriptors)?;
    Ok(())
}
