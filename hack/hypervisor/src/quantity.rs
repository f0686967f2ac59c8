//! Kubernetes quantities as bytes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A quantity in bytes, rounded up; none when it is not a positive number
/// (`k8s.io/apimachinery/pkg/api/resource`, "Quantity").
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.as_str();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(split)?;
    let factor: u64 = match suffix {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    let value = match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(factor)?,
        Some((whole, fraction)) => {
            let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
            let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
            let part = fraction.parse::<u64>().ok()?.checked_mul(factor)?.div_ceil(10_u64.pow(digits));
            whole.checked_mul(factor)?.checked_add(part)?
        }
    };
    (value > 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        for (text, expected) in [
            ("512Mi", Some(512 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("1G", Some(1_000_000_000)),
            ("4096", Some(4096)),
            ("0", None),
            ("-1Gi", None),
            ("1X", None),
            ("", None),
            (".5Ki", Some(512)),
        ] {
            assert_eq!(bytes(&Quantity(text.into())), expected, "{text}");
        }
    }
}
