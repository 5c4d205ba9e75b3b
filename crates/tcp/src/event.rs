//! What a program is told, and how a connection can fail.

use std::net::SocketAddr;

use crate::core::tuple::Tuple;

/// A connection. Valid until the program closes it; a later connection never has an equal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A SYN about which the program was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Something happened. No queue of these can overflow: what happens to a flow is gathered in
/// bits until the program takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// To a connection.
    Flow {
        /// Which one.
        flow: Flow,
        /// What the program has [set](crate::Host::set_owner) for it.
        owner: u32,
        /// What happened since the last such event.
        ready: Ready,
    },
    /// Connections wait to be accepted.
    Incoming(Listener),
    /// A SYN waits for the program's answer.
    Ask {
        /// To be handed to [`answer`](crate::Host::answer).
        ask: Ask,
        /// Where the SYN went.
        local: SocketAddr,
        /// Where it came from.
        remote: SocketAddr,
    },
}

/// Bits of what happened to a flow.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready(pub(crate) u8);

impl Ready {
    /// The connection is open.
    pub const CONNECTED: Ready = Ready(1);
    /// There are more bytes to read.
    pub const READABLE: Ready = Ready(2);
    /// There is more room to write.
    pub const WRITABLE: Ready = Ready(4);
    /// The peer has no more to send.
    pub const END: Ready = Ready(8);
    /// The connection has failed: reads and writes say why.
    pub const FAILED: Ready = Ready(16);
    /// Everything that was written, and our end of stream, is acknowledged.
    pub const FLUSHED: Ready = Ready(32);
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.8
    //# However, an application program that does not want to receive such ERROR_REPORT calls SHOULD be able
    //# to effectively disable these calls (SHLD-20).
    /// Something may be wrong: [`Info::trouble`](crate::Info::trouble) says what. The connection goes
    /// on, and a program can ignore this.
    pub const TROUBLE: Ready = Ready(64);

    /// Whether all of these happened.
    pub fn has(self, other: Ready) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn add(&mut self, other: Ready) {
        self.0 |= other.0;
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = ["CONNECTED", "READABLE", "WRITABLE", "END", "FAILED", "FLUSHED", "TROUBLE"];
        let set = names.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.debug_set().entries(set.map(|(_, name)| name)).finish()
    }
}

/// Why a connection ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer answered the SYN with RST, or its host with an ICMP error: nobody listens there.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer did not answer for too long.
    #[error("the connection timed out")]
    TimedOut,
    /// The network said that the peer cannot be reached.
    #[error("the peer is unreachable")]
    Unreachable,
}

/// Why a segment or packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Not a whole IP packet of a known version.
    Malformed,
    /// A checksum does not match.
    Checksum,
    /// For an address that is not the host's.
    Address,
    /// A fragment: the host reassembles none.
    Fragment,
    /// A protocol that the host does not speak.
    Protocol,
    /// No connection and no listener. Answered with RST.
    NoFlow,
    /// Outside the window (RFC 9293, 3.4).
    Window,
    /// An old timestamp (PAWS, RFC 7323, 5).
    Timestamp,
    /// No timestamp on a connection that uses them (RFC 7323, 3.2).
    NoTimestamp,
    /// RST or SYN that may be forged, answered with a challenge (RFC 5961).
    Challenged,
    /// It acknowledges what was not sent, or long ago (RFC 5961, 5.2).
    Acknowledgement,
    /// No ACK bit on an open connection.
    NoAck,
    /// No memory for its payload.
    Memory,
    /// The connection is over, or the program reads no more.
    Over,
    /// Too many connections wait to be accepted, or there are too many.
    Backlog,
    /// A SYN or RST inside the handshake that does not belong to it.
    Handshake,
}

/// Kinds of reasons.
pub(crate) const REASONS: usize = Reason::Handshake as usize + 1;

/// What a program answers to a SYN that it was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Go on with the handshake; the connection then waits to be accepted.
    Accept,
    /// Answer with RST.
    Refuse,
    /// Say nothing.
    Ignore,
}

impl Ask {
    pub(crate) fn event(self, tuple: &Tuple) -> Event {
        Event::Ask { ask: self, local: tuple.local(), remote: tuple.remote() }
    }
}
