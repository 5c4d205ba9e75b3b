//! Random calls on two endpoints against a plain queue of bytes for each direction.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::support::Pair;
use crate::{DemotionStep, Front, Path, Ready, WakeUp};

/// The bytes that the kernel accepts without blocking.
const KERNEL_ROOM: usize = 600;

/// Random cases, steps of a case, and bytes of a script; miri is slow.
const CASES: u32 = if cfg!(miri) { 2 } else { 400 };
const STEPS: usize = if cfg!(miri) { 30 } else { 200 };
const SCRIPT: usize = if cfg!(miri) { 300 } else { 3000 };

#[derive(Clone, Debug)]
enum Step {
    Write { lengths: Vec<usize>, limit: usize, with_receiver: bool },
    SendOverTcp(usize),
    OpenRing,
    OpenTcp,
    Consume(usize),
    Peek(usize),
    Skip(usize),
    Release,
    Wait,
    Sleep,
    ResumeSender,
    ResumeReceiver,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![4 => 0..100_usize, 1 => 0..5000_usize, 1 => Just(7144_usize)];
    prop_oneof![
        6 => (prop::collection::vec(length.clone(), 1..4), prop_oneof![Just(usize::MAX), length.clone()], any::<bool>())
            .prop_map(|(lengths, limit, with_receiver)| Step::Write { lengths, limit, with_receiver }),
        2 => (1..KERNEL_ROOM).prop_map(Step::SendOverTcp),
        2 => Just(Step::OpenRing),
        1 => Just(Step::OpenTcp),
        6 => length.clone().prop_map(Step::Consume),
        1 => length.clone().prop_map(Step::Peek),
        1 => length.prop_map(Step::Skip),
        1 => Just(Step::Release),
        2 => Just(Step::Wait),
        1 => Just(Step::Sleep),
        1 => Just(Step::ResumeSender),
        1 => Just(Step::ResumeReceiver),
    ]
}

/// One direction, as seen by the programs and the kernel.
#[derive(Default)]
struct Direction {
    /// Sent, and not yet consumed.
    stream: VecDeque<u8>,
    sent: u64,
    kernel: VecDeque<u8>,
    /// The receiver waits on the kernel, armed or with its loop asleep.
    waits: bool,
    /// The kernel may have copies of ring bytes.
    copied: bool,
}

struct Model {
    pair: Pair,
    directions: [Direction; 2],
}

impl Model {
    fn bytes(&mut self, sender: usize, count: usize) -> Vec<u8> {
        let sent = self.directions[sender].sent;
        (sent..sent + count as u64).map(|offset| ((offset * 131) >> 3) as u8).collect()
    }

    fn sent(&mut self, sender: usize, bytes: &[u8]) {
        let direction = &mut self.directions[sender];
        direction.sent += bytes.len() as u64;
        direction.stream.extend(bytes);
        assert_eq!(self.pair.endpoints[sender].sender.stream(), direction.sent);
    }

    fn wake_receiver(&mut self, sender: usize) {
        let endpoint = &mut self.pair.endpoints[sender].sender;
        if endpoint.wants_tcp_wake_up(&self.pair.peers[sender]) {
            let direction = &mut self.directions[sender];
            let room = direction.kernel.len() < KERNEL_ROOM;
            if room {
                direction.kernel.push_back(0);
            }
            endpoint.woke_peer(&self.pair.peers[sender], room);
            assert!(!endpoint.wants_tcp_wake_up(&self.pair.peers[sender]), "one wake-up for each number");
        }
    }

    /// The receiver of `sender`'s direction, awake.
    fn wake(&mut self, sender: usize) {
        self.directions[sender].waits = false;
        self.pair.endpoints[1 - sender].receiver.disarm();
        self.pair.pages[1 - sender].wake(0);
    }

