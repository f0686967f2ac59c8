//! The guest half of attestation: a SPIRE agent plugin that speaks to the vTPM.

fn main() {}
