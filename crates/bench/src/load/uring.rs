//! The client on io_uring: one receive request per socket for the whole run, which outlives its
//! connections, and one send request per transaction. A connection is begun and ended by plain
//! calls, which cost no more than requests that would have to be linked.
//!
//! Bytes that come are counted and not read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::squeue::Flags;
use io_uring::types::{CancelBuilder, Fixed, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, opcode};
use socket2::{SockAddr, Socket};

use super::client::{Arrival, Wire};
use super::{Connections, Options, socket};
use crate::ring::{self, BufferRing, BufferSize};

/// Whether this machine lets the client have a ring for so many connections.
pub(super) fn is_permitted(connections: usize) -> bool {
    builder(connections).build(ENTRIES).is_ok()
}

/// The sockets of a thread's connections, and what the kernel does on them.
pub(super) struct Ring {
    ring: IoUring,
    buffers: BufferRing,
    slots: Vec<Slot>,
    address: SockAddr,
    /// The bytes that every send is of.
    request: Vec<u8>,
    completions: VecDeque<cqueue::Entry>,
    /// Whether connections rest between requests.
    is_paced: bool,
}

struct Slot {
    socket: Socket,
    is_open: bool,
    /// Whether the receive request is there; one that meets a closed connection ends.
    receiving: bool,
}

impl Ring {
    /// Sends the request from byte `from` on.
    fn send_from(&mut self, index: usize, from: usize) -> io::Result<()> {
        let rest = &self.request[from..];
        let send = opcode::Send::new(Fixed(index as u32), rest.as_ptr(), rest.len() as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
            .flags(Flags::SKIP_SUCCESS)
            .user_data(SEND);
        self.push(send)
    }

    fn receive(&mut self, index: usize) -> io::Result<()> {
        let receive =
            opcode::RecvMulti::new(Fixed(index as u32), BUFFER_GROUP).build().user_data(index as u64);
        self.slots[index].receiving = true;
        self.push(receive)
    }

    /// Whether a call into the kernel would find nothing to do.
    fn is_quiet(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.is_empty() && !submission.taskrun()
    }

    fn push(&mut self, entry: io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: what the entry points to, `request`, is never written and lives until all that
        // is pending has been cancelled.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

impl Wire for Ring {
    fn new(options: &Options, connections: usize) -> io::Result<Self> {
        if !matches!(options.lifetime, Connections::Reset(_)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (mut builder, is_paced) = (builder(connections), options.rate.is_some());
        if is_paced {
            builder.setup_taskrun_flag(); // says without a system call whether there is anything
        }
        let ring = builder.build(ENTRIES)?;
        let (request, address) = (options.request.bytes(), options.target.address()?);
        let size = BufferSize::of(request.len(), connections);
        let buffers = BufferRing::register(&ring.submitter(), BUFFER_GROUP, size)?;
        let slot = |_| Ok(Slot { socket: socket::reconnecting(&address)?, is_open: false, receiving: false });
        let slots = (0..connections).map(slot).collect::<io::Result<Vec<_>>>()?;
        let descriptors = slots.iter().map(|slot| slot.socket.as_raw_fd());
        ring.submitter().register_files(&descriptors.collect::<Vec<_>>())?;
        let completions = VecDeque::with_capacity(1024);
        Ok(Self { ring, buffers, slots, address, request, completions, is_paced })
    }

    /// Connects and sends the first request in the same breath, as any client does.
    fn open(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        slot.is_open = true;
        socket::connect(&slot.socket, &self.address)?;
        let sent = socket::send(&slot.socket, &self.request)?;
        if !slot.receiving {
            self.receive(index)?;
        }
        if sent == self.request.len() { Ok(()) } else { self.send_from(index, sent) }
    }

    #[inline]
    fn send(&mut self, index: usize) -> io::Result<()> {
        self.send_from(index, 0)
    }

    #[inline]
    fn close(&mut self, index: usize) -> io::Result<()> {
        self.slots[index].is_open = false;
        socket::reset(&self.slots[index].socket)
    }

    fn wait(&mut self, time: Duration) -> io::Result<()> {
        self.buffers.publish();
        let submitted = match time {
            Duration::ZERO if self.is_quiet() => {
                std::hint::spin_loop();
                Ok(0)
            }
            Duration::ZERO => self.ring.submit(),
            time => {
                let time = Timespec::from(time);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        // Also those of calls that were made because the queue was full.
        self.completions.extend(self.ring.completion());
        match submitted {
            Err(error)
                if ![libc::ETIME, libc::EINTR, libc::EBUSY].map(Some).contains(&error.raw_os_error()) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        while let Some(completion) = self.completions.pop_front() {
            let result = completion.result();
            if completion.user_data() == SEND {
                match -result {
                    // The receive of a connection that has ended says so, too.
                    ..=0 | libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN | libc::ECANCELED => continue,
                    error => return Err(io::Error::from_raw_os_error(error)),
                }
            }
            let index = completion.user_data() as usize;
            if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
                self.buffers.give_back(buffer);
            }
            if !cqueue::more(completion.flags()) {
                self.slots[index].receiving = false;
                if self.slots[index].is_open {
                    self.receive(index)?;
                }
            }
            match -result {
                libc::ENOBUFS => {}
                // Perhaps of the connection before this one. If not, the next receive finds the end of file.
                libc::ECONNRESET | libc::ENOTCONN if self.is_paced => {}
                ..=0 => return Ok(Some((index, Ok(result as usize)))),
                error => return Ok(Some((index, Err(io::Error::from_raw_os_error(error))))),
            }
        }
        Ok(None)
    }
}

impl Drop for Ring {
    /// What is pending must end before the memory that it writes to.
    fn drop(&mut self) {
        match self.ring.submitter().register_sync_cancel(None, CancelBuilder::any()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                panic!("cannot end what is pending: {error}")
            }
            _ => {}
        }
    }
}

fn builder(connections: usize) -> Builder {
    ring::builder((connections as u32 * 4).max(512))
}

/// The user data of sends; a receive has its connection's place.
const SEND: u64 = u64::MAX;

/// Entries of the submission queue: requests are handed to the kernel in batches of so many, so that a
/// server does not run idle while the client goes through a long list of completions.
const ENTRIES: u32 = 32;

/// The only group of buffers.
const BUFFER_GROUP: u16 = 0;
