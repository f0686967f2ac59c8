//! What a value must look like, whichever field it stands in.

use serde_json::{Map, Value};

use super::{Check, TemplateFault, fault};

pub(super) fn string<'a>(field: &str, value: &'a Value) -> Result<&'a str, TemplateFault> {
    value.as_str().ok_or_else(|| TemplateFault { field: field.to_owned(), message: "must be a text".into() })
}

pub(super) fn boolean(field: &str, value: &Value) -> Check {
    if value.is_boolean() { Ok(()) } else { fault(field, "must be true or false, or left out") }
}

/// A word that ends in the machine's definition or on its hypervisor's command line.
pub(super) fn word(field: &str, value: &Value) -> Check {
    let ordinary = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let text = string(field, value)?;
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 63 && text.chars().all(ordinary) {
        Ok(())
    } else {
        fault(
            field,
            "must be a word of at most 63 letters, digits, dots, hyphens and underscores that begins with a letter or digit",
        )
    }
}

pub(super) fn name_of(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn keys(field: &str, value: &Value, allowed: &[&str]) -> Check {
    match object(field, value)?.keys().find(|key| !allowed.contains(&key.as_str())) {
        Some(key) => not_allowed(&format!("{field}.{key}"), allowed),
        None => Ok(()),
    }
}

pub(super) fn only(field: &str, value: &Value, wanted: &Value) -> Check {
    if value == wanted { Ok(()) } else { fault(field, format!("must be {wanted} or left out, not {value}")) }
}

pub(super) fn object<'a>(field: &str, value: &'a Value) -> Result<&'a Map<String, Value>, TemplateFault> {
    value.as_object().ok_or_else(|| TemplateFault { field: field.to_owned(), message: "must be an object".into() })
}

pub(super) fn array<'a>(field: &str, value: &'a Value) -> Result<&'a Vec<Value>, TemplateFault> {
    value.as_array().ok_or_else(|| TemplateFault { field: field.to_owned(), message: "must be a list".into() })
}

pub(super) fn not_allowed(field: &str, allowed: &[&str]) -> Check {
    let allowed = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
    fault(field, format!("is not allowed in a member's template: remove it; allowed in its place: {allowed}"))
}

/// A Kubernetes quantity, as a number or a text.
pub(super) fn quantity(field: &str, value: &Value) -> Check {
    const UNITS: [&str; 14] = ["", "m", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E", "Ei"];
    let good = match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number >= 0.0),
        Value::String(text) => {
            let number = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
            let unit = text.get(number.len()..).unwrap_or_default();
            let digits = number.chars().filter(char::is_ascii_digit).count();
            let points = number.chars().filter(|c| *c == '.').count();
            digits > 0 && points <= 1 && digits + points == number.chars().count() && UNITS.contains(&unit)
        }
        _ => false,
    };
    if good {
        Ok(())
    } else {
        fault(
            field,
            format!("must be a quantity, a number with a unit if any, as 512Mi, 2Gi, 1.5 or 500m; not {value}"),
        )
    }
}
