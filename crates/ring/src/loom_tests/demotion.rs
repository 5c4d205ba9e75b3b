//! An endpoint is demoted, for a program without ring support.

use super::*;

/// A sender that answers the peer's demotion: the unread ring bytes go to the kernel
/// before anything else.
struct AnsweringSender {
    sender: Sender,
    peer_loop: PeerLoop,
    kernel: Arc<Kernel>,
    /// It accepts returned bytes, those that lie on both paths.
    accepts_returns: bool,
}

impl AnsweringSender {
    fn new(sender: Sender, kernel: Arc<Kernel>, accepts_returns: bool) -> AnsweringSender {
        AnsweringSender { sender, peer_loop: PeerLoop::of(PageMemory::model()), kernel, accepts_returns }
    }

    /// Answers a demotion of the peer. True: it was demoted, and its unread bytes are on
    /// their way, or lost.
    fn answer(&mut self) -> bool {
        let demoted = self.sender.peer_is_demoted();
        if demoted && let Ok(owed) = self.sender.recall() {
            let mut bytes = [0; RING];
            let count = self.sender.peek_owed(&mut bytes).unwrap();
            assert_eq!(count, owed);
            bytes[..count].iter().for_each(|byte| self.kernel.send(*byte));
            self.sender.resent(count).unwrap();
        }
        demoted
    }

    /// The same for a sender that accepts returned bytes.
    fn accept_returns(&mut self) {
        if !self.sender.wants_return().unwrap() {
            return;
        }
        let mut bytes = Vec::new();
        while !self.sender.accept_returned(&mut bytes).unwrap() {
            thread::yield_now();
        }
        bytes.iter().for_each(|byte| self.kernel.send(*byte));
    }

    fn send_over_tcp(&mut self, byte: u8) {
        if self.sender.about_to_send_over_tcp() {
            if self.accepts_returns {
                self.accept_returns();
            }
            self.answer();
        }
        self.kernel.send(byte);
        self.sender.sent_over_tcp(1);
    }

    fn send(&mut self, byte: u8) {
        if self.answer() {
            self.send_over_tcp(byte);
            return;
        }
        assert_eq!(self.sender.write([[byte].as_slice()], 1, None).unwrap(), 1);
        if self.sender.wants_tcp_wake_up(&self.peer_loop) {
            self.kernel.send(0);
            self.sender.woke_peer(&self.peer_loop, true);
        }
        self.answer();
    }
}

/// Discards the wake-up bytes of `receiver`, which is demoted; the kernel's other bytes
/// stay for its successor. `None`: bytes are lost, and the loss was reported.
fn remains_after(receiver: Receiver, kernel: &Kernel) -> Option<()> {
    let wake_ups = discarded_by(receiver, kernel)?;
    assert!(wake_ups.iter().all(|byte| *byte == 0), "wake-up bytes come before all else");
    Some(())
}

/// The bytes that `receiver`, which is demoted, reads from the kernel.
fn discarded_by(mut receiver: Receiver, kernel: &Kernel) -> Option<Vec<u8>> {
    receiver.demote();
    loop {
        let ended = kernel.has_ended();
        match receiver.demotion_step().unwrap() {
            DemotionStep::Wait if ended => return None,
            DemotionStep::Wait => thread::yield_now(),
            // Its sender makes no more calls.
            DemotionStep::Return | DemotionStep::Lost => return None,
            DemotionStep::WakeUps(wake_ups) => {
                assert!(kernel.unread() >= wake_ups, "a counted wake-up byte is in the kernel");
                return Some(kernel.take(wake_ups));
            }
        }
    }
}

