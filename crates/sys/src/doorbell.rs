//! Doorbells: a byte in one wakes the process that waits. What a doorbell holds means nothing.
//!
//! Between programs of one user it is a pipe of one page, by descriptions (open(2)) that read and
//! write: a reader that is also a writer sees no hang-up, a writer that is also a reader gets no
//! SIGPIPE. A process that splices from a pipe holds its lock for as long as the other side has it wait,
//! and all who write there wait, too. So between two users it is a message queue of one byte
//! (mq_overview(7)), of which only a spin lock is ever held; a wake-up costs a third more.
#![allow(unsafe_code)] // message queues, which rustix does not have

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{Timespec, epoll};
use rustix::fs::{FileType, Mode, OFlags};

/// Bytes of a pipe that wakes: the kernel has none that are smaller.
const PAGE: libc::c_int = 4096;

/// The file system of message queues (linux/magic.h).
const QUEUES: i64 = 0x1980_0202;

/// Numbers for the names of queues, which live for some microseconds.
static NAMES: AtomicU32 = AtomicU32::new(0);

/// What a doorbell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pipe of one page.
    Pipe,
    /// A message queue of one byte, which one description reads and the other writes.
    Queue,
}

/// A doorbell by two descriptions, which share no flags: one cannot make the other's reads or
/// writes block. The first is for the endpoint that waits, the second for its peer.
///
/// # Errors
///
/// pipe2(2), open(2), mq_open(2): EMFILE, ENFILE; ENOENT without /proc; ENOSPC beyond
/// `fs.mqueue.queues_max` without CAP_SYS_RESOURCE; EEXIST where another process of the IPC
/// namespace has taken the name; ENOSYS without message queues.
pub fn create(kind: Kind) -> io::Result<[OwnedFd; 2]> {
    match kind {
        Kind::Pipe => create_pipe(),
        Kind::Queue => create_queue(),
    }
}

fn create_pipe() -> io::Result<[OwnedFd; 2]> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: numbers only; the descriptor is borrowed from `writer`, which is open.
    // Larger than it could be, a pipe serves as well.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PAGE) };
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::open(&path, flags, Mode::empty());
    Ok([open()?, open()?])
}

fn create_queue() -> io::Result<[OwnedFd; 2]> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = CString::new(format!("megapipe-{}-{number}", std::process::id()))?;
    let own = open_queue(&name, flags | libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL)?;
    let peer = open_queue(&name, flags | libc::O_WRONLY);
    // SAFETY: a name that ends with a zero byte.
    if unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok([own, peer?])
}

/// Whether this process may use queues: under a seccomp filter a call about one may fail, or kill.
pub fn may_use_queues() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "0")
}

fn open_queue(name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let bounds = bounds(1);
    // SAFETY: a name that ends with a zero byte, a mode, and bounds to read.
    let fd = unsafe { libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0o600, &raw const bounds) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The kernel's `struct mq_attr`: flags, messages at the most, bytes of each at the most, messages
/// at present, and four words that mean nothing.
type Bounds = [libc::c_long; 8];

/// So many messages, of so many bytes each.
fn bounds(count: libc::c_long) -> Bounds {
    [0, count, count, 0, 0, 0, 0, 0]
}

/// What a descriptor from another process is, if it is a doorbell: a pipe that reads and writes,
/// or a queue of one byte, and it does neither by blocking.
pub fn kind(fd: BorrowedFd<'_>) -> Option<Kind> {
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let stat = rustix::fs::fstat(fd).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo if flags & OFlags::RWMODE == OFlags::RDWR => Kind::Pipe,
        FileType::RegularFile if is_queue(fd) => Kind::Queue,
        _ => return None,
    };
    flags.contains(OFlags::NONBLOCK).then_some(kind)
}

fn is_queue(fd: BorrowedFd<'_>) -> bool {
    let mut of = bounds(0);
    rustix::fs::fstatfs(fd).is_ok_and(|of| of.f_type == QUEUES)
        // SAFETY: no bounds to read, and some to write.
        && unsafe { libc::syscall(libc::SYS_mq_getsetattr, fd.as_raw_fd(), null::<u8>(), &raw mut of) } == 0
        && of[1..3] == bounds(1)[1..3]
}

/// The kind of a doorbell that came as two descriptors: the one that this process waits at, and
/// that of another, by which it wakes a peer.
pub fn check(own: BorrowedFd<'_>, peer: BorrowedFd<'_>) -> Option<Kind> {
    let does = |fd, mode| rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::RWMODE == mode);
    match (kind(own)?, kind(peer)?) {
        (Kind::Pipe, Kind::Pipe) => Some(Kind::Pipe),
        (Kind::Queue, Kind::Queue) if does(own, OFlags::RDONLY) && does(peer, OFlags::WRONLY) => {
            Some(Kind::Queue)
        }
        _ => None,
    }
}

/// A time that is over, with which a call about a queue never waits: not even where somebody who
/// shares the description has taken O_NONBLOCK away.
pub static AT_ONCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

