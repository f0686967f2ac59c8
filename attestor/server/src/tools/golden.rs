//! `banlieue-attestor golden`: predictions and a golden boot to a document for a person to approve.

use anyhow::{Context, Result};
use banlieue_policy::{
    document::MAX_DOCUMENT,
    golden::read,
    record::{Predictions, record},
};

/// Makes the document.
///
/// # Errors
/// When the boot and the predictions do not fit together, or either is unreadable.
pub fn golden(console: &[u8], predictions: &[u8]) -> Result<String> {
    let predictions = Predictions::parse(predictions, MAX_DOCUMENT).context("the predictions")?;
    let evidence = read(console)?;
    let measurements = record(&predictions, &evidence.pcrs, &evidence.log)?;
    Ok(measurements.to_yaml()?)
}
