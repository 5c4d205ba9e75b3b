//! Doorbells: pipes of one page in which a byte wakes the process that waits. What a doorbell
//! holds means nothing. It has descriptions (open(2)) that read and write: a reader that is also a
//! writer sees no hang-up, a writer that is also a reader gets no SIGPIPE.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};

/// Bytes of a pipe that wakes: the kernel has none that are smaller.
const PAGE: libc::c_int = 4096;

/// A doorbell by two descriptions, which share no flags: one cannot make the other's reads or
/// writes block.
///
/// # Errors
///
/// pipe2(2), open(2): EMFILE, ENFILE; ENOENT without /proc.
pub fn create() -> io::Result<[OwnedFd; 2]> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: numbers only; the descriptor is borrowed from `writer`, which is open.
    // Larger than it could be, a pipe serves as well.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PAGE) };
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::open(&path, flags, Mode::empty());
    Ok([open()?, open()?])
}

/// Whether a descriptor from another process is a doorbell: a pipe that reads and writes, and
/// does neither by blocking.
pub fn check(fd: BorrowedFd<'_>) -> bool {
    let is_pipe =
        rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    let wanted = OFlags::RDWR | OFlags::NONBLOCK;
    is_pipe
        && rustix::fs::fcntl_getfl(fd)
            .is_ok_and(|flags| flags & (OFlags::RWMODE | OFlags::NONBLOCK) == wanted)
}

/// Wakes the process that waits at a doorbell. False: it is full, or there is no memory for its page.
pub fn ring(fd: BorrowedFd<'_>) -> bool {
    rustix::io::write(fd, &[0]) == Ok(1)
}

/// Empties one that this process waits at. A peer that goes on writing has its own connection woken for nothing.
pub fn empty(fd: BorrowedFd<'_>) {
    let mut bytes = [const { MaybeUninit::uninit() }; PAGE as usize];
    let _ = rustix::io::read(fd, &mut bytes[..]);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::epoll::{self, Event, Set};

    #[test]
    fn a_byte_in_one_description_is_read_in_the_other() {
        let [own, peer] = create().unwrap();
        assert!(check(own.as_fd()) && check(peer.as_fd()));
        let mut bytes = [0; 2 * PAGE as usize];
        assert_eq!(rustix::io::read(&own, &mut bytes), Err(rustix::io::Errno::AGAIN));
        assert_eq!(rustix::io::write(&peer, &[1]), Ok(1));
        assert_eq!(rustix::io::read(&own, &mut bytes), Ok(1));
        // One page, and no more.
        assert_eq!(rustix::io::write(&own, &bytes), Ok(PAGE as usize));
        assert_eq!(rustix::io::write(&peer, &[1]), Err(rustix::io::Errno::AGAIN));
        drop(peer);
        assert_eq!(rustix::io::read(&own, &mut bytes), Ok(PAGE as usize));
        assert_eq!(rustix::io::read(&own, &mut bytes), Err(rustix::io::Errno::AGAIN), "no end");
        assert_eq!(rustix::io::write(&own, &[1]), Ok(1), "no EPIPE");
    }

    /// What a waiter by edges depends on that leaves the bytes unread (Linux 5.5 to 5.13, as first
    /// released, reported the first write alone).
    #[test]
    fn every_write_is_an_edge_also_one_that_finds_no_room() {
        let [own, peer] = create().unwrap();
        let set = Set::new().unwrap();
        set.add(own.as_fd(), epoll::IN | epoll::EDGES, 0).unwrap();
        let edges = || set.wait(&mut [Event::NONE; 2], Some(Duration::ZERO)).unwrap();
        for _ in 0..PAGE {
            assert_eq!((rustix::io::write(&peer, &[1]), edges()), (Ok(1), 1));
        }
        assert_eq!((rustix::io::write(&peer, &[1]), edges()), (Err(rustix::io::Errno::AGAIN), 1));
        assert_eq!(edges(), 0);
    }

    #[test]
    fn what_blocks_or_is_no_pipe_is_none() {
        let [own, peer] = create().unwrap();
        let set = |fd: &OwnedFd, flags| rustix::fs::fcntl_setfl(fd, flags).unwrap();
        set(&own, OFlags::RDWR);
        assert!(!check(own.as_fd()) && check(peer.as_fd()), "they share no flags");
        let (reader, writer) = io::pipe().unwrap();
        let [reader, writer] = [OwnedFd::from(reader), OwnedFd::from(writer)];
        set(&reader, OFlags::NONBLOCK);
        set(&writer, OFlags::NONBLOCK);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let nameless = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (socket, _peer) = crate::packet::pair().unwrap();
        let event = crate::eventfd::create().unwrap();
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap();
        for fd in [reader, writer, nameless, socket, event, null] {
            assert!(!check(fd.as_fd()), "{fd:?}");
        }
    }
}
