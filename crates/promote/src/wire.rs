//! The messages between a client and the monitor, version 1: one packet each, of fixed
//! size by type, little-endian. Encoding and decoding allocate nothing, and whatever bytes
//! come are decoded or refused by name.

use std::fmt;

pub mod view;

use view::Place;

/// Version of the messages.
pub const VERSION: u16 = 1;
/// Bytes of the longest packet that any version may send.
pub const MOST_BYTES: usize = 256;
/// Bytes of a client's name.
pub const NAME_BYTES: usize = 32;

/// Bytes of the longest message of this version.
const LONGEST: usize = HEADER + 8 + NAME_BYTES;
/// u16 type, u16 version, u32 length of the whole.
const HEADER: usize = 8;

const HELLO: u16 = 1;
const WELCOME: u16 = 2;
const OFFER: u16 = 3;
const GRANT: u16 = 4;
const REFUSE: u16 = 5;
const WITHDRAW: u16 = 6;
const REGISTER: u16 = 7;
const ATTACH: u16 = 8;
const QUERY: u16 = 9;
const RECORD: u16 = 10;
const END: u16 = 11;

/// Names an offer, and later the promoted connection, in the talk of one client with the
/// monitor; chosen by the client, never 0, unique among its live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

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

    fn from_number(number: u32) -> Option<Reason> {
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
pub struct Name([u8; NAME_BYTES]);

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

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// The first message: which versions the client speaks, and its name.
    Hello {
        /// Oldest version it speaks.
        version_min: u32,
        /// Newest version it speaks.
        version_max: u32,
        /// What it calls itself.
        name: Name,
    },
    /// One end of a connection; with it comes the socket.
    Offer {
        /// Names it from now on.
        token: Token,
    },
    /// An offer, or a promoted connection, is over.
    Withdraw {
        /// Which.
        token: Token,
    },
    /// A promoted connection that an earlier monitor granted still lives.
    Register {
        /// Names it from now on.
        token: Token,
        /// The socket's SO_COOKIE.
        cookie: u64,
        /// Number of the other end's loop, as that monitor told it.
        peer_loop: u32,
    },
    /// Asks for records of what the monitor sees, from a place on ([`view`]).
    Query {
        /// The place.
        from: Place,
    },
    /// A process that holds a promoted connection without its segments asks for them; with
    /// it comes the socket.
    Attach {
        /// The socket's SO_COOKIE.
        cookie: u64,
    },
}

/// What the monitor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorMessage {
    /// The answer to a hello; with it comes the client's loop page, to read and write.
    Welcome {
        /// The version that is spoken from now on.
        version: u32,
        /// Number of the client's loop.
        loop_id: u32,
        /// Bytes of the segments that are granted now.
        segment_size: u32,
    },
    /// Both ends have met; with it come the own segment (to read and write), the peer's
    /// segment and the peer's loop page (to read).
    Grant {
        /// The offer.
        token: Token,
        /// Number of the peer's loop.
        peer_loop: u32,
        /// Bytes of either segment.
        segment_size: u32,
    },
    /// The offer is refused for good. Without a token it concerns the client as a whole,
    /// and the monitor closes the connection.
    Refuse {
        /// The offer.
        token: Option<Token>,
        /// Why.
        reason: Reason,
    },
    /// The records that a query asked for ([`view`]) end here.
    End {
        /// Where the next query goes on; `None`: all was told.
        next: Option<Place>,
    },
}

/// Why a packet is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not even a header.
    #[error("a packet of {0} bytes is shorter than a header")]
    Short(usize),
    /// The length in the header is not that of the packet.
    #[error("a packet of {found} bytes claims to have {claimed}")]
    Length {
        /// Bytes of the packet.
        found: usize,
        /// Bytes it should have.
        claimed: u32,
    },
    /// Another version of the messages.
    #[error("version {0} of the messages is not spoken here")]
    Version(u16),
    /// No message of this side has that type.
    #[error("type {0} is unknown, or of the other side")]
    Type(u16),
    /// Messages of this type have another size.
    #[error("a message of type {kind} has {found} bytes, not {expected}")]
    Size {
        /// Its type.
        kind: u16,
        /// Bytes it has.
        found: usize,
        /// Bytes of all messages of its type.
        expected: usize,
    },
    /// A token is 0.
    #[error("a token is 0")]
    Token,
    /// No section has that number.
    #[error("section {0} is unknown")]
    Section(u32),
    /// A field has a value that its meaning does not allow.
    #[error("a field of a record has an impossible value")]
    Field,
    /// No reason has that number.
    #[error("reason {0} is unknown")]
    Reason(u32),
    /// The oldest version in a hello is newer than the newest.
    #[error("versions {0} to {1} are none")]
    Range(u32, u32),
}

