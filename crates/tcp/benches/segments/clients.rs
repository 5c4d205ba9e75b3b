//! Clients whose packets follow from their number by arithmetic: a million of them take no memory.

use std::net::Ipv4Addr;

use packet::{Batch, Checksum, Frame, Offload, Sum, pseudo_header};

use crate::{STEP_MICROS, Subject};

/// The server's address and port.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
pub(super) const PORT: u16 = 7;

/// The first client's address; the others follow.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 0);
const CLIENT_PORT: u16 = 40_000;

/// The first sequence number of each client.
const FIRST: u32 = 1_000;
const IP: usize = 20;
const TCP: usize = 20;

const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// MSS of 1,460 bytes, window scale of 7, SACK permitted: what Linux offers, without timestamps.
const SYN_OPTIONS: [u8; 12] = [2, 4, 0x05, 0xb4, 1, 3, 3, 7, 1, 1, 4, 2];

/// Clients with a connection each, which send one segment after the other in turn.
pub(super) struct Clients {
    /// A power of two.
    count: u32,
    /// Acknowledges the server's SYN, with the same number for each of them.
    acknowledge: u32,
    payload: Vec<u8>,
    checksum: Checksum,
    /// Passes over all clients, and the place in the present one.
    pass: u32,
    place: u32,
}

impl Clients {
    pub(super) fn new(count: u32, payload: usize, checksum: Checksum) -> Self {
        let payload = (0..payload).map(|at| at as u8).collect();
        Self { count, acknowledge: 0, payload, checksum, pass: 0, place: 0 }
    }

    /// Opens all connections; returns the time after that.
    pub(super) fn open_all(&mut self, subject: &mut impl Subject) -> u64 {
        let mut batch = Batch::new(4096);
        let mut micros = 0;
        for client in 0..self.count {
            batch.clear();
            self.write(client, FIRST, SYN, &mut batch);
            assert_eq!(subject.turn(micros, &batch).packets, 1, "a SYN is answered");
            self.acknowledge = Answer::of(subject.last()).expect("a segment").seq.wrapping_add(1);
            batch.clear();
            self.write(client, FIRST + 1, ACK, &mut batch);
            subject.turn(micros, &batch);
            micros += STEP_MICROS;
        }
        micros
    }

    /// The next segments, in bursts.
    pub(super) fn bursts(&mut self, segments: usize, burst: usize) -> Vec<Batch> {
        let mut bursts = Vec::with_capacity(segments / burst);
        for _ in 0..segments / burst {
            let mut batch = Batch::new(burst * (self.payload.len() + 64));
            for _ in 0..burst {
                self.write(self.at(self.place), self.sequence(self.pass), ACK | PSH, &mut batch);
                self.place += 1;
                if self.place == self.count {
                    self.place = 0;
                    self.pass += 1;
                }
            }
            bursts.push(batch);
        }
        bursts
    }

    /// What acknowledges the last segment that was made.
    pub(super) fn last_acknowledgement(&self) -> u32 {
        // The pass has just begun where the segment was the last one of the pass before.
        self.sequence(self.pass + u32::from(self.place > 0))
    }

    pub(super) fn payload_len(&self) -> usize {
        self.payload.len()
    }

    /// The sequence number behind this many segments.
    fn sequence(&self, segments: u32) -> u32 {
        (FIRST + 1).wrapping_add(segments.wrapping_mul(self.payload.len() as u32))
    }

    /// The client at this place of a pass: an order without pattern, of steps that can be undone, so
    /// that a pass goes through all.
    fn at(&self, place: u32) -> u32 {
        let mask = self.count - 1;
        let mut number = place ^ self.pass.wrapping_mul(0x9e37_79b9);
        for factor in [0x85eb_ca6b_u32, 0xc2b2_ae35, 0x27d4_eb2f] {
            number = number.wrapping_mul(factor) & mask;
            number ^= number >> (self.count.trailing_zeros() / 2 + 1);
        }
        number & mask
    }

    fn write(&self, client: u32, seq: u32, flags: u8, out: &mut Batch) {
        let options: &[u8] = if flags & SYN != 0 { &SYN_OPTIONS } else { &[] };
        let payload: &[u8] = if flags & PSH != 0 { &self.payload } else { &[] };
        let source = Ipv4Addr::from_bits(CLIENTS.to_bits() + client);
        let len = IP + TCP + options.len() + payload.len();
        let mut packet = Vec::with_capacity(len);
        packet.extend([0x45, 0]);
        packet.extend((len as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(source.octets());
        packet.extend(SERVER.octets());
        packet.extend(CLIENT_PORT.to_be_bytes());
        packet.extend(PORT.to_be_bytes());
        packet.extend(seq.to_be_bytes());
        packet.extend(self.acknowledge.to_be_bytes());
        packet.extend([((TCP + options.len()) as u8 / 4) << 4, flags]);
        packet.extend([0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(options);
        packet.extend(payload);
        let sum = Sum::default().with(&packet[..IP]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let pseudo = pseudo_header(&source.octets(), &SERVER.octets(), 6, len - IP);
        let sum = pseudo.with(&packet[IP..]).finish();
        packet[IP + 16..IP + 18].copy_from_slice(&sum.to_be_bytes());
        let offload = Offload { checksum: self.checksum, segment: 0 };
        out.push(Frame { bytes: &packet, offload }).expect("a batch has room for a burst");
    }
}

/// What the server sent.
pub(super) struct Answer {
    seq: u32,
    pub(super) ack: u32,
}

impl Answer {
    /// Reads a packet of the server; `None` if it is not a TCP segment over IPv4.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        Some(Self { seq: word(IP + 4)?, ack: word(IP + 8)? })
    }
}
