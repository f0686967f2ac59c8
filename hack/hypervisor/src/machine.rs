//! A virtual machine's shape, and the QEMU command line that makes it.
//!
//! Golden boots and instances go through this one function, so that the PCRs recorded by the first hold for the second:
//! firmware measures memory size, vCPUs, the devices' PCI addresses and the boot order, and all of these follow from the
//! order of the arguments. What firmware does not measure (UUID, MAC, file names, sockets) may differ.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The MAC of every machine whose spec names none. Each machine has a network of its own, so it may repeat, and a
/// constant keeps network boot entries, which carry the MAC, from ever making PCR 1 differ between two machines.
pub const DEFAULT_MAC: &str = "52:54:00:12:34:56";

/// QEMU's limit for a virtio disk's serial, in bytes (`VIRTIO_BLK_ID_BYTES`, virtio 1.2 section 5.2.6).
pub const SERIAL_LIMIT: usize = 20;

/// A machine. All paths are taken relative to the working directory QEMU is started in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How the processor is run.
    pub accelerator: Accelerator,
    /// Memory of the guest, in MiB.
    pub memory_mib: u64,
    /// Virtual processors.
    pub topology: Topology,
    /// SMBIOS system UUID; the member's uid for an instance.
    pub uuid: Option<String>,
    /// Read-only firmware code.
    pub firmware: PathBuf,
    /// The machine's private, writable copy of the firmware's variable store.
    pub variables: PathBuf,
    /// Disks, in the order of their PCI addresses.
    pub disks: Vec<Disk>,
    /// The one network interface.
    pub network: Option<Network>,
    /// Whether the guest gets a virtio entropy source.
    pub rng: bool,
    /// Control socket of the machine's swtpm; none means no TPM.
    pub tpm: Option<PathBuf>,
    /// File that receives the serial console.
    pub console: PathBuf,
    /// QMP socket that QEMU listens on.
    pub qmp: PathBuf,
    /// Whether a reset by the guest ends the machine (golden boots) or is carried out (instances).
    pub ends_on_reset: bool,
}

/// How the guest's processor is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The host's processor.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accelerator {
    fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }

    fn cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }
}

/// Virtual processors as KubeVirt counts them (`spec.domain.cpu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets of the machine.
    pub sockets: u32,
    /// Cores of a socket.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl Topology {
    /// `vcpus` single-threaded cores in one socket.
    pub fn cores(vcpus: u32) -> Self {
        Self { sockets: 1, cores: vcpus, threads: 1 }
    }

    /// All virtual processors.
    pub fn vcpus(self) -> u32 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name of the disk in the spec; becomes its QEMU id.
    pub name: String,
    /// Raw image file.
    pub file: PathBuf,
    /// How the guest sees it.
    pub bus: Bus,
    /// What happens to writes.
    pub writes: Writes,
    /// Serial that the guest reads, at most [`SERIAL_LIMIT`] bytes.
    pub serial: Option<String>,
    /// Place in the boot order, from 1.
    pub boot_index: Option<u32>,
}

/// Kind of disk controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// virtio-blk on PCI.
    Virtio,
    /// A SATA disk on the q35's own controller.
    Sata,
    /// A SATA CD drive on the q35's own controller.
    SataCdrom,
}

/// What happens to a guest's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Refused.
    Refused,
    /// Kept beside the file until QEMU ends, then forgotten, as KubeVirt does with container disks.
    Forgotten,
    /// Written to the file.
    Kept,
}

/// User-mode networking that reaches the listed endpoints and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// MAC address of the guest's interface.
    pub mac: String,
    /// What the guest can reach.
    pub allow: Vec<Endpoint>,
    /// The program that carries one connection: this crate's `banlieue-hypervisor`.
    pub connector: PathBuf,
}

