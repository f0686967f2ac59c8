//! From an instance's spec to a machine and the files it needs. What this hypervisor does not play is refused, never
//! left out: a machine that differs from its spec would prove nothing.

use std::path::PathBuf;

use banlieue_crds::kubevirt::{Disk as DiskSpec, VirtualMachineInstance, Volume};
use serde_json::Value;

use crate::images::{self, Images};
use crate::machine::{Accelerator, Bus, DEFAULT_MAC, Disk, Endpoint, Machine, Network, SERIAL_LIMIT, Topology, Writes};
use crate::{firmware, iso, quantity};

/// Names of the files inside a machine's folder, which is QEMU's working directory.
pub mod file {
    /// Variable store.
    pub const VARIABLES: &str = "vars.fd";
    /// Folder of the vTPM's state.
    pub const TPM: &str = "tpm";
    /// Control socket of the machine's swtpm, or data socket for light instances.
    pub const TPM_SOCKET: &str = "tpm.sock";
    /// QEMU's control socket.
    pub const QMP: &str = "qmp.sock";
}

/// Why an instance cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field has a value that is not played here.
    #[error("{field}: {reason}")]
    Unsupported {
        /// The field, from `spec`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An image.
    #[error(transparent)]
    Image(#[from] images::Error),
}

/// A machine and what its folder must hold before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The machine; all its files but the firmware and container disks are in its own folder.
    pub machine: Machine,
    /// What to make there.
    pub materials: Vec<Material>,
}

/// A file of a machine's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Material {
    /// A Secret's keys as a read-only disk.
    Secret {
        /// File name.
        file: PathBuf,
        /// The Secret, in the instance's namespace.
        secret: String,
        /// File-system label.
        label: String,
    },
    /// Zeros.
    Scratch {
        /// File name.
        file: PathBuf,
        /// Size.
        bytes: u64,
    },
}

/// What the host gives to every machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// Container disks.
    pub images: Images,
    /// What guests can reach.
    pub allow: Vec<Endpoint>,
    /// The program that carries one connection of a guest.
    pub connector: PathBuf,
}

fn unsupported<T>(field: impl Into<String>, reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::Unsupported { field: field.into(), reason: reason.into() })
}

/// The container disk that the machine boots from: the first in boot order, or the first at all.
///
/// # Errors
/// There is none.
pub fn boot_image(instance: &VirtualMachineInstance) -> Result<&str, Error> {
    let spec = &instance.spec;
    let image = |name: &str| {
        spec.volumes.iter().find(|v| v.name == name).and_then(|v| v.container_disk.as_ref()).map(|c| c.image.as_str())
    };
    let mut disks: Vec<&DiskSpec> = spec.domain.devices.disks.iter().collect();
    disks.sort_by_key(|disk| disk.boot_order.unwrap_or(u32::MAX));
    match disks.into_iter().find_map(|disk| image(&disk.name)) {
        Some(image) => Ok(image),
        None => unsupported("spec.domain.devices.disks", "no disk shows a container disk to boot from"),
    }
}

/// The Secret volume whose disk has this serial, for light instances, which read the seed as files.
pub fn seed_secret(instance: &VirtualMachineInstance) -> Option<&str> {
    let spec = &instance.spec;
    let serial = Some(banlieue_protocol::seed::DISK_SERIAL);
    let disk = spec.domain.devices.disks.iter().find(|disk| disk.serial.as_deref() == serial)?;
    let volume = spec.volumes.iter().find(|volume| volume.name == disk.name)?;
    volume.secret.as_ref().map(|secret| secret.secret_name.as_str())
}

/// Plans the machine of an instance.
///
/// # Errors
/// The spec asks for what is not played here, or for an image that is not in the store.
pub fn plan(
    instance: &VirtualMachineInstance,
    host: &Host,
    accelerator: Accelerator,
    console: PathBuf,
) -> Result<Plan, Error> {
    let domain = &instance.spec.domain;
    if domain.machine.as_ref().and_then(|m| m.type_.as_deref()).is_some_and(|t| t != "q35") {
        return unsupported("spec.domain.machine.type", "only q35 is played");
    }
    let firmware = domain.firmware.clone().unwrap_or_default();
    check_bootloader(firmware.bootloader.as_ref())?;
    if firmware.rest.contains_key("kernelBoot") {
        return unsupported("spec.domain.firmware.kernelBoot", "only firmware boots are played");
    }
    let tpm = domain.devices.tpm.as_ref().filter(|tpm| tpm.rest.get("enabled") != Some(&Value::Bool(false)));
    if tpm.is_some_and(|tpm| tpm.persistent == Some(true)) {
        return unsupported("spec.domain.devices.tpm.persistent", "only non-persistent TPMs are played");
    }
    let cpu = domain.cpu.clone().unwrap_or_default();
    let topology = Topology {
        sockets: cpu.sockets.unwrap_or(1).max(1),
        cores: cpu.cores.unwrap_or(1).max(1),
        threads: cpu.threads.unwrap_or(1).max(1),
    };
    let mut materials = Vec::new();
    let mut disks = Vec::new();
    for spec in &domain.devices.disks {
        disks.push(disk(spec, instance, host, &mut materials)?);
    }
    let machine = Machine {
        accelerator,
        memory_mib: memory_mib(instance)?,
        topology,
        uuid: firmware.uuid,
        firmware: firmware::CODE.into(),
        variables: file::VARIABLES.into(),
        disks,
        network: network(instance, host)?,
        rng: domain.devices.rng.is_some(),
        tpm: tpm.map(|_| file::TPM_SOCKET.into()),
        console,
        qmp: file::QMP.into(),
        ends_on_reset: false,
    };
    Ok(Plan { machine, materials })
}

