//! CPU time of a segment that arrives, is read and is acknowledged.

use std::time::Duration;

use packet::{Batch, Checksum};

use super::clients::{Answer, Clients};
use super::subject::{Answered, Subject};
use crate::clock;

/// Segments between two readings of the clock. They are made before, and fit into a second-level cache.
const CHUNK: usize = 512;

/// Between two bursts under the subject's clock.
const STEP_MICROS: u64 = 10;

/// A subject whose connections are open, and what its clients have sent.
pub(super) struct Bench<S> {
    subject: S,
    clients: Clients,
    burst: usize,
    micros: u64,
    /// Passes over all clients, and the place in the present one.
    pass: u64,
    place: u32,
    bursts: Vec<Batch>,
}

impl<S: Subject> Bench<S> {
    /// Opens the connections of so many clients, which send `payload` bytes at a time; `burst` segments
    /// come at once.
    pub(super) fn open(
        mut subject: S,
        clients: u32,
        payload: usize,
        checksum: Checksum,
        burst: usize,
    ) -> Result<Self, String> {
        let mut clients = Clients::new(clients, payload, checksum);
        let mut batch = Batch::new(BATCH_BYTES);
        let mut micros = 0;
        for client in 0..clients.count {
            batch.clear();
            clients.open(client, &mut batch);
            let answered = subject.turn(micros, &batch);
            let answer = Answer::of(subject.last()).filter(|_| answered.packets == 1);
            clients.acknowledge = answer.ok_or("a SYN was not answered")?.end;
            batch.clear();
            clients.confirm(client, &mut batch);
            subject.turn(micros, &batch);
            micros += STEP_MICROS;
        }
        let bursts = (0..CHUNK / burst).map(|_| Batch::new(burst * (payload + 64))).collect();
        Ok(Self { subject, clients, burst, micros, pass: 0, place: 0, bursts })
    }

    /// Nanoseconds of CPU a segment, over at least this much CPU time.
    pub(super) fn measure(&mut self, window: Duration) -> Result<f64, String> {
        let (mut used, mut segments) = (Duration::ZERO, 0);
        while used < window {
            used += self.chunk()?;
            segments += CHUNK;
        }
        Ok(used.as_nanos() as f64 / segments as f64)
    }

    fn chunk(&mut self) -> Result<Duration, String> {
        let payload = self.fill();
        let clock = || clock::of_this_thread().map_err(|error| error.to_string());
        let begin = clock()?;
        let mut all = Answered::default();
        for burst in &self.bursts {
            all += self.subject.turn(self.micros, burst);
            self.micros += STEP_MICROS;
        }
        let used = clock()? - begin;
        let expected = Answered { packets: CHUNK as u64, bytes: payload };
        if all != expected {
            return Err(format!("{all:?} came of segments that ask for {expected:?}"));
        }
        // The last pass is the first place's alone if it has just begun.
        let sent = if self.place == 0 { self.pass } else { self.pass + 1 };
        let last = Answer::of(self.subject.last()).map(|answer| answer.ack);
        if last != Some(self.clients.end_of(sent)) {
            return Err("the last answer does not acknowledge the last segment".to_owned());
        }
        Ok(used)
    }

    /// Makes the next chunk; returns its bytes of payload.
    fn fill(&mut self) -> u64 {
        for batch in &mut self.bursts {
            batch.clear();
            for _ in 0..self.burst {
                let client = self.clients.at(self.pass, self.place);
                self.clients.send(client, self.pass, batch);
                self.place += 1;
                if self.place == self.clients.count {
                    self.place = 0;
                    self.pass += 1;
                }
            }
        }
        CHUNK as u64 * self.clients.payload_len()
    }
}

const BATCH_BYTES: usize = 4096;
