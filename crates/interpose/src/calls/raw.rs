//! syscall(2), by which some programs make calls that libc has functions for.

use std::time::Duration;

use super::forks::{clone3, shares_memory};
use super::submissions;
use super::*;

/// These calls return the remaining time, and their functions in libc do not.
struct Clock {
    began: Instant,
    limit: Option<Duration>,
}

impl Clock {
    unsafe fn new(timeout: *const timespec) -> Clock {
        let limit = match epoll::time(timeout.as_ref()) {
            Ok(Limit::After(limit)) => Some(limit),
            Ok(Limit::Never) | Err(()) => None,
        };
        Clock { began: clock::now(), limit }
    }

    /// A failure to return it is ignored.
    unsafe fn write_remaining(&self, timeout: *mut timespec) {
        if let Some(limit) = self.limit
            && is_writable(timeout)
        {
            *timeout = clock::timespec(limit.saturating_sub(clock::elapsed(self.began)));
        }
    }
}

/// The last argument of pselect6(2).
#[repr(C)]
struct Mask {
    mask: *const sigset_t,
    size: size_t,
}

pub unsafe fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    let status = match number {
        libc::SYS_read => return read(fd, b as *mut c_void, c as usize) as c_long,
        libc::SYS_write => return write(fd, b as *const c_void, c as usize) as c_long,
        libc::SYS_readv => return readv(fd, b as *const iovec, c as c_int) as c_long,
        libc::SYS_writev => return writev(fd, b as *const iovec, c as c_int) as c_long,
        libc::SYS_preadv2 if is_no_place(d, e) => {
            return preadv2(fd, b as *const iovec, c as c_int, -1, f as c_int) as c_long;
        }
        libc::SYS_pwritev2 if is_no_place(d, e) => {
            return pwritev2(fd, b as *const iovec, c as c_int, -1, f as c_int) as c_long;
        }
        libc::SYS_recvfrom => {
            let (address, length) = (e as *mut sockaddr, f as *mut socklen_t);
            return recvfrom(fd, b as *mut c_void, c as usize, d as c_int, address, length) as c_long;
        }
        libc::SYS_sendto => {
            let (address, length) = (e as *const sockaddr, f as socklen_t);
            return sendto(fd, b as *const c_void, c as usize, d as c_int, address, length) as c_long;
        }
        libc::SYS_recvmsg => return recvmsg(fd, b as *mut msghdr, c as c_int) as c_long,
        libc::SYS_sendmsg => return sendmsg(fd, b as *const msghdr, c as c_int) as c_long,
        libc::SYS_sendfile => return sendfile(fd, b as c_int, c as *mut off_t, d as usize) as c_long,
        libc::SYS_splice => {
            let (from, to) = (b as *mut loff_t, d as *mut loff_t);
            return splice(fd, from, c as c_int, to, e as usize, f as c_uint) as c_long;
        }
        libc::SYS_recvmmsg => recvmmsg(fd, b as *mut mmsghdr, c as c_uint, d as c_int, e as *mut timespec),
        libc::SYS_sendmmsg => sendmmsg(fd, b as *mut mmsghdr, c as c_uint, d as c_int),

        libc::SYS_socket => socket(fd, b as c_int, c as c_int),
        libc::SYS_socketpair => socketpair(fd, b as c_int, c as c_int, d as *mut c_int),
        libc::SYS_connect => connect(fd, b as *const sockaddr, c as socklen_t),
        libc::SYS_accept => accept(fd, b as *mut sockaddr, c as *mut socklen_t),
        libc::SYS_accept4 => accept4(fd, b as *mut sockaddr, c as *mut socklen_t, d as c_int),
        libc::SYS_listen => listen(fd, b as c_int),
        libc::SYS_shutdown => shutdown(fd, b as c_int),
        libc::SYS_getsockopt => getsockopt(fd, b as c_int, c as c_int, d as *mut c_void, e as *mut socklen_t),
        libc::SYS_setsockopt => setsockopt(fd, b as c_int, c as c_int, d as *const c_void, e as socklen_t),
        libc::SYS_fcntl => fcntl(fd, b as c_int, c as *mut c_void),
        libc::SYS_ioctl => ioctl(fd, b as c_ulong, c as *mut c_void),

        libc::SYS_close => close(fd),
        libc::SYS_close_range => close_range(a as c_uint, b as c_uint, c as c_int),
        libc::SYS_dup => dup(fd),
        libc::SYS_prctl => prctl(fd, b as c_ulong, c as c_ulong, d as c_ulong, e as c_ulong),
        libc::SYS_seccomp => {
            // Without a filter libraries only query what is supported.
            let is_filter = a as c_uint == libc::SECCOMP_SET_MODE_FILTER && c != 0;
            if is_filter || a as c_uint == libc::SECCOMP_SET_MODE_STRICT {
                confined::before();
            }
            return real::syscall(number, a, b, c, d, e, f);
        }
        libc::SYS_unshare => unshare(fd),
        libc::SYS_dup3 => dup3(fd, b as c_int, c as c_int),

        libc::SYS_epoll_create1 => epoll_create1(fd),
        libc::SYS_epoll_ctl => epoll_ctl(fd, b as c_int, c as c_int, d as *mut epoll_event),
        libc::SYS_epoll_pwait => {
            epoll_pwait(fd, b as *mut epoll_event, c as c_int, d as c_int, e as *const sigset_t)
        }
        libc::SYS_epoll_pwait2 => {
            let (timeout, mask) = (d as *const timespec, e as *const sigset_t);
            epoll_pwait2(fd, b as *mut epoll_event, c as c_int, timeout, mask)
        }
        libc::SYS_ppoll if lies_there(c as *const timespec) => {
            let timeout = c as *mut timespec;
            let clock = Clock::new(timeout);
            let ready = ppoll(a as *mut pollfd, b as libc::nfds_t, timeout, d as *const sigset_t);
            clock.write_remaining(timeout);
            ready
        }
        libc::SYS_pselect6 if lies_there(e as *const timespec) && lies_there(f as *const Mask) => {
            let (timeout, mask) = (e as *mut timespec, f as *const Mask);
            let mask = mask.as_ref().map_or(std::ptr::null(), |mask| mask.mask);
            let (read, write, except) = (b as *mut fd_set, c as *mut fd_set, d as *mut fd_set);
            let clock = Clock::new(timeout);
            let ready = pselect(fd, read, write, except, timeout, mask);
            clock.write_remaining(timeout);
            ready
        }

        libc::SYS_execve => {
            let arguments = b as *const *const c_char;
            execve(a as *const c_char, arguments, c as *const *const c_char)
        }
        libc::SYS_execveat => {
            let (arguments, environment) = (c as *const *const c_char, d as *const *const c_char);
            execveat(fd, b as *const c_char, arguments, environment, e as c_int)
        }
        libc::SYS_clone if a & c_long::from(libc::CLONE_VM) == 0 && b == 0 => {
            process::fork(|| real::syscall(number, a, b, c, d, e, f) as pid_t)
        }
        libc::SYS_clone => {
            shares_memory(a as u64);
            return real::syscall(number, a, b, c, d, e, f);
        }
        libc::SYS_clone3 => return clone3(a as *const c_void, b as size_t),
        libc::SYS_exit_group => {
            vfork::stops_diverging();
            crate::finish();
            return real::syscall(number, a, b, c, d, e, f);
        }
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_eventfd2
        | libc::SYS_timerfd_create
        | libc::SYS_signalfd4
        | libc::SYS_memfd_create
        | libc::SYS_inotify_init1
        | libc::SYS_pidfd_open
        | libc::SYS_perf_event_open
        | libc::SYS_userfaultfd
        | libc::SYS_bpf => made(real::syscall(number, a, b, c, d, e, f) as c_int),
        libc::SYS_io_uring_setup => return submissions::setup(a, b as *mut _),
        libc::SYS_io_uring_enter => return submissions::enter(a, b, c, d, e, f),
        libc::SYS_io_uring_register => {
            submissions::registers(fd, b as c_uint, c as *const c_int, d as c_uint);
            return real::syscall(number, a, b, c, d, e, f);
        }
        libc::SYS_pidfd_getfd => pidfd_getfd(fd, b as c_int, c as c_uint),
        libc::SYS_pipe2 => made_pair(real::syscall(number, a, b, c, d, e, f) as c_int, a as *const c_int),
        _ => return older::syscall(number, a, b, c, d, e, f),
    };
    c_long::from(status)
}

