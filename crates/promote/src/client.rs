//! The client's side of the monitor protocol. Nothing here blocks: an absent monitor is a
//! normal result, and the client retries after a while.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sys::doorbell;
use sys::mapping::MapError;
pub use sys::mapping::SharedMapping;
use sys::memory_file::{self, UnsoundFile};
use sys::packet;

use crate::Reason;
use crate::place::{ConnectError, Place, runtime_directory, variable};
use crate::wire::{ClientMessage, DecodeError, MOST_BYTES, MonitorMessage, Name, Packet, Token};

/// Bytes of a loop page.
pub const LOOP_PAGE: usize = 4096;
/// The smallest and the largest region, in bytes; its size is a multiple of 4096.
pub const REGION_SIZES: RangeInclusive<u32> = 8 << 10..=16 << 20;
/// The oldest version of the protocol, which every client and monitor speaks.
pub const OLDEST: u32 = 1;
/// From this version on a client accepts doorbells.
pub const DOORBELLS: u32 = 2;
/// From this version on doorbells may be message queues, which two users share.
pub const QUEUES: u32 = 3;
/// The newest version: a client reports which connections it will not offer
/// ([`Client::decline`]).
pub const DECLINES: u32 = 4;
/// The path of a system's policy.
pub const POLICY_FILE: &str = "/etc/megapipe/monitor.toml";

/// How soon the client reconnects after a monitor has ended.
const RECONNECT: Duration = Duration::from_millis(50);

/// A descriptor, wherever it is kept.
pub type Kept = Box<dyn AsFd + Send>;

/// Which monitor a client connects to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The client's name in the monitor's logs and views.
    pub name: Name,
    /// The monitor's socket, which may be any user's; `None` searches for the system's
    /// monitor, then for the user's.
    pub socket: Option<PathBuf>,
    /// The directory in which the user's own monitor is searched for (XDG_RUNTIME_DIR),
    /// if there is no `socket`.
    pub runtime_directory: Option<PathBuf>,
    /// How long the client waits before it retries an absent monitor.
    pub retry: Duration,
    /// Keeps the connection's descriptor: an interposed program may rely on low numbers.
    /// `None`: no other number is left.
    pub keep: fn(OwnedFd) -> Option<Kept>,
    /// Accepts doorbells with a grant ([`Doorbells`]), where the monitor has them.
    pub doorbells: bool,
}

impl Options {
    /// The options from the environment: MEGAPIPE_MONITOR is the socket. A process that
    /// has more rights than its caller (AT_SECURE) ignores the environment.
    pub fn from_environment(name: &str) -> Options {
        Options {
            name: Name::new(name),
            socket: variable("MEGAPIPE_MONITOR"),
            runtime_directory: runtime_directory(),
            retry: Duration::from_secs(5),
            keep: |socket| Some(Box::new(socket)),
            doorbells: false,
        }
    }

    /// The versions of the protocol that a client with these options speaks.
    fn versions(&self) -> RangeInclusive<u32> {
        OLDEST..=match self.doorbells {
            true if doorbell::may_use_queues() => DECLINES,
            true => DOORBELLS,
            false => OLDEST,
        }
    }
}

/// Why a message was not sent to the monitor. The connection it is about stays on TCP.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// There is no monitor at present.
    #[error("no monitor is connected")]
    NoMonitor,
    /// The monitor has not read enough of the earlier messages; a later offer may
    /// succeed.
    #[error("the monitor is too busy to take an offer")]
    Full,
    /// The descriptor cannot be sent.
    #[error("the descriptor cannot be offered: {0}")]
    Descriptor(#[source] io::Error),
}

/// The monitor is gone. Its offers are void; promoted connections continue.
#[derive(Debug, thiserror::Error)]
#[error("the connection to the monitor is lost: {cause}")]
pub struct ReceiveError {
    /// The cause.
    #[source]
    pub cause: LossCause,
    /// The unanswered offers, to be made to the next monitor.
    pub unanswered: Vec<Token>,
}

