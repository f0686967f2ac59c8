//! The disk: a GPT with one EFI system partition, a FAT file system that holds the unified kernel image.
//!
//! Every identifier and time in it is fixed, so that the same files give the same bytes.

use std::{
    io::{Cursor, Seek, SeekFrom, Write},
    path::Path,
    process::{Command, Stdio},
};

use gpt::{GptConfig, disk::LogicalBlockSize, mbr::ProtectiveMBR, partition_types};
use thiserror::Error;
use uuid::Uuid;

/// Where firmware looks on a disk without boot entries (UEFI 2.10, 3.5.1.1).
pub const BOOT_FILE: &str = "EFI/BOOT/BOOTX64.EFI";

const SECTOR: u64 = 512;
const MIB: u64 = 1 << 20;
/// The partition starts at 1 MiB and as much stays free behind it, for the second table.
const START: u64 = MIB / SECTOR;
const DISK_GUID: Uuid = Uuid::from_u128(0x6261_6e6c_6965_7565_8000_6469_736b_0001);
const PARTITION_GUID: Uuid = Uuid::from_u128(0x6261_6e6c_6965_7565_8000_6573_7030_0001);
const VOLUME_ID: &str = "ba711e0e";
/// 1980-01-01 00:00 UTC, the earliest time FAT can say; mtools stamps what it makes with it.
const EPOCH: &str = "315532800";

/// Why the disk could not be written or read.
#[derive(Debug, Error)]
pub enum Error {
    /// A program of dosfstools or mtools failed.
    #[error("cannot {act} on the EFI system partition: {detail} (packages dosfstools, mtools)")]
    Fat {
        /// What was being done.
        act: String,
        /// What the program said.
        detail: String,
    },
    /// A working file could not be written or read.
    #[error("cannot write a working file: {0}")]
    Io(#[from] std::io::Error),
    /// The partition table refused.
    #[error("cannot write or read the partition table: {0}")]
    Gpt(String),
}

fn gpt_error(e: impl std::fmt::Display) -> Error {
    Error::Gpt(e.to_string())
}

/// Runs one of the FAT programs with `input`; gives what it printed.
fn fat(act: &str, command: &mut Command, input: &[u8]) -> Result<Vec<u8>, Error> {
    let failed = |detail: String| Error::Fat { act: act.to_owned(), detail };
    let fixed = [("SOURCE_DATE_EPOCH", EPOCH), ("TZ", "UTC"), ("MTOOLSRC", "/dev/null"), ("LC_ALL", "C.UTF-8")];
    let command = command.envs(fixed).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    // These programs print nothing before they have read everything, so writing first cannot block both sides.
    let fed = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input));
    let out = child.wait_with_output()?;
    if !out.status.success() {
        return Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned()));
    }
    fed?;
    Ok(out.stdout)
}

/// A disk whose ESP holds `files` (path with slashes, content).
pub fn write(files: &[(&str, &[u8])]) -> Result<Vec<u8>, Error> {
    let content: u64 = files.iter().map(|(_, c)| c.len() as u64).sum();
    // FAT32 needs 65525 clusters at least; with 512-byte clusters 34 MiB is the least. 4 MiB over for the tables.
    let partition = (content + content / 64 + 4 * MIB).max(36 * MIB).next_multiple_of(MIB);
    let total = partition + 2 * MIB;
    let esp = file_system(partition, files)?;

    let mut disk = Cursor::new(vec![0; usize::try_from(total).map_err(gpt_error)?]);
    let last = u32::try_from(total / SECTOR - 1).map_err(gpt_error)?;
    ProtectiveMBR::with_lb_size(last).overwrite_lba0(&mut disk).map_err(gpt_error)?;
    let config = GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut table = config.create_from_device(disk, Some(DISK_GUID)).map_err(gpt_error)?;
    let first = gpt::partition::Partition {
        part_type_guid: partition_types::EFI,
        part_guid: PARTITION_GUID,
        first_lba: START,
        last_lba: START + partition / SECTOR - 1,
        flags: 0,
        name: "esp".to_owned(),
    };
    table.update_partitions([(1, first)].into_iter().collect()).map_err(gpt_error)?;
    let mut disk = table.write().map_err(gpt_error)?;
    disk.seek(SeekFrom::Start(START * SECTOR))?;
    disk.write_all(&esp)?;
    Ok(disk.into_inner())
}

