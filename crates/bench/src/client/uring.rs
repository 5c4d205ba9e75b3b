//! The client on io_uring: one receive request per socket for the whole run, which outlives its
//! connections, and one send request per transaction. A connection is begun and ended by plain
//! calls, which cost no more than requests that would have to be linked.

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use io_uring::squeue::Flags;
use io_uring::types::{CancelBuilder, Fixed, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, opcode};

use super::meter::Wait;
use super::socket::ClientSocket;
use super::{LoadError, Meter, Options};
use crate::buffer_ring::{BufferRing, BufferSize};
use crate::ring;

pub(super) fn run(options: &Options, numbers: Range<usize>, meter: &mut Meter) -> Result<(), LoadError> {
    let mut client = Client::new(options, numbers.len()).map_err(LoadError::Client)?;
    meter.start(options, &numbers);
    let ran = client.run(meter);
    // What is pending must end before the memory that it writes to.
    let any = CancelBuilder::any();
    match client.ring.submitter().register_sync_cancel(None, any) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LoadError::Client(error)),
        _ => ran,
    }
}

/// Whether this machine lets the client have a ring for so many connections.
pub(super) fn is_permitted(connections: usize) -> bool {
    builder(connections).build(ENTRIES).is_ok()
}

struct Client<'load> {
    options: &'load Options,
    ring: IoUring,
    buffers: BufferRing,
    connections: Vec<Connection>,
    request: Vec<u8>,
    /// Requests that the kernel does not know of yet.
    queued: usize,
}

struct Connection {
    socket: ClientSocket,
    /// Transactions left on this connection; none while it is closed.
    left: u32,
    /// Whether the receive request is there; one that meets a closed connection ends.
    receiving: bool,
    /// Bytes of the response that are still to come.
    awaited: usize,
    /// When the request began, by the meter's clock.
    began: u64,
    /// Counts the connections of this socket: a failed send of an earlier one means nothing.
    generation: u32,
}

