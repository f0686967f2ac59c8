//! Bearer tokens.

use crate::refusal::{Refusal, RefusalReason};

/// The longest token that is looked at, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// The token in the value of an `Authorization` header (RFC 6750, section 2.1).
///
/// # Errors
/// `token_missing` without a header, or with another scheme.
pub fn bearer(authorization: Option<&str>) -> Result<&str, Refusal> {
    let missing = |detail: &str| Refusal::new(RefusalReason::TokenMissing, detail);
    let value = authorization
        .ok_or_else(|| missing("there is no Authorization header; send `Authorization: Bearer <token>`"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(missing("the Authorization header carries no bearer token; send `Authorization: Bearer <token>`"));
    }
    Ok(token)
}
