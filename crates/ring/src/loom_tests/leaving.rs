//! An end leaves the rings to somebody who knows of none.

use super::*;

/// What a sender does that heeds a leaver: the rest of the ring goes to the kernel before anything else.
struct Heedful {
    sender: Sender,
    peer_loop: PeerLoop,
    kernel: Arc<Kernel>,
    /// It takes back what lies in both lanes.
    takes: bool,
}

impl Heedful {
    fn new(sender: Sender, kernel: Arc<Kernel>, takes: bool) -> Heedful {
        Heedful { sender, peer_loop: PeerLoop::of(PageMemory::model()), kernel, takes }
    }

    /// True: the other end has left, and what it did not take is on its way, or lost.
    fn left(&mut self) -> bool {
        let left = self.sender.peer_left();
        if left && let Ok(owed) = self.sender.recall() {
            let mut bytes = [0; RING];
            let count = self.sender.peek_owed(&mut bytes).unwrap();
            assert_eq!(count, owed);
            bytes[..count].iter().for_each(|byte| self.kernel.send(*byte));
            self.sender.sent_again(count).unwrap();
        }
        left
    }

    /// The same for one that takes back what lies in both lanes.
    fn takes_back(&mut self) {
        if !self.sender.wants_back().unwrap() {
            return;
        }
        let mut bytes = Vec::new();
        while !self.sender.get_back(&mut bytes).unwrap() {
            thread::yield_now();
        }
        bytes.iter().for_each(|byte| self.kernel.send(*byte));
    }

    fn send_over_tcp(&mut self, byte: u8) {
        if self.sender.about_to_send_over_tcp() {
            if self.takes {
                self.takes_back();
            }
            self.left();
        }
        self.kernel.send(byte);
        self.sender.sent_over_tcp(1);
    }

    fn send(&mut self, byte: u8) {
        if self.left() {
            self.send_over_tcp(byte);
            return;
        }
        assert_eq!(self.sender.write([[byte].as_slice()], 1, None).unwrap(), 1);
        if self.sender.wants_bell(&self.peer_loop) {
            self.kernel.send(0);
            self.sender.rang(&self.peer_loop, true);
        }
        self.left();
    }
}

/// What the kernel has for who comes after `receiver`, all but bells. `None`: it is lost, and that was told.
fn left_by(receiver: Receiver, kernel: &Kernel) -> Option<()> {
    let bells = dropped_by(receiver, kernel)?;
    assert!(bells.iter().all(|byte| *byte == 0), "bells come before all else");
    Some(())
}

/// What `receiver`, which leaves, takes out of the kernel.
fn dropped_by(mut receiver: Receiver, kernel: &Kernel) -> Option<Vec<u8>> {
    receiver.leave();
    loop {
        let ended = kernel.has_ended();
        match receiver.leaving().unwrap() {
            Leaving::Wait if ended => return None,
            Leaving::Wait => thread::yield_now(),
            // Who sends to it makes no more calls.
            Leaving::GiveBack | Leaving::Lost => return None,
            Leaving::Bells(bells) => {
                assert!(kernel.unread() >= bells, "a bell is there when it is counted");
                return Some(kernel.take(bells));
            }
        }
    }
}