fn check_bootloader(bootloader: Option<&Value>) -> Result<(), Error> {
    let field = "spec.domain.firmware.bootloader";
    let Some(efi) = bootloader.and_then(|bootloader| bootloader.get("efi")) else {
        return unsupported(field, "only EFI is played");
    };
    // KubeVirt's default for an absent secureBoot is true.
    if efi.get("secureBoot") != Some(&Value::Bool(false)) {
        return unsupported(format!("{field}.efi.secureBoot"), "only false is played");
    }
    if efi.get("persistent") == Some(&Value::Bool(true)) {
        return unsupported(format!("{field}.efi.persistent"), "only false is played");
    }
    Ok(())
}

fn memory_mib(instance: &VirtualMachineInstance) -> Result<u64, Error> {
    let domain = &instance.spec.domain;
    let requested = domain.resources.as_ref().and_then(|resources| resources.requests.get("memory"));
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()).or(requested);
    let field = "spec.domain.memory.guest";
    let Some(guest) = guest else { return unsupported(field, "is needed") };
    match quantity::bytes(guest).map(|bytes| bytes / (1 << 20)) {
        Some(mib) if mib >= 64 => Ok(mib),
        _ => unsupported(field, format!("{} is not an amount of memory of at least 64Mi", guest.0)),
    }
}

fn disk(
    spec: &DiskSpec,
    instance: &VirtualMachineInstance,
    host: &Host,
    materials: &mut Vec<Material>,
) -> Result<Disk, Error> {
    let field = format!("spec.domain.devices.disks[{}]", spec.name);
    let target = |kind: &str| spec.rest.get(kind).filter(|value| !value.is_null());
    let (bus, read_only) = match (&spec.disk, target("cdrom")) {
        (Some(disk), None) => match disk.bus.as_deref() {
            Some("virtio") => (Bus::Virtio, disk.readonly == Some(true)),
            None | Some("sata") => (Bus::Sata, disk.readonly == Some(true)),
            Some(other) => return unsupported(field, format!("bus {other} is not played")),
        },
        (None, Some(cdrom)) => match cdrom.get("bus").and_then(Value::as_str) {
            None | Some("sata") => (Bus::SataCdrom, true),
            Some(other) => return unsupported(field, format!("bus {other} is not played")),
        },
        _ => return unsupported(field, "only disk and cdrom are played"),
    };
    if spec.serial.as_ref().is_some_and(|serial| serial.len() > SERIAL_LIMIT) {
        return unsupported(format!("{field}.serial"), format!("is longer than {SERIAL_LIMIT} bytes"));
    }
    let Some(volume) = instance.spec.volumes.iter().find(|volume| volume.name == spec.name) else {
        return unsupported(field, "there is no volume of that name");
    };
    let (file, writes) = source(volume, host, materials)?;
    Ok(Disk {
        name: spec.name.clone(),
        file,
        bus,
        writes: if read_only { Writes::Refused } else { writes },
        serial: spec.serial.clone(),
        boot_index: spec.boot_order,
    })
}

fn source(volume: &Volume, host: &Host, materials: &mut Vec<Material>) -> Result<(PathBuf, Writes), Error> {
    let field = format!("spec.volumes[{}]", volume.name);
    match volume {
        Volume { container_disk: Some(disk), .. } => Ok((host.images.disk(&disk.image)?, Writes::Forgotten)),
        Volume { secret: Some(secret), .. } => {
            let file = PathBuf::from(format!("{}.iso", volume.name));
            let label = secret.volume_label.as_deref().filter(|l| !l.is_empty()).unwrap_or(iso::DEFAULT_LABEL);
            materials.push(Material::Secret {
                file: file.clone(),
                secret: secret.secret_name.clone(),
                label: label.to_owned(),
            });
            Ok((file, Writes::Refused))
        }
        Volume { empty_disk: Some(disk), .. } => {
            let Some(bytes) = disk.capacity.as_ref().and_then(quantity::bytes) else {
                return unsupported(format!("{field}.emptyDisk.capacity"), "is not a size");
            };
            let file = PathBuf::from(format!("{}.raw", volume.name));
            // Disks are made of whole sectors.
            materials.push(Material::Scratch { file: file.clone(), bytes: bytes.next_multiple_of(512) });
            Ok((file, Writes::Kept))
        }
        _ => unsupported(field, "only containerDisk, secret and emptyDisk are played"),
    }
}

