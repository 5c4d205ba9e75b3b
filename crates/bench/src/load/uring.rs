//! The client on io_uring: one receive request per socket for the whole run, which outlives its
//! connections, and one send request per transaction. A connection is begun and ended by plain
//! calls, which cost no more than requests that would have to be linked.
//!
//! Bytes that come are counted and not read.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::squeue::Flags;
use io_uring::types::{CancelBuilder, Fixed, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, opcode};

use super::client::{Client, Wire};
use super::socket::ClientSocket;
use super::{Connections, LoadError, Outcome};
use crate::buffer_ring::{BufferRing, BufferSize};
use crate::ring;

pub(super) fn run(mut client: Client<'_>) -> Result<Outcome, LoadError> {
    let mut wire = Ring::new(&client).map_err(LoadError::Client)?;
    let ran = run_on(&mut client, &mut wire);
    // What is pending must end before the memory that it writes to.
    let any = CancelBuilder::any();
    match wire.ring.submitter().register_sync_cancel(None, any) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LoadError::Client(error)),
        _ => ran.map(|()| client.finish()),
    }
}

fn run_on(client: &mut Client<'_>, wire: &mut Ring) -> Result<(), LoadError> {
    client.start(wire)?;
    let mut completions = Vec::with_capacity(1024);
    while !client.is_over() {
        wire.wait(client.wait()).map_err(LoadError::Client)?;
        completions.extend(wire.ring.completion());
        let worked = !completions.is_empty();
        for completion in completions.drain(..) {
            complete(client, wire, &completion)?;
        }
        client.turn(wire, worked)?;
        wire.buffers.publish();
    }
    Ok(())
}

fn complete(client: &mut Client<'_>, wire: &mut Ring, completion: &cqueue::Entry) -> Result<(), LoadError> {
    if completion.user_data() == SEND {
        return match -completion.result() {
            // The receive of a connection that has ended says so, too.
            ..=0 | libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN | libc::ECANCELED => Ok(()),
            error => Err(LoadError::Client(io::Error::from_raw_os_error(error))),
        };
    }
    let index = completion.user_data() as usize;
    let result = completion.result();
    if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
        wire.buffers.give_back(buffer);
    }
    let ended = !cqueue::more(completion.flags());
    if ended {
        wire.slots[index].receiving = false;
    }
    if !client.is_open(index) {
        return Ok(()); // the end of a connection that this side has ended
    }
    if ended {
        wire.receive(index).map_err(LoadError::Client)?;
    }
    match result {
        // Perhaps of the connection before this one. If not, the next receive finds the end of file.
        _ if ended && client.is_paced() && [-libc::ECONNRESET, -libc::ENOTCONN].contains(&result) => Ok(()),
        1.. => client.received(wire, index, result as usize, &[]).map(drop),
        0 => client.ended(wire, index),
        _ => match -result {
            libc::ENOBUFS => Ok(()),
            error => client.failed(wire, index, io::Error::from_raw_os_error(error)),
        },
    }
}

/// Whether this machine lets the client have a ring for so many connections.
pub(super) fn is_permitted(connections: usize) -> bool {
    builder(connections).build(ENTRIES).is_ok()
}

struct Ring {
    ring: IoUring,
    buffers: BufferRing,
    slots: Vec<Slot>,
    /// The bytes that every send is of.
    request: Vec<u8>,
    /// Requests that the kernel has not been given yet.
    queued: usize,
}

struct Slot {
    socket: ClientSocket,
    /// Whether the receive request is there; one that meets a closed connection ends.
    receiving: bool,
}

impl Ring {
    fn new(client: &Client<'_>) -> io::Result<Self> {
        let options = client.options;
        if !matches!(options.lifetime, Connections::Reset(_)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut builder = builder(client.len());
        if client.is_paced() {
            builder.setup_taskrun_flag(); // says without a system call whether there is anything
        }
        let ring = builder.build(ENTRIES)?;
        let request = options.request.bytes();
        let size = BufferSize::of(request.len(), client.len());
        let buffers = BufferRing::register(&ring.submitter(), BUFFER_GROUP, size)?;
        let slot = |_| Ok(Slot { socket: ClientSocket::for_resets(&options.target)?, receiving: false });
        let slots = (0..client.len()).map(slot).collect::<io::Result<Vec<_>>>()?;
        let descriptors = slots.iter().map(|slot| slot.socket.as_raw_fd());
        ring.submitter().register_files(&descriptors.collect::<Vec<_>>())?;
        Ok(Self { ring, buffers, slots, request, queued: 0 })
    }

    fn wait(&mut self, time: Duration) -> io::Result<()> {
        let submitted = match time {
            Duration::ZERO if self.queued == 0 && !self.ring.submission().taskrun() => {
                std::hint::spin_loop();
                return Ok(());
            }
            Duration::ZERO => self.ring.submit(),
            time => {
                let time = Timespec::from(time);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        self.queued = 0;
        match submitted {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

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

    fn push(&mut self, entry: io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: what the entry points to, `request`, is never written and lives until all that
        // is pending has been cancelled.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
            self.queued = 0;
        }
        self.queued += 1;
        if self.queued >= FLUSH_AT {
            self.ring.submit()?;
            self.queued = 0;
        }
        Ok(())
    }
}

impl Wire for Ring {
    /// Connects and sends the first request in the same breath, as any client does.
    fn open(&mut self, index: usize) -> io::Result<()> {
        let slot = &self.slots[index];
        slot.socket.connect()?;
        let sent = slot.socket.send(&self.request)?;
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
        self.slots[index].socket.reset()
    }
}

fn builder(connections: usize) -> Builder {
    ring::builder((connections as u32 * 4).max(512))
}

/// The user data of sends; a receive has its connection's place.
const SEND: u64 = u64::MAX;

/// Entries of the submission queue.
const ENTRIES: u32 = 256;

/// The only group of buffers.
const BUFFER_GROUP: u16 = 0;

/// Requests are handed to the kernel in batches of so many, so that a server does not run idle
/// while the client goes through a long list of completions.
const FLUSH_AT: usize = 32;