/// DEMOTION-PAIR: nothing is lost, and no wake-up byte is left in the kernel.
#[test]
fn loom_a_demoted_receiver_gets_the_rest_through_the_kernel() {
    check(3, || {
        let (sender, mut receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        let mut answering = AnsweringSender::new(sender, kernel.clone(), false);
        assert!(!receiver.arm(WakeUp::Tcp).unwrap());
        let writer = thread::spawn(move || {
            answering.send(1);
            answering.send(2);
            answering
        });
        let consumed = receiver.read(&mut [0]).unwrap();
        remains_after(receiver, &kernel).expect("the ring's bytes were the last");
        let mut answering = writer.join().unwrap();
        // The next call on its socket, if there was none since.
        answering.answer();
        assert_eq!(kernel.take(kernel.unread()), [1, 2][consumed..]);
    });
}

/// DEMOTION-PAIR: bytes behind a full ring arrive after it, or the loss is reported.
#[test]
fn loom_a_demotion_in_a_spill_delivers_all_or_reports_the_loss() {
    check(3, || {
        let (mut sender, receiver) = ring_direction();
        let kernel = Arc::new(Kernel::default());
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        let mut answering = AnsweringSender::new(sender, kernel.clone(), false);
        let writer = thread::spawn(move || {
            assert!(answering.sender.open_tcp().unwrap());
            answering.send_over_tcp(2);
            answering
        });
        let left = remains_after(receiver, &kernel);
        let mut answering = writer.join().unwrap();
        answering.answer();
        let came = kernel.take(kernel.unread());
        match left {
            Some(()) => assert_eq!(came, [1, 2]),
            None => assert_eq!(came, [2], "only what cannot be resent is lost"),
        }
    });
}

/// Consumes the available bytes of both paths in stream order.
fn consume_some(receiver: &mut Receiver, kernel: &Kernel, consumed: &mut Vec<u8>) {
    match receiver.check().unwrap() {
        Ready::Ring(_) => {
            let mut bytes = [0; RING];
            let count = receiver.read(&mut bytes).unwrap();
            consumed.extend(&bytes[..count]);
        }
        Ready::Tcp { .. } | Ready::Nothing => match receiver.tcp(kernel.unread()).unwrap() {
            Front::Data(count) => {
                consumed.extend(kernel.take(count));
                receiver.consumed_tcp(count);
            }
            Front::WakeUps(count) => {
                kernel.take(count);
                receiver.consumed_tcp(count);
            }
            Front::Later => {}
        },
    }
}

/// RETURN-PAIR: bytes on both paths arrive through the kernel, in order.
#[test]
fn loom_a_stream_on_both_paths_is_returned() {
    check(2, || {
        let (first, second) = direction();
        second.receiver.mark_aware();
        let mut sender = first.sender;
        assert!(sender.open_ring().unwrap());
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        let kernel = Arc::new(Kernel::default());
        let mut answering = AnsweringSender::new(sender, kernel.clone(), true);
        assert!(answering.sender.open_tcp().unwrap());
        let back_kernel = Arc::new(Kernel::default());
        let wake_up = back_kernel.clone();
        let writer = thread::spawn(move || {
            answering.send_over_tcp(2);
            wake_up.wait();
            answering.send_over_tcp(3);
        });
        let Endpoint { sender: mut back, mut receiver } = second;
        let mut consumed = Vec::new();
        receiver.demote();
        back_kernel.send(0);
        loop {
            match receiver.demotion_step().unwrap() {
                DemotionStep::Wait => thread::yield_now(),
                DemotionStep::WakeUps(wake_ups) => {
                    assert_eq!(wake_ups, 0);
                    break;
                }
                DemotionStep::Lost => panic!("nothing is lost"),
                DemotionStep::Return => {
                    while !receiver.is_return_wanted().unwrap() || receiver.left_to_consume() > 0 {
                        consume_some(&mut receiver, &kernel, &mut consumed);
                        thread::yield_now();
                    }
                    while !consumed.is_empty() {
                        match back.return_bytes(&consumed).unwrap() {
                            0 => thread::yield_now(),
                            count => drop(consumed.drain(..count)),
                        }
                    }
                    receiver.returned_all();
                    break;
                }
            }
        }
        writer.join().unwrap();
        assert_eq!(kernel.take(kernel.unread()), [1, 2, 3]);
    });
}

/// DEMOTION-PAIR: of two endpoints that are demoted at the same time the later one receives
/// the rest, or reports the loss; neither waits forever.
#[test]
fn loom_two_demotions_deliver_all_or_report_the_loss() {
    check(3, || {
        let (first, second) = direction();
        second.receiver.mark_aware();
        let Endpoint { mut sender, receiver, .. } = first;
        assert!(sender.open_ring().unwrap());
        assert_eq!(sender.write([[1].as_slice()], 1, None).unwrap(), 1);
        let kernel = Arc::new(Kernel::default());
        let mut answering = AnsweringSender::new(sender, kernel.clone(), false);
        let demote = move |mut receiver: Receiver, answering: &mut AnsweringSender| {
            receiver.demote();
            if !answering.answer() {
                answering.sender.refuse();
            }
            receiver
        };
        let other = thread::spawn(move || {
            let receiver = demote(receiver, &mut answering);
            remains_after(receiver, &answering.kernel).expect("nothing was sent this way");
        });
        let Endpoint { sender, receiver, .. } = second;
        let back = Arc::new(Kernel::default());
        let mut answering = AnsweringSender::new(sender, back, false);
        let receiver = demote(receiver, &mut answering);
        let left = remains_after(receiver, &kernel);
        other.join().unwrap();
        let came = kernel.take(kernel.unread());
        match left {
            Some(()) => assert_eq!(came, [1]),
            None => assert_eq!(came, [], "bytes reported as lost do not arrive"),
        }
    });
}

/// An endpoint that ends its stream copies the unread bytes, while the receiver is
/// demoted; the kernel has room for `room` bytes.
fn demotion_at_the_end(room: usize) {
    let (mut sender, mut receiver) = ring_direction();
    let kernel = Arc::new(Kernel::default());
    assert!(!receiver.arm(WakeUp::Tcp).unwrap());
    assert_eq!(sender.write([[1, 2].as_slice()], 2, None).unwrap(), 2);
    let mut answering = AnsweringSender::new(sender, kernel.clone(), false);
    let writer = thread::spawn(move || {
        if answering.sender.may_wake() {
            let copies = answering.sender.announce_copies().unwrap();
            let mut bytes = [0; 2];
            assert_eq!(answering.sender.peek_copies(copies, &mut bytes), copies);
            let consumed = copies.min(room);
            bytes[..consumed].iter().for_each(|byte| answering.kernel.send(*byte));
            answering.sender.copied(consumed);
            answering.sender.end_copies(consumed == copies);
        }
        answering.answer();
        answering.sender.sends_no_more();
        answering.answer();
        answering.kernel.end();
        answering
    });
    let consumed = receiver.read(&mut [0]).unwrap();
    let left = discarded_by(receiver, &kernel);
    let mut answering = writer.join().unwrap();
    // The next call on its socket, which still reads.
    let _ = answering.answer();
    match left {
        Some(_) => assert_eq!(kernel.take(kernel.unread()), [1, 2][consumed..]),
        None => assert!(room < 2, "all copies are there"),
    }
}

/// COPY-PAIR: a demoted receiver finds all unread bytes in the kernel exactly once,
/// resent or copied before the end.
#[test]
fn loom_a_demoted_receiver_gets_the_rest_of_an_ended_stream() {
    check(3, || demotion_at_the_end(2));
}

/// COPY-PAIR: if only some bytes were copied, the loss is reported.
#[test]
fn loom_a_demotion_reports_copies_that_the_kernel_refused() {
    check(3, || demotion_at_the_end(1));
}
