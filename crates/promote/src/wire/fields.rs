//! What fields of messages mean: tokens, reasons and names.

use std::fmt;

/// Bytes of a client's name.
pub const NAME_BYTES: usize = 32;

/// Names an offer, and later the promoted connection, in the talk of one client with the
/// monitor; chosen by the client, never 0, unique among its live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(super) u64);

impl Token {
    /// `None` for 0.
    pub const fn new(value: u64) -> Option<Token> {
        if value == 0 { None } else { Some(Token(value)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Why the monitor refuses. Final for the connection that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Reason {
    /// The descriptor is no TCP socket.
    NotTcp = 1,
    /// The peer's address is not on this host.
    NotThisHost = 2,
    /// The socket is not connected, or no longer in both directions.
    NotConnected = 3,
    /// The policy does not let these two share memory.
    Policy = 4,
    /// One of the two users has all the memory, or all the waiting offers, he may have.
    Quota = 5,
    /// This client offers faster than it may.
    Rate = 6,
    /// The system had no memory or descriptors left.
    NoMemory = 7,
    /// The other end did not offer the connection in time.
    Unmatched = 8,
    /// When both ends had offered, the sockets no longer were that connection.
    Changed = 9,
    /// Urgent data is under way.
    UrgentData = 10,
    /// The monitor ends.
    ShuttingDown = 11,
    /// The client broke the protocol.
    Protocol = 12,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Reason; 12] = [
        Reason::NotTcp,
        Reason::NotThisHost,
        Reason::NotConnected,
        Reason::Policy,
        Reason::Quota,
        Reason::Rate,
        Reason::NoMemory,
        Reason::Unmatched,
        Reason::Changed,
        Reason::UrgentData,
        Reason::ShuttingDown,
        Reason::Protocol,
    ];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::NotTcp => "not-tcp",
            Reason::NotThisHost => "not-this-host",
            Reason::NotConnected => "not-connected",
            Reason::Policy => "policy",
            Reason::Quota => "quota",
            Reason::Rate => "rate",
            Reason::NoMemory => "no-memory",
            Reason::Unmatched => "unmatched",
            Reason::Changed => "changed",
            Reason::UrgentData => "urgent-data",
            Reason::ShuttingDown => "shutting-down",
            Reason::Protocol => "protocol",
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Reason> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Reason::ALL.get(index).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a client calls itself: at most 32 bytes, for logs and views only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(pub(super) [u8; NAME_BYTES]);

impl Name {
    /// The first 32 bytes of `text`.
    pub fn new(text: &str) -> Name {
        let mut bytes = [0; NAME_BYTES];
        for (place, byte) in bytes.iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        Name(bytes)
    }

    /// The bytes as they are sent, filled up with zeroes.
    pub const fn as_bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }
}

impl fmt::Display for Name {
    /// Up to the first zero; whatever is not printable ASCII becomes `?`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for &byte in self.0.iter().take_while(|byte| **byte != 0) {
            let plain = byte.is_ascii_graphic() || byte == b' ';
            formatter.write_char(if plain { byte.into() } else { '?' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}