    fn apply(&mut self, side: usize, step: Step) {
        let other = 1 - side;
        match step {
            Step::Write { lengths, limit, with_receiver } => {
                let bytes = self.bytes(side, lengths.iter().sum());
                let mut rest = bytes.as_slice();
                let slices: Vec<&[u8]> =
                    lengths.iter().map(|&length| rest.split_off(..length).unwrap()).collect();
                let endpoint = &mut self.pair.endpoints[side];
                let path = endpoint.sender.path();
                let written = if with_receiver {
                    endpoint.write(slices, limit).unwrap()
                } else {
                    endpoint.sender.write(slices, limit, None).unwrap()
                };
                assert!(written <= limit && (path == Path::Ring || written == 0));
                if written < bytes.len().min(limit) && path == Path::Ring {
                    assert_eq!(self.pair.endpoints[side].sender.free(1).unwrap(), 0, "short only if full");
                }
                self.sent(side, &bytes[..written]);
                self.wake_receiver(side);
            }
            Step::SendOverTcp(length) => {
                if self.pair.endpoints[side].sender.path() == Path::Tcp {
                    let room = KERNEL_ROOM - self.directions[side].kernel.len();
                    let bytes = self.bytes(side, length.min(room));
                    self.directions[side].kernel.extend(&bytes);
                    self.pair.endpoints[side].sender.sent_over_tcp(bytes.len() as u64);
                    self.sent(side, &bytes);
                }
            }
            Step::OpenRing => {
                let opened = self.pair.endpoints[side].sender.open_ring().unwrap();
                assert!(!opened || self.pair.endpoints[side].sender.path() == Path::Ring);
            }
            Step::OpenTcp => assert!(self.pair.endpoints[side].sender.open_tcp().unwrap(), "always possible"),
            Step::Consume(limit) => {
                self.wake(other);
                self.consume(other, limit);
            }
            Step::Peek(length) => {
                let mut buffer = vec![0; length];
                let peeked = self.pair.endpoints[side].receiver.peek(0, &mut buffer).unwrap();
                assert!(self.directions[other].stream.iter().take(peeked).eq(&buffer[..peeked]));
            }
            Step::Skip(count) => {
                let skipped = self.pair.endpoints[side].receiver.skip(count).unwrap();
                self.directions[other].stream.drain(..skipped);
            }
            Step::Release => self.pair.endpoints[side].receiver.release(),
            Step::Wait => {
                // As before epoll_wait(2): ready bytes in the kernel would not let it
                // block.
                if !self.pair.endpoints[side].receiver.arm(WakeUp::Tcp).unwrap() {
                    self.directions[other].waits = true;
                }
            }
            Step::Sleep => {
                self.wake(other);
                self.pair.pages[side].sleep(0);
                match self.pair.endpoints[side].receiver.poll().unwrap() {
                    Ready::Ring(_) => self.pair.pages[side].wake(0),
                    Ready::Tcp { .. } | Ready::Nothing => self.directions[other].waits = true,
                }
            }
            Step::ResumeSender => self.pair.endpoints[side].sender.resume(),
            Step::ResumeReceiver => {
                self.pair.endpoints[side].receiver.save();
                self.pair.endpoints[side].receiver.resume().unwrap();
            }
        }
        for (sender, direction) in self.directions.iter().enumerate() {
            assert!(
                !direction.waits || direction.stream.is_empty() || !direction.kernel.is_empty(),
                "receiver {} waits forever",
                1 - sender
            );
        }
    }

    /// Copies the unread bytes to the kernel, which accepts `room` of them. True: there
    /// were some, and all were copied.
    fn copy_unread(&mut self, sender: usize, room: usize) -> bool {
        let endpoint = &mut self.pair.endpoints[sender].sender;
        let direction = &mut self.directions[sender];
        assert!(endpoint.may_wake());
        let all = endpoint.announce_copies().unwrap();
        if all == 0 {
            endpoint.kernel_refused();
            return false;
        }
        let (mut left, mut room) = (all, room);
        while left > 0 && room > 0 {
            let mut piece = vec![0; room.min(1000)];
            let count = endpoint.peek_copies(left, &mut piece);
            direction.kernel.extend(&piece[..count]);
            (left, room) = (left - count, room - count);
            endpoint.copied(count);
        }
        endpoint.end_copies(left == 0);
        direction.copied = true;
        left == 0
    }

    /// The receiver of `sender`'s direction discards wake-up bytes if it is in a ring
    /// run.
    fn discard_wake_up_bytes(&mut self, sender: usize) {
        let receiver = &mut self.pair.endpoints[1 - sender].receiver;
        let direction = &mut self.directions[sender];
        if let Front::WakeUps(wake_ups) = receiver.tcp(direction.kernel.len() as u64).unwrap() {
            direction.kernel.drain(..wake_ups as usize);
            receiver.consumed_tcp(wake_ups);
        }
    }

    /// The receiver of `sender`'s direction is demoted. True: the kernel has exactly its
    /// unread bytes.
    fn demote(&mut self, sender: usize) -> bool {
        let receiver = &mut self.pair.endpoints[1 - sender].receiver;
        receiver.demote();
        let DemotionStep::WakeUps(wake_ups) = receiver.demotion_step().unwrap() else { return false };
        let direction = &mut self.directions[sender];
        direction.kernel.drain(..wake_ups as usize);
        let sender = &mut self.pair.endpoints[sender].sender;
        assert!(!sender.wants_return().unwrap());
        let mut owed = vec![0; sender.recall().unwrap()];
        assert_eq!(sender.peek_owed(&mut owed).unwrap(), owed.len());
        direction.kernel.extend(owed);
        assert_eq!(direction.kernel, direction.stream);
        true
    }

