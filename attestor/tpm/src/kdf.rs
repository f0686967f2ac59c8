//! Key derivation of Part 1, 11.4.10: KDFa (HMAC, counter mode) and KDFe (hash, from an ECDH secret).

use crate::hash::Hash;

/// KDFa: `label` without its final zero, which is added here.
pub(crate) fn kdf_a(hash: Hash, key: &[u8], label: &str, u: &[u8], v: &[u8], bytes: usize) -> Vec<u8> {
    let bits = bit_count(bytes);
    expand(bytes, |counter| hash.hmac(key, &[&counter, label.as_bytes(), &[0], u, v, &bits]))
}

/// KDFe: `z` is the x coordinate of the shared point, `u` and `v` those of both public points.
pub(crate) fn kdf_e(hash: Hash, z: &[u8], label: &str, u: &[u8], v: &[u8], bytes: usize) -> Vec<u8> {
    expand(bytes, |counter| hash.digest(&[&counter, z, label.as_bytes(), &[0], u, v]))
}

fn bit_count(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes.saturating_mul(8)).unwrap_or(u32::MAX).to_be_bytes()
}

fn expand(bytes: usize, block: impl Fn([u8; 4]) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    let mut counter = 1u32;
    while out.len() < bytes {
        out.extend_from_slice(&block(counter.to_be_bytes()));
        counter = counter.saturating_add(1);
    }
    out.truncate(bytes);
    out
}
