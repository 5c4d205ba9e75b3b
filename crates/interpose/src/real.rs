//! The functions that this crate overrides: libc's, or those of the next library that overrides
//! them.
//!
//! Each is resolved at its first call, since memory allocators and other libraries call some of
//! them before any constructor has run.
#![allow(unsafe_code)] // C functions are called through addresses that dlsym(3) gave
#![allow(non_snake_case)] // C names
#![allow(missing_docs)] // each function is documented under its name in section 2 or 3 of the manual
#![allow(clippy::missing_safety_doc)] // what the C function of the name asks for

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, off_t, pid_t, pollfd, sighandler_t, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// The next function of a name.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// Resolved at its first use.
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Its address; never null.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name ends with 0, and RTLD_NEXT is a handle that dlsym(3) accepts.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // A library that has it may be loaded later.
            return missing as *mut c_void;
        }
        self.address.store(found, Relaxed);
        found
    }
}

/// Stands for a function that this libc lacks: a caller could not have been linked, or found it by
/// dlsym(3).
extern "C" fn missing() -> c_long {
    set_errno(libc::ENOSYS);
    -1
}

/// The descriptor of this number.
pub(crate) fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: the number is not -1, and the current call has it from the program, which keeps it
    // open meanwhile, or gets EBADF.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Sets errno of the calling thread.
pub fn set_errno(errno: c_int) {
    // SAFETY: libc keeps the address valid for the thread's life.
    unsafe { *libc::__errno_location() = errno };
}

/// errno of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: as for `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// Runs code whose system calls must not change the program's errno.
#[inline]
pub fn kept_errno<T>(run: impl FnOnce() -> T) -> T {
    let errno = errno();
    let result = run();
    set_errno(errno);
    result
}

/// Defines functions that call the next ones of their names.
#[macro_export]
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[inline]
        pub unsafe fn $name($($argument: $type),*) -> $result {
            let function = $name::NEXT.address();
            // SAFETY: the address is that of the function of this name, whose C prototype has
            // these arguments and this result; the caller keeps that function's contract.
            // Variable arguments travel in the same registers on Linux's 64-bit systems.
            unsafe {
                let function: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(function);
                function($($argument),*)
            }
        }

        mod $name {
            // The names are literals without 0.
            const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name with 0"),
            };
            pub(super) static NEXT: $crate::real::Next = $crate::real::Next::new(NAME);
        }
    )*};
}

/// Resolves all of them: the first call of a name may be on a promoted connection, with a stack too
/// small for dlsym(3).
macro_rules! functions_and_look_up {
    ($($name:ident $arguments:tt -> $result:ty;)*) => {
        functions! { $($name $arguments -> $result;)* }

        pub(crate) fn look_up() {
            $($name::NEXT.address();)*
        }
    };
}

functions_and_look_up! {
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t;

    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;

    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, address_length: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(input: c_int, input_offset: *mut loff_t, output: c_int, output_offset: *mut loff_t, length: size_t, flags: c_uint) -> ssize_t;

    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, new: c_int) -> c_int;
    dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int;
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;

    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;

    setuid(user: libc::uid_t) -> c_int;
    seteuid(user: libc::uid_t) -> c_int;
    setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;

    unshare(flags: c_int) -> c_int;
    fork() -> pid_t;
    _Fork() -> pid_t;
    clone(run: Option<extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, storage: *mut c_void, child: *mut pid_t) -> c_int;
    openpty(own: *mut c_int, theirs: *mut c_int, name: *mut c_char, settings: *const libc::termios, size: *const libc::winsize) -> c_int;
    login_tty(fd: c_int) -> c_int;
    _exit(status: c_int) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(at: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fclose(stream: *mut libc::FILE) -> c_int;

    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE;
    posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}
