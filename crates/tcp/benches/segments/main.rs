//! A segment arrives, is read and is acknowledged: `cargo bench -p megapipe-tcp --bench segments`, and beside
//! smoltcp with `RUSTFLAGS='--cfg tcp_smoltcp'`.
//!
//! Packets are made before the clock is read, in memory, and there is no device. A sample is 512
//! segments, which fit into a second-level cache. Divide 512 by the rate for the time of one.

use divan::Bencher;
use divan::counter::ItemsCount;
use packet::{Batch, Checksum};

mod clients;
#[cfg(tcp_smoltcp)]
mod smol;
mod stack;

use clients::{Answer, Clients};
use stack::Stack;

fn main() {
    divan::main();
}

/// Bytes of a segment, and the sums of TCP segments: the device's, or the software's.
const CASES: [(usize, Checksum); 4] = [
    (64, Checksum::Verified),
    (64, Checksum::Complete),
    (1448, Checksum::Verified),
    (1448, Checksum::Complete),
];

#[divan::bench(args = CASES, sample_size = 1, sample_count = 2000)]
fn one_connection(bencher: Bencher<'_, '_>, (payload, checksum): (usize, Checksum)) {
    measure(bencher, Stack::new(1, checksum), Clients::new(1, payload, checksum), 1);
}

#[cfg(tcp_smoltcp)]
#[divan::bench(args = CASES, sample_size = 1, sample_count = 2000)]
fn one_connection_of_smoltcp(bencher: Bencher<'_, '_>, (payload, checksum): (usize, Checksum)) {
    measure(bencher, smol::Smoltcp::new(checksum), Clients::new(1, payload, checksum), 1);
}

/// In random order: the records of 32 connections stay in the caches, those of a million do not.
#[divan::bench(args = [32, 1 << 20], sample_size = 1, sample_count = 2000)]
fn bursts_among_connections(bencher: Bencher<'_, '_>, connections: u32) {
    let checksum = Checksum::Verified;
    measure(bencher, Stack::new(connections, checksum), Clients::new(connections, 64, checksum), 32);
}

/// What came of a burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Answered {
    /// Packets that were sent.
    packets: usize,
    /// Bytes that the program read.
    bytes: usize,
}

/// A TCP with its program, which reads all that arrives.
trait Subject {
    /// Consumes a burst, reads, and answers.
    fn turn(&mut self, micros: u64, burst: &Batch) -> Answered;

    /// The last packet that was sent.
    fn last(&self) -> &[u8];
}

/// Opens the connections of all clients, then measures their segments, `burst` at a time.
fn measure(bencher: Bencher<'_, '_>, mut subject: impl Subject, mut clients: Clients, burst: usize) {
    let mut micros = clients.open_all(&mut subject);
    let expected = Answered { packets: SEGMENTS, bytes: SEGMENTS * clients.payload_len() };
    bencher
        .counter(ItemsCount::new(SEGMENTS))
        .with_inputs(|| (clients.bursts(SEGMENTS, burst), clients.last_acknowledgement()))
        .bench_local_refs(|(bursts, acknowledgement)| {
            let mut all = Answered::default();
            for burst in bursts {
                let answered = subject.turn(micros, burst);
                all.packets += answered.packets;
                all.bytes += answered.bytes;
                micros += STEP_MICROS;
            }
            assert_eq!(all, expected, "each segment is read and acknowledged once");
            let last = Answer::of(subject.last()).map(|answer| answer.ack);
            assert_eq!(last, Some(*acknowledgement), "the last segment is acknowledged");
        });
}

/// Segments of a sample.
const SEGMENTS: usize = 512;

/// Between two bursts, by the clock that the subject is given.
const STEP_MICROS: u64 = 10;
