//! The node half of KubeVirt for the local cluster: QEMU, swtpm and OVMF for each instance.
//!
//! - [`machine`]: a machine's shape and its QEMU command line, for instances and golden boots alike. - [`golden`]: one
//!   boot to power-off without a cluster. - [`accel`]: KVM or emulation.
//! - [`swtpm`], [`tpm`]: software TPMs. - [`iso`]: Secrets as disks. - [`firmware`]: OVMF. - [`qmp`]: talking to QEMU.
//!   - [`connect`]: one connection out of a guest.

pub mod accel;
pub mod connect;
pub mod firmware;
pub mod golden;
pub mod iso;
pub mod machine;
pub mod qmp;
mod socket;
pub mod swtpm;
pub mod tpm;
