//! Two threads of one process on one epoll set, or on one connection: neither sleeps
//! through a delivery.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use super::{check, ring_direction};
use crate::memory::PageMemory;
use crate::{LoopPage, PeerLoop, Ready, Receiver, Sender, WakeUp};

/// An epoll set of two connections, as in the kernel.
#[derive(Default)]
struct EpollSet {
    inside: Mutex<Inside>,
    ready: Condvar,
}

#[derive(Default)]
struct Inside {
    /// Unread bytes of each connection.
    bytes: [usize; 2],
    /// The first one is removed, or masked.
    first_is_removed: bool,
    /// Another thread has woken the waiter.
    woken: bool,
    /// Threads that have finished, of two.
    done: usize,
}

impl EpollSet {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inside) -> T) -> T {
        let changed = change(&mut self.lock());
        self.ready.notify_all();
        changed
    }

    /// As epoll_wait(2), which checks again when it is woken. False: no thread is left
    /// that could wake it.
    fn wait(&self) -> bool {
        let mut inside = self.lock();
        while inside.bytes[1] == 0 && (inside.bytes[0] == 0 || inside.first_is_removed) && !inside.woken {
            if inside.done == 2 {
                return false;
            }
            inside = self.ready.wait(inside).unwrap();
        }
        inside.woken = false;
        true
    }

    fn is_done(&self) {
        self.change(|inside| inside.done += 1);
    }
}

/// The action of the second thread on the first connection.
#[derive(Clone, Copy)]
enum Beside {
    Consumes,
    Removes,
}

fn sends(mut senders: [Sender; 2], set: &EpollSet, peer_loop: &PeerLoop) {
    for (place, sender) in senders.iter_mut().enumerate() {
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        if sender.wants_tcp_wake_up(peer_loop) {
            set.change(|inside| inside.bytes[place] += 1);
            sender.woke_peer(peer_loop, true);
        }
    }
}

fn consumes(receiver: &mut Receiver, set: &EpollSet) -> usize {
    receiver.read(&mut [0]).unwrap();
    set.change(|inside| std::mem::take(&mut inside.bytes[0]))
}

/// Whether the waiter receives the byte of the second connection, whatever another thread
/// does to the first. `wakes`: that thread then wakes the waiter.
fn second_is_delivered(beside: Beside, wakes: bool) -> bool {
    let (first, first_receiver) = ring_direction();
    let (second, mut second_receiver) = ring_direction();
    let set = Arc::new(EpollSet::default());
    let page = PageMemory::model();
    let own_page = LoopPage::of(page.clone());
    // A socket's lock, and whether the library has it in the epoll set.
    let first_receiver = Arc::new(Mutex::new((first_receiver, true)));
    let is_numbered = Arc::new(AtomicBool::new(false));
    // The epoll set's lock.
    let changes = Arc::new(Mutex::new(()));
    let sender = thread::spawn({
        let (set, peer_loop) = (set.clone(), PeerLoop::of(page));
        move || {
            sends([first, second], &set, &peer_loop);
            set.is_done();
        }
    });
    let other = thread::spawn({
        let (set, first_receiver, is_numbered) = (set.clone(), first_receiver.clone(), is_numbered.clone());
        let changes = changes.clone();
        move || {
            let held = matches!(beside, Beside::Removes).then(|| changes.lock().unwrap());
            let intervenes = match beside {
                Beside::Consumes => consumes(&mut first_receiver.lock().unwrap().0, &set) > 0,
                Beside::Removes => {
                    set.change(|inside| inside.first_is_removed = true);
                    first_receiver.lock().unwrap().1 = false;
                    true
                }
            };
            if intervenes && wakes && is_numbered.load(Ordering::SeqCst) {
                set.change(|inside| inside.woken = true);
            }
            drop(held);
            set.is_done();
        }
    });
    let delivered = loop {
        let held = changes.lock().unwrap();
        // Before the sleep number for which its wake-up would count: see
        // `Receiver::mask`.
        if let (receiver, false) = &mut *first_receiver.lock().unwrap() {
            receiver.mask();
        }
        is_numbered.store(true, Ordering::SeqCst);
        own_page.sleep(0);
        let first_is_ready = {
            let (first, is_in) = &mut *first_receiver.lock().unwrap();
            *is_in && matches!(first.poll().unwrap(), Ready::Ring(_))
        };
        let ready = first_is_ready || matches!(second_receiver.poll().unwrap(), Ready::Ring(_));
        drop(held);
        let lost = !ready && !set.wait();
        own_page.wake(0);
        is_numbered.store(false, Ordering::Relaxed);
        if let (first, true) = &mut *first_receiver.lock().unwrap() {
            consumes(first, &set);
        }
        if second_receiver.read(&mut [0]).unwrap() == 1 {
            break !lost;
        }
        assert!(!lost, "nothing was sent");
        set.change(|inside| inside.bytes[1] = 0);
    };
    sender.join().unwrap();
    other.join().unwrap();
    delivered
}