fn file_system(size: u64, files: &[(&str, &[u8])]) -> Result<Vec<u8>, Error> {
    let image = tempfile::NamedTempFile::new()?;
    image.as_file().set_len(size)?;
    let mut format = Command::new("mkfs.vfat");
    format.args(["--invariant", "-F", "32", "-s", "1", "-i", VOLUME_ID, "-n", "BANLIEUE"]).arg(image.path());
    fat("make a file system", &mut format, &[])?;
    let mut made: Vec<&Path> = vec![Path::new("")];
    for (path, content) in files {
        let folders: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        for folder in folders.into_iter().rev() {
            if !made.contains(&folder) {
                let mut mmd = Command::new("mmd");
                mmd.arg("-i").arg(image.path()).arg(format!("::/{}", folder.display()));
                fat(&format!("make {}", folder.display()), &mut mmd, &[])?;
                made.push(folder);
            }
        }
        let mut mcopy = Command::new("mcopy");
        mcopy.arg("-i").arg(image.path()).arg("-").arg(format!("::/{path}"));
        fat(&format!("write {path}"), &mut mcopy, content)?;
    }
    Ok(std::fs::read(image.path())?)
}

/// The content of `path` on the ESP of `disk`.
pub fn read(disk: &[u8], path: &str) -> Result<Vec<u8>, Error> {
    let config = GptConfig::new().writable(false).logical_block_size(LogicalBlockSize::Lb512);
    let table = config.open_from_device(Cursor::new(disk.to_vec())).map_err(gpt_error)?;
    let esp = table
        .partitions()
        .values()
        .find(|p| p.part_type_guid == partition_types::EFI)
        .ok_or_else(|| Error::Gpt("there is no EFI system partition".to_owned()))?;
    let range = (esp.first_lba * SECTOR) as usize..((esp.last_lba + 1) * SECTOR) as usize;
    let esp = disk.get(range).ok_or_else(|| Error::Gpt("the partition lies outside the disk".to_owned()))?;
    let mut image = tempfile::NamedTempFile::new()?;
    image.write_all(esp)?;
    let mut mcopy = Command::new("mcopy");
    mcopy.arg("-i").arg(image.path()).arg(format!("::/{path}")).arg("-");
    fat(&format!("read {path}"), &mut mcopy, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_files_same_bytes_and_they_read_back() {
        let files: &[(&str, &[u8])] = &[(BOOT_FILE, &[5; 100_000]), ("EFI/BOOT/BOOTX64.EFI.extra.d/a.cred", b"x")];
        let disk = write(files).unwrap();
        assert!(disk == write(files).unwrap(), "two builds differ");
        for (path, content) in files {
            assert_eq!(read(&disk, path).unwrap(), *content);
        }
    }

    #[test]
    fn sgdisk_and_fsck_find_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.raw");
        let disk = write(&[(BOOT_FILE, &[5; 100_000])]).unwrap();
        std::fs::write(&path, &disk).unwrap();
        let table = std::process::Command::new("sgdisk").arg("-v").arg(&path).output().expect("apt-get install gdisk");
        let said = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(said.contains("No problems found"), "{said}");
        let esp = dir.path().join("esp.img");
        std::fs::write(&esp, &disk[MIB as usize..disk.len() - MIB as usize]).unwrap();
        let fsck =
            std::process::Command::new("fsck.vfat").arg("-n").arg(&esp).output().expect("apt-get install dosfstools");
        assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stdout));
    }
}
