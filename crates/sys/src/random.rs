//! Bytes that nobody can predict.
#![allow(unsafe_code)] // getrandom(2)

use std::io;

/// Fills `bytes` by getrandom(2).
pub fn fill(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the kernel writes at most `bytes.len()` bytes to the slice.
        let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match usize::try_from(filled) {
            Ok(filled) => bytes = &mut bytes[filled..],
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}