/// A message as it is sent.
#[derive(Clone, Copy)]
pub struct Packet<const ROOM: usize = LONGEST> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Packet<ROOM> {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl ClientMessage {
    /// The packet that says it.
    pub fn encode(&self) -> Packet {
        match *self {
            ClientMessage::Hello { version_min, version_max, name } => {
                Writer::new(HELLO).u32(version_min).u32(version_max).bytes(&name.0).end()
            }
            ClientMessage::Offer { token } => Writer::new(OFFER).u64(token.0).end(),
            ClientMessage::Withdraw { token } => Writer::new(WITHDRAW).u64(token.0).end(),
            ClientMessage::Register { token, cookie, peer_loop } => {
                Writer::new(REGISTER).u64(token.0).u64(cookie).u32(peer_loop).end()
            }
            ClientMessage::Attach { cookie } => Writer::new(ATTACH).u64(cookie).end(),
            ClientMessage::Query { from } => from.write(Writer::new(QUERY)).end(),
        }
    }

    /// What a packet says.
    ///
    /// # Errors
    ///
    /// Every packet that no client of this version would send.
    pub fn decode(packet: &[u8]) -> Result<ClientMessage, DecodeError> {
        let (kind, mut fields) = Reader::new(packet)?;
        Ok(match kind {
            HELLO => {
                fields.expect(8 + NAME_BYTES)?;
                let (version_min, version_max) = (fields.u32(), fields.u32());
                if version_min > version_max {
                    return Err(DecodeError::Range(version_min, version_max));
                }
                ClientMessage::Hello { version_min, version_max, name: Name(fields.take()) }
            }
            OFFER => {
                fields.expect(8)?;
                ClientMessage::Offer { token: fields.token()? }
            }
            WITHDRAW => {
                fields.expect(8)?;
                ClientMessage::Withdraw { token: fields.token()? }
            }
            REGISTER => {
                fields.expect(20)?;
                ClientMessage::Register {
                    token: fields.token()?,
                    cookie: fields.u64(),
                    peer_loop: fields.u32(),
                }
            }
            ATTACH => {
                fields.expect(8)?;
                ClientMessage::Attach { cookie: fields.u64() }
            }
            QUERY => {
                fields.expect(Place::BYTES)?;
                ClientMessage::Query { from: Place::read(&mut fields)? }
            }
            other => return Err(DecodeError::Type(other)),
        })
    }
}

impl MonitorMessage {
    /// The packet that says it.
    pub fn encode(&self) -> Packet {
        match *self {
            MonitorMessage::Welcome { version, loop_id, segment_size } => {
                Writer::new(WELCOME).u32(version).u32(loop_id).u32(segment_size).end()
            }
            MonitorMessage::Grant { token, peer_loop, segment_size } => {
                Writer::new(GRANT).u64(token.0).u32(peer_loop).u32(segment_size).end()
            }
            MonitorMessage::Refuse { token, reason } => {
                Writer::new(REFUSE).u64(token.map_or(0, Token::get)).u32(reason as u32).end()
            }
            MonitorMessage::End { next: Some(next) } => next.write(Writer::new(END)).end(),
            MonitorMessage::End { next: None } => Writer::new(END).bytes(&[0; Place::BYTES]).end(),
        }
    }