/// An endpoint that guests may reach: the static NetworkPolicy of a pool, enforced outside the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address as the guest sees it, inside 10.0.2.0/24.
    pub guest: std::net::SocketAddrV4,
    /// Address on the host that answers.
    pub host: std::net::SocketAddr,
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    /// `10.0.2.100:8081=127.0.0.1:40123`
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text}: an allowed endpoint is written GUEST_IP:PORT=HOST_IP:PORT, 10.0.2.100:8081=127.0.0.1:40123 for example"
            )
        };
        let (guest, host) = text.split_once('=').ok_or_else(wrong)?;
        let endpoint = Self { guest: guest.parse().map_err(|_| wrong())?, host: host.parse().map_err(|_| wrong())? };
        let [a, b, c, last] = endpoint.guest.ip().octets();
        // .1 to .3 and .15 belong to the user-mode stack itself: gateway, DNS, and the guest.
        if [a, b, c] != [10, 0, 2] || matches!(last, 0..=3 | 15 | 255) {
            return Err(format!(
                "{text}: the guest's side must be an address of 10.0.2.0/24 other than .0 to .3, .15 and .255"
            ));
        }
        Ok(endpoint)
    }
}

impl Machine {
    /// The arguments of `qemu-system-x86_64`.
    ///
    /// The order is part of the machine: see the module's head.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut args = Arguments::default();
        args.pair("-name", "guest");
        // Without secure boot OVMF needs no SMM, and KVM inside some virtual machines cannot give it.
        args.pair("-machine", "q35,smm=off,vmport=off,usb=off");
        args.pair("-accel", self.accelerator.argument());
        args.pair("-cpu", self.accelerator.cpu());
        args.pair("-m", format!("{}M", self.memory_mib));
        let Topology { sockets, cores, threads } = self.topology;
        args.pair("-smp", format!("{},sockets={sockets},cores={cores},threads={threads}", self.topology.vcpus()));
        if let Some(uuid) = &self.uuid {
            args.pair("-uuid", uuid);
        }
        for flag in ["-nodefaults", "-no-user-config"] {
            args.flag(flag);
        }
        args.pair("-display", "none");
        args.pair("-rtc", "base=utc");
        args.file("-serial", "file:", &self.console, "");
        args.file("-qmp", "unix:", &self.qmp, ",server=on,wait=off");
        if self.ends_on_reset {
            args.flag("-no-reboot");
        }
        args.file("-drive", "if=pflash,format=raw,unit=0,readonly=on,file=", &self.firmware, "");
        args.file("-drive", "if=pflash,format=raw,unit=1,file=", &self.variables, "");
        if let Some(socket) = &self.tpm {
            args.file("-chardev", "socket,id=tpm-control,path=", socket, "");
            args.pair("-tpmdev", "emulator,id=tpm,chardev=tpm-control");
            args.pair("-device", "tpm-tis,tpmdev=tpm");
        }
        for (position, disk) in self.disks.iter().enumerate() {
            disk.arguments(position, &mut args);
        }
        if let Some(network) = &self.network {
            network.arguments(&mut args);
        }
        if self.rng {
            args.pair("-object", "rng-random,id=entropy,filename=/dev/urandom");
            args.pair("-device", "virtio-rng-pci,rng=entropy");
        }
        args.0
    }
}

impl Disk {
    fn arguments(&self, position: usize, args: &mut Arguments) {
        let writes = match self.writes {
            Writes::Refused => "readonly=on",
            // QEMU keeps the overlay in an unlinked file under $TMPDIR, so it cannot be left behind.
            Writes::Forgotten => "snapshot=on",
            Writes::Kept => "cache=unsafe,discard=unmap",
        };
        let id = format!("disk-{position}");
        args.file("-drive", &format!("if=none,id={id},format=raw,{writes},file="), &self.file, "");
        let mut device = match self.bus {
            Bus::Virtio => format!("virtio-blk-pci,drive={id}"),
            Bus::Sata => format!("ide-hd,bus=ide.{position},drive={id}"),
            Bus::SataCdrom => format!("ide-cd,bus=ide.{position},drive={id}"),
        };
        if let Some(serial) = &self.serial {
            device.push_str(&format!(",serial={}", escape(serial)));
        }
        if let Some(index) = self.boot_index {
            device.push_str(&format!(",bootindex={index}"));
        }
        args.pair("-device", device);
    }
}

