//! The records that the monitor sends in answer to a QUERY. They come in pages, each of
//! which ends with an END that names the start of the next.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub use ring::Words;

use super::{DecodeError, MOST_BYTES, NAME_BYTES, Name, Packet, RECORD, Reader, Text, Writer};
use crate::Reason;

/// Kinds of records, the first field of each.
const TOTALS: u32 = 1;
const LOOP: u32 = 2;
const PROMOTED: u32 = 3;
const ALLOWED: u32 = 4;

/// Bytes of a record's fields, including its kind.
const TOTALS_BYTES: usize = 4 * 4 + 8 * 7 + 8 * Reason::OF_MONITOR.len();
const LOOP_BYTES: usize = 4 * 5 + NAME_BYTES + 8 * 6 + 8 * Reason::OF_MONITOR.len();
const PROMOTED_BYTES: usize = 4 + 8 * 4 + 2 * ADDRESS_BYTES + 8 + 4 + 4 * 3 + 8 * 7;
const ALLOWED_BYTES: usize = 4 * 5 + 4 * USERS + SOURCE_BYTES;
/// Users in an answer, and bytes of the policy file's path.
const USERS: usize = 16;
const SOURCE_BYTES: usize = 160;
/// An IPv6 address, or an IPv4 one mapped into it, and a port.
const ADDRESS_BYTES: usize = 18;

/// Flags of an endpoint's region.
const SEEN: u32 = 1;
const AWARE: u32 = 2;
const ARMED: u32 = 4;
const ENDED: u32 = 8;
const CONSUMED_SEEN: u32 = 16;

/// Flags of a policy's answer.
const EVERYBODY: u32 = 1;
const BY_DEFAULT: u32 = 2;
const OUTDATED: u32 = 4;

/// The sections, in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Section {
    /// The monitor's totals: one record.
    Totals = 1,
    /// Its clients.
    Loops = 2,
    /// The endpoints of promoted connections.
    Promoted = 3,
}

/// The start of a page: behind the record with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The section.
    pub section: Section,
    /// Number of the last record that was sent; 0: none.
    pub after: u64,
}

impl Place {
    /// The start of the first page.
    pub const FIRST: Place = Place { section: Section::Totals, after: 0 };

    pub(super) const BYTES: usize = 12;

    pub(super) fn write<const ROOM: usize>(self, writer: Writer<ROOM>) -> Writer<ROOM> {
        writer.u32(self.section as u32).u64(self.after)
    }

    pub(super) fn read(fields: &mut Reader<'_>) -> Result<Place, DecodeError> {
        let section = match fields.u32() {
            1 => Section::Totals,
            2 => Section::Loops,
            3 => Section::Promoted,
            other => return Err(DecodeError::Section(other)),
        };
        Ok(Place { section, after: fields.u64() })
    }
}

/// Refusals, by reason in the order of [`Reason::OF_MONITOR`].
pub type Refusals = [u64; Reason::OF_MONITOR.len()];

/// The monitor's counts: all of them for root and the monitor's own user; for others the
/// counts of their connected clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The monitor's process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Whether the counts cover all users, or only the asking user.
    pub everybody: bool,
    /// Milliseconds since it started.
    pub age_ms: u64,
    /// Clients, without the asker.
    pub clients: u64,
    /// Waiting offers.
    pub waiting: u64,
    /// Endpoints of promoted connections, including those that an earlier monitor
    /// granted.
    pub promoted: u64,
    /// Bytes of their regions.
    pub bytes: u64,
    /// Offers accepted.
    pub offers: u64,
    /// Offers granted: two for each connection.
    pub granted: u64,
    /// Refusals.
    pub refused: Refusals,
}

/// A client of the monitor: a loop, such as a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Its number at this monitor.
    pub number: u64,
    /// The process that connected.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its name.
    pub name: Name,
    /// Whether its loop sleeps; `None` if that is not visible.
    pub asleep: Option<bool>,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// Its waiting offers.
    pub waiting: u64,
    /// Endpoints of promoted connections that it holds.
    pub promoted: u64,
    /// Its offers that were accepted.
    pub offers: u64,
    /// Its offers that were granted.
    pub granted: u64,
    /// Its offers that were refused.
    pub refused: Refusals,
}

