//! ICMP: echoes are answered, errors are passed on, and what the host does not speak is refused
//! (RFC 1122, 3.2.2; RFC 4443).

use packet::{Batch, Frame, Offload, Protocol, Sum};

use super::ip::{self, Packet};
use crate::core::address::Address;
use crate::core::icmp::Trouble;
use crate::core::seq::Seq;
use crate::core::tuple::Tuple;
use crate::event::Reason;
use crate::time::Time;

/// Errors that the host sends in a second, at most (RFC 4443, 2.4 (f)).
const ERRORS_PER_SECOND: u32 = 100;
/// Length of an error with what it quotes (RFC 1812, 4.3.2.3; RFC 4443, 2.4 (c)).
const ERROR_V4: usize = 576;
const ERROR_V6: usize = 1280;
/// Memory for answers until the next output; further ones are dropped.
const PENDING: usize = 64 << 10;

/// Sizes of packets that paths take (RFC 1191, 7.1).
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508];

/// The host's own answers, waiting to be sent.
pub(crate) struct Answers {
    pub(crate) pending: Batch,
    second: u64,
    errors: u32,
    hops: u8,
}

/// An ICMP error about a segment of ours.
pub(crate) struct Quoted {
    pub(crate) tuple: Tuple,
    pub(crate) seq: Seq,
    pub(crate) trouble: Trouble,
}

/// Why the host refuses a packet that is whole and for one of its addresses.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    Port,
    Protocol,
}

impl Answers {
    pub(crate) fn new(hops: u8) -> Answers {
        Answers { pending: Batch::new(PENDING), second: 0, errors: 0, hops }
    }

    /// Takes an ICMP message. Returns an error about a segment of ours.
    pub(crate) fn input(&mut self, packet: &Packet<'_>) -> Result<Option<Quoted>, Reason> {
        let v6 = packet.protocol == Protocol::ICMPV6;
        if v6 == packet.source.is_v4() {
            return Err(Reason::Protocol);
        }
        let sum = if v6 { ip::transport_sum(packet) } else { Sum::default().with(packet.payload) };
        if !sum.is_valid() {
            return Err(Reason::Checksum);
        }
        let &[kind, code, _, _, ref rest @ ..] = packet.payload else { return Err(Reason::Malformed) };
        if rest.len() < 4 {
            return Err(Reason::Malformed);
        }
        let echo = if v6 { 128 } else { 8 };
        if kind == echo && code == 0 {
            self.answer_echo(packet, v6);
            return Ok(None);
        }
        let Some(trouble) = (if v6 { trouble_v6(kind, code, rest) } else { trouble_v4(kind, code, rest) })
        else {
            return Ok(None);
        };
        let (tuple, seq) = quoted(&rest[4..]).ok_or(Reason::Malformed)?;
        Ok(Some(Quoted { tuple, seq, trouble }))
    }

    fn answer_echo(&mut self, packet: &Packet<'_>, v6: bool) {
        let kind = if v6 { 129 } else { 0 };
        self.send(packet.destination, packet.source, packet.payload.len(), |message| {
            message.copy_from_slice(packet.payload);
            message[0] = kind;
        });
    }

    /// Refuses a packet with an ICMP error.
    pub(crate) fn refuse(&mut self, now: Time, packet: &Packet<'_>, refusal: Refusal) {
        let second = now.micros() / 1_000_000;
        if self.second != second {
            (self.second, self.errors) = (second, 0);
        }
        if self.errors >= ERRORS_PER_SECOND {
            return;
        }
        self.errors += 1;
        let v6 = !packet.source.is_v4();
        let (kind, code) = match (v6, refusal) {
            (false, Refusal::Port) => (3, 3),
            (false, Refusal::Protocol) => (3, 2),
            (true, Refusal::Port) => (1, 4),
            (true, Refusal::Protocol) => (4, 1),
        };
        let most = if v6 { ERROR_V6 - 40 } else { ERROR_V4 - 20 };
        let quoted = packet.bytes.len().min(most - 8);
        self.send(packet.destination, packet.source, 8 + quoted, |message| {
            message[..8].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
            if v6 && kind == 4 {
                // The pointer: the next-header field of a packet without extension headers.
                message[7] = 6;
            }
            message[8..].copy_from_slice(&packet.bytes[..quoted]);
        });
    }

