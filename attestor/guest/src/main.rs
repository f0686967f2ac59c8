//! The guest half of attestation: a SPIRE agent plugin that speaks to the vTPM.

use banlieue_attestor_guest::service::Plugin;
use banlieue_goplugin::{Kind, serve};

fn main() -> anyhow::Result<()> {
    Ok(serve(Kind::Agent, || Plugin::default().routes())?)
}
