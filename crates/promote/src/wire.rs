//! The messages between a client and the monitor, versions 1 to 4: one packet each, of
//! fixed size by type, little-endian. Encoding and decoding allocate nothing. Any bytes
//! are either decoded or refused with a named error.

mod fields;
mod packet;
pub mod view;

pub use fields::{NAME_BYTES, Name, Text, Token};
pub use packet::{DecodeError, MOST_BYTES, Packet, VERSION};
use packet::{Reader, Writer};
use view::Place;

use crate::Reason;

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
const PEER: u16 = 12;
const ASK_POLICY: u16 = 13;
const DECLINE: u16 = 14;
const DECLINED: u16 = 15;

/// In a PEER: no other user (chown(2) treats the value as none, too).
const NO_USER: u32 = u32::MAX;

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// The first message: the versions that the client speaks, and its name.
    Hello {
        /// The oldest version that it speaks.
        version_min: u32,
        /// The newest version that it speaks.
        version_max: u32,
        /// Its name.
        name: Name,
    },
    /// One endpoint of a connection; its socket comes with the message.
    Offer {
        /// Identifies it from now on.
        token: Token,
    },
    /// An offer, or a promoted connection, is over.
    Withdraw {
        /// The offer or connection.
        token: Token,
    },
    /// A promoted connection that an earlier monitor granted still lives.
    Register {
        /// Identifies it from now on.
        token: Token,
        /// The socket's SO_COOKIE.
        cookie: u64,
        /// Number of the peer's loop, as that monitor assigned it.
        peer_loop: u32,
    },
    /// Requests records of the monitor's state, from a place on ([`view`]).
    Query {
        /// The place.
        from: Place,
    },
    /// Requests what the policy allows the programs of a user ([`view::Allowed`]).
    AskPolicy {
        /// The user.
        user: u32,
    },
    /// A process that holds a promoted connection without its regions requests them; its
    /// socket comes with the message.
    Attach {
        /// The socket's SO_COOKIE.
        cookie: u64,
    },
    /// This endpoint, whose socket comes with the message, will not be offered.
    Decline {
        /// The reason.
        reason: Reason,
    },
}

/// A message of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorMessage {
    /// The answer to a hello; the client's loop page comes with it, to read and write.
    Welcome {
        /// The version of the protocol from now on.
        version: u32,
        /// Number of the client's loop.
        loop_id: u32,
        /// Bytes of the regions that are granted now.
        segment_size: u32,
    },
    /// Both endpoints have been matched. With the message come the own region (to read
    /// and write), the peer's region and the peer's loop page (to read), and from version
    /// 2 on perhaps the own doorbell and the peer's.
    Grant {
        /// The offer.
        token: Token,
        /// Number of the peer's loop.
        peer_loop: u32,
        /// Bytes of either region.
        segment_size: u32,
    },
    /// The offer is refused for good. Without a token the message concerns the client as
    /// a whole, and the monitor closes the connection.
    Refuse {
        /// The offer.
        token: Option<Token>,
        /// The reason.
        reason: Reason,
    },
    /// The peer of an offer was not offered so far, or its user may not share: the offer
    /// continues, or is refused in the next message.
    Peer {
        /// The offer.
        token: Token,
        /// The peer's user, if that is another user with whom the policy allows no
        /// sharing.
        user: Option<u32>,
    },
    /// Precedes the refusal of an offer: the peer was declined.
    Declined {
        /// The offer.
        token: Token,
        /// The reason.
        reason: Reason,
    },
    /// The records that a query requested ([`view`]) end here.
    End {
        /// Where the next query continues; `None`: all records were sent.
        next: Option<Place>,
    },
}

impl ClientMessage {
    /// Encodes the message.
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
            ClientMessage::Decline { reason } => Writer::new(DECLINE).u32(reason as u32).end(),
            ClientMessage::Query { from } => from.write(Writer::new(QUERY)).end(),
            ClientMessage::AskPolicy { user } => Writer::new(ASK_POLICY).u32(user).end(),
        }
    }

    /// Decodes a packet.
    ///
    /// # Errors
    ///
    /// Any packet that a client of this version would not send.
    pub fn decode(packet: &[u8]) -> Result<ClientMessage, DecodeError> {
        let (kind, mut fields) = Reader::new(packet)?;
        Ok(match kind {
            HELLO => {
                fields.expect(8 + NAME_BYTES)?;
                let (version_min, version_max) = (fields.u32(), fields.u32());
                if version_min > version_max {
                    return Err(DecodeError::Range(version_min, version_max));
                }
                ClientMessage::Hello { version_min, version_max, name: Name::from_bytes(fields.bytes()) }
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
            ASK_POLICY => {
                fields.expect(4)?;
                ClientMessage::AskPolicy { user: fields.u32() }
            }
            DECLINE => {
                fields.expect(4)?;
                ClientMessage::Decline { reason: fields.reason()? }
            }
            other => return Err(DecodeError::Type(other)),
        })
    }
}

