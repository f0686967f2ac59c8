//! BV1: the messages and transcript of attestation, the seed volume, and the SPIFFE names.