impl<'load> Client<'load> {
    fn new(options: &'load Options, connections: usize) -> io::Result<Self> {
        let mut builder = builder(connections);
        if options.rate.is_some() {
            builder.setup_taskrun_flag(); // says without a system call whether there is anything
        }
        let ring = builder.build(ENTRIES)?;
        let buffers =
            BufferRing::register(&ring.submitter(), BUFFER_GROUP, BufferSize::of(options.size, connections))?;
        let connections = (0..connections)
            .map(|_| {
                Ok(Connection {
                    socket: ClientSocket::new(options.target)?,
                    left: 0,
                    receiving: false,
                    awaited: 0,
                    began: 0,
                    generation: 0,
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let descriptors = connections.iter().map(|connection| connection.socket.as_raw_fd());
        ring.submitter().register_files(&descriptors.collect::<Vec<_>>())?;
        Ok(Self { options, ring, buffers, connections, request: vec![0; options.size], queued: 0 })
    }

    fn run(&mut self, meter: &mut Meter) -> Result<(), LoadError> {
        for index in 0..self.connections.len() {
            self.follow(index, meter)?;
        }
        let mut completions = Vec::with_capacity(1024);
        while !meter.stopped() {
            self.wait(meter.wait()).map_err(LoadError::Client)?;
            completions.extend(self.ring.completion());
            let mut worked = !completions.is_empty();
            for completion in completions.drain(..) {
                self.complete(&completion, meter)?;
            }
            while let Some(due) = meter.due() {
                self.begin(due.index, due.at, meter)?;
                worked = true;
            }
            self.buffers.publish();
            meter.turn(worked);
        }
        Ok(())
    }

    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        let submitted = match wait {
            Wait::Spin => {
                if self.queued == 0 && !self.ring.submission().taskrun() {
                    std::hint::spin_loop();
                    return Ok(());
                }
                self.ring.submit()
            }
            Wait::Within(time) => {
                let time = Timespec::from(time);
                let arguments = SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &arguments)
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

    fn complete(&mut self, completion: &cqueue::Entry, meter: &mut Meter) -> Result<(), LoadError> {
        let index = completion.user_data() as u32 as usize;
        let result = completion.result();
        if let Some(generation) = sender(completion.user_data()) {
            // Sends complete only if they fail.
            return match generation == self.connections[index].generation {
                true => self.fail(index, io::Error::from_raw_os_error(-result), meter),
                false => Ok(()),
            };
        }
        if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
            self.buffers.give_back(buffer);
        }
        let ended = !cqueue::more(completion.flags());
        if ended {
            self.connections[index].receiving = false;
        }
        if self.connections[index].left == 0 {
            return Ok(()); // the end of a connection that this side has ended
        }
        if ended {
            self.receive(index).map_err(LoadError::Client)?;
        }
        match result {
            // Perhaps of the connection before this one. If not, the next receive finds the end of file.
            _ if ended && meter.is_paced() && [-libc::ECONNRESET, -libc::ENOTCONN].contains(&result) => {
                Ok(())
            }
            1.. => self.received(index, result as usize, meter),
            0 => self.fail(index, io::ErrorKind::UnexpectedEof.into(), meter),
            _ => match -result {
                libc::ENOBUFS => Ok(()),
                error => self.fail(index, io::Error::from_raw_os_error(error), meter),
            },
        }
    }

    fn received(&mut self, index: usize, count: usize, meter: &mut Meter) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        let Some(awaited) = connection.awaited.checked_sub(count) else {
            // More than was asked for.
            return self.fail(index, io::ErrorKind::InvalidData.into(), meter);
        };
        connection.awaited = awaited;
        if awaited > 0 {
            return Ok(());
        }
        meter.transaction(connection.began, meter.now());
        connection.left -= 1;
        if connection.left == 0 {
            meter.connection();
            self.reset(index)?;
        }
        self.follow(index, meter)
    }

    /// Counts a failed connection. The request under way is made again, and has begun when it began
    /// first.
    fn fail(&mut self, index: usize, error: io::Error, meter: &mut Meter) -> Result<(), LoadError> {
        meter.failure(error)?;
        self.reset(index)?;
        let Connection { awaited, began, .. } = self.connections[index];
        match awaited {
            0 => Ok(()),
            _ => self.begin(index, began, meter),
        }
    }

    fn reset(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        connection.generation = connection.generation.wrapping_add(1) & !SENDS;
        connection.left = 0;
        connection.socket.reset().map_err(LoadError::Client)
    }

    /// Goes on with a connection that has nothing under way, unless its next request is yet to come.
    fn follow(&mut self, index: usize, meter: &mut Meter) -> Result<(), LoadError> {
        match meter.follow(index) {
            Some(began) => self.begin(index, began, meter),
            None => Ok(()),
        }
    }

    /// Begins a transaction that counts from `began`; on a new connection if the last one is over.
    fn begin(&mut self, index: usize, began: u64, meter: &mut Meter) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        connection.began = began;
        connection.awaited = self.options.size;
        match connection.left {
            0 => self.open(index, meter),
            _ => self.send(index, 0),
        }
    }

    /// Connects and sends the first request in the same breath, as any client does.
    fn open(&mut self, index: usize, meter: &Meter) -> Result<(), LoadError> {
        let sent = loop {
            let socket = &self.connections[index].socket;
            match socket.connect().and_then(|()| socket.send(&self.request)) {
                Ok(sent) => break sent,
                Err(error) => meter.failure(error)?,
            }
            socket.reset().map_err(LoadError::Client)?;
        };
        let connection = &mut self.connections[index];
        connection.left = self.options.transactions;
        if !connection.receiving {
            self.receive(index).map_err(LoadError::Client)?;
        }
        match sent == self.options.size {
            true => Ok(()),
            false => self.send(index, sent),
        }
    }

    /// Sends the request from byte `from` on.
    fn send(&mut self, index: usize, from: usize) -> Result<(), LoadError> {
        let rest = &self.request[from..];
        let generation = u64::from(self.connections[index].generation | SENDS);
        let send = opcode::Send::new(Fixed(index as u32), rest.as_ptr(), rest.len() as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
            .flags(Flags::SKIP_SUCCESS)
            .user_data(generation << 32 | index as u64);
        self.push(send).map_err(LoadError::Client)
    }

    fn receive(&mut self, index: usize) -> io::Result<()> {
        let receive =
            opcode::RecvMulti::new(Fixed(index as u32), BUFFER_GROUP).build().user_data(index as u64);
        self.connections[index].receiving = true;
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

fn builder(connections: usize) -> Builder {
    ring::builder((connections as u32 * 4).max(512))
}

/// The generation of the connection that a send belongs to; none for a receive.
fn sender(user_data: u64) -> Option<u32> {
    let high = (user_data >> 32) as u32;
    (high & SENDS != 0).then_some(high & !SENDS)
}

/// Marks sends in the upper half of the user data.
const SENDS: u32 = 1 << 31;

/// Entries of the submission queue.
const ENTRIES: u32 = 256;

/// The only group of buffers.
const BUFFER_GROUP: u16 = 0;

/// Requests are handed to the kernel in batches of so many, so that a server does not run idle
/// while the client goes through a long list of completions.
const FLUSH_AT: usize = 32;
