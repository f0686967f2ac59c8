//! TPM 2.0 structures, event logs, credentials and quotes in software: parse and verify bytes.
