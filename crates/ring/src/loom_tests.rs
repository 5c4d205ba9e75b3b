//! Each pair of orderings, under the model checker.
//! Run with `CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg ring_loom" cargo test -p megapipe-ring --lib loom`.

mod beside;
mod demotion;

use std::collections::VecDeque;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::layout::NO_WAITER;
use crate::memory::PageMemory;
use crate::{
    Acquired, DemotionStep, Direction, Endpoint, Front, Lock, LoopPage, Path, PeerLoop, Ready, Receiver,
    Region, Sender, Wait, WakeUp,
};

/// A ring so short that a few bytes wrap around it.
const RING: usize = 3;

/// All interleavings take too long. Faults show up with few preemptions of runnable
/// threads.
fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

/// A sender at one endpoint and a receiver at the other, and their other halves.
fn direction() -> (Endpoint, Endpoint) {
    let (first, first_seen) = Region::model(RING);
    let (second, second_seen) = Region::model(RING);
    (Endpoint::new(first, second_seen).unwrap(), Endpoint::new(second, first_seen).unwrap())
}

fn ring_direction() -> (Sender, Receiver) {
    let (sends, receives) = direction();
    let Endpoint { mut sender, .. } = sends;
    receives.receiver.mark_aware();
    assert!(sender.open_ring().unwrap());
    (sender, receives.receiver)
}

/// The kernel connection of one direction: a queue with a blocking wait.
#[derive(Default)]
struct Kernel {
    bytes: Mutex<VecDeque<u8>>,
    came: Condvar,
    /// FIN follows them.
    ended: Mutex<bool>,
}

impl Kernel {
    fn send(&self, byte: u8) {
        self.bytes.lock().unwrap().push_back(byte);
        self.came.notify_one();
    }

    /// As poll(2): if a byte never arrives, this sleeps forever, which loom reports.
    fn wait(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while bytes.is_empty() {
            bytes = self.came.wait(bytes).unwrap();
        }
    }

