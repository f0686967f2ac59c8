//! Writes the files that are generated from the types.
fn main() {}
