//! The node half of KubeVirt for the local cluster: QEMU, swtpm and OVMF for each instance.

fn main() {}
