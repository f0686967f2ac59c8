//! Builds the measured guest image and predicts its measurements.
