//! io_uring by hand: `uring-plain`.
//!
//! What its manual pages and examples recommend, and no abstraction: one ring per thread with
//! deferred task work, multishot accept into direct descriptors, multishot receive from one
//! provided-buffer ring, whole sends without a completion, one `io_uring_enter` per loop turn.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, Fixed};
use io_uring::{SubmissionQueue, Submitter, cqueue, opcode};

use super::{Arrived, Worker};
use crate::Reason;
use crate::ring::{self, BufferRing, BufferSize};

pub(super) fn run(worker: &Worker) -> Result<Infallible, Reason> {
    let slots = (worker.options.connections * 2 + 64) as u32;
    let mut ring = ring::builder((slots * 4).max(SUBMISSIONS * 2)).build(SUBMISSIONS)?;
    ring.submitter().register_files_sparse(slots)?;
    let buffers = BufferRing::register(
        &ring.submitter(),
        BUFFER_GROUP,
        BufferSize::of(worker.options.size, worker.options.connections),
    )?;
    let (submitter, submissions, mut completions) = ring.split();
    let mut server = Server {
        submitter,
        submissions,
        buffers,
        listening: Fd(worker.listener.as_raw_fd()),
        size: worker.options.size,
        response: vec![0; worker.options.size],
        connections: vec![Connection::default(); slots as usize],
        accept_paused: false,
    };
    server.accept()?;
    server.submissions.sync();
    server.submitter.submit()?;
    worker.ready();
    loop {
        server.submissions.sync();
        match server.submitter.submit_and_wait(1) {
            Ok(_) => {}
            // Interrupted, or completions overflowed: those that are there go first.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => {}
            Err(error) => return Err(error.into()),
        }
        completions.sync();
        for completion in &mut completions {
            server.complete(&completion)?;
        }
        completions.sync(); // or the next wait ends at once, for completions long seen
        server.buffers.publish();
    }
}

struct Server<'ring> {
    submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    buffers: BufferRing,
    listening: Fd,
    size: usize,
    response: Vec<u8>,
    /// Indexed by direct descriptor.
    connections: Vec<Connection>,
    /// The file table was full; accepting goes on when a connection closes.
    accept_paused: bool,
}

#[derive(Default, Clone, Copy)]
struct Connection {
    arrived: Arrived,
    /// Counts the connections that had this slot, so that a late completion of an earlier one is
    /// known as such.
    generation: u32,
}

impl Server<'_> {
    fn complete(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let user_data = completion.user_data();
        let slot = user_data as u32;
        let is_current =
            (user_data >> 32) as u32 & GENERATION_MASK == self.connections[slot as usize].generation;
        let ended = !cqueue::more(completion.flags());
        match user_data >> 62 {
            ACCEPT => self.accepted(completion.result(), ended),
            RECEIVE => {
                if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
                    self.buffers.give_back(buffer); // its bytes are only counted
                }
                if is_current {
                    self.received(slot, completion.result(), ended)?;
                }
                Ok(())
            }
            // Only failures of these complete. A failed send is followed by the end of the receive.
            SEND if is_current => {
                let shutdown = opcode::Shutdown::new(Fixed(slot), libc::SHUT_RDWR).build();
                self.push(shutdown, OTHER, slot, Flags::SKIP_SUCCESS)
            }
            _ => Ok(()),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let accept = opcode::AcceptMulti::new(self.listening).allocate_file_index(true).build();
        self.push(accept, ACCEPT, 0, Flags::empty())
    }

    fn accepted(&mut self, result: i32, ended: bool) -> io::Result<()> {
        if result >= 0 {
            self.connections[result as usize].arrived = Arrived::default();
            self.receive(result as u32)?;
        }
        if !ended {
            return Ok(());
        }
        match -result {
            libc::ENFILE => {
                self.accept_paused = true;
                Ok(())
            }
            error @ (libc::EINVAL | libc::EBADF | libc::EMFILE) => Err(io::Error::from_raw_os_error(error)),
            _ => self.accept(),
        }
    }

    fn receive(&mut self, slot: u32) -> io::Result<()> {
        let receive = opcode::RecvMulti::new(Fixed(slot), BUFFER_GROUP).build();
        self.push(receive, RECEIVE, slot, Flags::empty())
    }

    fn received(&mut self, slot: u32, result: i32, ended: bool) -> io::Result<()> {
        if result <= 0 && result != -libc::ENOBUFS {
            return self.close(slot);
        }
        let arrived = &mut self.connections[slot as usize].arrived;
        for _ in 0..arrived.whole_messages(result.max(0) as usize, self.size) {
            self.send(slot)?;
        }
        match ended {
            true => self.receive(slot),
            false => Ok(()),
        }
    }

    fn send(&mut self, slot: u32) -> io::Result<()> {
        let send = opcode::Send::new(Fixed(slot), self.response.as_ptr(), self.size as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        self.push(send, SEND, slot, Flags::SKIP_SUCCESS)
    }

    fn close(&mut self, slot: u32) -> io::Result<()> {
        let connection = &mut self.connections[slot as usize];
        connection.generation = connection.generation.wrapping_add(1) & GENERATION_MASK;
        let close = opcode::Close::new(Fixed(slot)).build();
        self.push(close, OTHER, slot, Flags::SKIP_SUCCESS)?;
        if std::mem::take(&mut self.accept_paused) {
            self.accept()?;
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry, operation: u64, slot: u32, flags: Flags) -> io::Result<()> {
        let generation = u64::from(self.connections[slot as usize].generation);
        let user_data = operation << 62 | generation << 32 | u64::from(slot);
        let entry = entry.user_data(user_data).flags(flags);
        // SAFETY: what the entry points to, `response`, lives as long as the server, which never
        // ends while the process runs, and is never written.
        while unsafe { self.submissions.push(&entry) }.is_err() {
            self.submissions.sync();
            self.submitter.submit()?;
            self.submissions.sync();
        }
        Ok(())
    }
}

/// What an entry asked for: the upper two bits of its user data. Below are the generation and the slot.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const OTHER: u64 = 3;

const GENERATION_MASK: u32 = (1 << 30) - 1;

/// Entries of the submission queue; a fuller turn submits early.
const SUBMISSIONS: u32 = 1024;

/// The only group of buffers.
const BUFFER_GROUP: u16 = 0;
