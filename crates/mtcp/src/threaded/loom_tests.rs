//! The rings and the hand-over between sleep and wake-up, in every order that the memory model allows.
//! Run by `make loom`.

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::ring::{Consumer, Producer, ring};
use super::sleep::{self, Sleeper, Waker};
use super::sync::Arc;

/// What ends a sleep: an eventfd.
struct Doorbell {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn new() -> Doorbell {
        Doorbell { raised: Mutex::new(false), changed: Condvar::new() }
    }

    fn raise(&self) {
        *self.raised.lock().expect("no panic") = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut raised = self.raised.lock().expect("no panic");
        while !std::mem::take(&mut *raised) {
            raised = self.changed.wait(raised).expect("no panic");
        }
    }
}

/// A thread that pops, and what it sleeps on.
struct Popping {
    ring: Consumer<Box<u32>>,
    sleeper: Sleeper,
    doorbell: Arc<Doorbell>,
}

/// The thread that pushes for it.
struct Pushing {
    ring: Producer<Box<u32>>,
    waker: Waker,
    doorbell: Arc<Doorbell>,
}

fn pair(places: usize) -> (Pushing, Popping) {
    let (producer, consumer) = ring(places);
    let (sleeper, waker) = sleep::pair();
    let doorbell = Arc::new(Doorbell::new());
    let pushing = Pushing { ring: producer, waker, doorbell: doorbell.clone() };
    (pushing, Popping { ring: consumer, sleeper, doorbell })
}

impl Pushing {
    fn push(&mut self, value: u32) {
        assert!(self.ring.push(Box::new(value)).is_ok());
        self.ring.publish();
        if self.waker.must_wake() {
            self.doorbell.raise();
        }
    }
}

impl Popping {
    /// Sleeps until there is a value.
    fn pop(&mut self) -> u32 {
        loop {
            if let Some(value) = self.ring.pop() {
                return *value;
            }
            self.ring.release();
            self.sleeper.announce();
            if self.ring.is_empty() {
                self.doorbell.wait();
            }
            self.sleeper.end();
        }
    }
}

/// Values arrive in their order, and places are used again only after they were read: more values than
/// places. A lost place, or a value that is read while it is written, is an error of the model.
#[test]
fn loom_places_are_used_again() {
    let mut model = loom::model::Builder::new();
    // All interleavings take a minute; three switches find what there is to find.
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut pushed, mut popped) = ring(2);
        let producer = thread::spawn(move || {
            for value in 0..3 {
                let mut value = Box::new(value);
                while let Err(back) = pushed.push(value) {
                    value = back;
                    pushed.publish();
                    thread::yield_now();
                }
                pushed.publish();
            }
        });
        for expected in 0..3 {
            let value = loop {
                match popped.pop() {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*value, expected);
            popped.release();
        }
        producer.join().expect("no panic");
    });
}

/// What was published and never popped is dropped with the ring, as loom's own accounts show.
#[test]
fn loom_the_rest_is_dropped() {
    loom::model(|| {
        let (mut pushed, mut popped) = ring(4);
        let producer = thread::spawn(move || {
            for _ in 0..2 {
                assert!(pushed.push(Arc::new(())).is_ok());
                pushed.publish();
            }
        });
        drop(popped.pop());
        drop(popped);
        producer.join().expect("no panic");
    });
}

/// A thread that sleeps is woken for whatever is published: a lost wake-up leaves it asleep for ever, which loom
/// reports.
#[test]
fn loom_a_sleeper_is_woken() {
    loom::model(|| {
        let (mut pushing, mut popping) = pair(4);
        let producer = thread::spawn(move || {
            pushing.push(0);
            pushing.push(1);
        });
        assert_eq!(popping.pop(), 0);
        assert_eq!(popping.pop(), 1);
        producer.join().expect("no panic");
    });
}

/// A job and its event: each of the two threads sleeps for the other, and is woken.
#[test]
fn loom_both_sides_sleep_in_turn() {
    loom::model(|| {
        let (mut jobs, mut taken) = pair(2);
        let (mut reported, mut events) = pair(2);
        let stack = thread::spawn(move || reported.push(taken.pop() + 1));
        jobs.push(1);
        assert_eq!(events.pop(), 2);
        stack.join().expect("no panic");
    });
}
