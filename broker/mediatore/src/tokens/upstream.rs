//! What an answer of a token endpoint means for what it was asked with (RFC 6749, 5.2). Pure.
//!
//! Only a refusal of the material itself releases a claim. Whatever may be mediatore's own mistake or the provider's
//! trouble gives no token and releases nothing: no token is ever given without the provider's consent, so waiting
//! keeps nobody's rights alive.

/// Which provider answered: they do not word a refusal alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Entra ID, and providers that follow RFC 6749: `invalid_grant`, or `interaction_required` for a new condition.
    Standard,
    /// Dex: a session that was ended or replaced is `invalid_request`. A person whom the connector refuses is
    /// `server_error` with status 500, which nobody can tell from an outage and which is therefore one.
    Dex,
}

/// What an error answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The material will never be taken again.
    Refused,
    /// The provider is out of order or asks for patience.
    Outage,
    /// mediatore's own registration or configuration is wrong: for the operators.
    Misconfigured,
}

/// Reads status and the `error` member of a refusal.
#[must_use]
pub fn meaning(dialect: Dialect, status: u16, error: Option<&str>) -> Meaning {
    // A proxy's own 400 or 401 has no `error`: nobody refused anything.
    let (400..=403, Some(error)) = (status, error) else { return Meaning::Outage };
    match (dialect, error) {
        (_, "invalid_grant") | (Dialect::Standard, "interaction_required") | (Dialect::Dex, "invalid_request") => {
            Meaning::Refused
        }
        (_, "temporarily_unavailable" | "server_error") => Meaning::Outage,
        _ => Meaning::Misconfigured,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::revoked(Dialect::Standard, 400, Some("invalid_grant"), Meaning::Refused)]
    #[case::new_condition(Dialect::Standard, 400, Some("interaction_required"), Meaning::Refused)]
    #[case::our_mistake(Dialect::Standard, 400, Some("invalid_request"), Meaning::Misconfigured)]
    #[case::our_certificate(Dialect::Standard, 401, Some("invalid_client"), Meaning::Misconfigured)]
    #[case::dex_ended(Dialect::Dex, 400, Some("invalid_request"), Meaning::Refused)]
    #[case::dex_disabled(Dialect::Dex, 500, Some("server_error"), Meaning::Outage)]
    #[case::a_proxy(Dialect::Dex, 400, None, Meaning::Outage)]
    #[case::a_refusal_with_the_wrong_status(Dialect::Standard, 502, Some("invalid_grant"), Meaning::Outage)]
    #[case::too_often(Dialect::Standard, 429, Some("invalid_grant"), Meaning::Outage)]
    fn meanings(#[case] dialect: Dialect, #[case] status: u16, #[case] error: Option<&str>, #[case] expected: Meaning) {
        assert_eq!(meaning(dialect, status, error), expected);
    }
}
