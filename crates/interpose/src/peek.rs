//! MSG_PEEK where a stream continues on its other path (ring or kernel): on TCP one call returns
//! all bytes that are here. With MSG_WAITALL it waits until its buffer is full.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::iovec;
use ring::{Ahead, Path};

use crate::call_limit::CallLimit;
use crate::clock;
use crate::consume::Outcome;
use crate::kernel::{self, Found};
use crate::memory::Pieces;
use crate::receive::{Run, receive_some};
use crate::signals;
use crate::sockets::{Promoted, Socket};

/// Whether the call waits for more than the first byte.
#[inline]
pub(crate) fn waits_for_all(socket: &Socket, flags: c_int) -> bool {
    const BOTH: c_int = libc::MSG_PEEK | libc::MSG_WAITALL;
    flags & (BOTH | libc::MSG_DONTWAIT) == BOTH && !socket.nonblocking.load(Ordering::Relaxed)
}

/// Between two checks of a call that waits for more than the first byte, which few programs make.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// Checks until the buffer is full or no more will come. Bytes seen are returned before any error.
/// `None`: the socket turned out not to be promoted.
#[cold]
pub(crate) fn all(socket: &'static Socket, fd: c_int, into: Pieces<'_>, flags: c_int) -> Option<Outcome> {
    let handled = signals::handled();
    let mut limit = CallLimit::of(libc::SO_RCVTIMEO);
    let (mut seen, mut last) = (0, false);
    let (mut kept, mut pause) = (None, PAUSE);
    loop {
        let now = if seen > 0 { libc::MSG_DONTWAIT } else { 0 };
        match receive_some(socket, &mut kept, &mut limit, fd, &into, flags | now, seen > 0)? {
            // Another reader may have consumed some of it.
            Ok(Run { count, .. }) => seen = seen.max(count),
            Err(errno) if seen == 0 => return Some(Err(errno)),
            Err(_) => last = true,
        }
        if last || seen == 0 || seen >= into.left {
            return Some(Ok(seen));
        }
        // This thread returns to the record.
        kept.get_or_insert_with(|| socket.keep());
        // Bytes that came before are seen once more.
        last = kernel::has_ended(fd)
            || signals::handled() != handled
            || limit.until(fd).is_some_and(|until| clock::now() >= until);
        if !last {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Promoted {
    /// Copies what is here on both paths, and consumes nothing; 0: nothing is here.
    #[cold]
    pub(crate) fn peek_across(&mut self, fd: c_int, into: Pieces<'_>, flags: c_int) -> Outcome {
        let unread = match self.check_kernel(fd) {
            Found::Bytes(unread) => unread,
            Found::Nothing | Found::End | Found::Failed(_) => 0,
        };
        let ahead = self.connection.ahead(unread).map_err(|_| self.corrupt(fd))?;
        let (mut here, mut of_kernel) = (0u64, 0);
        for &Ahead { path, skip, count } in &ahead {
            let count = count.min(into.left as u64 - here);
            here += count;
            if path == Path::Tcp {
                of_kernel = of_kernel.max(skip + count);
            }
        }
        let filled = into.at_most(here as usize);
        if flags & libc::MSG_TRUNC != 0 {
            return Ok(filled.left);
        }
        if !filled.is_writable() {
            return Err(libc::EFAULT);
        }
        let bytes = self.bytes_ahead(&ahead, &peek_in_kernel(fd, of_kernel as usize), filled.left);
        let mut rest = &bytes[..];
        for target in filled.targets() {
            let (now, later) = rest.split_at(target.len().min(rest.len()));
            target[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(bytes.len())
    }

    /// The first `most` bytes of these runs, as far as they are here; `kernel` is what the kernel
    /// has.
    fn bytes_ahead(&self, ahead: &[Ahead], kernel: &[u8], most: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(most);
        for &Ahead { path, skip, count } in ahead {
            let before = bytes.len();
            let wanted = count.min((most - before) as u64) as usize;
            match path {
                Path::Ring => {
                    bytes.resize(before + wanted, 0);
                    let copied = self.connection.copy_ahead(skip, &mut bytes[before..]);
                    bytes.truncate(before + copied);
                }
                Path::Tcp => {
                    let there = kernel.get(skip as usize..).unwrap_or_default();
                    bytes.extend_from_slice(&there[..wanted.min(there.len())]);
                }
            }
            if bytes.len() < before + wanted {
                break;
            }
        }
        bytes
    }
}

/// The first bytes that the kernel has, including wake-up bytes.
fn peek_in_kernel(fd: c_int, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let room = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: count };
    let seen = match count {
        0 => 0,
        _ => kernel::receive(fd, Pieces::one(&room), libc::MSG_PEEK | libc::MSG_DONTWAIT),
    };
    bytes.truncate(usize::try_from(seen).unwrap_or(0));
    bytes
}
