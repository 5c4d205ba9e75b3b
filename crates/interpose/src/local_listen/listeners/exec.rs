//! A program that this process executes with its listeners, as nginx's binary upgrade does: it
//! inherits the steering of each inherited listener, and adds its own workers' siblings to those of
//! the earlier workers.

use std::ffi::c_char;

use super::super::names::is_on;
use super::listeners;
use crate::kernel;
use crate::memory::{are_readable, is_readable};
use crate::real::kept_errno;
use crate::vfork;

/// A program with this environment is about to be executed. True: it inherits steering;
/// [`exec_failed`] follows if the call returns.
///
/// # Safety
///
/// As execve(2).
#[cold]
pub(crate) unsafe fn before_exec(environment: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let inherits = is_on() && !vfork::borrows_memory() && unsafe { loads_library(environment) };
    if inherits {
        kept_errno(|| set_close_at_exec(false));
    }
    inherits
}

/// Programs inherit no steering from here on.
#[cold]
pub(crate) fn exec_failed() {
    kept_errno(|| set_close_at_exec(true));
}

fn set_close_at_exec(closes: bool) {
    for listener in listeners().iter().flatten() {
        let Some(steering) = &listener.steering else { continue };
        if closes || (kernel::is_inherited(listener.fd) && steering.is_shared_by(listener.fd)) {
            steering.descriptors().into_iter().for_each(|fd| kernel::set_close_at_exec(fd, closes));
        }
    }
}

/// Whether the program loads this library with the option on, and so takes over or closes what it
/// inherits. Any other program would keep the descriptors open.
///
/// # Safety
///
/// As execve(2).
unsafe fn loads_library(environment: *const *const c_char) -> bool {
    let (mut has_library, mut is_on) = (false, false);
    let mut at = environment;
    // SAFETY: each entry can be read, and null is the last one.
    unsafe {
        while is_readable(at) && !at.read_unaligned().is_null() {
            let entry = at.read_unaligned();
            has_library |= begins_with(entry, b"LD_PRELOAD=") && names_library(entry);
            is_on |= begins_with(entry, b"MEGAPIPE_LOCAL_LISTEN=1\0");
            at = at.add(1);
        }
    }
    has_library && is_on
}

/// Whether the list has a path with this library's file name (ld.so(8)), as `megapipe run` writes
/// it. An upgraded library may be in another folder.
///
/// # Safety
///
/// As execve(2).
unsafe fn names_library(mut list: *const c_char) -> bool {
    const ENDS: [&[u8]; 3] =
        [b"/libmegapipe_preload.so\0", b"/libmegapipe_preload.so:", b"/libmegapipe_preload.so "];
    // SAFETY: each byte up to the null that ends the string can be read.
    unsafe {
        while is_readable(list) && list.read() != 0 {
            if ENDS.iter().any(|end| begins_with(list, end)) {
                return true;
            }
            list = list.add(1);
        }
    }
    false
}

/// # Safety
///
/// No other thread writes there.
unsafe fn begins_with(text: *const c_char, wanted: &[u8]) -> bool {
    let text = text.cast::<u8>();
    // SAFETY: that many bytes can be read, and the caller's promise.
    are_readable(text, wanted.len()) && unsafe { std::slice::from_raw_parts(text, wanted.len()) } == wanted
}
