//! The guest half of attestation: a SPIRE agent plugin that speaks to the vTPM.

use std::process::ExitCode;

use banlieue_attestor_guest::service::Plugin;
use banlieue_goplugin::{Kind, serve};

fn main() -> ExitCode {
    match serve(Kind::Agent, || Plugin::default().routes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("banlieue-attestor-guest: {error}");
            ExitCode::FAILURE
        }
    }
}
