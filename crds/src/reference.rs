//! The API reference, made from the same schemas.
