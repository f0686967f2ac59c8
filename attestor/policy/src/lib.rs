//! Measurements, event rules and mismatch reports.
