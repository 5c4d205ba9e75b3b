//! Two threads of one process on one set, or on one connection: neither sleeps through what came.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use super::{check, ring_direction};
use crate::memory::PageMemory;
use crate::{LoopPage, PeerLoop, Ready, Receiver, Sender, WakeUp};

/// An epoll set of two connections, as the kernel has it.
#[derive(Default)]
struct Set {
    inside: Mutex<Inside>,
    ready: Condvar,
}

#[derive(Default)]
struct Inside {
    /// Unread bytes of each connection.
    bytes: [usize; 2],
    /// The first one is not in it, or masked.
    first_is_out: bool,
    /// Another thread has woken the waiter.
    woken: bool,
    /// Threads that have come to their end, of two.
    done: usize,
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inside) -> T) -> T {
        let changed = change(&mut self.lock());
        self.ready.notify_all();
        changed
    }

    /// As epoll_wait(2), which checks again when it is woken. False: nobody is left who could.
    fn wait(&self) -> bool {
        let mut inside = self.lock();
        while inside.bytes[1] == 0 && (inside.bytes[0] == 0 || inside.first_is_out) && !inside.woken {
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

/// What the second thread does with the first connection, and whether it then wakes the waiter.
#[derive(Clone, Copy)]
enum Beside {
    Consumes,
    TakesOut,
}

fn sends(mut senders: [Sender; 2], set: &Set, peer_loop: &PeerLoop) {
    for (place, sender) in senders.iter_mut().enumerate() {
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        if sender.wants_bell(peer_loop) {
            set.change(|inside| inside.bytes[place] += 1);
            sender.rang(peer_loop, true);
        }
    }
}

fn consumes(receiver: &mut Receiver, set: &Set) -> usize {
    receiver.read(&mut [0]).unwrap();
    set.change(|inside| std::mem::take(&mut inside.bytes[0]))
}

/// Whether the waiter gets what comes on the second connection, whatever another thread does to the first.
fn second_is_heard(beside: Beside, wakes: bool) -> bool {
    let (first, first_receiver) = ring_direction();
    let (second, mut second_receiver) = ring_direction();
    let set = Arc::new(Set::default());
    let page = PageMemory::model();
    let own_page = LoopPage::of(page.clone());
    // A socket's lock, and whether it is in the set as far as the library knows.
    let first_receiver = Arc::new(Mutex::new((first_receiver, true)));
    let is_numbered = Arc::new(AtomicBool::new(false));
    // The set's lock.
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
            let held = matches!(beside, Beside::TakesOut).then(|| changes.lock().unwrap());
            let disturbs = match beside {
                Beside::Consumes => consumes(&mut first_receiver.lock().unwrap().0, &set) > 0,
                Beside::TakesOut => {
                    set.change(|inside| inside.first_is_out = true);
                    first_receiver.lock().unwrap().1 = false;
                    true
                }
            };
            if disturbs && wakes && is_numbered.load(Ordering::SeqCst) {
                set.change(|inside| inside.woken = true);
            }
            drop(held);
            set.is_done();
        }
    });
    let heard = loop {
        let held = changes.lock().unwrap();
        // Before the number that it would count for: see `Receiver::mute`.
        if let (receiver, false) = &mut *first_receiver.lock().unwrap() {
            receiver.mute();
        }
        is_numbered.store(true, Ordering::SeqCst);
        own_page.sleep(0);
        let first_is_ready = {
            let (first, is_in) = &mut *first_receiver.lock().unwrap();
            *is_in && matches!(first.look_again().unwrap(), Ready::Ring(_))
        };
        let ready = first_is_ready || matches!(second_receiver.look_again().unwrap(), Ready::Ring(_));
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
    heard
}

/// Some interleaving of these loses what it should not: the model would have found it.
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
fn loom_a_set_whose_wake_up_is_consumed_is_woken() {
    check(2, || assert!(second_is_heard(Beside::Consumes, true)));
}

#[test]
fn loom_a_consumed_wake_up_is_missed() {
    finds_a_loss(2, || second_is_heard(Beside::Consumes, false));
}

#[test]
fn loom_a_set_whose_connection_is_taken_out_is_woken() {
    check(2, || assert!(second_is_heard(Beside::TakesOut, true)));
}

#[test]
fn loom_a_connection_taken_out_is_missed() {
    finds_a_loss(2, || second_is_heard(Beside::TakesOut, false));
}

/// A thread sleeps on the connection itself; another one takes a byte of two, and does not come
/// back: whether the first one gets the rest. `stays`: it keeps to the rules of connections that several threads wait for.
fn rest_is_heard(stays: bool) -> bool {
    let (mut sender, receiver) = ring_direction();
    let set = Arc::new(Set::default());
    let peer_loop = PeerLoop::of(PageMemory::model());
    let taken = Arc::new(AtomicUsize::new(0));
    // A socket's lock, and whether a thread sleeps, and whether it is contended.
    let shared = Arc::new(Mutex::new((receiver, false, false)));
    let writer = thread::spawn({
        let set = set.clone();
        move || {
            for _ in 0..2 {
                assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
                if sender.wants_bell(&peer_loop) {
                    set.change(|inside| inside.bytes[0] += 1);
                    sender.rang(&peer_loop, true);
                }
            }
            set.is_done();
        }
    });
    // Takes out those wake-ups whose bytes were consumed: the kernel first, then the ring.
    let drop_bells = |receiver: &mut Receiver, set: &Set| {
        let bells = set.lock().bytes[0];
        if receiver.look_again().unwrap() == Ready::Nothing {
            set.change(|inside| inside.bytes[0] -= bells);
            receiver.took_tcp(bells as u64);
        }
    };
    let other = thread::spawn({
        let (set, shared, taken) = (set.clone(), shared.clone(), taken.clone());
        move || {
            let (receiver, sleeps, contended) = &mut *shared.lock().unwrap();
            if stays && *sleeps && !*contended {
                *contended = true;
                receiver.stay_armed(true);
            }
            taken.fetch_add(receiver.read(&mut [0]).unwrap(), Ordering::Relaxed);
            drop_bells(receiver, &set);
            receiver.arm(WakeUp::Tcp).unwrap();
            set.is_done();
        }
    });
    let heard = loop {
        let mut guard = shared.lock().unwrap();
        let (receiver, sleeps, _) = &mut *guard;
        *sleeps = false;
        taken.fetch_add(receiver.read(&mut [0, 0]).unwrap(), Ordering::Relaxed);
        if taken.load(Ordering::Relaxed) == 2 {
            break true;
        }
        drop_bells(receiver, &set);
        if receiver.arm(WakeUp::Tcp).unwrap() {
            continue;
        }
        *sleeps = true;
        drop(guard);
        if !set.wait() {
            // The other one may have had both.
            break taken.load(Ordering::Relaxed) == 2;
        }
    };
    writer.join().unwrap();
    other.join().unwrap();
    heard
}

#[test]
fn loom_what_another_thread_leaves_is_heard_of() {
    check(2, || assert!(rest_is_heard(true)));
}

#[test]
fn loom_what_another_thread_leaves_is_missed() {
    finds_a_loss(3, || rest_is_heard(false));
}