impl MonitorMessage {
    /// Encodes the message.
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
            MonitorMessage::Peer { token, user } => {
                Writer::new(PEER).u64(token.0).u32(user.unwrap_or(NO_USER)).end()
            }
            MonitorMessage::Declined { token, reason } => {
                Writer::new(DECLINED).u64(token.0).u32(reason as u32).end()
            }
            MonitorMessage::End { next: Some(next) } => next.write(Writer::new(END)).end(),
            MonitorMessage::End { next: None } => Writer::new(END).bytes(&[0; Place::BYTES]).end(),
        }
    }

    /// Decodes a packet.
    ///
    /// # Errors
    ///
    /// Any packet that a monitor of this version would not send.
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
                let reason = Reason::from_monitor(number).ok_or(DecodeError::Reason(number))?;
                MonitorMessage::Refuse { token, reason }
            }
            PEER => {
                fields.expect(12)?;
                let token = fields.token()?;
                let user = Some(fields.u32()).filter(|user| *user != NO_USER);
                MonitorMessage::Peer { token, user }
            }
            DECLINED => {
                fields.expect(12)?;
                MonitorMessage::Declined { token: fields.token()?, reason: fields.reason()? }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::packet::HEADER;
    use super::*;

    fn token() -> impl Strategy<Value = Token> {
        (1..=u64::MAX).prop_map(Token)
    }

    fn reason() -> impl Strategy<Value = Reason> {
        (0..Reason::ALL.len()).prop_map(|reason| Reason::ALL[reason])
    }

    fn client_message() -> impl Strategy<Value = ClientMessage> {
        prop_oneof![
            (any::<u32>(), any::<u32>(), any::<[u8; NAME_BYTES]>()).prop_map(|(a, b, name)| {
                ClientMessage::Hello {
                    version_min: a.min(b),
                    version_max: a.max(b),
                    name: Name::from_bytes(name),
                }
            }),
            token().prop_map(|token| ClientMessage::Offer { token }),
            token().prop_map(|token| ClientMessage::Withdraw { token }),
            (token(), any::<u64>(), any::<u32>()).prop_map(|(token, cookie, peer_loop)| {
                ClientMessage::Register { token, cookie, peer_loop }
            }),
            any::<u64>().prop_map(|cookie| ClientMessage::Attach { cookie }),
            view::tests::place().prop_map(|from| ClientMessage::Query { from }),
            any::<u32>().prop_map(|user| ClientMessage::AskPolicy { user }),
            reason().prop_map(|reason| ClientMessage::Decline { reason }),
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
            (any::<u64>(), 0..Reason::OF_MONITOR.len()).prop_map(|(token, reason)| MonitorMessage::Refuse {
                token: Token::new(token),
                reason: Reason::OF_MONITOR[reason]
            }),
            (token(), prop::option::of(0..NO_USER))
                .prop_map(|(token, user)| MonitorMessage::Peer { token, user }),
            (token(), reason()).prop_map(|(token, reason)| MonitorMessage::Declined { token, reason }),
            prop::option::of(view::tests::place()).prop_map(|next| MonitorMessage::End { next }),
        ]
    }

    /// The seeds of the fuzzer are current messages, of every type.
    #[test]
    fn the_seeds_of_the_fuzzer_are_messages() {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/monitor_messages");
        let mut types = std::collections::BTreeSet::new();
        for entry in std::fs::read_dir(seeds).unwrap() {
            let path = entry.unwrap().path();
            let packet = std::fs::read(&path).unwrap();
            let is_message = ClientMessage::decode(&packet).is_ok()
                || MonitorMessage::decode(&packet).is_ok()
                || matches!(view::Record::decode(&packet), Ok(Some(_)));
            assert!(is_message, "{}", path.display());
            types.insert(packet[0]);
        }
        assert!(types.into_iter().eq(1..=15));
    }

    proptest! {
        #[test]
        fn client_messages_round_trip(message in client_message()) {
            let packet = message.encode();
            prop_assert!(packet.as_bytes().len() <= MOST_BYTES);
            prop_assert_eq!(ClientMessage::decode(packet.as_bytes()), Ok(message));
        }

        #[test]
        fn monitor_messages_round_trip(message in monitor_message()) {
            prop_assert_eq!(MonitorMessage::decode(message.encode().as_bytes()), Ok(message));
        }

        /// Bytes that decode encode to exactly the same bytes; all others are refused.
        #[test]
        fn any_bytes_decode_or_are_refused(
            kind in 0u16..15, version in 0u16..3, mut bytes in prop::collection::vec(any::<u8>(), 0..300),
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
        fn a_truncated_message_is_refused(message in client_message(), cut in any::<prop::sample::Index>()) {
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
        assert_eq!(refuse.as_bytes(), &[5, 0, 1, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn each_defect_has_its_name() {
        let good = ClientMessage::Offer { token: Token(1) }.encode();
        let corrupted = |at: usize, value: u8| {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = value;
            ClientMessage::decode(&bytes).unwrap_err()
        };
        assert_eq!(ClientMessage::decode(&[]).unwrap_err(), DecodeError::Short(0));
        assert_eq!(corrupted(0, GRANT as u8), DecodeError::Type(GRANT));
        assert_eq!(corrupted(0, HELLO as u8), DecodeError::Size { kind: HELLO, found: 16, expected: 48 });
        assert_eq!(corrupted(2, 2), DecodeError::Version(2));
        assert_eq!(corrupted(4, 17), DecodeError::Length { found: 16, claimed: 17 });
        assert_eq!(corrupted(8, 0), DecodeError::Token);
        assert_eq!(Name::new("a name that is longer than thirty-two bytes").to_string().len(), NAME_BYTES);
        assert_eq!(Name::new("tab\tö").to_string(), "tab???");
    }
}
