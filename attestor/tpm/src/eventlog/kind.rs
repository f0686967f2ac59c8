//! Event types (PFP, 10.4.1).

use std::fmt;

/// A TCG event type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKind(pub u32);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl EventKind {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            const NAMES: &'static [(u32, &'static str)] = &[$(($value, $text),)*];
        }
    };
}

kinds! {
    /// EV_POST_CODE.
    POST_CODE = 0x0000_0001, "EV_POST_CODE";
    /// EV_NO_ACTION.
    NO_ACTION = 0x0000_0003, "EV_NO_ACTION";
    /// EV_SEPARATOR.
    SEPARATOR = 0x0000_0004, "EV_SEPARATOR";
    /// EV_ACTION.
    ACTION = 0x0000_0005, "EV_ACTION";
    /// EV_EVENT_TAG.
    EVENT_TAG = 0x0000_0006, "EV_EVENT_TAG";
    /// EV_S_CRTM_CONTENTS.
    S_CRTM_CONTENTS = 0x0000_0007, "EV_S_CRTM_CONTENTS";
    /// EV_S_CRTM_VERSION.
    S_CRTM_VERSION = 0x0000_0008, "EV_S_CRTM_VERSION";
    /// EV_CPU_MICROCODE.
    CPU_MICROCODE = 0x0000_0009, "EV_CPU_MICROCODE";
    /// EV_PLATFORM_CONFIG_FLAGS.
    PLATFORM_CONFIG_FLAGS = 0x0000_000a, "EV_PLATFORM_CONFIG_FLAGS";
    /// EV_TABLE_OF_DEVICES.
    TABLE_OF_DEVICES = 0x0000_000b, "EV_TABLE_OF_DEVICES";
    /// EV_COMPACT_HASH.
    COMPACT_HASH = 0x0000_000c, "EV_COMPACT_HASH";
    /// EV_IPL.
    IPL = 0x0000_000d, "EV_IPL";
    /// EV_IPL_PARTITION_DATA.
    IPL_PARTITION_DATA = 0x0000_000e, "EV_IPL_PARTITION_DATA";
    /// EV_NONHOST_CODE.
    NONHOST_CODE = 0x0000_000f, "EV_NONHOST_CODE";
    /// EV_NONHOST_CONFIG.
    NONHOST_CONFIG = 0x0000_0010, "EV_NONHOST_CONFIG";
    /// EV_NONHOST_INFO.
    NONHOST_INFO = 0x0000_0011, "EV_NONHOST_INFO";
    /// EV_OMIT_BOOT_DEVICE_EVENTS.
    OMIT_BOOT_DEVICE_EVENTS = 0x0000_0012, "EV_OMIT_BOOT_DEVICE_EVENTS";
    /// EV_POST_CODE2.
    POST_CODE2 = 0x0000_0013, "EV_POST_CODE2";
    /// EV_EFI_VARIABLE_DRIVER_CONFIG.
    EFI_VARIABLE_DRIVER_CONFIG = 0x8000_0001, "EV_EFI_VARIABLE_DRIVER_CONFIG";
    /// EV_EFI_VARIABLE_BOOT.
    EFI_VARIABLE_BOOT = 0x8000_0002, "EV_EFI_VARIABLE_BOOT";
    /// EV_EFI_BOOT_SERVICES_APPLICATION.
    EFI_BOOT_SERVICES_APPLICATION = 0x8000_0003, "EV_EFI_BOOT_SERVICES_APPLICATION";
    /// EV_EFI_BOOT_SERVICES_DRIVER.
    EFI_BOOT_SERVICES_DRIVER = 0x8000_0004, "EV_EFI_BOOT_SERVICES_DRIVER";
    /// EV_EFI_RUNTIME_SERVICES_DRIVER.
    EFI_RUNTIME_SERVICES_DRIVER = 0x8000_0005, "EV_EFI_RUNTIME_SERVICES_DRIVER";
    /// EV_EFI_GPT_EVENT.
    EFI_GPT_EVENT = 0x8000_0006, "EV_EFI_GPT_EVENT";
    /// EV_EFI_ACTION.
    EFI_ACTION = 0x8000_0007, "EV_EFI_ACTION";
    /// EV_EFI_PLATFORM_FIRMWARE_BLOB.
    EFI_PLATFORM_FIRMWARE_BLOB = 0x8000_0008, "EV_EFI_PLATFORM_FIRMWARE_BLOB";
    /// EV_EFI_HANDOFF_TABLES.
    EFI_HANDOFF_TABLES = 0x8000_0009, "EV_EFI_HANDOFF_TABLES";
    /// EV_EFI_PLATFORM_FIRMWARE_BLOB2.
    EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000_000a, "EV_EFI_PLATFORM_FIRMWARE_BLOB2";
    /// EV_EFI_HANDOFF_TABLES2.
    EFI_HANDOFF_TABLES2 = 0x8000_000b, "EV_EFI_HANDOFF_TABLES2";
    /// EV_EFI_VARIABLE_BOOT2.
    EFI_VARIABLE_BOOT2 = 0x8000_000c, "EV_EFI_VARIABLE_BOOT2";
    /// EV_EFI_GPT_EVENT2.
    EFI_GPT_EVENT2 = 0x8000_000d, "EV_EFI_GPT_EVENT2";
    /// EV_EFI_HCRTM_EVENT.
    EFI_HCRTM_EVENT = 0x8000_0010, "EV_EFI_HCRTM_EVENT";
    /// EV_EFI_VARIABLE_AUTHORITY.
    EFI_VARIABLE_AUTHORITY = 0x8000_00e0, "EV_EFI_VARIABLE_AUTHORITY";
    /// EV_EFI_SPDM_FIRMWARE_BLOB.
    EFI_SPDM_FIRMWARE_BLOB = 0x8000_00e1, "EV_EFI_SPDM_FIRMWARE_BLOB";
    /// EV_EFI_SPDM_FIRMWARE_CONFIG.
    EFI_SPDM_FIRMWARE_CONFIG = 0x8000_00e2, "EV_EFI_SPDM_FIRMWARE_CONFIG";
}

impl EventKind {
    /// The specification's name, or the number when it has none.
    pub fn name(self) -> String {
        match Self::NAMES.iter().find(|(value, _)| *value == self.0) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("{:#010x}", self.0),
        }
    }

    /// From the specification's name, or a number written as [`EventKind::name`] writes it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(value, _)| Self(*value)).or_else(|| {
            let number = Self(u32::from_str_radix(name.strip_prefix("0x")?, 16).ok()?);
            (number.name() == name).then_some(number)
        })
    }

    /// Whether the specification defines the digest as the hash of the event data (PFP, 10.4.1). Types whose digest is
    /// over something else, or whose firmware disagree on it (EV_EFI_VARIABLE_BOOT), are not among them.
    pub fn digest_is_hash_of_data(self) -> bool {
        matches!(
            self,
            Self::SEPARATOR
                | Self::ACTION
                | Self::EFI_ACTION
                | Self::S_CRTM_VERSION
                | Self::EFI_VARIABLE_DRIVER_CONFIG
                | Self::EFI_VARIABLE_BOOT2
                | Self::EFI_VARIABLE_AUTHORITY
                | Self::EFI_GPT_EVENT
        )
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