    /// Queues an ICMP message of this length, if there is room.
    fn send(&mut self, from: Address, to: Address, len: usize, fill: impl FnOnce(&mut [u8])) {
        let header = ip::header_len(from);
        let Ok(room) = self.pending.room(header + len) else { return };
        let protocol = if from.is_v4() { Protocol::ICMP } else { Protocol::ICMPV6 };
        ip::write(room, from, to, protocol, len, (0, self.hops));
        let message = &mut room[header..];
        fill(message);
        message[2..4].fill(0);
        let sum = if from.is_v4() { Sum::default() } else { ip::pseudo(from, to, protocol, len) };
        let sum = sum.with(message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.pending.commit(header + len, Offload::default());
    }
}

fn trouble_v4(kind: u8, code: u8, rest: &[u8]) -> Option<Trouble> {
    match (kind, code) {
        // RFC 1122, 4.2.3.9.
        (3, 2 | 3) => Some(Trouble::Refused),
        // RFC 1812, 5.2.7.1: a router will not have it.
        (3, 9 | 10 | 13) => Some(Trouble::Hard),
        (3, 4) => match (u16::from_be_bytes([rest[2], rest[3]]), rest.get(6..8)) {
            // A router older than RFC 1191: the next plateau below what it refused.
            (0, Some(len)) => {
                let refused = u16::from_be_bytes([len[0], len[1]]);
                let lower = PLATEAUS.into_iter().find(|&plateau| plateau < refused);
                Some(Trouble::TooBig(lower.unwrap_or(0)))
            }
            (mtu, _) => Some(Trouble::TooBig(mtu)),
        },
        (3 | 11 | 12, _) => Some(Trouble::Soft),
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
        //# Source Quench TCP implementations MUST silently discard any received ICMP Source Quench messages
        //# (MUST-55).
        // Source quench is ignored (RFC 9293, MUST-55), and so is the rest.
        _ => None,
    }
}

fn trouble_v6(kind: u8, code: u8, rest: &[u8]) -> Option<Trouble> {
    match (kind, code) {
        // The second is an unknown next header: IPv4's "protocol unreachable".
        (1, 4) | (4, 1) => Some(Trouble::Refused),
        (1, 1) => Some(Trouble::Hard),
        (2, _) => {
            let mtu = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
            Some(Trouble::TooBig(mtu.min(65_535) as u16))
        }
        (1 | 3 | 4, _) => Some(Trouble::Soft),
        _ => None,
    }
}

/// Addresses, ports and sequence number of a quoted TCP segment, of which at least eight bytes
/// are there (RFC 792).
fn quoted(bytes: &[u8]) -> Option<(Tuple, Seq)> {
    let v6 = bytes.first()? >> 4 == 6;
    let (transport, protocol) =
        if v6 { (40, *bytes.get(6)?) } else { (usize::from(bytes[0] & 15) * 4, *bytes.get(9)?) };
    if Protocol(protocol) != Protocol::TCP || transport < 20 {
        return None;
    }
    let tcp = bytes.get(transport..transport + 8)?;
    let address = |at: usize| -> Option<Address> {
        Some(match v6 {
            true => Address::of_v6(bytes.get(at..at + 16)?.try_into().ok()?),
            false => Address::of_v4(bytes.get(at..at + 4)?.try_into().ok()?),
        })
    };
    let (source, destination) = if v6 { (address(8)?, address(24)?) } else { (address(12)?, address(16)?) };
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let tuple = Tuple::between((source, port(0)), (destination, port(2)));
    Some((tuple, Seq(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]))))
}

/// Whether an error may be sent about a packet (RFC 1122, 3.2.2).
pub(crate) fn may_be_refused(packet: &Packet<'_>) -> bool {
    packet.source.is_unicast() && packet.destination.is_unicast()
}

/// Moves answers to the batch that is sent.
#[inline]
pub(crate) fn drain(answers: &mut Answers, out: &mut Batch) -> bool {
    while let Some(Frame { bytes, offload }) = answers.pending.first() {
        if out.push(Frame { bytes, offload }).is_err() {
            return false;
        }
        answers.pending.remove_first();
    }
    true
}
