//! Queries of a monitor's state.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use sys::packet;

use crate::Reason;
use crate::client::OLDEST;
use crate::place::{self, ConnectError, Place, runtime_directory, variable};
use crate::wire::view::{self, Allowed, Loop, Promoted, Record, Totals};
use crate::wire::{ClientMessage, DecodeError, MOST_BYTES, MonitorMessage, Name};

/// How long a monitor may take for the next packet.
const PACKET_TIMEOUT: Duration = Duration::from_secs(5);
/// Bounds of one answer, against a hostile monitor: packets, pages without progress, and
/// time. An honest monitor makes no progress only while its records find no room, which
/// the next query has made.
const MOST_PACKETS: usize = 1 << 20;
const MOST_STANDSTILLS: usize = 16;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The monitor there is not to be trusted, or cannot be reached.
    #[error(transparent)]
    Place(#[from] ConnectError),
    /// connect(2), sendmsg(2) or recvmsg(2).
    #[error("the monitor cannot be asked: {0}")]
    System(#[from] io::Error),
    /// It ended.
    #[error("the monitor has ended")]
    Ended,
    /// It rejects this client.
    #[error("the monitor rejects this program: {0}")]
    Refused(Reason),
    /// It closed the connection upon the query.
    #[error(
        "the monitor is older than this program and cannot be asked; restart it (systemctl restart megapipe-monitor)"
    )]
    Unknown,
    /// It sent an invalid message.
    #[error("the monitor sent an invalid message: {0}")]
    Nonsense(#[from] DecodeError),
    /// It sent a message that does not answer the query.
    #[error("the monitor sent an answer to another question")]
    Strange,
    /// It keeps sending: more than an honest monitor has, or the same again.
    #[error("the monitor's answer has no end")]
    Endless,
    /// No answer arrived.
    #[error("the monitor has not answered for {} seconds", PACKET_TIMEOUT.as_secs())]
    Silent,
}

impl ViewError {
    /// Whether clients continue the search: no monitor listens there, or none can be
    /// reached.
    pub fn is_absence(&self) -> bool {
        matches!(self, ViewError::System(error) if place::is_absence(error))
    }
}

/// A monitor's state at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// Its counts.
    pub totals: Totals,
    /// Its clients, by number.
    pub loops: Vec<Loop>,
    /// The endpoints of promoted connections, by number.
    pub promoted: Vec<Promoted>,
    /// When the answer was complete.
    pub at: Instant,
}

/// The locations at which monitors are searched for: `chosen`, else that of
/// MEGAPIPE_MONITOR, else the system's and the user's own.
pub fn places(chosen: Option<PathBuf>) -> Vec<Place> {
    let named = chosen.or_else(|| variable("MEGAPIPE_MONITOR"));
    Place::all(named.as_deref(), runtime_directory().as_deref())
}

/// A connection for queries to a monitor.
pub struct Viewer {
    socket: OwnedFd,
}

impl Viewer {
    /// Connects to the monitor at `place`, one of [`places`].
    ///
    /// # Errors
    ///
    /// It is absent (`System`), or does not answer.
    pub fn connect(place: &Place, name: &str) -> Result<Viewer, ViewError> {
        let viewer = Viewer { socket: place.connect()?? };
        let (version_min, version_max) = (OLDEST, OLDEST);
        let hello = ClientMessage::Hello { version_min, version_max, name: Name::new(name) };
        // A monitor that rejected us at once has sent the reason, which is received
        // below.
        let _ = viewer.send(hello);
        let mut bytes = [0; MOST_BYTES];
        match MonitorMessage::decode(viewer.receive(&mut bytes)?)? {
            // The page is for clients with connections.
            MonitorMessage::Welcome { .. } => Ok(viewer),
            MonitorMessage::Refuse { reason, .. } => Err(ViewError::Refused(reason)),
            _ => Err(ViewError::Strange),
        }
    }

    /// The user of the listening process, according to the kernel (SO_PEERCRED): the
    /// monitor's own statement is not proof.
    ///
    /// # Errors
    ///
    /// Those of getsockopt(2).
    pub fn user(&self) -> io::Result<u32> {
        Ok(packet::credentials(self.socket.as_fd())?.uid)
    }

