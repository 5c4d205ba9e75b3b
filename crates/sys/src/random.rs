//! Unpredictable bytes.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` by getrandom(2).
pub fn fill(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let filled = rustix::io::retry_on_intr(|| getrandom(&mut *bytes, GetRandomFlags::empty()))?;
        bytes = &mut bytes[filled..];
    }
    Ok(())
}
