//! A server as many are: it listens, forks its workers, and each waits for the shared listener by epoll. A request for
//! `BLOCKING` blocks its worker; one for `COUNTS` asks what the workers have accepted.

use crate::Reason;
use crate::part::Part;
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use sys::mapping::SharedMapping;
use sys::memory_file::MemoryFile;

use super::load::BLOCKING;
use crate::epoll::Epoll;

/// How the server is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Where it listens.
    pub address: SocketAddr,
    /// Processes, each on a CPU of its own.
    pub workers: usize,
    /// Each worker has a listener of its own, with SO_REUSEPORT.
    pub reuseport: bool,
    /// How long a request for `BLOCKING` takes.
    pub blocks: Duration,
}

/// What a worker has accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All of it.
    pub accepted: u64,
    /// Of these, on the CPU that handled the SYN.
    pub local: u64,
}

/// The path that asks for the counts.
pub(super) const COUNTS: &str = "/counts";
const MOST_WORKERS: usize = 64;
const BACKLOG: i32 = 4096;

/// Of one worker, in memory that all share.
#[repr(C, align(64))]
struct Slot {
    accepted: AtomicU64,
    local: AtomicU64,
}

impl Part for Task {
    const NAME: &'static str = "listen-server";

    fn run(self) -> Result<(), Reason> {
        Ok(serve(&self)?)
    }
}

/// Serves until it is killed.
///
/// # Errors
///
/// No socket, memory or process.
pub fn serve(task: &Task) -> io::Result<()> {
    let workers = task.workers.min(MOST_WORKERS);
    let counts = shared_slots()?;
    let shared = if task.reuseport { None } else { Some(listen(task)?) };
    for worker in 0..workers {
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: a signal number; a worker ends with its parent.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                crate::cpu::pin(&[worker % std::thread::available_parallelism()?.get()])?;
                let listener = shared.map_or_else(|| listen(task), Ok)?;
                let worker = Worker { listener, task, own: &counts[worker], counts: &counts[..workers] };
                return worker.serve();
            }
            _ => {}
        }
    }
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// For good, and for the workers, too.
fn shared_slots() -> io::Result<&'static [Slot]> {
    let length = MOST_WORKERS * size_of::<Slot>();
    let memory = MemoryFile::create("counts", length as u64, &[])?;
    let mapping = SharedMapping::writable(memory.writable.as_fd(), length).map_err(io::Error::other)?;
    // SAFETY: so many zeroed slots lie there for good; atomics need no exclusive access.
    Ok(unsafe { std::slice::from_raw_parts(Box::leak(Box::new(mapping)).address().cast(), MOST_WORKERS) })
}

fn listen(task: &Task) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(task.address), Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(task.reuseport)?;
    socket.bind(&task.address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

struct Worker<'a> {
    listener: Socket,
    task: &'a Task,
    own: &'a Slot,
    counts: &'a [Slot],
}

impl Worker<'_> {
    fn serve(&self) -> io::Result<()> {
        let epoll = Epoll::new()?;
        let listener = self.listener.as_raw_fd();
        // As nginx does it: a connection wakes one worker.
        let shared = if self.task.reuseport { 0 } else { libc::EPOLLEXCLUSIVE };
        epoll.control(libc::EPOLL_CTL_ADD, listener, listener as u64, libc::EPOLLIN | shared)?;
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            let ready = epoll.wait(&mut events, -1)?.len();
            for event in &events[..ready] {
                let fd = event.u64 as RawFd;
                if fd != listener {
                    self.answer(fd);
                } else if let Some(new) = self.accept() {
                    epoll.control(libc::EPOLL_CTL_ADD, new, new as u64, libc::EPOLLIN)?;
                }
            }
        }
    }

    fn accept(&self) -> Option<RawFd> {
        let no_address = std::ptr::null_mut();
        let (fd, flags) = (self.listener.as_raw_fd(), libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        // SAFETY: no address is asked for.
        let new = unsafe { libc::accept4(fd, no_address, std::ptr::null_mut(), flags) };
        if new < 0 {
            return None;
        }
        self.own.accepted.fetch_add(1, Relaxed);
        let mut cpu: libc::c_int = -1;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        let at = (&raw mut cpu).cast();
        // SAFETY: room for the option's value.
        unsafe { libc::getsockopt(new, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, at, &raw mut length) };
        // SAFETY: no arguments.
        if cpu == unsafe { libc::sched_getcpu() } {
            self.own.local.fetch_add(1, Relaxed);
        }
        Some(new)
    }

    fn answer(&self, fd: RawFd) {
        let mut request = [0u8; 1024];
        // SAFETY: room for so many bytes.
        let count = unsafe { libc::recv(fd, request.as_mut_ptr().cast(), request.len(), 0) };
        let Ok(count) = usize::try_from(count) else {
            if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
                close(fd);
            }
            return;
        };
        let asks = |path: &str| request[..count].starts_with(format!("GET {path} ").as_bytes());
        let body = if asks(COUNTS) {
            let counts = self.counts.iter().map(|slot| Counts {
                accepted: slot.accepted.load(Relaxed),
                local: slot.local.load(Relaxed),
            });
            serde_json::to_string(&counts.collect::<Vec<_>>()).unwrap_or_default()
        } else {
            if asks(BLOCKING) {
                std::thread::sleep(self.task.blocks);
            }
            "hello\n".to_owned()
        };
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        // SAFETY: so many bytes lie there. A client that is gone is its own affair.
        unsafe { libc::send(fd, answer.as_ptr().cast(), answer.len(), libc::MSG_NOSIGNAL) };
        close(fd);
    }
}

fn close(fd: RawFd) {
    // SAFETY: a connection of this worker's, which nobody uses from here on.
    unsafe { libc::close(fd) };
}
