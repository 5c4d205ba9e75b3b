//! One connected client: its user and process, what it holds, and its unsent messages.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use promote::Reason;
use promote::watch::LoopWatch;
use promote::wire::view::{Record, Refusals};
use promote::wire::{MonitorMessage, Name, Packet, Token};
use sys::packet::{self, Credentials};
use sys::tcp::Endpoint;

use crate::closing::{Closers, Foreign};
use crate::ledger::Bucket;
use crate::policy::Limits;
use crate::process::Strangers;
use crate::sharing::Subject;

/// What a client's token stands for.
#[derive(Debug)]
pub(crate) enum Held {
    /// An offer that waits; whether its descriptor is kept.
    Waiting { endpoint: Endpoint, foreign: bool },
    /// A promoted connection with its region. `cookie` is none for one that an earlier
    /// monitor granted: what the client reports of it is not verified, and `seen`, its
    /// number among the watched endpoints, is none either.
    Promoted { cookie: Option<u64>, bytes: u64, seen: Option<u64> },
}

/// A client that has sent its hello.
pub(crate) struct Loop {
    pub(crate) id: u32,
    /// Of the protocol: the newest that both have.
    pub(crate) version: u32,
    pub(crate) name: Name,
    /// Its loop page, for those it shares connections with.
    pub(crate) page: OwnedFd,
    /// The same, to be watched; `None` if it could not be mapped.
    pub(crate) watch: Option<LoopWatch>,
}

/// Results of one client's offers.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) offers: u64,
    pub(crate) granted: u64,
    pub(crate) refused: Refusals,
}

impl Tally {
    pub(crate) fn refused(&mut self, reason: Reason) {
        if let Some(count) = self.refused.get_mut(reason.index()) {
            *count += 1;
        }
    }
}

/// A client.
pub(crate) struct Client {
    pub(crate) socket: Foreign,
    pub(crate) pid: u32,
    pub(crate) subject: Subject,
    /// The process, user and group that connected.
    connected: Credentials,
    /// `None` before its hello.
    pub(crate) greeted: Option<Loop>,
    pub(crate) held: HashMap<Token, Held>,
    /// How many of them wait.
    pub(crate) waiting: u64,
    pub(crate) bucket: Bucket,
    pub(crate) since: Instant,
    pub(crate) tally: Tally,
    /// Messages that it had no room for. While there are any, nothing more is read from
    /// it: there can be no more than three for each offer that waits.
    unsent: VecDeque<Packet>,
}

impl Client {
    /// Reads the user and process that have connected.
    pub(crate) fn new(
        socket: OwnedFd,
        strangers: &Strangers,
        closers: &mut Closers,
        limits: &Limits,
        now: Instant,
    ) -> io::Result<Client> {
        // A listener that a service manager made may have passed them on to no connection.
        packet::pass_credentials(socket.as_fd())?;
        let peer = packet::credentials(socket.as_fd())?;
        let subject = strangers.subject(socket.as_fd(), peer)?;
        Ok(Client {
            socket: Foreign::new(socket, &closers.of(peer.uid)),
            pid: peer.pid,
            subject,
            connected: peer,
            greeted: None,
            held: HashMap::new(),
            waiting: 0,
            bucket: Bucket::full(limits.offers_burst, now),
            since: now,
            tally: Tally::default(),
            unsent: VecDeque::new(),
        })
    }

    /// Whether a message of this sender is the client's: of the process that connected, whose
    /// real user and group (SCM_CREDENTIALS) are the effective ones that it connected with
    /// (SO_PEERCRED). A process that has changed its user, or is two users at once, is not.
    pub(crate) fn is_sender(&self, sender: Option<Credentials>) -> bool {
        sender == Some(self.connected)
    }

    /// Sends a message, now or as soon as the client has room; false if it is gone.
    pub(crate) fn send(&mut self, message: MonitorMessage) -> bool {
        self.unsent.push_back(message.encode());
        self.flush()
    }

    /// Sends a message with descriptors, now or not at all.
    pub(crate) fn send_with(
        &self,
        message: MonitorMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        packet::send(self.socket.as_fd(), message.encode().as_bytes(), descriptors)
    }

    /// Sends a record, now or not at all.
    pub(crate) fn send_record(&self, record: &Record) -> io::Result<()> {
        packet::send(self.socket.as_fd(), record.encode().as_bytes(), &[])
    }

    /// Sends queued messages, as far as the client has room; false if it is gone.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(packet) = self.unsent.front() {
            match packet::send(self.socket.as_fd(), packet.as_bytes(), &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) => {
                    return matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM));
                }
            }
        }
        true
    }

    /// Whether messages to it are queued: it does not read.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether a grant would reach it.
    pub(crate) fn has_room(&self) -> bool {
        self.unsent.is_empty() && packet::has_room(self.socket.as_fd())
    }

    /// Its name, if it has sent one.
    pub(crate) fn name(&self) -> String {
        self.greeted.as_ref().map_or_else(String::new, |greeted| greeted.name.to_string())
    }
}
