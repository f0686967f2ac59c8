//! Developer commands: tools, cluster, demo, checks.

fn main() {}
