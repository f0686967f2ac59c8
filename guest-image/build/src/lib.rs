//! Builds the measured guest image and predicts its measurements.
//!
//! - [`kernel`], [`modules`], [`libraries`]: where the parts come from.
//! - [`tree`], [`cpio`]: the initrd, which is the whole system.
//! - [`pe`]: the unified kernel image. [`disk`]: the disk that holds it.
//! - [`predict`]: PCR 4, 9 and 11. [`build`]: all of it together.
//! - [`sbom`]: what is in it, by exact version.
//! - [`tamper`]: dishonest variants, for demo and tests. [`light`]: an image's measurements without the image.
//!
//! Same inputs, same bytes: no clock, no random number, no name of this machine enters an image.

pub mod build;
pub mod cpio;
pub mod disk;
pub mod kernel;
pub mod libraries;
pub mod light;
pub mod modules;
pub mod pe;
pub mod predict;
pub mod sbom;
pub mod tamper;
pub mod tree;

/// SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref());
    out
}

/// SHA-256 of `bytes`, in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(sha256(bytes))
}