fn network(instance: &VirtualMachineInstance, host: &Host) -> Result<Option<Network>, Error> {
    let field = "spec.domain.devices.interfaces";
    let interface = match instance.spec.domain.devices.interfaces.as_slice() {
        [] => return Ok(None),
        [interface] => interface,
        _ => return unsupported(field, "only one interface is played"),
    };
    if !interface.contains_key("masquerade") {
        return unsupported(field, "only masquerade is played");
    }
    if interface.get("model").and_then(Value::as_str).is_some_and(|model| model != "virtio") {
        return unsupported(format!("{field}.model"), "only virtio is played");
    }
    let mac = interface.get("macAddress").and_then(Value::as_str).unwrap_or(DEFAULT_MAC);
    if mac.len() != 17 || !mac.chars().all(|c| c.is_ascii_hexdigit() || c == ':') {
        return unsupported(format!("{field}.macAddress"), "is not a MAC address");
    }
    Ok(Some(Network { mac: mac.to_owned(), allow: host.allow.clone(), connector: host.connector.clone() }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(root: &std::path::Path) -> Host {
        let folder = root.join("r_guest_dev");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("disk.raw"), b"").unwrap();
        Host { images: Images::new(root.to_owned()), allow: vec![], connector: "/bin/true".into() }
    }

    fn member() -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "m"},
            "spec": {
                "domain": {
                    "cpu": {"cores": 2, "sockets": 1, "threads": 1},
                    "memory": {"guest": "512Mi"},
                    "machine": {"type": "q35"},
                    "firmware": {
                        "uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223",
                        "bootloader": {"efi": {"secureBoot": false}}
                    },
                    "devices": {
                        "tpm": {"persistent": false}, "rng": {},
                        "disks": [
                            {"name": "image", "bootOrder": 1, "disk": {"bus": "virtio"}},
                            {"name": "scratch", "disk": {"bus": "virtio"}},
                            {"name": "banlieue-enrol", "serial": "BANLIEUE-ENROL", "disk": {"bus": "virtio", "readonly": true}}
                        ],
                        "interfaces": [{"name": "default", "masquerade": {}}]
                    }
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [
                    {"name": "image", "containerDisk": {"image": "r/guest:dev"}},
                    {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
                    {"name": "banlieue-enrol", "secret": {"secretName": "m-enrol"}}
                ]
            }
        })
    }

    fn planned(value: Value, host: &Host) -> Result<Plan, Error> {
        plan(&serde_json::from_value(value).unwrap(), host, Accelerator::Tcg, "/logs/m.console".into())
    }

    #[test]
    fn a_member_as_the_controller_makes_it() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let Plan { machine, materials } = planned(member(), &host).unwrap();
        assert_eq!(machine.memory_mib, 512);
        assert_eq!(machine.topology.vcpus(), 2);
        assert_eq!(machine.uuid.as_deref(), Some("5d307ca9-b3ef-428c-8861-06e72d69f223"));
        let disks: Vec<_> = machine.disks.iter().map(|d| (d.name.as_str(), d.writes, d.boot_index)).collect();
        assert_eq!(
            disks,
            [
                ("image", Writes::Forgotten, Some(1)),
                ("scratch", Writes::Kept, None),
                ("banlieue-enrol", Writes::Refused, None)
            ]
        );
        assert!(machine.tpm.is_some() && machine.rng && machine.network.is_some());
        assert_eq!(
            materials,
            [
                Material::Scratch { file: "scratch.raw".into(), bytes: 1 << 30 },
                Material::Secret {
                    file: "banlieue-enrol.iso".into(),
                    secret: "m-enrol".into(),
                    label: "cfgdata".into()
                }
            ]
        );
        let instance = serde_json::from_value(member()).unwrap();
        assert_eq!(boot_image(&instance).unwrap(), "r/guest:dev");
        assert_eq!(seed_secret(&instance), Some("m-enrol"));
    }

    #[test]
    fn what_is_not_played_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        for (pointer, value, said) in [
            ("/spec/domain/machine/type", json!("pc"), "machine.type"),
            ("/spec/domain/firmware/bootloader", json!({"bios": {}}), "bootloader"),
            ("/spec/domain/firmware/bootloader/efi", json!({}), "secureBoot"),
            ("/spec/domain/devices/tpm/persistent", json!(true), "tpm.persistent"),
            ("/spec/domain/memory/guest", json!("much"), "memory.guest"),
            ("/spec/domain/devices/disks/0/disk/bus", json!("scsi"), "disks[image]"),
            ("/spec/domain/devices/disks/2/serial", json!("x".repeat(21)), "serial"),
            ("/spec/domain/devices/interfaces/0", json!({"name": "default", "bridge": {}}), "interfaces"),
            ("/spec/volumes/0", json!({"name": "image", "hostDisk": {}}), "volumes[image]"),
            ("/spec/volumes/0/containerDisk/image", json!("r/other:1"), "r/other:1"),
            ("/spec/volumes/1/emptyDisk/capacity", json!("-1"), "capacity"),
        ] {
            let mut spec = member();
            *spec.pointer_mut(pointer).unwrap() = value;
            let error = planned(spec, &host).unwrap_err().to_string();
            assert!(error.contains(said), "{pointer}: {error}");
        }
    }
}
