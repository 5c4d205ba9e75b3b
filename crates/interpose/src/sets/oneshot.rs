//! EPOLLONESHOT: an event, the kernel's or ours, disables the interest until the next epoll_ctl(2).

use std::io::Write;

use libc::epoll_event;
use rustix::fs::{Mode, OFlags};

use super::{EDGE, ONCE};
use crate::buffer::Room;
use crate::real;
use crate::sockets::{Interest, c_path};

/// The flags that the kernel keeps of a disabled interest (EP_PRIVATE_BITS of Linux).
const KEPT_BITS: u32 = EDGE | ONCE | (libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;

/// An event was reported that the kernel has not seen.
pub(super) fn disable(epfd: i32, interest: &mut Interest) {
    if interest.events & ONCE != 0 {
        note_disabled(interest);
        let mut nothing = epoll_event { events: ONCE, u64: interest.data };
        // SAFETY: an event to read.
        unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, interest.fd, &raw mut nothing) };
    }
}

/// An event of the kernel was reported.
pub(super) fn note_disabled(interest: &mut Interest) {
    interest.disabled = true;
    interest.maybe_disabled = false;
}

/// The kernel disabled the interest for an event that was none.
pub(super) fn rearm(epfd: i32, interest: &Interest) {
    let mut event = epoll_event { events: interest.events, u64: interest.data };
    // SAFETY: as for `spend`.
    unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, interest.fd, &raw mut event) };
}

/// Whether the interest is disabled until the next epoll_ctl(2).
#[inline]
pub(super) fn is_disabled(epfd: i32, interest: &mut Interest) -> bool {
    if interest.maybe_disabled {
        check_fdinfo(epfd, interest);
    }
    interest.disabled
}

/// The socket was promoted since its interest was set, which the kernel may have disabled before:
/// see proc(5). Without a proc file system it counts as enabled.
#[cold]
fn check_fdinfo(epfd: i32, interest: &mut Interest) {
    interest.maybe_disabled = false;
    let mut path = [0; 40];
    let _ = write!(&mut path[..], "/proc/self/fdinfo/{epfd}");
    let Ok(file) = rustix::fs::open(c_path(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let mut text = Vec::new();
    let mut room = Room::take();
    while let Ok(count @ 1..) = rustix::io::read(&file, &mut *room) {
        text.extend_from_slice(&room[..count]);
    }
    interest.disabled = String::from_utf8_lossy(&text)
        .lines()
        .filter_map(registered)
        .any(|(fd, events, data)| fd == interest.fd && data == interest.data && events & !KEPT_BITS == 0);
}

/// "tfd: 5 events: 4000001d data: 5 ..." (proc_pid_fdinfo(5)): descriptor, events and data, the
/// latter two in hex.
fn registered(line: &str) -> Option<(i32, u32, u64)> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let events = words.nth(1).and_then(|events| u32::from_str_radix(events, 16).ok())?;
    let data = words.nth(1).and_then(|data| u64::from_str_radix(data, 16).ok())?;
    Some((fd, events, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_fdinfo() {
        let line = "tfd:        5 events: 4000001d data: ffffffff00000005  pos:0 ino:5c sdev:8";
        assert_eq!(registered(line), Some((5, 0x4000_001d, 0xffff_ffff_0000_0005)));
        assert_eq!(registered("flags:\t02"), None);
    }
}
