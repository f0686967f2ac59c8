//! The event log in M3, packed by zstd: logs repeat themselves, and M3 has a limit.

// What may not be unpacked could not be parsed either: one limit.
pub use banlieue_tpm::eventlog::MAX_LOG;

/// Why a packed log is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogCodecError {
    /// Not zstd, or more than [`MAX_LOG`] when unpacked.
    #[error("event log is not zstd, or has more than {MAX_LOG} bytes when unpacked")]
    Unpack,
    /// The log to pack is too large.
    #[error("event log has more than {MAX_LOG} bytes")]
    TooLarge,
    /// The packer failed.
    #[error("event log cannot be packed")]
    Pack,
}

impl LogCodecError {
    /// Fixed word for metrics.
    pub fn category(&self) -> &'static str {
        "log"
    }
}

/// Packs a log.
pub fn pack(log: &[u8]) -> Result<Vec<u8>, LogCodecError> {
    if log.len() > MAX_LOG {
        return Err(LogCodecError::TooLarge);
    }
    zstd::bulk::compress(log, 3).map_err(|_| LogCodecError::Pack)
}

/// Unpacks a log into at most [`MAX_LOG`] bytes, whatever the packed bytes claim.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, LogCodecError> {
    // One-shot decoding writes into this one buffer and needs no window, so the bound on memory is the bound on output.
    zstd::bulk::decompress(packed, MAX_LOG).map_err(|_| LogCodecError::Unpack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_survives() {
        for log in [Vec::new(), vec![1; 4096], (0..=255).cycle().take(MAX_LOG).collect()] {
            assert_eq!(unpack(&pack(&log).unwrap()).unwrap(), log);
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 64 * 1024 * 1024], 19).unwrap();
        assert!(bomb.len() < 16 * 1024);
        assert_eq!(unpack(&bomb), Err(LogCodecError::Unpack));
        assert_eq!(unpack(&zstd::bulk::compress(&vec![0; MAX_LOG + 1], 1).unwrap()), Err(LogCodecError::Unpack));
        // Many small frames one after the other.
        let frame = zstd::bulk::compress(&vec![0; MAX_LOG / 2], 1).unwrap();
        assert_eq!(unpack(&[frame.clone(), frame.clone(), frame].concat()), Err(LogCodecError::Unpack));
        assert_eq!(pack(&vec![0; MAX_LOG + 1]), Err(LogCodecError::TooLarge));
    }

    #[test]
    fn junk_is_refused() {
        let packed = pack(&[7; 1000]).unwrap();
        for cut in 1..packed.len() {
            assert!(unpack(packed.get(..cut).unwrap()).is_err(), "{cut}");
        }
        assert!(unpack(b"junk junk junk").is_err());
        assert!(unpack(&[packed.as_slice(), b"x"].concat()).is_err());
    }
}