impl Network {
    fn arguments(&self, args: &mut Arguments) {
        let mut netdev = OsString::from("user,id=net,restrict=on");
        for Endpoint { guest, host } in &self.allow {
            // With `-cmd:` each connection of the guest gets a process of its own; with a character device all of them
            // would share one connection to the host.
            netdev.push(format!(",guestfwd=tcp:{}:{}-cmd:", guest.ip(), guest.port()));
            netdev.push(escape(&self.connector.to_string_lossy()));
            netdev.push(format!(" connect {host}"));
        }
        args.pair("-netdev", netdev);
        // An option ROM would be measured into PCR 2 and adds nothing: members never boot from the network.
        args.pair("-device", format!("virtio-net-pci,netdev=net,mac={},romfile=", self.mac));
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn flag(&mut self, name: &str) {
        self.0.push(name.into());
    }

    fn pair(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.push(name.into());
        self.0.push(value.into());
    }

    fn file(&mut self, name: &str, before: &str, path: &Path, after: &str) {
        self.pair(name, format!("{before}{}{after}", escape(&path.to_string_lossy())));
    }
}

/// QEMU's option syntax: a comma inside a value is written twice.
fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            accelerator: Accelerator::Tcg,
            memory_mib: 512,
            topology: Topology::cores(2),
            uuid: Some("5d307ca9-b3ef-428c-8861-06e72d69f223".into()),
            firmware: "/usr/share/OVMF/OVMF_CODE_4M.fd".into(),
            variables: "vars.fd".into(),
            disks: vec![
                Disk {
                    name: "image".into(),
                    file: "/images/a,b/disk.raw".into(),
                    bus: Bus::Virtio,
                    writes: Writes::Forgotten,
                    serial: None,
                    boot_index: Some(1),
                },
                Disk {
                    name: "seed".into(),
                    file: "seed.iso".into(),
                    bus: Bus::Virtio,
                    writes: Writes::Refused,
                    serial: Some("BANLIEUE-ENROL".into()),
                    boot_index: None,
                },
            ],
            network: Some(Network {
                mac: DEFAULT_MAC.into(),
                allow: vec!["10.0.2.100:8081=127.0.0.1:40123".parse().unwrap()],
                connector: "/bin/banlieue-hypervisor".into(),
            }),
            rng: true,
            tpm: Some("tpm.sock".into()),
            console: "console.log".into(),
            qmp: "qmp.sock".into(),
            ends_on_reset: false,
        }
    }

    fn line(machine: &Machine) -> String {
        machine.arguments().iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_part_of_the_shape_reaches_the_command_line() {
        let line = line(&machine());
        for part in [
            "-m 512M",
            "-smp 2,sockets=1,cores=2,threads=1",
            "-uuid 5d307ca9-b3ef-428c-8861-06e72d69f223",
            "if=none,id=disk-0,format=raw,snapshot=on,file=/images/a,,b/disk.raw",
            "virtio-blk-pci,drive=disk-0,bootindex=1",
            "if=none,id=disk-1,format=raw,readonly=on,file=seed.iso",
            "virtio-blk-pci,drive=disk-1,serial=BANLIEUE-ENROL",
            "tpm-tis,tpmdev=tpm",
            "restrict=on,guestfwd=tcp:10.0.2.100:8081-cmd:/bin/banlieue-hypervisor connect 127.0.0.1:40123",
            "virtio-rng-pci,rng=entropy",
            "-serial file:console.log",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        assert!(!line.contains("-no-reboot"));
    }

    #[test]
    fn only_what_firmware_does_not_measure_changes_with_identity() {
        let measured = |machine: &Machine| {
            let args = machine.arguments();
            let position = args.iter().position(|a| a == "-uuid").map(|p| p + 1);
            args.into_iter().enumerate().filter(|(at, _)| Some(*at) != position).map(|(_, a)| a).collect::<Vec<_>>()
        };
        let one = machine();
        let other = Machine { uuid: Some("00000000-0000-0000-0000-000000000001".into()), ..machine() };
        assert_eq!(measured(&one), measured(&other));
        assert_ne!(measured(&one), measured(&Machine { memory_mib: 1024, ..machine() }));
    }

    #[test]
    fn endpoints_outside_the_guests_network_are_refused() {
        for wrong in ["10.0.2.2:1=127.0.0.1:1", "127.0.0.1:1=127.0.0.1:1", "10.0.2.100:8081", "x=y"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