    /// Consumes up to `limit` bytes of `sender`'s direction; returns how many.
    fn consume(&mut self, sender: usize, limit: usize) -> usize {
        let receiver = &mut self.pair.endpoints[1 - sender].receiver;
        let direction = &mut self.directions[sender];
        let mut consumed = 0;
        // Each turn consumes bytes, discards wake-up bytes, or is the last.
        while consumed < limit {
            let front = match receiver.check().unwrap() {
                Ready::Ring(here) => {
                    let mut buffer = vec![0; here.min(limit - consumed)];
                    assert_eq!(receiver.read(&mut buffer).unwrap(), buffer.len());
                    assert!(direction.stream.drain(..buffer.len()).eq(buffer.iter().copied()));
                    consumed += buffer.len();
                    continue;
                }
                Ready::Tcp { .. } | Ready::Nothing => receiver.tcp(direction.kernel.len() as u64).unwrap(),
            };
            let count = match front {
                Front::WakeUps(count) => {
                    assert!(
                        direction.kernel.drain(..count as usize).all(|byte| byte == 0 || direction.copied)
                    );
                    count
                }
                Front::Data(count) => {
                    let count = count.min((limit - consumed) as u64);
                    let data = direction.kernel.drain(..count as usize);
                    assert!(direction.stream.drain(..count as usize).eq(data));
                    consumed += count as usize;
                    count
                }
                Front::Later => panic!("nothing lies in the ring before it"),
            };
            receiver.consumed_tcp(count);
            if count == 0 {
                break;
            }
        }
        consumed
    }
}

/// The seeds of the fuzzer: one script for each way in which a connection can end, named
/// after it, and one in which it survives.
#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn the_seeds_of_the_fuzzer_end_as_they_are_named() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/hostile");
    let mut ends = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(seeds).unwrap() {
        let path = entry.unwrap().path();
        let end = crate::hostile::run(&std::fs::read(&path).unwrap());
        let end = end.map_or("None".to_owned(), |corrupt| format!("{corrupt:?}"));
        assert_eq!(path.file_name().unwrap().to_str(), Some(end.as_str()));
        ends.insert(end);
    }
    let every = [
        "Base",
        "Demoted",
        "Head",
        "None",
        "RecordPath",
        "RecordStart",
        "Returned",
        "Runs",
        "RunsPassed",
        "Tail",
    ];
    assert!(ends.iter().eq(every), "{ends:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hostile_peer_ends_its_own_connection_at_most(script in prop::collection::vec(any::<u8>(), 1..SCRIPT)) {
        crate::hostile::run(&script);
    }

    #[test]
    fn streams_arrive_byte_exact(steps in prop::collection::vec((0..2_usize, step()), 1..STEPS)) {
        let mut model = Model { pair: Pair::new(), directions: Default::default() };
        model.pair.endpoints.iter().for_each(|endpoint| endpoint.receiver.mark_aware());
        for (side, step) in steps {
            model.apply(side, step);
        }
        for sender in 0..2 {
            let left = model.directions[sender].stream.len();
            prop_assert_eq!(model.consume(sender, usize::MAX), left);
            prop_assert!(model.directions[sender].stream.is_empty());
            prop_assert!(model.directions[sender].kernel.is_empty());
            prop_assert!(model.pair.endpoints[1 - sender].receiver.is_at_end_of_ring().unwrap());
            prop_assert_eq!(model.pair.endpoints[1 - sender].receiver.stream(), model.directions[sender].sent);
            model.pair.endpoints[1 - sender].receiver.poll().unwrap();
            prop_assert!(model.pair.endpoints[sender].sender.drained().unwrap());
        }
    }

    #[test]
    fn a_successor_reads_the_copies(
        steps in prop::collection::vec((0..2_usize, step()), 1..STEPS),
        room in prop_oneof![2 => Just(usize::MAX), 1 => 0..7144_usize],
        follows in 0..700_usize,
        ends in any::<bool>(),
        consumed in prop_oneof![Just(0), 0..9000_usize],
        again in any::<bool>(),
    ) {
        let mut model = Model { pair: Pair::new(), directions: Default::default() };
        model.pair.endpoints.iter().for_each(|endpoint| endpoint.receiver.mark_aware());
        for (side, step) in steps {
            model.apply(side, step);
        }
        if again {
            // Copies that were all consumed make room for others.
            model.copy_unread(0, usize::MAX);
            model.apply(1, Step::Consume(usize::MAX));
            model.apply(0, Step::OpenRing);
            model.apply(0, Step::Write { lengths: vec![100], limit: usize::MAX, with_receiver: false });
        }
        let all = model.copy_unread(0, room);
        if follows > 0 {
            prop_assert!(model.pair.endpoints[0].sender.open_tcp().unwrap());
            let bytes = model.bytes(0, follows);
            model.directions[0].kernel.extend(&bytes);
            model.pair.endpoints[0].sender.sent_over_tcp(follows as u64);
            model.sent(0, &bytes);
            let unconsumed = model.pair.endpoints[0].sender.unconsumed().unwrap();
            if all && unconsumed > 0 {
                prop_assert!(!model.pair.endpoints[0].sender.open_ring().unwrap(), "nothing goes past copies");
            }
        }
        if ends {
            model.pair.endpoints[0].sender.sends_no_more();
        }
        model.discard_wake_up_bytes(0);
        model.consume(0, consumed);
        model.discard_wake_up_bytes(0);
        let receiver = &mut model.pair.endpoints[1].receiver;
        receiver.poll().unwrap();
        // Wake-up bytes may lie between kernel bytes and copies of later bytes.
        let in_order = !receiver.is_in_tcp() || !receiver.nears_next_run();
        prop_assert!(model.demote(0) || !all || !in_order, "all is in the kernel, too");
    }
}
