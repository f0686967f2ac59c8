//! Reading claims: absent, or of the right JSON type, or the token is malformed.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use crate::refusal::{Refusal, malformed};

#[derive(Clone, Copy)]
pub(crate) struct Claims<'a>(pub &'a Map<String, Value>);

impl<'a> Claims<'a> {
    /// Whether it is there at all, `null` included: for claims whose presence alone refuses a token.
    pub fn has(self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn text(self, name: &str) -> Result<Option<&'a str>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(malformed(format!("the token's claim `{name}` is no string"))),
        }
    }

    /// A list of strings; one string is a list of one.
    pub fn list(self, name: &str) -> Result<Vec<&'a str>, Refusal> {
        match self.get(name) {
            None => Some(Vec::new()),
            Some(Value::String(text)) => Some(vec![text.as_str()]),
            Some(Value::Array(list)) => list.iter().map(Value::as_str).collect::<Option<_>>(),
            Some(_) => None,
        }
        .ok_or_else(|| malformed(format!("the token's claim `{name}` is no list of strings")))
    }

    /// The scopes: `scp`, or `scope` where there is no `scp`. Words between spaces (RFC 6749, section 3.3), or a list.
    pub fn scopes(self) -> Result<Vec<&'a str>, Refusal> {
        let name = if self.get("scp").is_some() { "scp" } else { "scope" };
        let words = self.list(name)?.into_iter().flat_map(|words| words.split(' '));
        Ok(words.filter(|word| !word.is_empty()).collect())
    }

    /// Whether Entra left the groups out, for there are too many.
    pub fn groups_left_out(self) -> bool {
        let elsewhere = self.get("_claim_names").is_some_and(|names| names.get("groups").is_some());
        elsewhere || self.get("hasgroups").is_some_and(|has| has == true)
    }

    /// A NumericDate (RFC 7519, section 2): seconds since 1970, with or without a fraction. What lies before is 1970.
    pub fn time(self, name: &str) -> Result<Option<SystemTime>, Refusal> {
        let wrong = || malformed(format!("the token's claim `{name}` is no time"));
        let Some(value) = self.get(name) else { return Ok(None) };
        let since = match (value.as_u64(), value.as_f64()) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Some(seconds)) => Duration::try_from_secs_f64(seconds.max(0.0)).map_err(|_| wrong())?,
            (None, None) => return Err(wrong()),
        };
        SystemTime::UNIX_EPOCH.checked_add(since).map(Some).ok_or_else(wrong)
    }
}