    /// Queries everything that this user may see.
    ///
    /// # Errors
    ///
    /// The monitor ended, sent an invalid message, or did not complete its answer within
    /// 30 s.
    pub fn query(&self) -> Result<View, ViewError> {
        let mut totals = None;
        let (mut loops, mut promoted) = (Vec::new(), Vec::new());
        let mut bytes = [0; MOST_BYTES];
        let mut from = Some(view::Place::FIRST);
        let (mut packets, mut standstills) = (0, 0);
        let until = Instant::now() + ANSWER_TIMEOUT;
        while let Some(place) = from {
            self.send(ClientMessage::Query { from: place })?;
            from = loop {
                packets += 1;
                if packets > MOST_PACKETS || standstills > MOST_STANDSTILLS || Instant::now() > until {
                    return Err(ViewError::Endless);
                }
                let packet = self.receive(&mut bytes)?;
                match Record::decode(packet)? {
                    Some(Record::Totals(record)) => totals = Some(record),
                    Some(Record::Loop(record)) => loops.push(record),
                    Some(Record::Promoted(record)) => promoted.push(record),
                    Some(Record::Allowed(_)) => return Err(ViewError::Strange),
                    None => match MonitorMessage::decode(packet)? {
                        // It may continue at the same place, but not go back.
                        MonitorMessage::End { next } if next.is_none_or(|next| next >= place) => {
                            standstills += usize::from(next == Some(place));
                            break next;
                        }
                        MonitorMessage::Refuse { reason: Reason::Version, .. } => {
                            return Err(ViewError::Unknown);
                        }
                        MonitorMessage::Refuse { reason, .. } => return Err(ViewError::Refused(reason)),
                        _ => return Err(ViewError::Strange),
                    },
                }
            };
        }
        let totals = totals.ok_or(ViewError::Strange)?;
        Ok(View { totals, loops, promoted, at: Instant::now() })
    }

    /// Queries what the policy allows the programs of `user`; `None` if this user may not
    /// see that, being neither that one, nor root, nor the monitor's.
    ///
    /// # Errors
    ///
    /// As for `check`.
    pub fn allowed(&self, user: u32) -> Result<Option<Allowed>, ViewError> {
        self.send(ClientMessage::AskPolicy { user })?;
        let mut bytes = [0; MOST_BYTES];
        let packet = self.receive(&mut bytes)?;
        let allowed = match Record::decode(packet)? {
            Some(Record::Allowed(allowed)) if allowed.user == user => allowed,
            Some(_) => return Err(ViewError::Strange),
            None => return expect_end(packet).map(|()| None),
        };
        expect_end(self.receive(&mut bytes)?)?;
        Ok(Some(allowed))
    }

    fn send(&self, message: ClientMessage) -> Result<(), ViewError> {
        // One query at a time always finds room.
        Ok(packet::send(self.socket.as_fd(), message.encode().as_bytes(), &[])?)
    }

    fn receive<'a>(&self, bytes: &'a mut [u8; MOST_BYTES]) -> Result<&'a [u8], ViewError> {
        let until = Instant::now() + PACKET_TIMEOUT;
        let received = loop {
            match packet::receive(self.socket.as_fd(), bytes) {
                Ok(received) => break received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ViewError::Ended),
                Err(error) => return Err(error.into()),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ViewError::Silent);
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        };
        match received.len {
            0 => Err(ViewError::Ended),
            len => Ok(&bytes[..len]),
        }
    }
}

/// Checks the last packet of an answer.
fn expect_end(packet: &[u8]) -> Result<(), ViewError> {
    match MonitorMessage::decode(packet)? {
        MonitorMessage::End { next: None } => Ok(()),
        MonitorMessage::Refuse { reason: Reason::Version, .. } => Err(ViewError::Unknown),
        MonitorMessage::Refuse { reason, .. } => Err(ViewError::Refused(reason)),
        _ => Err(ViewError::Strange),
    }
}