/// Why the connection to a monitor ended.
#[derive(Debug, thiserror::Error)]
pub enum LossCause {
    /// The monitor ended.
    #[error("the monitor has ended")]
    Ended,
    /// recvmsg(2).
    #[error("nothing can be received: {0}")]
    System(#[source] io::Error),
    /// The monitor rejects this client.
    #[error("the monitor rejects this client: {0}")]
    Refused(Reason),
    /// It sent an invalid message.
    #[error("the monitor sent an invalid message: {0}")]
    Nonsense(#[source] DecodeError),
    /// It answered something that was not offered, answered twice, or sent an answer
    /// before its welcome.
    #[error("the monitor sent a message out of turn")]
    OutOfTurn,
    /// A message came without its descriptors, with too many, or with an invalid
    /// doorbell.
    #[error("the monitor sent a message with the wrong descriptors")]
    Descriptors,
    /// It speaks another version, or announced invalid sizes.
    #[error("the monitor speaks version {version} with segments of {segment_size} bytes")]
    Version {
        /// Of the protocol.
        version: u32,
        /// Bytes.
        segment_size: u32,
    },
    /// The memory it sent cannot be trusted.
    #[error("the monitor sent memory that cannot be used: {0}")]
    Memory(#[source] MapError),
}

impl LossCause {
    /// Whether the monitor speaks another version of the protocol, as far as either side
    /// can determine.
    pub fn is_version(&self) -> bool {
        matches!(
            self,
            LossCause::Refused(Reason::Version) | LossCause::Version { .. } | LossCause::Nonsense(_)
        )
    }
}

/// The page in which another loop publishes whether it sleeps. All connections with that
/// loop share it.
#[derive(Debug)]
pub struct PeerLoop {
    /// The loop's number at its monitor.
    pub id: u32,
    /// The page, read-only.
    pub page: SharedMapping,
}

/// The doorbells of a connection: a byte in one wakes an endpoint, and has no other
/// meaning. Reads and writes of them never block (see promotion.md, section 5).
#[derive(Debug)]
pub struct Doorbells {
    /// This endpoint's doorbell.
    pub own: OwnedFd,
    /// The peer's doorbell.
    pub peer: OwnedFd,
    /// The kind of both.
    pub kind: doorbell::Kind,
}

/// A message of the monitor.
#[derive(Debug)]
pub enum Answer {
    /// The first answer of every monitor. A loop that was connected to an earlier monitor
    /// keeps that one's page for the older connections: it writes to every page that the
    /// peer of a live connection may check.
    Welcome {
        /// Number of this client's loop.
        loop_id: u32,
        /// The page that it writes to.
        loop_page: SharedMapping,
        /// Bytes of the regions that are granted now.
        segment_size: u32,
    },
    /// The offered connection has its memory. A refusal may still revoke it, if the peer
    /// could not be granted its own.
    Granted {
        /// The offer; from now on the promoted connection, until it is withdrawn.
        token: Token,
        /// The region that this endpoint writes to.
        own: SharedMapping,
        /// The region that the peer writes to.
        peer: SharedMapping,
        /// The peer's loop.
        peer_loop: Arc<PeerLoop>,
        /// The doorbells of both endpoints. `None` if one of the two clients accepts
        /// none, or the monitor could not create them.
        doorbells: Option<Doorbells>,
    },
    /// No matching offer exists so far, or the offer is about to be refused because of
    /// its user.
    Peer {
        /// The offer.
        token: Token,
        /// The peer's user, if that is another user with whom the policy allows no
        /// sharing.
        user: Option<u32>,
    },
    /// The offer is about to be refused, since the peer's program declines it.
    Declined {
        /// The offer.
        token: Token,
        /// The reason.
        reason: Reason,
    },
    /// The connection stays on TCP for good.
    Refused {
        /// The offer.
        token: Token,
        /// The reason.
        reason: Reason,
    },
}

/// The effect of a message of the monitor.
enum Received {
    Answer(Answer),
    /// It crossed a withdrawal.
    Late,
}

/// A loop's connection to its monitor.
pub struct Client {
    options: Options,
    socket: Option<Kept>,
    next_attempt: Instant,
    /// How long after a search without finding a monitor the next one follows.
    retry_after: Duration,
    /// Messages that could not be sent and must not be lost, for the connected monitor.
    unsent: VecDeque<Packet>,
    peer_loops: HashMap<u64, Weak<PeerLoop>>,
    /// The version that the connected monitor has chosen in its welcome.
    version: Option<u32>,
    /// Offers without an answer.
    unanswered: HashSet<Token>,
    /// Granted offers that were not withdrawn since: a refusal may still revoke the
    /// grant.
    granted: HashSet<Token>,
    /// How many more messages about peers may arrive: two for each offer.
    peers: u64,
    /// Withdrawals of either kind; after each, one more message may arrive that crossed
    /// it.
    withdrawn: u64,
}

/// An offer's peer is reported once when it has waited for a while, and once before a
/// refusal.
const PEERS_EACH: u64 = 2;
/// No more offers are made beyond this many unanswered ones: more than a monitor keeps
/// waiting.
const MOST_UNANSWERED: usize = 1 << 16;

impl Client {
    /// Searches for a monitor once. If there is none, `reconnect_due` searches again.
    ///
    /// # Errors
    ///
    /// Only errors that persist; an absent monitor is not an error.
    pub fn connect(options: &Options) -> Result<Client, ConnectError> {
        let now = Instant::now();
        let mut client = Client {
            options: options.clone(),
            socket: None,
            next_attempt: now,
            retry_after: options.retry,
            unsent: VecDeque::new(),
            peer_loops: HashMap::new(),
            version: None,
            unanswered: HashSet::new(),
            granted: HashSet::new(),
            peers: 0,
            withdrawn: 0,
        };
        client.reconnect_due(now)?;
        Ok(client)
    }

    /// The socket, to poll for answers (readable); `None` while there is no monitor.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// When `reconnect_due` will search again; `None` while there is a monitor.
    pub fn next_attempt(&self) -> Option<Instant> {
        self.socket.is_none().then_some(self.next_attempt)
    }

    /// Searches for a monitor if there is none and the last search is long enough ago;
    /// true if this call found one. `fd` has changed then, and a `Welcome` follows.
    ///
    /// # Errors
    ///
    /// As for `connect`.
    pub fn reconnect_due(&mut self, now: Instant) -> Result<bool, ConnectError> {
        if self.socket.is_some() || now < self.next_attempt {
            return Ok(false);
        }
        self.next_attempt = now + self.retry_after;
        self.retry_after = self.options.retry.min(self.retry_after.saturating_mul(2));
        self.socket = self.search()?;
        Ok(self.socket.is_some())
    }

    /// Offers the connection of the endpoint `connection`. The monitor inspects the
    /// descriptor and closes its own copy soon after.
    ///
    /// The monitor's welcome may still be on its way: a short connection need not wait
    /// for it. The monitor's user was checked before anything was sent, and the hello
    /// precedes the offer. A monitor of another version rejects both, and `receive`
    /// returns the offer as unanswered.
    ///
    /// # Errors
    ///
    /// Nothing was offered; the connection stays on TCP.
    pub fn offer(&mut self, token: Token, connection: BorrowedFd<'_>) -> Result<(), OfferError> {
        self.flush();
        if !self.unsent.is_empty() || self.unanswered.len() >= MOST_UNANSWERED {
            return Err(OfferError::Full);
        }
        self.send_packet(&ClientMessage::Offer { token }.encode(), &[connection])?;
        self.unanswered.insert(token);
        self.peers += PEERS_EACH;
        Ok(())
    }

    /// Reports that the endpoint `connection` will not be offered, so that an offer of
    /// its peer is refused with the reason. Nothing is sent to a monitor that is busy or
    /// of an older version. False: the welcome, which states the version, has not
    /// arrived; call again later.
    pub fn decline(&mut self, reason: Reason, connection: BorrowedFd<'_>) -> bool {
        if self.version >= Some(DECLINES) && self.unsent.is_empty() {
            // This program has its own reason in any case.
            let _ = self.send_packet(&ClientMessage::Decline { reason }.encode(), &[connection]);
        }
        self.version.is_some() || self.socket.is_none()
    }

    /// Withdraws an offer, or reports that a promoted connection is over. A busy monitor
    /// gets the message later; one that is gone has discarded the offer anyway.
    pub fn withdraw(&mut self, token: Token) {
        self.flush();
        let known = self.unanswered.remove(&token) || self.granted.remove(&token);
        self.withdrawn += u64::from(known);
        let packet = ClientMessage::Withdraw { token }.encode();
        if !self.unsent.is_empty() || matches!(self.send_packet(&packet, &[]), Err(OfferError::Full)) {
            self.unsent.push_back(packet);
        }
    }

    /// Whether messages to the monitor are queued.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Registers a connection with a new monitor that an earlier one promoted: its
    /// socket's cookie (SO_COOKIE), and the peer's loop as that monitor numbered it.
    ///
    /// # Errors
    ///
    /// The monitor does not count this connection; nothing else depends on it.
    pub fn register(&mut self, token: Token, cookie: u64, peer_loop: u32) -> Result<(), OfferError> {
        self.flush();
        if !self.unsent.is_empty() {
            return Err(OfferError::Full);
        }
        self.send_packet(&ClientMessage::Register { token, cookie, peer_loop }.encode(), &[])
    }

    /// The monitor's next answer, if one has arrived: one welcome, and then at most four
    /// answers to each offer, so that a loop over them ends whatever the monitor sends.
    ///
    /// # Errors
    ///
    /// The monitor is gone, or violated the protocol. Reported once; `reconnect_due`
    /// searches for another.
    pub fn receive(&mut self) -> Result<Option<Answer>, ReceiveError> {
        self.flush();
        loop {
            match self.receive_message() {
                Ok(Some(Received::Answer(answer))) => return Ok(Some(answer)),
                Ok(Some(Received::Late)) => {}
                Ok(None) => return Ok(None),
                Err(cause) => return Err(self.disconnect(cause)),
            }
        }
    }

    fn receive_message(&mut self) -> Result<Option<Received>, LossCause> {
        let Some(socket) = &self.socket else { return Ok(None) };
        let mut bytes = [0; MOST_BYTES];
        let received = packet::receive(socket.as_fd(), &mut bytes).or_else(|error| {
            // The monitor closed the connection with unread messages of ours: its last
            // message follows the error, which the kernel reports only once.
            let reset = error.kind() == io::ErrorKind::ConnectionReset;
            if reset { packet::receive(socket.as_fd(), &mut bytes) } else { Err(error) }
        });
        let received = match received {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(LossCause::System(error)),
        };
        if received.len == 0 {
            return Err(LossCause::Ended);
        }
        let message = MonitorMessage::decode(&bytes[..received.len]).map_err(LossCause::Nonsense)?;
        if !self.expects(&message)? {
            return Ok(Some(Received::Late));
        }
        let answer = match message {
            message if !received.truncated => self.answer_to(message, received.descriptors)?,
            // This process may have no more descriptors: the connection stays on TCP.
            MonitorMessage::Grant { token, .. }
                if received.len < MOST_BYTES && received.excess.is_empty() =>
            {
                self.withdraw(token);
                Answer::Refused { token, reason: Reason::NoMemory }
            }
            _ => return Err(LossCause::Descriptors),
        };
        Ok(Some(Received::Answer(answer)))
    }

    /// Whether a message is valid now: first one welcome, then a grant or a refusal of an
    /// offer, and perhaps a refusal of a granted one. False: it crossed a withdrawal.
    fn expects(&mut self, message: &MonitorMessage) -> Result<bool, LossCause> {
        let expected = match *message {
            MonitorMessage::Refuse { token: None, .. } => true,
            MonitorMessage::Welcome { version, .. } => self.version.replace(version).is_none(),
            _ if self.version.is_none() => false,
            MonitorMessage::Grant { token, .. } => {
                self.unanswered.remove(&token) && self.granted.insert(token)
            }
            MonitorMessage::Peer { token, .. } | MonitorMessage::Declined { token, .. } => {
                match self.peers.checked_sub(1) {
                    Some(left) => {
                        self.peers = left;
                        // It may have crossed a withdrawal, or a grant.
                        return Ok(self.unanswered.contains(&token));
                    }
                    None => false,
                }
            }
            MonitorMessage::Refuse { token: Some(token), .. } => {
                self.unanswered.remove(&token) || self.granted.remove(&token)
            }
            MonitorMessage::End { .. } => false,
        };
        let answers = matches!(message, MonitorMessage::Grant { .. } | MonitorMessage::Refuse { .. });
        if !expected && answers && self.withdrawn > 0 {
            self.withdrawn -= 1;
            return Ok(false);
        }
        if expected { Ok(true) } else { Err(LossCause::OutOfTurn) }
    }

    fn answer_to(
        &mut self,
        message: MonitorMessage,
        descriptors: [Option<OwnedFd>; packet::MOST_DESCRIPTORS],
    ) -> Result<Answer, LossCause> {
        match (message, descriptors) {
            (MonitorMessage::Welcome { version, loop_id, segment_size }, [Some(page), None, ..]) => {
                if !self.options.versions().contains(&version) || !is_segment_size(segment_size) {
                    return Err(LossCause::Version { version, segment_size });
                }
                let loop_page =
                    SharedMapping::writable(page.as_fd(), LOOP_PAGE).map_err(LossCause::Memory)?;
                Ok(Answer::Welcome { loop_id, loop_page, segment_size })
            }
            (
                MonitorMessage::Grant { token, peer_loop, segment_size },
                [Some(own), Some(peer), Some(page), own_doorbell, peer_doorbell],
            ) => {
                if !is_segment_size(segment_size) {
                    return Err(LossCause::Version { version: self.version.unwrap_or(OLDEST), segment_size });
                }
                let doorbells = self.doorbells(own_doorbell, peer_doorbell)?;
                match self.map(token, peer_loop, segment_size as usize, [own, peer, page], doorbells) {
                    Err(MapError::Refused(_)) => {
                        // Out of memory or of mappings: the connection stays on TCP.
                        self.withdraw(token);
                        Ok(Answer::Refused { token, reason: Reason::NoMemory })
                    }
                    Err(unsound) => Err(LossCause::Memory(unsound)),
                    Ok(answer) => Ok(answer),
                }
            }
            (MonitorMessage::Refuse { token: Some(token), reason }, [None, ..]) => {
                Ok(Answer::Refused { token, reason })
            }
            (MonitorMessage::Peer { token, user }, [None, ..]) => Ok(Answer::Peer { token, user }),
            (MonitorMessage::Declined { token, reason }, [None, ..]) => {
                Ok(Answer::Declined { token, reason })
            }
            (MonitorMessage::Refuse { token: None, reason }, _) => Err(LossCause::Refused(reason)),
            _ => Err(LossCause::Descriptors),
        }
    }

    /// The doorbells of a grant: both, or none.
    fn doorbells(&self, own: Option<OwnedFd>, peer: Option<OwnedFd>) -> Result<Option<Doorbells>, LossCause> {
        match (own, peer) {
            (None, None) => Ok(None),
            (Some(own), Some(peer)) => {
                let kind = doorbell::check(own.as_fd(), peer.as_fd()).ok_or(LossCause::Descriptors)?;
                let least = match kind {
                    doorbell::Kind::Pipe => DOORBELLS,
                    doorbell::Kind::Queue => QUEUES,
                };
                if self.version < Some(least) {
                    return Err(LossCause::Descriptors);
                }
                Ok(Some(Doorbells { own, peer, kind }))
            }
            _ => Err(LossCause::Descriptors),
        }
    }

    fn map(
        &mut self,
        token: Token,
        id: u32,
        segment_size: usize,
        [own, peer, page]: [OwnedFd; 3],
        doorbells: Option<Doorbells>,
    ) -> Result<Answer, MapError> {
        let own = SharedMapping::writable(own.as_fd(), segment_size)?;
        let peer = SharedMapping::read_only(peer.as_fd(), segment_size)?;
        // One mapping of a page for all connections with that loop. A mapped page was
        // checked when it was mapped, and this file is not touched.
        let number = memory_file::number(page.as_fd())
            .map_err(|cause| MapError::Unsound(UnsoundFile::Foreign(cause)))?;
        let known = self.peer_loops.get(&number).and_then(Weak::upgrade);
        let peer_loop = match known.filter(|known| known.id == id) {
            Some(known) => known,
            None => {
                let page = SharedMapping::read_only(page.as_fd(), LOOP_PAGE)?;
                self.peer_loops.retain(|_, known| known.strong_count() > 0);
                let new = Arc::new(PeerLoop { id, page });
                self.peer_loops.insert(number, Arc::downgrade(&new));
                new
            }
        };
        Ok(Answer::Granted { token, own, peer, peer_loop, doorbells })
    }

    fn disconnect(&mut self, cause: LossCause) -> ReceiveError {
        // A monitor that ended is replaced soon. One that rejects this client, or sends
        // invalid messages, is retried like an absent one.
        if self.version.is_some() && matches!(cause, LossCause::Ended | LossCause::System(_)) {
            self.retry_after = RECONNECT.min(self.options.retry);
        }
        self.next_attempt = Instant::now() + self.retry_after;
        self.socket = None;
        self.unsent.clear();
        self.version = None;
        let unanswered = self.unanswered.drain().collect();
        self.granted.clear();
        self.peers = 0;
        self.withdrawn = 0;
        ReceiveError { cause, unanswered }
    }

    fn flush(&mut self) {
        while let Some(packet) = self.unsent.pop_front() {
            if matches!(self.send_packet(&packet, &[]), Err(OfferError::Full)) {
                self.unsent.push_front(packet);
                break;
            }
        }
    }

    fn send_packet(&self, packet: &Packet, descriptors: &[BorrowedFd<'_>]) -> Result<(), OfferError> {
        let Some(socket) = &self.socket else { return Err(OfferError::NoMonitor) };
        let sent = packet::send(socket.as_fd(), packet.as_bytes(), descriptors);
        sent.map_err(|error| match error.raw_os_error() {
            // The last: too many descriptors of this user are in flight (unix(7)).
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ETOOMANYREFS) => OfferError::Full,
            // Its last messages are still to be received, and then the end.
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => OfferError::NoMonitor,
            _ => OfferError::Descriptor(error),
        })
    }

    /// Connects to the first monitor that listens, and sends the hello.
    fn search(&self) -> Result<Option<Kept>, ConnectError> {
        let Options { socket, runtime_directory, .. } = &self.options;
        for place in Place::all(socket.as_deref(), runtime_directory.as_deref()) {
            let Ok(socket) = place.connect()? else { continue };
            let socket = (self.options.keep)(socket).ok_or(ConnectError::Descriptors)?;
            let (version_min, version_max) = self.options.versions().into_inner();
            let hello = ClientMessage::Hello { version_min, version_max, name: self.options.name };
            // A new socket has room. If the monitor has rejected us already, `receive`
            // returns the reason.
            let _ = packet::send(socket.as_fd(), hello.encode().as_bytes(), &[]);
            return Ok(Some(socket));
        }
        Ok(None)
    }
}

fn is_segment_size(size: u32) -> bool {
    REGION_SIZES.contains(&size) && size.is_multiple_of(4096)
}
