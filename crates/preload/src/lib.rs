//! libc's names, each a few lines into `interpose`.
//!
//! Nothing else may be linked with this: a program that defines `recv` hijacks its own.
#![allow(unsafe_code)] // C's calling convention
#![allow(non_snake_case)] // libc's names
#![allow(clippy::missing_safety_doc)] // what the C function of the name asks for
#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use interpose::{Settings, calls};
use libc::{
    epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, sighandler_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

mod behind;
mod creators;
mod variadic;
mod vfork;

/// The program's own allocator may be one that calls what stands here: nothing of ours is
/// allocated there.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    dlmalloc_after_fork();
    for complaint in Settings::complaints() {
        eprintln!("megapipe: {complaint}");
    }
    interpose::start(Settings::from_environment());
}

fn dlmalloc_after_fork() {
    // SAFETY: called once, before the program's own code and any thread of it runs.
    unsafe { dlmalloc::enable_alloc_after_fork() };
}

extern "C" fn end() {
    interpose::finish();
}

macro_rules! names {
    ($($name:ident = $to:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the same contract as that of the C function.
            unsafe { calls::$to($($argument),*) }
        }
    )*};
}

names! {
    sigaction = sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    __sigaction = sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal = signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    bsd_signal = signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    ssignal = signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    sysv_signal = sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    __sysv_signal = sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    sigset = sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t;

    socket = socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair = socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int;
    __socket = socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect = connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    __connect = connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    listen = listen(fd: c_int, backlog: c_int) -> c_int;
    accept = accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4 = accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    shutdown = shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt = getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt = setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;

    read = read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    __read = read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    readv = readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    recv = recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    recvfrom = recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> ssize_t;
    recvmsg = recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg = recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write = write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    __write = write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev = writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    send = send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    __send = send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    sendto = sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, address_length: socklen_t) -> ssize_t;
    sendmsg = sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg = sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    __sendmmsg = sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    preadv2 = preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2 = pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    sendfile = sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64 = sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice = splice(input: c_int, input_offset: *mut loff_t, output: c_int, output_offset: *mut loff_t, length: size_t, flags: c_uint) -> ssize_t;

    close = close(fd: c_int) -> c_int;
    __close = close(fd: c_int) -> c_int;
    close_range = close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom = closefrom(first: c_int);
    dup = dup(fd: c_int) -> c_int;
    dup2 = dup2(fd: c_int, new: c_int) -> c_int;
    __dup2 = dup2(fd: c_int, new: c_int) -> c_int;
    dup3 = dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    pidfd_getfd = pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int;
    fcntl = fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    fcntl64 = fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    __libc_fcntl64 = fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    __fcntl = fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    ioctl = ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    syscall = syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;

    epoll_create = epoll_create(size: c_int) -> c_int;
    epoll_create1 = epoll_create1(flags: c_int) -> c_int;
    epoll_ctl = epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait = epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait = epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2 = epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    poll = poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    __poll = poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll = ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select = select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    __select = select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect = pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;

    setuid = setuid(user: uid_t) -> c_int;
    seteuid = seteuid(user: uid_t) -> c_int;
    setreuid = setreuid(real: uid_t, effective: uid_t) -> c_int;
    setresuid = setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    prctl = prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;

    unshare = unshare(flags: c_int) -> c_int;
    fork = fork() -> pid_t;
    __fork = fork() -> pid_t;
    __libc_fork = fork() -> pid_t;
    _Fork = _Fork() -> pid_t;

    _exit = _exit(status: c_int) -> c_int;
    _Exit = _exit(status: c_int) -> c_int;
    execve = execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv = execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp = execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe = execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve = fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fdopen = fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn_file_actions_adddup2 = posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int;
    _IO_fclose = fclose(stream: *mut libc::FILE) -> c_int;
    _IO_fdopen = fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    _IO_popen = popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE;
    fclose = fclose(stream: *mut libc::FILE) -> c_int;
    vdprintf = vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk = __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    system = system(command: *const c_char) -> c_int;
    popen = popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE;
    posix_spawn = posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp = posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    clone = clone(run: Option<extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, storage: *mut c_void, child: *mut pid_t) -> c_int;
    __clone = clone(run: Option<extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, storage: *mut c_void, child: *mut pid_t) -> c_int;
    forkpty = forkpty(terminal: *mut c_int, name: *mut c_char, settings: *const libc::termios, size: *const libc::winsize) -> pid_t;
    daemon = daemon(stays: c_int, keeps: c_int) -> c_int;
    execveat = execveat(at: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
}

// What -D_FORTIFY_SOURCE calls: the same, with the size of the buffer, which must suffice.

unsafe extern "C" {
    fn __chk_fail() -> !;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
    // SAFETY: as read(2), once the size suffices.
    unsafe {
        if size < count {
            __chk_fail()
        }
        calls::read(fd, buffer, count)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as recv(2), once the size suffices.
    unsafe {
        if size < length {
            __chk_fail()
        }
        calls::recv(fd, buffer, length, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    size: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as recvfrom(2), once the size suffices.
    unsafe {
        if size < length {
            __chk_fail()
        }
        calls::recvfrom(fd, buffer, length, flags, address, address_length)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int {
    // SAFETY: as poll(2), once the size suffices.
    unsafe {
        if size / size_of::<pollfd>() < count as usize {
            __chk_fail()
        }
        calls::poll(fds, count, timeout)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: size_t,
) -> c_int {
    // SAFETY: as ppoll(2), once the size suffices.
    unsafe {
        if size / size_of::<pollfd>() < count as usize {
            __chk_fail()
        }
        calls::ppoll(fds, count, timeout, mask)
    }
}

/// By its section's name `megapipe run` knows the file.
#[used]
#[unsafe(link_section = ".megapipe")]
static VERSION: [u8; ENDED_VERSION.len()] = match ENDED_VERSION.as_bytes().first_chunk() {
    Some(version) => *version,
    None => unreachable!(),
};
const ENDED_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Tells whoever asks with dlsym(3) that the library is there.
#[unsafe(no_mangle)]
pub extern "C" fn megapipe_preload_version() -> *const c_char {
    VERSION.as_ptr().cast()
}
