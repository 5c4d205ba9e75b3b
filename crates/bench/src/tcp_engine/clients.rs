//! Clients of a host under measurement: all that they send follows from their number by arithmetic, so
//! that a million of them take no memory.

use std::net::Ipv4Addr;

use packet::{Batch, Checksum, Frame, Offload, Sum, pseudo_header};

/// The server's address and port.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
pub(super) const PORT: u16 = 7;

/// The first client's address; the others follow.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 0);

/// The first sequence number of each client.
const FIRST: u32 = 1_000;
const CLIENT_PORT: u16 = 40_000;
const IP: usize = 20;
const TCP: usize = 20;

const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// MSS of 1,460 bytes, window scale of 7, SACK permitted: what Linux offers, without timestamps.
const SYN_OPTIONS: [u8; 12] = [2, 4, 0x05, 0xb4, 1, 3, 3, 7, 1, 1, 4, 2];

/// So many clients, each with one connection.
pub(super) struct Clients {
    /// A power of two.
    pub(super) count: u32,
    /// The server's first sequence number and 1, the same for each of them.
    pub(super) acknowledge: u32,
    payload: Vec<u8>,
    /// State of the checksums in what they send.
    checksum: Checksum,
    packet: Vec<u8>,
}

impl Clients {
    pub(super) fn new(count: u32, payload: usize, checksum: Checksum) -> Self {
        let payload = (0..payload).map(|at| at as u8).collect();
        Self { count: count.next_power_of_two(), acknowledge: 0, payload, checksum, packet: Vec::new() }
    }

    /// Adds the SYN of a client.
    pub(super) fn open(&mut self, client: u32, out: &mut Batch) {
        let head = Head { seq: FIRST, ack: 0, flags: SYN };
        self.write(client, &head, &SYN_OPTIONS, false, out);
    }

    /// Adds the last ACK of its handshake.
    pub(super) fn confirm(&mut self, client: u32, out: &mut Batch) {
        let head = Head { seq: FIRST + 1, ack: self.acknowledge, flags: ACK };
        self.write(client, &head, &[], false, out);
    }

    /// Adds what a client does that sends a message once it is connected, and no more: at most two packets.
    pub(super) fn react(&mut self, answer: &Answer, out: &mut Batch) {
        self.acknowledge = answer.end;
        if answer.opens {
            self.confirm(answer.client, out);
            self.send(answer.client, 0, out);
        } else if !answer.is_pure {
            let head = Head { seq: self.end_of(1), ack: answer.end, flags: ACK };
            self.write(answer.client, &head, &[], false, out);
        }
    }

    /// Adds the next segment of a client that has sent `sent` segments.
    pub(super) fn send(&mut self, client: u32, sent: u64, out: &mut Batch) {
        let seq = self.end_of(sent);
        let head = Head { seq, ack: self.acknowledge, flags: ACK | PSH };
        self.write(client, &head, &[], true, out);
    }

    /// Bytes of a segment.
    pub(super) fn payload_len(&self) -> u64 {
        self.payload.len() as u64
    }

    /// What acknowledges so many segments.
    pub(super) fn end_of(&self, segments: u64) -> u32 {
        (FIRST + 1).wrapping_add(segments.wrapping_mul(self.payload_len()) as u32)
    }

    /// The client that comes at this place of a pass, which goes through all in an order without
    /// pattern: each step below can be undone, so none comes twice.
    pub(super) fn at(&self, pass: u64, place: u32) -> u32 {
        let mask = self.count - 1;
        let mut number = place ^ (pass as u32).wrapping_mul(0x9e37_79b9);
        for factor in [0x85eb_ca6b_u32, 0xc2b2_ae35, 0x27d4_eb2f] {
            number = number.wrapping_mul(factor) & mask;
            number ^= number >> (self.count.trailing_zeros() / 2 + 1);
        }
        number & mask
    }

    fn write(&mut self, client: u32, head: &Head, options: &[u8], data: bool, out: &mut Batch) {
        let payload = if data { &self.payload[..] } else { &[] };
        let source = Ipv4Addr::from_bits(CLIENTS.to_bits() + client);
        let len = IP + TCP + options.len() + payload.len();
        let packet = &mut self.packet;
        packet.clear();
        packet.extend([0x45, 0]);
        packet.extend((len as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(source.octets());
        packet.extend(SERVER.octets());
        packet.extend(CLIENT_PORT.to_be_bytes());
        packet.extend(PORT.to_be_bytes());
        packet.extend(head.seq.to_be_bytes());
        packet.extend(head.ack.to_be_bytes());
        packet.extend([((TCP + options.len()) as u8 / 4) << 4, head.flags]);
        packet.extend([0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(options);
        packet.extend(payload);
        let sum = Sum::default().with(&packet[..IP]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let pseudo = pseudo_header(&source.octets(), &SERVER.octets(), 6, len - IP);
        let sum = pseudo.with(&packet[IP..]).finish();
        packet[IP + 16..IP + 18].copy_from_slice(&sum.to_be_bytes());
        let offload = Offload { checksum: self.checksum, segment: 0 };
        out.push(Frame { bytes: packet, offload }).expect("a batch has room for a burst");
    }
}

struct Head {
    seq: u32,
    ack: u32,
    flags: u8,
}

/// What the server sent.
pub(super) struct Answer {
    client: u32,
    opens: bool,
    /// What acknowledges it.
    pub(super) end: u32,
    /// What it acknowledges.
    pub(super) ack: u32,
    is_pure: bool,
}

impl Answer {
    /// Reads a packet of the server; `None` if it is not a TCP segment over IPv4.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        let opens = packet.get(IP + 13)? & SYN != 0;
        let payload = packet.len() - IP - usize::from(packet[IP + 12] >> 4) * 4;
        let len = payload as u32 + u32::from(opens);
        Some(Self {
            client: word(16)? - CLIENTS.to_bits(),
            opens,
            end: word(IP + 4)?.wrapping_add(len),
            ack: word(IP + 8)?,
            is_pure: len == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_goes_through_all_clients() {
        for count in [1, 2, 32, 1 << 12] {
            let clients = Clients::new(count, 1, Checksum::Complete);
            for pass in 0..3 {
                let mut seen: Vec<u32> = (0..count).map(|place| clients.at(pass, place)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..count));
            }
        }
    }
}