    /// What a packet says.
    ///
    /// # Errors
    ///
    /// Every packet that no monitor of this version would send.
    pub fn decode(packet: &[u8]) -> Result<MonitorMessage, DecodeError> {
        let (kind, mut fields) = Reader::new(packet)?;
        Ok(match kind {
            WELCOME => {
                fields.expect(12)?;
                MonitorMessage::Welcome {
                    version: fields.u32(),
                    loop_id: fields.u32(),
                    segment_size: fields.u32(),
                }
            }
            GRANT => {
                fields.expect(16)?;
                MonitorMessage::Grant {
                    token: fields.token()?,
                    peer_loop: fields.u32(),
                    segment_size: fields.u32(),
                }
            }
            REFUSE => {
                fields.expect(12)?;
                let token = Token::new(fields.u64());
                let number = fields.u32();
                let reason = Reason::from_number(number).ok_or(DecodeError::Reason(number))?;
                MonitorMessage::Refuse { token, reason }
            }
            END => {
                fields.expect(Place::BYTES)?;
                let all = fields.fields == [0; Place::BYTES];
                MonitorMessage::End { next: if all { None } else { Some(Place::read(&mut fields)?) } }
            }
            other => return Err(DecodeError::Type(other)),
        })
    }
}

/// Puts fields one after the other into a packet, which has room for the message it is for.
struct Writer<const ROOM: usize = LONGEST>(Packet<ROOM>);

impl<const ROOM: usize> Writer<ROOM> {
    fn new(kind: u16) -> Writer<ROOM> {
        Writer(Packet { bytes: [0; ROOM], len: 0 })
            .bytes(&kind.to_le_bytes())
            .bytes(&VERSION.to_le_bytes())
            .u32(0)
    }

