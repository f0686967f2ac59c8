//! banlieue-guest: the first process in the VM, from boot to power-off.

fn main() {}