/// Null is valid for these calls. The kernel refuses other invalid addresses: libc's functions
/// would access them. Without a tracked socket the kernel gets the call.
fn lies_there<T>(address: *const T) -> bool {
    (sockets::any() || local_listen::is_on()) && (address.is_null() || is_readable(address))
}

/// An offset of -1, in two halves: the calls then do the same as those without an offset.
fn is_no_place(low: c_long, high: c_long) -> bool {
    // On 64-bit systems only the first half counts (preadv(2)).
    low == -1 && (high == 0 || high == -1)
}

/// Calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
mod older {
    use super::*;

    pub(super) unsafe fn syscall(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long,
    ) -> c_long {
        let fd = a as c_int;
        let status = match number {
            libc::SYS_dup2 => dup2(fd, b as c_int),
            libc::SYS_epoll_create => epoll_create(fd),
            libc::SYS_epoll_wait => epoll_wait(fd, b as *mut epoll_event, c as c_int, d as c_int),
            libc::SYS_poll => poll(a as *mut pollfd, b as libc::nfds_t, c as c_int),
            libc::SYS_select if lies_there(e as *const timeval) => {
                let (read, write, except) = (b as *mut fd_set, c as *mut fd_set, d as *mut fd_set);
                let timeout = e as *mut timeval;
                if timeout.is_null() || is_writable(timeout) {
                    select(fd, read, write, except, timeout)
                } else {
                    let mut copy = timeout.read_unaligned();
                    select(fd, read, write, except, &raw mut copy)
                }
            }
            libc::SYS_fork => fork(),
            libc::SYS_vfork => {
                vfork::lends_memory();
                return real::syscall(number, a, b, c, d, e, f);
            }
            libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_eventfd
            | libc::SYS_signalfd
            | libc::SYS_inotify_init => made(real::syscall(number, a, b, c, d, e, f) as c_int),
            libc::SYS_pipe => made_pair(real::syscall(number, a, b, c, d, e, f) as c_int, a as *const c_int),
            _ => return real::syscall(number, a, b, c, d, e, f),
        };
        c_long::from(status)
    }
}

/// Calls that only older architectures have: this is none.
#[cfg(not(target_arch = "x86_64"))]
mod older {
    pub(super) use crate::real::syscall;
}