/// One endpoint of a promoted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// Its number at this monitor.
    pub number: u64,
    /// The peer's number, whether or not the asker may see the peer.
    pub other: u64,
    /// Its client's number.
    pub client: u64,
    /// The socket's number (SO_COOKIE).
    pub cookie: u64,
    /// The socket's own address.
    pub local: SocketAddr,
    /// The address it is connected to.
    pub peer: SocketAddr,
    /// Milliseconds since it was granted.
    pub age_ms: u64,
    /// Bytes of its region.
    pub segment_size: u32,
    /// The words of its region, which are untrusted; `None` if the monitor does not have
    /// it mapped.
    pub words: Option<Words>,
    /// Ring count of this direction that the peer reports to have consumed; `None` if
    /// that, or this endpoint's words, are not visible.
    pub tail_consumed: Option<u64>,
}

/// What the monitor's current policy allows the programs of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The user.
    pub user: u32,
    /// They share with all users.
    pub everybody: bool,
    /// They share with each other only because the monitor is their user's, not because
    /// of a rule.
    pub by_default: bool,
    /// The policy file has changed since, and is invalid now.
    pub outdated: bool,
    /// Rules about this user that depend on more than users.
    pub conditional: u32,
    /// How many users they share with, and the first of these, starting with the user
    /// itself.
    pub count: u32,
    users: [u32; USERS],
    /// Path of the policy file with which the monitor was started; empty: the built-in
    /// policy.
    pub source: Text<SOURCE_BYTES>,
}

impl Allowed {
    /// The answer for a user whose programs share with these, under the built-in policy.
    pub fn new(user: u32, sharing: &BTreeSet<u32>) -> Allowed {
        let mut users = [0; USERS];
        let own = sharing.get(&user);
        let others = sharing.iter().filter(|other| **other != user);
        users.iter_mut().zip(own.into_iter().chain(others)).for_each(|(place, user)| *place = *user);
        Allowed {
            user,
            everybody: false,
            by_default: false,
            outdated: false,
            conditional: 0,
            count: sharing.len().try_into().unwrap_or(u32::MAX),
            users,
            source: Text::new(""),
        }
    }

    /// Those of the users that the record has room for.
    pub fn users(&self) -> &[u32] {
        &self.users[..USERS.min(self.count as usize)]
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // a packet has room for the largest anyway
pub enum Record {
    /// Of [`Section::Totals`].
    Totals(Totals),
    /// Of [`Section::Loops`].
    Loop(Loop),
    /// Of [`Section::Promoted`].
    Promoted(Promoted),
    /// The answer to [`AskPolicy`](super::ClientMessage::AskPolicy).
    Allowed(Allowed),
}

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Packet<MOST_BYTES> {
        let packet = Writer::new(RECORD);
        match self {
            Record::Totals(totals) => totals.write(packet.u32(TOTALS)),
            Record::Loop(client) => client.write(packet.u32(LOOP)),
            Record::Promoted(end) => end.write(packet.u32(PROMOTED)),
            Record::Allowed(allowed) => allowed.write(packet.u32(ALLOWED)),
        }
        .end()
    }

    /// Decodes a packet; `None` if it is not a record.
    ///
    /// # Errors
    ///
    /// Any record that a monitor of this version would not send.
    pub fn decode(packet: &[u8]) -> Result<Option<Record>, DecodeError> {
        let (kind, mut fields) = Reader::new(packet)?;
        if kind != RECORD {
            return Ok(None);
        }
        let Some(kind) = fields.fields.first_chunk::<4>().map(|kind| u32::from_le_bytes(*kind)) else {
            return Err(DecodeError::Short(packet.len()));
        };
        fields.expect(match kind {
            TOTALS => TOTALS_BYTES,
            LOOP => LOOP_BYTES,
            PROMOTED => PROMOTED_BYTES,
            ALLOWED => ALLOWED_BYTES,
            other => return Err(DecodeError::Section(other)),
        })?;
        fields.u32();
        Ok(Some(match kind {
            TOTALS => Record::Totals(Totals::read(&mut fields)?),
            LOOP => Record::Loop(Loop::read(&mut fields)?),
            PROMOTED => Record::Promoted(Promoted::read(&mut fields)?),
            _ => Record::Allowed(Allowed::read(&mut fields)?),
        }))
    }
}

type Record256 = Writer<MOST_BYTES>;

impl Totals {
    fn write(&self, packet: Record256) -> Record256 {
        let packet = packet.u32(self.pid).u32(self.uid).u32(self.everybody.into());
        let packet = packet.u64(self.age_ms).u64(self.clients).u64(self.waiting).u64(self.promoted);
        let packet = packet.u64(self.bytes).u64(self.offers).u64(self.granted);
        self.refused.iter().fold(packet, |packet, count| packet.u64(*count))
    }