/// LEAVE-PAIR: nothing is lost, and no bell is left behind.
#[test]
fn loom_a_leaver_gets_the_rest_through_the_kernel() {
    check(3, || {
        let (sender, mut receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let mut heedful = Heedful::new(sender, kernel.clone(), false);
        assert!(!receiver.arm(WakeUp::Tcp).unwrap());
        let writer = thread::spawn(move || {
            heedful.send(1);
            heedful.send(2);
            heedful
        });
        let taken = receiver.read(&mut [0]).unwrap();
        left_by(receiver, &kernel).expect("the ring's bytes were the last");
        let mut heedful = writer.join().unwrap();
        // The next call on its socket, if none came since.
        heedful.left();
        assert_eq!(kernel.take(kernel.unread()), [1, 2][taken..]);
    });
}

/// LEAVE-PAIR: bytes behind a full ring come after it, or the loss is told.
#[test]
fn loom_a_leaver_under_a_spill_gets_all_or_is_told() {
    check(3, || {
        let (mut sender, receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        let mut heedful = Heedful::new(sender, kernel.clone(), false);
        let writer = thread::spawn(move || {
            assert!(heedful.sender.open_tcp().unwrap());
            heedful.send_over_tcp(2);
            heedful
        });
        let left = left_by(receiver, &kernel);
        let mut heedful = writer.join().unwrap();
        heedful.left();
        let came = kernel.take(kernel.unread());
        match left {
            Some(()) => assert_eq!(came, [1, 2]),
            None => assert_eq!(came, [2], "only what cannot be sent again is lost"),
        }
    });
}

/// Takes what is there, of both lanes in their order.
fn take_some(receiver: &mut Receiver, kernel: &Kernel, taken: &mut Vec<u8>) {
    match receiver.look().unwrap() {
        Ready::Ring(_) => {
            let mut bytes = [0; RING];
            let count = receiver.read(&mut bytes).unwrap();
            taken.extend(&bytes[..count]);
        }
        Ready::Tcp { .. } | Ready::Nothing => match receiver.tcp(kernel.unread()).unwrap() {
            Front::Data(count) => {
                taken.extend(kernel.take(count));
                receiver.took_tcp(count);
            }
            Front::Bells(count) => {
                kernel.take(count);
                receiver.took_tcp(count);
            }
            Front::Later => {}
        },
    }
}

/// RETURN-PAIR: what lies in both lanes comes through the kernel, in its order.
#[test]
fn loom_a_stream_in_both_lanes_is_given_back() {
    check(2, || {
        let (first, second) = direction();
        second.receiver.mark_aware();
        let mut sender = first.sender;
        assert!(sender.open_ring().unwrap());
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        let kernel = Arc::new(Kernel::default());
        let mut heedful = Heedful::new(sender, kernel.clone(), true);
        assert!(heedful.sender.open_tcp().unwrap());
        let back_kernel = Arc::new(Kernel::default());
        let bell = back_kernel.clone();
        let writer = thread::spawn(move || {
            heedful.send_over_tcp(2);
            bell.wait();
            heedful.send_over_tcp(3);
        });
        let End { sender: mut back, mut receiver } = second;
        let mut taken = Vec::new();
        receiver.leave();
        back_kernel.send(0);
        loop {
            match receiver.leaving().unwrap() {
                Leaving::Wait => thread::yield_now(),
                Leaving::Bells(bells) => {
                    assert_eq!(bells, 0);
                    break;
                }
                Leaving::Lost => panic!("nothing is lost"),
                Leaving::GiveBack => {
                    while !receiver.is_wanted_back().unwrap() || receiver.left_to_take() > 0 {
                        take_some(&mut receiver, &kernel, &mut taken);
                        thread::yield_now();
                    }
                    while !taken.is_empty() {
                        match back.give_back(&taken).unwrap() {
                            0 => thread::yield_now(),
                            count => drop(taken.drain(..count)),
                        }
                    }
                    receiver.gave_all_back();
                    break;
                }
            }
        }
        writer.join().unwrap();
        assert_eq!(kernel.take(kernel.unread()), [1, 2, 3]);
    });
}

/// LEAVE-PAIR: of two who leave at the same time the later one gets the rest, or is told that it is lost; nobody waits
/// for ever.
#[test]
fn loom_two_leavers_get_all_or_are_told() {
    check(3, || {
        let (first, second) = direction();
        second.receiver.mark_aware();
        let End { mut sender, receiver, .. } = first;
        assert!(sender.open_ring().unwrap());
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        let kernel = Arc::new(Kernel::default());
        let mut heedful = Heedful::new(sender, kernel.clone(), false);
        let leaves = move |mut receiver: Receiver, heedful: &mut Heedful| {
            receiver.leave();
            if !heedful.left() {
                heedful.sender.refuse();
            }
            receiver
        };
        let other = thread::spawn(move || {
            let receiver = leaves(receiver, &mut heedful);
            left_by(receiver, &heedful.kernel).expect("nothing came this way");
        });
        let End { sender, receiver, .. } = second;
        let back = Arc::new(Kernel::default());
        let mut heedful = Heedful::new(sender, back, false);
        let receiver = leaves(receiver, &mut heedful);
        let left = left_by(receiver, &kernel);
        other.join().unwrap();
        let came = kernel.take(kernel.unread());
        match left {
            Some(()) => assert_eq!(came, [1]),
            None => assert_eq!(came, [], "what is called lost does not come"),
        }
    });
}

/// Who ends copies what was not taken, while the receiver leaves; the kernel has room for so many bytes.
fn leave_one_that_ends(room: usize) {
    let (mut sender, mut receiver) = ring_direction();
    let kernel = Arc::new(Kernel::default());
    assert!(!receiver.arm(WakeUp::Tcp).unwrap());
    assert_eq!(sender.write([[1, 2].as_slice()], 2, None).unwrap(), 2);
    let mut heedful = Heedful::new(sender, kernel.clone(), false);
    let writer = thread::spawn(move || {
        if heedful.sender.may_ring() {
            let copies = heedful.sender.announce_copies().unwrap();
            let mut bytes = [0; 2];
            assert_eq!(heedful.sender.peek_copies(copies, &mut bytes), copies);
            let taken = copies.min(room);
            bytes[..taken].iter().for_each(|byte| heedful.kernel.send(*byte));
            heedful.sender.copied(taken);
            heedful.sender.end_copies(taken == copies);
        }
        heedful.left();
        heedful.sender.sends_no_more();
        heedful.left();
        heedful.kernel.end();
        heedful
    });
    let taken = receiver.read(&mut [0]).unwrap();
    let left = dropped_by(receiver, &kernel);
    let mut heedful = writer.join().unwrap();
    // The next call on its socket, which still reads.
    let _ = heedful.left();
    match left {
        Some(_) => assert_eq!(kernel.take(kernel.unread()), [1, 2][taken..]),
        None => assert!(room < 2, "all is there"),
    }
}

/// COPY-PAIR: who leaves finds all that was not taken in the kernel, sent again or copied before an end, and once only.
#[test]
fn loom_a_leaver_gets_the_rest_of_who_ends() {
    check(3, || leave_one_that_ends(2));
}

/// COPY-PAIR: of what was copied in part the loss is told.
#[test]
fn loom_a_leaver_is_told_of_copies_that_the_kernel_refused() {
    check(3, || leave_one_that_ends(1));
}