/// Asserts that some interleaving loses a wake-up: the model would have found the fault.
fn finds_a_loss(preemptions: usize, body: impl Fn() -> bool + Sync + Send + 'static) {
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = lost.clone();
    check(preemptions, move || {
        if !body() {
            found.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(lost.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn loom_an_epoll_set_whose_wake_up_is_consumed_is_woken() {
    check(2, || assert!(second_is_delivered(Beside::Consumes, true)));
}

#[test]
fn loom_a_consumed_wake_up_is_missed() {
    finds_a_loss(2, || second_is_delivered(Beside::Consumes, false));
}

#[test]
fn loom_an_epoll_set_whose_connection_is_removed_is_woken() {
    check(2, || assert!(second_is_delivered(Beside::Removes, true)));
}

#[test]
fn loom_a_removed_connection_is_missed() {
    finds_a_loss(2, || second_is_delivered(Beside::Removes, false));
}

/// A thread sleeps on the connection itself; another one consumes one byte of two, and
/// does not return. True: the first thread receives the rest. `stays`: the rules of
/// connections with several waiting threads are kept.
fn rest_is_delivered(stays: bool) -> bool {
    let (mut sender, receiver) = ring_direction();
    let set = Arc::new(EpollSet::default());
    let peer_loop = PeerLoop::of(PageMemory::model());
    let consumed = Arc::new(AtomicUsize::new(0));
    // A socket's lock, whether a thread sleeps, and whether the connection is contended.
    let shared = Arc::new(Mutex::new((receiver, false, false)));
    let writer = thread::spawn({
        let set = set.clone();
        move || {
            for _ in 0..2 {
                assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
                if sender.wants_tcp_wake_up(&peer_loop) {
                    set.change(|inside| inside.bytes[0] += 1);
                    sender.woke_peer(&peer_loop, true);
                }
            }
            set.is_done();
        }
    });
    // Discards wake-ups whose bytes were consumed: loads the kernel's count first, then
    // checks the ring.
    let discard_wake_up_bytes = |receiver: &mut Receiver, set: &EpollSet| {
        let wake_ups = set.lock().bytes[0];
        if receiver.poll().unwrap() == Ready::Nothing {
            set.change(|inside| inside.bytes[0] -= wake_ups);
            receiver.consumed_tcp(wake_ups as u64);
        }
    };
    let other = thread::spawn({
        let (set, shared, consumed) = (set.clone(), shared.clone(), consumed.clone());
        move || {
            let (receiver, sleeps, contended) = &mut *shared.lock().unwrap();
            if stays && *sleeps && !*contended {
                *contended = true;
                receiver.stay_armed(true);
            }
            consumed.fetch_add(receiver.read(&mut [0]).unwrap(), Ordering::Relaxed);
            discard_wake_up_bytes(receiver, &set);
            receiver.arm(WakeUp::Tcp).unwrap();
            set.is_done();
        }
    });
    let delivered = loop {
        let mut guard = shared.lock().unwrap();
        let (receiver, sleeps, _) = &mut *guard;
        *sleeps = false;
        consumed.fetch_add(receiver.read(&mut [0, 0]).unwrap(), Ordering::Relaxed);
        if consumed.load(Ordering::Relaxed) == 2 {
            break true;
        }
        discard_wake_up_bytes(receiver, &set);
        if receiver.arm(WakeUp::Tcp).unwrap() {
            continue;
        }
        *sleeps = true;
        drop(guard);
        if !set.wait() {
            // The other thread may have had both.
            break consumed.load(Ordering::Relaxed) == 2;
        }
    };
    writer.join().unwrap();
    other.join().unwrap();
    delivered
}

#[test]
fn loom_bytes_that_another_thread_leaves_are_delivered() {
    check(2, || assert!(rest_is_delivered(true)));
}

#[test]
fn loom_bytes_that_another_thread_leaves_are_missed() {
    finds_a_loss(3, || rest_is_delivered(false));
}
