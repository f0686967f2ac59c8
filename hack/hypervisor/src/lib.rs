//! The node half of KubeVirt for the local cluster: QEMU, swtpm and OVMF for each instance.
//!
//! Machines, without any cluster:
//! - [`machine`]: a machine's shape and its QEMU command line, for instances and golden boots alike. - [`golden`]: one
//!   boot to power-off. - [`accel`]: whether KVM works, by a golden boot. - [`firmware`]: OVMF. - [`qmp`]: talking to
//!   QEMU.
//! - [`swtpm`], [`tpm`]: software TPMs. - [`iso`]: Secrets as disks. - [`connect`]: one connection out of a guest.
//! - [`light_guest`]: what plays the guest of a light instance.
//!
//! The node half:
//! - [`identity`]: whose machine it is. - [`node`]: Node objects. - [`pod`], [`instance`]: what is written about pods and instances. - [`report`]:
//!   endorsement reports. - [`addresses`]: pod addresses.
//! - [`plan`]: spec to machine. - [`images`]: local container disks. - [`quantity`]: sizes. - [`weight`]: full, light,
//!   weightless. - [`vm`]: the machine behind one instance.
//! - [`index`]: what the watches showed. - [`decide`]: the next step, pure. - [`life`]: takes the steps. - [`hub`]: one
//!   life for each instance.

pub mod accel;
pub mod addresses;
pub mod connect;
pub mod decide;
pub mod firmware;
pub mod golden;
pub mod hub;
pub mod identity;
pub mod images;
pub mod index;
pub mod instance;
pub mod iso;
pub mod life;
pub mod light_guest;
pub mod machine;
pub mod node;
pub mod plan;
pub mod pod;
pub mod qmp;
pub mod quantity;
pub mod report;
mod socket;
pub mod swtpm;
pub mod tpm;
pub mod vm;
pub mod weight;
