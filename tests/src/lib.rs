//! End-to-end tests on real components, and the harness they share.
