//! Users by name and by number, from wherever this host keeps them (nsswitch.conf(5)).

use std::ffi::{CStr, CString};
use std::io;

use libc::{c_char, c_int, passwd, size_t};

/// Bytes of a record. A longer one is refused: that of a user has some hundred.
const LARGEST: usize = 1 << 20;

/// The number of the user of this name; `None`: there is none.
///
/// # Errors
///
/// The users cannot be read.
pub fn number(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    record(
        // SAFETY: `record` passes memory as getpwnam_r(3) wants it; the name outlives the call.
        |entry, text, size, found| unsafe { libc::getpwnam_r(name.as_ptr(), entry, text, size, found) },
        |entry| entry.pw_uid,
    )
}

/// The name of the user of this number; `None`: there is none.
///
/// # Errors
///
/// The users cannot be read.
pub fn name(number: u32) -> io::Result<Option<String>> {
    record(
        // SAFETY: `record` passes memory as getpwuid_r(3) wants it.
        |entry, text, size, found| unsafe { libc::getpwuid_r(number, entry, text, size, found) },
        // SAFETY: the record was found, so its name is a string in the memory that is borrowed here.
        |entry| unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned(),
    )
}

/// Asks for a record with as much memory for its strings as it needs.
fn record<T>(
    ask: impl Fn(*mut passwd, *mut c_char, size_t, *mut *mut passwd) -> c_int,
    read: impl FnOnce(&passwd) -> T,
) -> io::Result<Option<T>> {
    let mut text = vec![0; 1024];
    loop {
        let mut entry = std::mem::MaybeUninit::<passwd>::uninit();
        let mut found = std::ptr::null_mut();
        match ask(entry.as_mut_ptr(), text.as_mut_ptr(), text.len(), &mut found) {
            // SAFETY: not null, so libc has filled `entry`, whose strings lie in `text`; both live.
            0 => return Ok(unsafe { found.as_ref() }.map(read)),
            libc::ERANGE if text.len() < LARGEST => text.resize(text.len() * 2, 0),
            libc::EINTR => {}
            // What getpwnam(3) lists for a user that is not there.
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        assert_eq!(number("root").unwrap(), Some(0));
        assert_eq!(name(0).unwrap().as_deref(), Some("root"));
        assert_eq!(number("no such user").unwrap(), None);
        assert_eq!(number("a\0b").unwrap(), None);
        assert_eq!(name(u32::MAX - 1).unwrap(), None);
    }
}
