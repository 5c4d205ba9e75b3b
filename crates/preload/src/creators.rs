//! Whatever else makes a descriptor: its number may have been a socket's that was closed
//! unseen.

use std::ffi::{c_char, c_int, c_uint, c_void};

use interpose::calls;
use libc::{mode_t, pid_t, sigset_t};

macro_rules! creators {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        mod next {
            use super::*;
            interpose::functions! { $($name($($argument: $type),*) -> c_int;)* }
        }
        $(
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the same contract as that of the C function.
                calls::made(unsafe { next::$name($($argument),*) })
            }
        )*
    };
}

creators! {
    open(path: *const c_char, flags: c_int, mode: mode_t);
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    __open(path: *const c_char, flags: c_int, mode: mode_t);
    __open64(path: *const c_char, flags: c_int, mode: mode_t);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(at: c_int, path: *const c_char, flags: c_int);
    __openat64_2(at: c_int, path: *const c_char, flags: c_int);
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int);
    shm_open(name: *const c_char, flags: c_int, mode: mode_t);
    posix_openpt(flags: c_int);
    fanotify_init(flags: c_uint, events: c_uint);
    creat(path: *const c_char, mode: mode_t);
    creat64(path: *const c_char, mode: mode_t);
    eventfd(value: c_uint, flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    memfd_create(name: *const c_char, flags: c_uint);
    inotify_init();
    inotify_init1(flags: c_int);
    pidfd_open(process: pid_t, flags: c_uint);
    mkstemp(template: *mut c_char);
    mkostemp(template: *mut c_char, flags: c_int);
    mkstemp64(template: *mut c_char);
    mkostemp64(template: *mut c_char, flags: c_int);
    mkstemps(template: *mut c_char, suffix: c_int);
    mkstemps64(template: *mut c_char, suffix: c_int);
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int);
}

macro_rules! pipes {
    ($($name:ident($pair:ident: *mut c_int $(, $argument:ident: $type:ty)*);)*) => {
        mod next_pipes {
            use super::*;
            interpose::functions! { $($name($pair: *mut c_int $(, $argument: $type)*) -> c_int;)* }
        }
        $(
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($pair: *mut c_int $(, $argument: $type)*) -> c_int {
                // SAFETY: the same contract as that of the C function, which fills the pair.
                unsafe { calls::made_pair(next_pipes::$name($pair $(, $argument)*), $pair) }
            }
        )*
    };
}

pipes! {
    pipe(pair: *mut c_int);
    __pipe(pair: *mut c_int);
    pipe2(pair: *mut c_int, flags: c_int);
}

/// opendir(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    mod next {
        use super::*;
        interpose::functions! { opendir(path: *const c_char) -> *mut libc::DIR; }
    }
    // SAFETY: the same contract as that of the C function.
    unsafe {
        let directory = next::opendir(path);
        if !directory.is_null() {
            calls::made(libc::dirfd(directory));
        }
        directory
    }
}

/// openpty(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openpty(
    main: *mut c_int,
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const libc::termios,
    size: *const libc::winsize,
) -> c_int {
    mod next {
        use super::*;
        interpose::functions! {
            openpty(main: *mut c_int, terminal: *mut c_int, name: *mut c_char, settings: *const libc::termios, size: *const libc::winsize) -> c_int;
        }
    }
    // SAFETY: the same contract as that of the C function, which fills both numbers.
    unsafe {
        let status = next::openpty(main, terminal, name, settings, size);
        if status == 0 {
            calls::made(*main);
            calls::made(*terminal);
        }
        status
    }
}

macro_rules! streams {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        mod next_streams {
            use super::*;
            interpose::functions! { $($name($($argument: $type),*) -> *mut libc::FILE;)* }
        }
        $(
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> *mut libc::FILE {
                // SAFETY: the same contract as that of the C function.
                unsafe {
                    let stream = next_streams::$name($($argument),*);
                    if !stream.is_null() {
                        calls::made(libc::fileno(stream));
                    }
                    stream
                }
            }
        )*
    };
}

streams! {
    fopen(path: *const c_char, mode: *const c_char);
    fopen64(path: *const c_char, mode: *const c_char);
    freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE);
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE);
    tmpfile();
    tmpfile64();
}