    fn unread(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn end(&self) {
        *self.ended.lock().unwrap() = true;
    }

    fn has_ended(&self) -> bool {
        *self.ended.lock().unwrap()
    }

    fn take(&self, count: u64) -> Vec<u8> {
        self.bytes.lock().unwrap().drain(..count as usize).collect()
    }
}

/// DATA-PAIR, HEAD-PAIR: bytes arrive as they were sent, although the ring wraps
/// repeatedly.
#[test]
fn loom_publish_and_consume() {
    check(3, || {
        let (mut sender, mut receiver) = ring_direction();
        let writer = thread::spawn(move || {
            let mut sent = 0;
            while sent < 5 {
                let count = sender.write([[sent + 1, sent + 2].as_slice()], usize::MAX, None).unwrap();
                sent += count as u8;
                if count == 0 {
                    thread::yield_now();
                }
            }
            sent
        });
        let mut received = Vec::new();
        while received.len() < 5 {
            let mut buffer = [0; 2];
            let count = receiver.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
            if count == 0 {
                thread::yield_now();
            }
        }
        writer.join().unwrap();
        assert_eq!(received[..5], [1, 2, 3, 4, 5]);
    });
}

/// HEAD-PAIR as loaded by the receiver half, when nothing else is published with the
/// head.
#[test]
fn loom_head_loaded_by_a_check() {
    check(3, || {
        let (mut first, mut second) = direction();
        second.receiver.mark_aware();
        assert!(first.sender.open_ring().unwrap());
        let reader = thread::spawn(move || {
            let mut byte = [0];
            while second.receiver.read(&mut byte).unwrap() == 0 {
                thread::yield_now();
            }
            assert_eq!(byte, [1]);
        });
        assert_eq!(first.write([[1].as_slice()], 1).unwrap(), 1);
        first.receiver.poll().unwrap();
        // Fills the ring or, if the head was loaded, reuses the first place.
        assert!(first.write([[2, 3, 4].as_slice()], 3).unwrap() >= 2);
        reader.join().unwrap();
    });
}

/// HEAD-PAIR the other way: the head is published with the answer, in the cache line that
/// the receiver half checks anyway.
#[test]
fn loom_head_is_published_with_the_answer() {
    check(3, || {
        let (mut first, mut second) = direction();
        for endpoint in [&mut first, &mut second] {
            endpoint.receiver.mark_aware();
        }
        assert!(first.sender.open_ring().unwrap() && second.sender.open_ring().unwrap());
        let read = |endpoint: &mut Endpoint| {
            let mut byte = [0];
            while endpoint.receiver.read(&mut byte).unwrap() == 0 {
                thread::yield_now();
            }
            byte[0]
        };
        let answers = thread::spawn(move || {
            for _ in 0..2 {
                let byte = read(&mut second);
                assert_eq!(second.write([[byte + 1].as_slice()], 1).unwrap(), 1);
            }
        });
        for question in [10, 20] {
            assert_eq!(first.write([[question].as_slice()], 1).unwrap(), 1);
            assert_eq!(read(&mut first), question + 1);
        }
        answers.join().unwrap();
    });
}

/// Wakes the receiver if it waits, by its doorbell or over TCP. One blocking queue stands
/// for both; a byte of the doorbell is 1.
fn wake(sender: &mut Sender, peer_loop: &PeerLoop, both: &Kernel) {
    match sender.wants_wake_up(peer_loop) {
        Some(WakeUp::Doorbell) => {
            both.send(1);
            sender.woke_peer(peer_loop, false);
        }
        Some(WakeUp::Tcp) => {
            both.send(0);
            sender.woke_peer(peer_loop, true);
        }
        None => {}
    }
}

/// ARM-PAIR: a waiter in ppoll(2) of its doorbell and the kernel connection, which
/// requests alternately one or the other, is woken. A doorbell byte is read before the
/// last check of the ring, and is not counted.
#[test]
fn loom_armed_receiver_is_woken_by_its_doorbell() {
    check(3, || {
        let (mut sender, mut receiver) = ring_direction();
        let both = Arc::new(Kernel::default());
        let peer_loop = PeerLoop::of(PageMemory::model());
        let writer = thread::spawn({
            let both = both.clone();
            move || {
                for byte in [1, 2] {
                    assert_eq!(sender.write([[byte].as_slice()], 1, None).unwrap(), 1);
                    wake(&mut sender, &peer_loop, &both);
                }
            }
        });
        let mut received = Vec::new();
        for by in [WakeUp::Doorbell, WakeUp::Tcp, WakeUp::Doorbell].into_iter().cycle() {
            if received.len() == 2 {
                break;
            }
            if !receiver.arm(by).unwrap() {
                both.wait();
            }
            let woken = both.take(both.unread());
            receiver.consumed_tcp(woken.iter().filter(|byte| **byte == 0).count() as u64);
            let mut buffer = [0; 2];
            let count = receiver.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        writer.join().unwrap();
        assert_eq!(received, [1, 2]);
    });
}

/// ARM-PAIR: a waiting receiver is woken.
#[test]
fn loom_armed_receiver_is_woken() {
    check(3, || {
        let (mut sender, mut receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let peer_loop = PeerLoop::of(PageMemory::model());
        let writer = thread::spawn({
            let kernel = kernel.clone();
            move || {
                for byte in [1, 2] {
                    assert_eq!(sender.write([[byte].as_slice()], 1, None).unwrap(), 1);
                    if sender.wants_tcp_wake_up(&peer_loop) {
                        kernel.send(0);
                        sender.woke_peer(&peer_loop, true);
                    }
                }
            }
        });
        let mut received = Vec::new();
        while received.len() < 2 {
            if !receiver.arm(WakeUp::Tcp).unwrap() {
                kernel.wait();
            }
            let wake_ups = kernel.unread();
            assert!(kernel.take(wake_ups).iter().all(|byte| *byte == 0));
            receiver.consumed_tcp(wake_ups);
            let mut buffer = [0; 2];
            let count = receiver.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        writer.join().unwrap();
        assert_eq!(received, [1, 2]);
    });
}

/// COUNT-PAIR: a counted wake-up byte is never classified as data.
#[test]
fn loom_counted_bytes_are_data_up_to_a_wake_up_byte() {
    check(3, || {
        let (sends, receives) = direction();
        let (mut sender, mut receiver) = (sends.sender, receives.receiver);
        let peer_loop = PeerLoop::of(PageMemory::model());
        receiver.mark_aware();
        assert!(!receiver.arm(WakeUp::Tcp).unwrap());
        let writer = thread::spawn(move || {
            sender.sent_over_tcp(1);
            assert!(sender.open_ring().unwrap());
            assert_eq!(sender.write([[2].as_slice()], 1, None).unwrap(), 1);
            assert!(sender.wants_tcp_wake_up(&peer_loop));
            sender.woke_peer(&peer_loop, true);
        });
        while receiver.surely_data().unwrap() == 0 {
            thread::yield_now();
        }
        assert_eq!(receiver.surely_data().unwrap(), 1);
        receiver.consumed_tcp(1);
        assert_eq!(receiver.surely_data().unwrap(), 0);
        writer.join().unwrap();
    });
}

/// ARM-PAIR: a receiver that was hot, masks itself and checks once more sees the bytes,
/// or is woken.
#[test]
fn loom_masked_receiver_that_checks_is_woken() {
    check(3, || {
        let (mut sender, mut receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let peer_loop = PeerLoop::of(PageMemory::model());
        receiver.polled_by(NO_WAITER, WakeUp::Tcp);
        receiver.disarm();
        let writer = thread::spawn({
            let kernel = kernel.clone();
            move || {
                assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
                if sender.wants_tcp_wake_up(&peer_loop) {
                    kernel.send(0);
                    sender.woke_peer(&peer_loop, true);
                }
            }
        });
        receiver.mask();
        if !matches!(receiver.poll().unwrap(), Ready::Ring(_)) {
            kernel.wait();
        }
        let mut byte = [0];
        assert_eq!((receiver.read(&mut byte).unwrap(), byte), (1, [1]));
        writer.join().unwrap();
    });
}

/// SLEEP-PAIR: one wake-up on any of its hot connections wakes a sleeping loop.
fn sleeping_loop(one_loop_sends: bool, by: WakeUp) {
    let (first, mut first_receiver) = ring_direction();
    let (second, mut second_receiver) = ring_direction();
    for receiver in [&mut first_receiver, &mut second_receiver] {
        receiver.mask();
        receiver.polled_by(0, by);
        receiver.disarm();
    }
    let kernel = Arc::new(Kernel::default());
    let page = PageMemory::model();
    let own_page = LoopPage::of(page.clone());
    let send = |senders: Vec<Sender>| {
        let (kernel, peer_loop) = (kernel.clone(), PeerLoop::of(page.clone()));
        move || {
            for mut sender in senders {
                assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
                wake(&mut sender, &peer_loop, &kernel);
            }
        }
    };
    let threads = if one_loop_sends {
        vec![thread::spawn(send(vec![first, second]))]
    } else {
        vec![thread::spawn(send(vec![first])), thread::spawn(send(vec![second]))]
    };
    let mut received = 0;
    while received < 2 {
        own_page.sleep(0);
        let mut ready = false;
        for receiver in [&mut first_receiver, &mut second_receiver] {
            ready |= matches!(receiver.poll().unwrap(), Ready::Ring(_));
        }
        if !ready {
            kernel.wait();
        }
        own_page.wake(0);
        kernel.take(kernel.unread());
        for receiver in [&mut first_receiver, &mut second_receiver] {
            received += receiver.read(&mut [0]).unwrap();
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn loom_sleeping_loop_of_two_connections_is_woken() {
    check(3, || sleeping_loop(true, WakeUp::Tcp));
}

#[test]
fn loom_sleeping_loop_is_woken_by_either_peer() {
    check(2, || sleeping_loop(false, WakeUp::Tcp));
}

/// SLEEP-PAIR: so does the doorbell of any of them, since the epoll set contains them
/// all.
#[test]
fn loom_sleeping_loop_is_woken_by_a_doorbell() {
    check(3, || sleeping_loop(true, WakeUp::Doorbell));
}

/// ENDED-PAIR: a wake-up for a sleeping loop is not wasted on a connection that it
/// closed.
#[test]
fn loom_no_wake_up_on_an_ended_connection() {
    check(3, || {
        let (mut closed, closed_receiver) = ring_direction();
        let (mut open, mut open_receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let page = PageMemory::model();
        let own_page = LoopPage::of(page.clone());
        let sender = thread::spawn({
            let (kernel, peer_loop) = (kernel.clone(), PeerLoop::of(page));
            move || {
                assert_eq!(closed.write([[1].as_slice()], 1, None).unwrap(), 1);
                if closed.wants_tcp_wake_up(&peer_loop) {
                    // It is never read.
                    closed.woke_peer(&peer_loop, true);
                }
                assert_eq!(open.write([[1].as_slice()], 1, None).unwrap(), 1);
                if open.wants_tcp_wake_up(&peer_loop) {
                    kernel.send(0);
                    open.woke_peer(&peer_loop, true);
                }
            }
        });
        closed_receiver.mark_ended(true);
        own_page.sleep(0);
        if open_receiver.poll().unwrap() == Ready::Nothing {
            kernel.wait();
        }
        own_page.wake(0);
        assert_eq!(open_receiver.read(&mut [0]).unwrap(), 1);
        sender.join().unwrap();
    });
}

/// CLOSE-PAIR: no wake-up byte arrives after a close, which waits for those on their way.
#[test]
fn loom_no_wake_up_byte_after_a_close() {
    check(3, || {
        let (mut sender, mut receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let closed = Arc::new(AtomicBool::new(false));
        let peer_loop = PeerLoop::of(PageMemory::model());
        assert!(!receiver.arm(WakeUp::Tcp).unwrap());
        let writer = thread::spawn({
            let (kernel, closed) = (kernel.clone(), closed.clone());
            move || {
                assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
                if sender.wants_tcp_wake_up(&peer_loop) {
                    assert!(!closed.load(Ordering::Relaxed));
                    kernel.send(0);
                    sender.woke_peer(&peer_loop, true);
                }
            }
        });
        receiver.mark_ended(true);
        loop {
            let more = receiver.is_given_more();
            let wake_ups = kernel.unread();
            kernel.take(wake_ups);
            receiver.consumed_tcp(wake_ups);
            if !more {
                break;
            }
            thread::yield_now();
        }
        closed.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert_eq!(kernel.unread(), 0, "the kernel would have reset the connection");
    });
}

/// WAITER-PAIR: a wake-up on a connection that moved to another waiter does not count
/// for its previous waiter.
#[test]
fn loom_no_wake_up_counts_for_the_previous_waiter() {
    check(3, || {
        let (mut moved, mut moved_receiver) = ring_direction();
        let (mut stays, mut stays_receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let page = PageMemory::model();
        let own_page = LoopPage::of(page.clone());
        let sender = thread::spawn({
            let (kernel, peer_loop) = (kernel.clone(), PeerLoop::of(page));
            move || {
                assert_eq!(moved.write([[1].as_slice()], 1, None).unwrap(), 1);
                if moved.wants_tcp_wake_up(&peer_loop) {
                    // It wakes the other waiter, which is awake.
                    moved.woke_peer(&peer_loop, true);
                }
                assert_eq!(stays.write([[1].as_slice()], 1, None).unwrap(), 1);
                if stays.wants_tcp_wake_up(&peer_loop) {
                    kernel.send(0);
                    stays.woke_peer(&peer_loop, true);
                }
            }
        });
        moved_receiver.mask();
        moved_receiver.polled_by(1, WakeUp::Tcp);
        moved_receiver.disarm();
        own_page.sleep(0);
        if stays_receiver.poll().unwrap() == Ready::Nothing {
            kernel.wait();
        }
        own_page.wake(0);
        assert_eq!(stays_receiver.read(&mut [0]).unwrap(), 1);
        sender.join().unwrap();
    });
}

/// RUN-PAIR: the path changes both ways, and bytes arrive in order.
#[test]
fn loom_path_switches_both_ways() {
    check(2, || {
        let (sends, receives) = direction();
        let (mut sender, mut receiver) = (sends.sender, receives.receiver);
        let kernel = Arc::new(Kernel::default());
        let peer_loop = PeerLoop::of(PageMemory::model());
        assert!(!receiver.arm(WakeUp::Tcp).unwrap());
        receiver.mark_aware();
        let writer = thread::spawn({
            let kernel = kernel.clone();
            move || {
                for byte in 1..=4 {
                    if byte % 2 == 1 {
                        kernel.send(byte);
                        sender.sent_over_tcp(1);
                        assert!(sender.open_ring().unwrap());
                        continue;
                    }
                    assert_eq!(sender.write([[byte].as_slice()], 1, None).unwrap(), 1);
                    if sender.wants_tcp_wake_up(&peer_loop) {
                        kernel.send(0);
                        sender.woke_peer(&peer_loop, true);
                    }
                    assert!(byte == 4 || sender.open_tcp().unwrap());
                }
                assert_eq!(sender.path(), Path::Ring);
            }
        });
        let mut received = Vec::new();
        while received.len() < 4 {
            let front = match receiver.check().unwrap() {
                Ready::Ring(_) => {
                    let mut byte = [0];
                    assert_eq!(receiver.read(&mut byte).unwrap(), 1);
                    received.push(byte[0]);
                    continue;
                }
                Ready::Tcp { .. } | Ready::Nothing => {
                    let unread = kernel.unread();
                    receiver.tcp(unread).unwrap()
                }
            };
            match front {
                Front::WakeUps(0) | Front::Data(0) => {
                    if !receiver.arm(WakeUp::Tcp).unwrap() {
                        kernel.wait();
                    }
                }
                Front::WakeUps(count) => {
                    assert!(kernel.take(count).iter().all(|byte| *byte == 0));
                    receiver.consumed_tcp(count);
                }
                Front::Data(count) => {
                    received.extend(kernel.take(count));
                    receiver.consumed_tcp(count);
                }
                // The ring has the bytes before; this check loaded their publication.
                Front::Later => {}
            }
        }
        writer.join().unwrap();
        assert_eq!(received, [1, 2, 3, 4]);
    });
}

/// Waits without limit; thread 1 has died once its flag is set.
struct Patient {
    first_died: Arc<AtomicBool>,
}

impl Wait for Patient {
    fn is_alive(&mut self, thread: u32) -> bool {
        // A death is seen after the dead thread's stores, as with the kernel.
        thread != 1 || !self.first_died.load(Ordering::Acquire)
    }

    fn pause(&mut self, _attempt: u32) -> bool {
        thread::yield_now();
        true
    }
}

/// LOCK-PAIR: two writers of one endpoint, one at a time; one may die during a write.
fn two_writers(first_dies: bool) {
    let (own, seen) = Region::model(RING);
    let (other, other_seen) = Region::model(RING);
    let mut receiver = Receiver::new(other, seen).unwrap();
    receiver.mark_aware();
    assert!(Sender::new(own.clone(), other_seen.clone()).open_ring().unwrap());
    let first_died = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = [1, 2]
        .into_iter()
        .map(|id| {
            let (own, other_seen) = (own.clone(), other_seen.clone());
            let mut wait = Patient { first_died: first_died.clone() };
            thread::spawn(move || {
                let lock = Lock::new(own.clone(), Direction::Send);
                let acquired = lock.acquire(id, &mut wait).unwrap();
                let mut sender = Sender::new(own.clone(), other_seen);
                if id == 1 && first_dies {
                    // Bytes in the ring, but nothing published.
                    own.copy_in(sender.stream() as usize % RING, &[9]);
                    wait.first_died.store(true, Ordering::Release);
                    return acquired;
                }
                assert_eq!(sender.write([[id as u8].as_slice()], 1, None).unwrap(), 1);
                lock.release(id);
                acquired
            })
        })
        .collect();
    let acquired: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let mut buffer = [0; RING];
    let count = receiver.read(&mut buffer).unwrap();
    if first_dies {
        assert_eq!(buffer[..count], [2], "nothing of an unfinished write");
        assert_eq!(acquired[0], Acquired::Free);
    } else {
        buffer[..count].sort_unstable();
        assert_eq!(buffer[..count], [1, 2]);
        assert_eq!(acquired, [Acquired::Free, Acquired::Free]);
    }
}

#[test]
fn loom_lock_admits_one_writer_at_a_time() {
    check(3, || two_writers(false));
}

#[test]
fn loom_lock_of_a_dead_writer_has_one_successor() {
    check(3, || two_writers(true));
}