/// Wakes the process that waits at a doorbell. False: it is full, or there is no memory for what
/// it would hold.
pub fn ring(fd: BorrowedFd<'_>, kind: Kind) -> bool {
    match kind {
        Kind::Pipe => rustix::io::write(fd, &[0]) == Ok(1),
        Kind::Queue => {
            let (fd, byte) = (fd.as_raw_fd(), 0u8);
            let (byte, until) = (&raw const byte, &raw const AT_ONCE);
            // SAFETY: one byte and a time to read.
            unsafe { libc::syscall(libc::SYS_mq_timedsend, fd, byte, 1usize, 0, until) == 0 }
        }
    }
}

/// Whether a wait by edges (EPOLLET) may leave the bytes of a pipe where they are: each write is an edge. From Linux 5.5 on to
/// 5.13, as first released, one that does not find the pipe empty is none. Found out by trying, once.
pub fn may_stay_unread() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| second_write_is_an_edge().unwrap_or(false))
}

fn second_write_is_an_edge() -> io::Result<bool> {
    let (own, peer) = io::pipe()?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, &own, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    let mut edges = 0;
    for _ in 0..2 {
        rustix::io::write(&peer, &[0])?;
        let mut events = [MaybeUninit::uninit(); 1];
        edges += epoll::wait(&set, &mut events, Some(&Timespec::default()))?.0.len();
    }
    Ok(edges == 2)
}

/// Empties one that this process waits at. A peer that goes on writing has its own connection woken for nothing.
pub fn empty(fd: BorrowedFd<'_>, kind: Kind) {
    match kind {
        Kind::Pipe => {
            let mut bytes = [const { MaybeUninit::uninit() }; PAGE as usize];
            let _ = rustix::io::read(fd, &mut bytes[..]);
        }
        Kind::Queue => {
            let (fd, mut byte) = (fd.as_raw_fd(), 0u8);
            let (byte, until) = (&raw mut byte, &raw const AT_ONCE);
            // SAFETY: room for one byte, which is what a message has at most, and a time to read.
            unsafe { libc::syscall(libc::SYS_mq_timedreceive, fd, byte, 1usize, null::<u8>(), until) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::epoll::{self, Event, Set};

    #[test]
    fn a_byte_in_one_description_is_read_in_the_other() {
        let [own, peer] = create(Kind::Pipe).unwrap();
        assert_eq!(check(own.as_fd(), peer.as_fd()), Some(Kind::Pipe));
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

    /// What a waiter by edges depends on that leaves the bytes unread.
    #[test]
    fn every_write_is_an_edge_also_one_that_finds_no_room() {
        if !may_stay_unread() {
            println!(
                "SKIPPED every_write_is_an_edge_also_one_that_finds_no_room: Linux 5.5 to 5.13 report the first"
            );
            return;
        }
        let [own, peer] = create(Kind::Pipe).unwrap();
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
    fn what_blocks_or_is_another_file_is_none() {
        let [own, peer] = create(Kind::Pipe).unwrap();
        let set = |fd: &OwnedFd, flags| rustix::fs::fcntl_setfl(fd, flags).unwrap();
        set(&own, OFlags::RDWR);
        assert_eq!((kind(own.as_fd()), kind(peer.as_fd())), (None, Some(Kind::Pipe)), "they share no flags");
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
            assert_eq!(kind(fd.as_fd()), None, "{fd:?}");
        }
    }

    /// Each message is an edge, and the end that wakes can neither read nor block the other.
    #[test]
    fn a_queue_wakes_like_a_pipe() {
        let [own, peer] = create(Kind::Queue).unwrap();
        let (own, peer) = (own.as_fd(), peer.as_fd());
        assert_eq!((check(own, peer), check(peer, own), check(own, own)), (Some(Kind::Queue), None, None));
        let set = Set::new().unwrap();
        set.add(own, epoll::IN | epoll::EDGES, 0).unwrap();
        let edges = || set.wait(&mut [Event::NONE; 2], Some(Duration::ZERO)).unwrap();
        for _ in 0..3 {
            assert_eq!((ring(peer, Kind::Queue), edges()), (true, 1));
            assert_eq!((ring(peer, Kind::Queue), edges()), (false, 0), "it is full");
            empty(peer, Kind::Queue);
            assert!(!ring(peer, Kind::Queue) && !ring(own, Kind::Queue));
            empty(own, Kind::Queue);
            assert_eq!(edges(), 0);
        }
        for fd in [own, peer] {
            rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
        }
        assert!(ring(peer, Kind::Queue) && !ring(peer, Kind::Queue), "and does not block");
        (0..2).for_each(|_| empty(own, Kind::Queue));
        rustix::fs::fcntl_setfl(own, OFlags::NONBLOCK).unwrap();
        assert_eq!((kind(own), kind(peer), check(own, peer)), (Some(Kind::Queue), None, None));
        let [pipe, _peer] = create(Kind::Pipe).unwrap();
        assert_eq!(check(own, pipe.as_fd()), None);
    }

    #[test]
    fn a_queue_of_more_is_none() {
        let name = CString::new(format!("megapipe-test-{}", std::process::id())).unwrap();
        let two = bounds(2);
        let flags = libc::O_CREAT | libc::O_NONBLOCK;
        // SAFETY: a name, a mode and bounds to read.
        let fd = unsafe { libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0o600, &raw const two) };
        // SAFETY: a name that ends with a zero byte.
        unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: it was just made.
        let more = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        assert_eq!(kind(more.as_fd()), None);
    }
}