    fn read(fields: &mut Reader<'_>) -> Result<Totals, DecodeError> {
        Ok(Totals {
            pid: fields.u32(),
            uid: fields.u32(),
            everybody: flag(fields.u32())?,
            age_ms: fields.u64(),
            clients: fields.u64(),
            waiting: fields.u64(),
            promoted: fields.u64(),
            bytes: fields.u64(),
            offers: fields.u64(),
            granted: fields.u64(),
            refused: std::array::from_fn(|_| fields.u64()),
        })
    }
}

impl Loop {
    fn write(&self, packet: Record256) -> Record256 {
        let asleep = self.asleep.map_or(0, |asleep| 1 + u32::from(asleep));
        let packet = packet.u32(asleep).u32(self.pid).u32(self.uid).u32(self.gid).bytes(&self.name.0);
        let packet = packet.u64(self.number).u64(self.age_ms).u64(self.waiting).u64(self.promoted);
        let packet = packet.u64(self.offers).u64(self.granted);
        self.refused.iter().fold(packet, |packet, count| packet.u64(*count))
    }

    fn read(fields: &mut Reader<'_>) -> Result<Loop, DecodeError> {
        let asleep = match fields.u32() {
            0 => None,
            more => Some(flag(more - 1)?),
        };
        Ok(Loop {
            asleep,
            pid: fields.u32(),
            uid: fields.u32(),
            gid: fields.u32(),
            name: Name::from_bytes(fields.bytes()),
            number: fields.u64(),
            age_ms: fields.u64(),
            waiting: fields.u64(),
            promoted: fields.u64(),
            offers: fields.u64(),
            granted: fields.u64(),
            refused: std::array::from_fn(|_| fields.u64()),
        })
    }
}

impl Promoted {
    fn write(&self, packet: Record256) -> Record256 {
        let packet = packet.u64(self.number).u64(self.other).u64(self.client).u64(self.cookie);
        let packet = write_address(write_address(packet, self.local), self.peer);
        let packet = packet.u64(self.age_ms).u32(self.segment_size);
        let words = self.words.unwrap_or_default();
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let bits = bit(self.words.is_some(), SEEN)
            | bit(words.aware, AWARE)
            | bit(words.armed, ARMED)
            | bit(words.ended, ENDED)
            | bit(self.tail_consumed.is_some(), CONSUMED_SEEN);
        let packet = packet.u32(bits).u32(words.runs).u32(words.tcp_wake_ups);
        let packet = packet.u64(words.sent_tcp).u64(words.consumed_tcp).u64(words.tail).u64(words.head);
        let packet = packet.u64(self.tail_consumed.unwrap_or(0));
        packet.u64(words.sent_messages).u64(words.consumed_messages)
    }

    fn read(fields: &mut Reader<'_>) -> Result<Promoted, DecodeError> {
        let mut end = Promoted {
            number: fields.u64(),
            other: fields.u64(),
            client: fields.u64(),
            cookie: fields.u64(),
            local: read_address(fields),
            peer: read_address(fields),
            age_ms: fields.u64(),
            segment_size: fields.u32(),
            words: None,
            tail_consumed: None,
        };
        let bits = fields.u32();
        let mut words = Words {
            aware: bits & AWARE != 0,
            armed: bits & ARMED != 0,
            ended: bits & ENDED != 0,
            runs: fields.u32(),
            tcp_wake_ups: fields.u32(),
            sent_tcp: fields.u64(),
            consumed_tcp: fields.u64(),
            tail: fields.u64(),
            head: fields.u64(),
            ..Words::default()
        };
        end.tail_consumed = Some(fields.u64());
        (words.sent_messages, words.consumed_messages) = (fields.u64(), fields.u64());
        if bits & CONSUMED_SEEN == 0 && end.tail_consumed.take() != Some(0) {
            return Err(DecodeError::Field);
        }
        if bits & SEEN != 0 {
            end.words = Some(words);
        }
        // Absent fields are zero, and no other bits are valid.
        let known = SEEN | AWARE | ARMED | ENDED | CONSUMED_SEEN;
        let absent = bits & SEEN == 0 && (bits != 0 || words != Words::default());
        if bits & !known != 0 || absent {
            return Err(DecodeError::Field);
        }
        Ok(end)
    }
}

impl Allowed {
    fn write(&self, packet: Record256) -> Record256 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let bits =
            bit(self.everybody, EVERYBODY) | bit(self.by_default, BY_DEFAULT) | bit(self.outdated, OUTDATED);
        let packet = packet.u32(bits).u32(self.user).u32(self.conditional).u32(self.count);
        let packet = self.users.iter().fold(packet, |packet, user| packet.u32(*user));
        packet.bytes(self.source.as_bytes())
    }

