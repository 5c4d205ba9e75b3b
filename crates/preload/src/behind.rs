//! Functions that read or write a descriptor inside libc, where nothing of ours stands: the socket goes back to TCP before,
//! with the word `shared`. Which functions of glibc there are is in `tests/glibc.txt`.

use std::ffi::{c_int, c_void};

use interpose::calls;
use libc::{aiocb, sigevent};

mod next {
    use super::*;
    interpose::functions! {
        aio_read(block: *mut aiocb) -> c_int;
        aio_read64(block: *mut aiocb) -> c_int;
        aio_write(block: *mut aiocb) -> c_int;
        aio_write64(block: *mut aiocb) -> c_int;
        lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
        lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
        eventfd_read(fd: c_int, value: *mut u64) -> c_int;
        eventfd_write(fd: c_int, value: u64) -> c_int;
        backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> c_int;
        __backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> c_int;
    }
}

macro_rules! names {
    ($($name:ident($($argument:ident: $type:ty),*) by $descriptors:expr;)*) => {$(
        /// As the C function of its name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the same contract as that of the C function, which looks at the same memory.
            unsafe {
                $descriptors.into_iter().for_each(calls::read_by_libc);
                next::$name($($argument),*)
            }
        }
    )*};
}

names! {
    aio_read(block: *mut aiocb) by [(*block).aio_fildes];
    aio_read64(block: *mut aiocb) by [(*block).aio_fildes];
    aio_write(block: *mut aiocb) by [(*block).aio_fildes];
    aio_write64(block: *mut aiocb) by [(*block).aio_fildes];
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) by all_of(list, count);
    lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) by all_of(list, count);
    eventfd_read(fd: c_int, value: *mut u64) by [fd];
    eventfd_write(fd: c_int, value: u64) by [fd];
    backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) by [fd];
    __backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) by [fd];
}

/// # Safety
///
/// As lio_listio(3): `count` pointers, some of them null.
unsafe fn all_of(list: *const *mut aiocb, count: c_int) -> impl Iterator<Item = c_int> {
    // SAFETY: the caller's promise.
    let blocks = (0..usize::try_from(count).unwrap_or(0)).map(move |place| unsafe { *list.add(place) });
    // SAFETY: so.
    blocks.filter(|block| !block.is_null()).map(|block| unsafe { (*block).aio_fildes })
}
