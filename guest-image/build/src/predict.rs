//! What firmware, stub and kernel will measure of an image, computed from its bytes alone.
//!
//! - PCR 4: firmware, each executable it loads: the image, then the kernel inside it, which the stub has it load.
//!   TCG PC Client Platform Firmware Profile 1.05, 3.3.4.5.
//! - PCR 9: the kernel's EFI stub, the command line and the initrd it is handed
//!   (`drivers/firmware/efi/libstub/efi-stub-helper.c`).
//! - PCR 11: systemd-stub 252, each section's name and content, in the stub's own order (`src/boot/efi/stub.c`).

use aws_lc_rs::digest::{Context, SHA256};

use crate::pe;

/// Predicted SHA-256 values of the three PCRs that depend on the image alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    /// PCR 4.
    pub boot: [u8; 32],
    /// PCR 9.
    pub handed: [u8; 32],
    /// PCR 11.
    pub sections: [u8; 32],
}

/// A PCR being extended, from zero.
#[derive(Debug, Default)]
struct Register([u8; 32]);

impl Register {
    fn extend_data(&mut self, data: &[u8]) {
        self.extend(&crate::sha256(data));
    }

    fn extend(&mut self, digest: &[u8; 32]) {
        let mut hash = Context::new(&SHA256);
        hash.update(&self.0);
        hash.update(digest);
        self.0.copy_from_slice(hash.finish().as_ref());
    }
}

/// The command line as the stub hands it on: UTF-16 with a terminating zero.
fn load_options(command_line: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(command_line).encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// The stub measures sections in this order, whatever their order in the file.
const MEASURED: &[&str] = &[".linux", ".osrel", ".cmdline", ".initrd"];

/// Predicts for `image`, a unified kernel image.
pub fn predict(image: &[u8]) -> Result<Prediction, pe::Error> {
    let mut boot = Register::default();
    // Firmware says what it is about to do, then closes the pre-boot measurements with a separator.
    boot.extend_data(b"Calling EFI Application from Boot Option");
    boot.extend_data(&[0; 4]);
    boot.extend(&pe::authenticode(image)?);
    boot.extend(&pe::authenticode(pe::section(image, ".linux")?)?);

    let mut handed = Register::default();
    handed.extend_data(&load_options(pe::section(image, ".cmdline")?));
    handed.extend_data(pe::section(image, ".initrd")?);

    let mut sections = Register::default();
    for name in MEASURED {
        let mut terminated = name.as_bytes().to_vec();
        terminated.push(0);
        sections.extend_data(&terminated);
        sections.extend_data(pe::section(image, name)?);
    }
    Ok(Prediction { boot: boot.0, handed: handed.0, sections: sections.0 })
}
