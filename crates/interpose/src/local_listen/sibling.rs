//! A second socket with the address and the options of a listening one: bound to the same address,
//! not listening yet.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use libc::socklen_t;

use super::names::DESCRIPTORS;
use super::word::Word;
use crate::kernel;
use crate::real;

mod options;

pub(super) use options::is_unique;

/// Makes a sibling of `listener`, with a number from `lowest` on. The listener must have
/// SO_REUSEPORT.
pub(super) fn make(listener: c_int, lowest: c_int) -> Result<c_int, Word> {
    let domain = kernel::option(listener, libc::SOL_SOCKET, libc::SO_DOMAIN).ok_or(Word::Descriptors)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes numbers.
    let low = unsafe { real::socket(domain, kind, libc::IPPROTO_TCP) };
    let sibling = raised(low, lowest).ok_or(Word::Descriptors)?;
    let made = copy_options(listener, sibling).and_then(|()| bind_beside(listener, sibling));
    if made.is_err() {
        close(sibling);
    }
    made.map(|()| sibling)
}

/// The next number to try. A thread may be about to accept from a sibling that another one closes:
/// if the number were used again at once it could be another listener's sibling by then.
static NEXT: AtomicI32 = AtomicI32::new(0);

/// Moves a file to a number from `lowest` on, where the program does not expect one of its own.
pub(super) fn raised(low: c_int, lowest: c_int) -> Option<c_int> {
    if low < 0 {
        return None;
    }
    let duplicate = |from: c_int| {
        let high = kernel::control(low, libc::F_DUPFD_CLOEXEC, from);
        (high >= 0).then_some(high)
    };
    let next = duplicate(NEXT.load(Relaxed).max(lowest));
    let high = match next {
        Some(high) if (high as usize) < DESCRIPTORS => next,
        // After the last number.
        _ => {
            next.inspect(|high| close(*high));
            duplicate(lowest)
        }
    };
    close(low);
    high.inspect(|high| NEXT.store(high + 1, Relaxed))
}

/// Closes a descriptor of this module's.
pub(super) fn close(fd: c_int) {
    // SAFETY: close(2) takes a number; the caller owns the descriptor.
    unsafe { real::close(fd) };
}

fn copy_options(from: c_int, to: c_int) -> Result<(), Word> {
    for (level, names) in options::COPIED {
        for name in *names {
            copy_option(from, to, *level, *name)?;
        }
    }
    copy_buffers(from, to)?;
    kernel::set(to, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1i32);
    Ok(())
}

fn copy_option(from: c_int, to: c_int, level: c_int, name: c_int) -> Result<(), Word> {
    let Some(wanted) = Value::of(from, level, name) else { return Ok(()) };
    let is_copied = Value::of(to, level, name).as_ref() == Some(&wanted) || wanted.set(to, level, name);
    if is_copied { Ok(()) } else { Err(Word::Option) }
}

/// Makes it listen, with the option that listen(2) resets.
pub(super) fn listen(listener: c_int, sibling: c_int, backlog: c_int) -> Result<(), Word> {
    // SAFETY: listen(2) takes numbers.
    if unsafe { real::listen(sibling, backlog) } != 0 {
        return Err(Word::User);
    }
    copy_option(listener, sibling, libc::IPPROTO_TCP, libc::TCP_QUICKACK)
}

/// Buffer sizes that the program set, and whether the kernel may tune them. getsockopt(2) returns
/// twice the value that was set.
fn copy_buffers(from: c_int, to: c_int) -> Result<(), Word> {
    for (name, forced) in [(libc::SO_SNDBUF, libc::SO_SNDBUFFORCE), (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE)] {
        let wanted = kernel::option(from, libc::SOL_SOCKET, name);
        let is_copied = || kernel::option(to, libc::SOL_SOCKET, name) == wanted;
        for name_to_set in [name, forced] {
            if !is_copied() {
                kernel::set(to, libc::SOL_SOCKET, name_to_set, &(wanted.unwrap_or(0) / 2));
            }
        }
        if !is_copied() {
            return Err(Word::Option);
        }
    }
    copy_option(from, to, libc::SOL_SOCKET, libc::SO_BUF_LOCK)
}

fn bind_beside(listener: c_int, sibling: c_int) -> Result<(), Word> {
    let (Some(address), Some(sibling)) = (kernel::address(listener), real::borrow(sibling)) else {
        return Err(Word::Descriptors);
    };
    rustix::net::bind(sibling, &address).map_err(|_| Word::User)
}

/// The value of an option, large enough for any in the list.
#[derive(PartialEq)]
struct Value {
    bytes: [u8; 32],
    length: socklen_t,
}

impl Value {
    /// `None`: the socket has no such option.
    fn of(fd: c_int, level: c_int, name: c_int) -> Option<Value> {
        let mut value = Value { bytes: [0; 32], length: 32 };
        let at = value.bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: room for the value, and its length.
        let status = unsafe { real::getsockopt(fd, level, name, at, &raw mut value.length) };
        (status == 0).then_some(value)
    }

    fn set(&self, fd: c_int, level: c_int, name: c_int) -> bool {
        // SAFETY: a value of that length, which the kernel wrote.
        unsafe { real::setsockopt(fd, level, name, self.bytes.as_ptr().cast(), self.length) == 0 }
    }
}
