//! The way by Linux AIO: sockets wait by IOCB_CMD_POLL in place of epoll, and one io_submit(2) reads from all that
//! are ready and lets them wait again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use super::server::{Course, PATIENCE, ROOM, STRIDE, Task, Way};
use crate::Reason;

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    rest: [u64; 3],
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Done {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

const READ: u16 = 0;
const POLL: u16 = 5;

/// In a request's data, beside the number of its socket: it was the read.
const IS_READ: u64 = 1 << 32;

pub(super) struct Aio {
    context: u64,
    fds: Vec<OwnedFd>,
    memory: Vec<u8>,
    requests: Vec<Request>,
    done: Vec<Done>,
    submits: u64,
}

impl Aio {
    pub(super) fn new(task: &Task, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let mut context = 0_u64;
        let room = 2 * (task.sockets + task.ready);
        // SAFETY: the kernel writes the context's name.
        if unsafe { libc::syscall(libc::SYS_io_setup, room, &raw mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut aio = Self {
            context,
            memory: vec![0; task.sockets * STRIDE],
            requests: (0..fds.len()).map(|socket| poll(&fds, socket)).collect(),
            fds,
            done: vec![Done::default(); room],
            submits: 0,
        };
        aio.submit()?;
        Ok(aio)
    }

    /// Submits what is prepared.
    fn submit(&mut self) -> io::Result<()> {
        let pointers: Vec<*const Request> = self.requests.iter().map(ptr::from_ref).collect();
        let mut at = 0;
        while at < pointers.len() {
            self.submits += 1;
            let (left, first) = (pointers.len() - at, &raw const pointers[at]);
            // SAFETY: the kernel reads the pointers and copies the requests; the buffers that these name live as long as
            // the context.
            match unsafe { libc::syscall(libc::SYS_io_submit, self.context, left, first) } {
                count @ 1.. => at += count as usize,
                _ => return Err(io::Error::last_os_error()),
            }
        }
        self.requests.clear();
        Ok(())
    }
}

fn poll(fds: &[OwnedFd], socket: usize) -> Request {
    let descriptor = fds[socket].as_raw_fd() as u32;
    Request {
        data: socket as u64,
        opcode: POLL,
        descriptor,
        buffer: libc::POLLIN as u64,
        ..Request::default()
    }
}

impl Way for Aio {
    fn turn(&mut self, course: &mut Course) -> Result<(), Reason> {
        while course.got < course.ready {
            course.waits += 1;
            let patience = libc::timespec { tv_sec: 0, tv_nsec: PATIENCE.as_nanos() as i64 };
            let (room, done) = (self.done.len(), self.done.as_mut_ptr());
            // SAFETY: the kernel writes at most so many events into live memory.
            let count = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, 1_i64, room, done, &raw const patience)
            };
            if count < 1 {
                break;
            }
            for done in &self.done[..count as usize] {
                let socket = (done.data & !IS_READ) as usize;
                if done.data & IS_READ == 0 {
                    let descriptor = self.fds[socket].as_raw_fd() as u32;
                    let buffer = self.memory[socket * STRIDE..].as_ptr() as u64;
                    let data = socket as u64 | IS_READ;
                    let read = Request {
                        data,
                        opcode: READ,
                        descriptor,
                        buffer,
                        bytes: ROOM as u64,
                        ..Request::default()
                    };
                    self.requests.extend([read, poll(&self.fds, socket)]);
                } else if done.result < 0 {
                    return Err(io::Error::from_raw_os_error(-done.result as i32).into());
                } else {
                    course.take(&self.memory[socket * STRIDE..]);
                }
            }
            if !self.requests.is_empty() {
                self.submit()?;
            }
        }
        Ok(())
    }

    fn calls(&self) -> u64 {
        self.submits
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own, and ends with what it has under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