    fn read(fields: &mut Reader<'_>) -> Result<Allowed, DecodeError> {
        let bits = fields.u32();
        if bits & !(EVERYBODY | BY_DEFAULT | OUTDATED) != 0 {
            return Err(DecodeError::Field);
        }
        Ok(Allowed {
            everybody: bits & EVERYBODY != 0,
            by_default: bits & BY_DEFAULT != 0,
            outdated: bits & OUTDATED != 0,
            user: fields.u32(),
            conditional: fields.u32(),
            count: fields.u32(),
            users: std::array::from_fn(|_| fields.u32()),
            source: Text::from_bytes(fields.bytes()),
        })
    }
}

fn flag(number: u32) -> Result<bool, DecodeError> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Field),
    }
}

fn write_address(packet: Record256, address: SocketAddr) -> Record256 {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    packet.bytes(&ip.octets()).bytes(&address.port().to_le_bytes())
}

/// Mapped IPv4 addresses become IPv4 addresses; scopes are not sent.
fn read_address(fields: &mut Reader<'_>) -> SocketAddr {
    let ip = IpAddr::V6(Ipv6Addr::from(fields.bytes::<16>())).to_canonical();
    SocketAddr::new(ip, u16::from_le_bytes(fields.bytes()))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn place() -> impl Strategy<Value = Place> {
        let section = prop_oneof![Just(Section::Totals), Just(Section::Loops), Just(Section::Promoted)];
        (section, any::<u64>()).prop_map(|(section, after)| Place { section, after })
    }

    proptest! {
        /// Records have many fields: bytes that decode must encode to exactly the same
        /// bytes, and every field but the flags may have any value.
        #[test]
        fn records_round_trip(kind in 1u32..5, bytes in prop::collection::vec(any::<u8>(), 256), bits in 0u32..32) {
            let (len, flags) = match kind {
                TOTALS => (8 + TOTALS_BYTES, 20),
                LOOP => (8 + LOOP_BYTES, 12),
                ALLOWED => (8 + ALLOWED_BYTES, 12),
                _ => (8 + PROMOTED_BYTES, 8 + 4 + 32 + 36 + 12),
            };
            let mut packet = bytes[..len].to_vec();
            packet[..2].copy_from_slice(&RECORD.to_le_bytes());
            packet[2..4].copy_from_slice(&super::super::VERSION.to_le_bytes());
            packet[4..8].copy_from_slice(&(len as u32).to_le_bytes());
            packet[8..12].copy_from_slice(&kind.to_le_bytes());
            let bits = match kind {
                TOTALS => bits % 2,
                LOOP => bits % 3,
                ALLOWED => bits % 8,
                _ => bits | SEEN | CONSUMED_SEEN,
            };
            packet[flags..flags + 4].copy_from_slice(&bits.to_le_bytes());
            let record = Record::decode(&packet).unwrap().unwrap();
            let again = record.encode();
            prop_assert_eq!(again.as_bytes(), &packet[..]);
            prop_assert!(Record::decode(&packet[..len - 1]).is_err());
            packet[flags..flags + 4].copy_from_slice(&77u32.to_le_bytes());
            prop_assert_eq!(Record::decode(&packet), Err(DecodeError::Field));
            packet[8..12].copy_from_slice(&9u32.to_le_bytes());
            prop_assert_eq!(Record::decode(&packet), Err(DecodeError::Section(9)));
        }
    }

    #[test]
    fn addresses_keep_their_family() {
        for address in ["127.0.0.1:80", "[::1]:443", "[2001:db8::1]:65535"] {
            let address: SocketAddr = address.parse().unwrap();
            let end = Promoted {
                number: 1,
                other: 2,
                client: 3,
                cookie: 4,
                local: address,
                peer: address,
                age_ms: 5,
                segment_size: 8192,
                words: None,
                tail_consumed: None,
            };
            let packet = Record::Promoted(end).encode();
            assert!(packet.as_bytes().len() <= MOST_BYTES);
            assert_eq!(Record::decode(packet.as_bytes()), Ok(Some(Record::Promoted(end))));
        }
    }
}