    fn u32(self, value: u32) -> Writer<ROOM> {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Writer<ROOM> {
        self.bytes(&value.to_le_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Writer<ROOM> {
        let packet = &mut self.0;
        packet.bytes[packet.len..packet.len + bytes.len()].copy_from_slice(bytes);
        packet.len += bytes.len();
        self
    }

    fn end(mut self) -> Packet<ROOM> {
        let len = self.0.len as u32;
        self.0.bytes[4..HEADER].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

/// Takes the fields of a packet one after the other; `expect` has made sure of them all.
struct Reader<'a> {
    kind: u16,
    fields: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(packet: &'a [u8]) -> Result<(u16, Reader<'a>), DecodeError> {
        let Some((header, fields)) = packet.split_first_chunk::<HEADER>() else {
            return Err(DecodeError::Short(packet.len()));
        };
        let kind = u16::from_le_bytes([header[0], header[1]]);
        let version = u16::from_le_bytes([header[2], header[3]]);
        let claimed = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if usize::try_from(claimed) != Ok(packet.len()) || packet.len() > MOST_BYTES {
            return Err(DecodeError::Length { found: packet.len(), claimed });
        }
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        Ok((kind, Reader { kind, fields }))
    }

    fn expect(&self, len: usize) -> Result<(), DecodeError> {
        if self.fields.len() == len {
            return Ok(());
        }
        Err(DecodeError::Size { kind: self.kind, found: HEADER + self.fields.len(), expected: HEADER + len })
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.fields.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.fields = rest;
                *field
            }
            None => [0; N],
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn token(&mut self) -> Result<Token, DecodeError> {
        Token::new(self.u64()).ok_or(DecodeError::Token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> impl Strategy<Value = Token> {
        (1..=u64::MAX).prop_map(Token)
    }

    fn client_message() -> impl Strategy<Value = ClientMessage> {
        prop_oneof![
            (any::<u32>(), any::<u32>(), any::<[u8; NAME_BYTES]>()).prop_map(|(a, b, name)| {
                ClientMessage::Hello { version_min: a.min(b), version_max: a.max(b), name: Name(name) }
            }),
            token().prop_map(|token| ClientMessage::Offer { token }),
            token().prop_map(|token| ClientMessage::Withdraw { token }),
            (token(), any::<u64>(), any::<u32>()).prop_map(|(token, cookie, peer_loop)| {
                ClientMessage::Register { token, cookie, peer_loop }
            }),
            any::<u64>().prop_map(|cookie| ClientMessage::Attach { cookie }),
            view::tests::place().prop_map(|from| ClientMessage::Query { from }),
        ]
    }

    fn monitor_message() -> impl Strategy<Value = MonitorMessage> {
        prop_oneof![
            any::<(u32, u32, u32)>().prop_map(|(version, loop_id, segment_size)| {
                MonitorMessage::Welcome { version, loop_id, segment_size }
            }),
            (token(), any::<u32>(), any::<u32>()).prop_map(|(token, peer_loop, segment_size)| {
                MonitorMessage::Grant { token, peer_loop, segment_size }
            }),
            (any::<u64>(), 0..Reason::ALL.len()).prop_map(|(token, reason)| MonitorMessage::Refuse {
                token: Token::new(token),
                reason: Reason::ALL[reason]
            }),
            prop::option::of(view::tests::place()).prop_map(|next| MonitorMessage::End { next }),
        ]
    }

    proptest! {
        #[test]
        fn client_messages_come_back(message in client_message()) {
            let packet = message.encode();
            prop_assert!(packet.as_bytes().len() <= MOST_BYTES);
            prop_assert_eq!(ClientMessage::decode(packet.as_bytes()), Ok(message));
        }

        #[test]
        fn monitor_messages_come_back(message in monitor_message()) {
            prop_assert_eq!(MonitorMessage::decode(message.encode().as_bytes()), Ok(message));
        }

        /// What decodes is what encodes to exactly these bytes; everything else is refused.
        #[test]
        fn any_bytes_decode_or_are_refused(
            kind in 0u16..13, version in 0u16..3, mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            honest in any::<bool>(),
        ) {
            if honest && bytes.len() >= HEADER {
                bytes[0..2].copy_from_slice(&kind.to_le_bytes());
                bytes[2..4].copy_from_slice(&version.to_le_bytes());
                let len = bytes.len() as u32;
                bytes[4..8].copy_from_slice(&len.to_le_bytes());
            }
            if let Ok(message) = ClientMessage::decode(&bytes) {
                let again = message.encode();
                prop_assert_eq!(again.as_bytes(), &bytes[..]);
            }
            if let Ok(Some(record)) = view::Record::decode(&bytes) {
                let again = record.encode();
                prop_assert_eq!(again.as_bytes(), &bytes[..]);
            }
            if let Ok(message) = MonitorMessage::decode(&bytes) {
                let again = message.encode();
                prop_assert_eq!(again.as_bytes(), &bytes[..]);
            }
        }

        #[test]
        fn a_part_of_a_message_is_none(message in client_message(), cut in any::<prop::sample::Index>()) {
            let packet = message.encode();
            let len = cut.index(packet.as_bytes().len());
            prop_assert!(ClientMessage::decode(&packet.as_bytes()[..len]).is_err());
        }
    }

    #[test]
    fn the_layout_is_that_of_the_specification() {
        let offer = ClientMessage::Offer { token: Token(0x0102_0304) }.encode();
        assert_eq!(offer.as_bytes(), &[3, 0, 1, 0, 16, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        let refuse = MonitorMessage::Refuse { token: Token::new(1), reason: Reason::Policy }.encode();
        assert_eq!(refuse.as_bytes(), &[5, 0, 1, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
    }

    #[test]
    fn each_defect_has_its_name() {
        let good = ClientMessage::Offer { token: Token(1) }.encode();
        let spoilt = |at: usize, value: u8| {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = value;
            ClientMessage::decode(&bytes).unwrap_err()
        };
        assert_eq!(ClientMessage::decode(&[]).unwrap_err(), DecodeError::Short(0));
        assert_eq!(spoilt(0, GRANT as u8), DecodeError::Type(GRANT));
        assert_eq!(spoilt(0, HELLO as u8), DecodeError::Size { kind: HELLO, found: 16, expected: 48 });
        assert_eq!(spoilt(2, 2), DecodeError::Version(2));
        assert_eq!(spoilt(4, 17), DecodeError::Length { found: 16, claimed: 17 });
        assert_eq!(spoilt(8, 0), DecodeError::Token);
        assert_eq!(Name::new("a name that is longer than thirty-two bytes").to_string().len(), NAME_BYTES);
        assert_eq!(Name::new("tab\tö").to_string(), "tab???");
    }
}
