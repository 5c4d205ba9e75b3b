//! Reports to ThreadSanitizer, in programs that are built with it, which thread uses memory of the
//! library: it sees libc's accesses to that memory, but not the atomics that order them.
#![allow(unsafe_code)] // C functions are called through addresses that dlsym(3) gave

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// One of its functions, or null.
type Hook = AtomicPtr<c_void>;

static ACQUIRE: Hook = AtomicPtr::new(null_mut());
static RELEASE: Hook = AtomicPtr::new(null_mut());

/// To be called at the start.
pub(crate) fn find() {
    look_up(&ACQUIRE, c"__tsan_acquire");
    look_up(&RELEASE, c"__tsan_release");
}

/// This thread has allocated memory that another one freed.
pub(crate) fn acquires(memory: *mut u8) {
    call_hook(&ACQUIRE, memory);
}

/// This thread is about to free memory, which another one may allocate.
pub(crate) fn releases(memory: *mut u8) {
    call_hook(&RELEASE, memory);
}

fn look_up(hook: &Hook, name: &CStr) {
    // SAFETY: the name ends with 0, and RTLD_DEFAULT is a handle that dlsym(3) accepts.
    hook.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }, Relaxed);
}

fn call_hook(hook: &Hook, memory: *mut u8) {
    let function = hook.load(Relaxed);
    if !function.is_null() {
        // SAFETY: sanitizer/tsan_interface.h declares these functions with this type, for any
        // address.
        unsafe {
            let function: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(function);
            function(memory.cast());
        }
    }
}
