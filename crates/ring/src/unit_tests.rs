//! Small cases, one rule each.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::layout::{MAX_SIZE, MIN_SIZE, format_region};
use crate::support::Pair;
use crate::{
    Acquired, Ahead, Corrupt, DemotionStep, Direction, Front, LayoutError, Lock, LockError, Path, PeerRegion,
    Ready, Region, Wait, WakeUp,
};

/// Page-aligned memory.
#[repr(C, align(4096))]
struct Pages([u8; MIN_SIZE]);

#[test]
fn memory_that_is_no_region_is_refused() {
    for size in [0, 4096, MIN_SIZE + 1, MAX_SIZE + 4096] {
        assert_eq!(format_region(size), Err(LayoutError::Size(size)));
    }
    let mut pages = Box::new(Pages([0; MIN_SIZE]));
    let mut open = |head: &[u8], offset: usize, length: usize| {
        pages.0[..head.len()].copy_from_slice(head);
        let start = NonNull::new(pages.0[offset..].as_mut_ptr()).unwrap();
        // SAFETY: refused memory is not kept; the sizes that are checked are inside.
        unsafe { PeerRegion::new(start, length) }.map(|_| ())
    };
    let good = format_region(MIN_SIZE).unwrap();
    assert_eq!(open(&[], 0, MIN_SIZE), Err(LayoutError::Magic(0)));
    assert_eq!(open(&[], 8, MIN_SIZE), Err(LayoutError::Alignment));
    assert_eq!(open(&[], 0, 100), Err(LayoutError::Size(100)));
    let other = format_region(MIN_SIZE * 2).unwrap();
    let sizes = LayoutError::OtherSize { said: 2 * MIN_SIZE as u32, mapped: MIN_SIZE };
    assert_eq!(open(&other, 0, MIN_SIZE), Err(sizes));
    assert_eq!(open(&[good[..4].to_vec(), vec![2]].concat(), 0, MIN_SIZE), Err(LayoutError::Version(2)));
    assert_eq!(open(&good, 0, MIN_SIZE), Ok(()));
}

#[test]
fn a_ring_opens_only_to_an_end_that_is_aware() {
    let mut pair = Pair::new();
    assert!(!pair.endpoints[0].sender.open_ring().unwrap());
    pair.endpoints[1].receiver.mark_aware();
    assert!(pair.endpoints[0].sender.open_ring().unwrap());
    assert_eq!(pair.endpoints[0].sender.path(), Path::Ring);
}

/// `b"ring"` lies in the ring; five bytes that the kernel accepted follow it.
fn on_both_paths() -> Pair {
    let mut pair = Pair::in_ring();
    let sender = &mut pair.endpoints[0].sender;
    assert_eq!(sender.write([&b"ring"[..]], usize::MAX, None), Ok(4));
    assert!(sender.open_tcp().unwrap());
    sender.sent_over_tcp(5);
    pair
}

#[test]
fn unread_bytes_are_found_on_both_paths() {
    let mut pair = on_both_paths();
    let [sending, receiving] = &mut pair.endpoints;
    assert!(sending.sender.open_ring().unwrap());
    assert_eq!(sending.sender.write([&b"more"[..]], usize::MAX, None), Ok(4));
    let receiver = &mut receiving.receiver;
    let ring = Ahead { path: Path::Ring, skip: 0, count: 4 };
    let tcp = |count| Ahead { path: Path::Tcp, skip: 0, count };
    let behind = Ahead { skip: 4, ..ring };
    assert_eq!(receiver.ahead(5), Ok(vec![ring, tcp(5), behind]));
    assert_eq!(receiver.ahead(3), Ok(vec![ring, tcp(3)]), "two bytes are on their way");
    let mut bytes = [0; 4];
    assert_eq!((receiver.copy_ahead(4, &mut bytes), &bytes), (4, b"more"));
    assert_eq!((receiver.copy_ahead(6, &mut bytes), &bytes[..2]), (2, &b"re"[..]));
    assert_eq!(receiver.copy_ahead(9, &mut bytes), 0);
    assert_eq!(receiver.read(&mut bytes), Ok(4));
    assert_eq!(&bytes, b"ring", "nothing was consumed");
}

#[test]
fn bytes_on_both_paths_are_returned() {
    let mut pair = on_both_paths();
    let [sending, demoted] = &mut pair.endpoints;
    demoted.receiver.demote();
    assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::Return));
    assert_eq!(demoted.receiver.is_return_wanted(), Some(false), "the peer has not answered yet");
    assert_eq!(sending.sender.wants_return(), Ok(true));
    assert_eq!(demoted.receiver.is_return_wanted(), Some(true));
    assert_eq!(demoted.receiver.left_to_consume(), 9);
    let mut bytes = [0; 9];
    assert_eq!(demoted.receiver.read(&mut bytes), Ok(4));
    bytes[4..].copy_from_slice(b"other");
    assert!(demoted.receiver.tcp(5).is_ok());
    demoted.receiver.consumed_tcp(5);
    assert_eq!(demoted.receiver.left_to_consume(), 0);

    let mut back = Vec::new();
    assert_eq!(sending.sender.accept_returned(&mut back), Ok(false), "nothing yet");
    assert_eq!(demoted.sender.return_bytes(&bytes[..6]), Ok(6));
    assert_eq!(demoted.sender.return_bytes(&bytes[6..]), Ok(0), "the previous ones were not read");
    assert_eq!(sending.sender.accept_returned(&mut back), Ok(false));
    assert_eq!(demoted.sender.return_bytes(&bytes[6..]), Ok(3));
    demoted.receiver.returned_all();
    assert_eq!(sending.sender.accept_returned(&mut back), Ok(true));
    assert_eq!(back, b"ringother");
    assert_eq!((sending.sender.wants_return(), sending.sender.recall()), (Ok(false), Ok(0)));
}

#[test]
fn more_than_was_sent_is_not_returned() {
    let mut pair = on_both_paths();
    let [sending, demoted] = &mut pair.endpoints;
    demoted.receiver.demote();
    assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::Return));
    assert_eq!(sending.sender.wants_return(), Ok(true));
    assert_eq!(demoted.sender.return_bytes(&[0; 10]), Ok(10));
    assert_eq!(sending.sender.accept_returned(&mut Vec::new()), Err(Corrupt::Returned));
}

#[test]
fn after_fin_nothing_is_returned() {
    let mut pair = on_both_paths();
    let [sending, demoted] = &mut pair.endpoints;
    sending.sender.sends_no_more();
    demoted.receiver.demote();
    assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::Lost));
    assert_eq!((sending.sender.wants_return(), sending.sender.recall()), (Ok(false), Ok(0)));
    assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::Lost));
}

#[test]
fn a_demoted_endpoint_waits_for_the_answer_of_a_peer_that_ends() {
    for sees in [false, true] {
        let mut pair = Pair::in_ring();
        let [sending, demoted] = &mut pair.endpoints;
        assert_eq!(sending.sender.write([&b"rest"[..]], usize::MAX, None), Ok(4));
        sending.sender.sends_no_more();
        demoted.receiver.demote();
        assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::Wait));
        if sees {
            assert_eq!(sending.sender.recall(), Ok(4));
            assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::WakeUps(0)));
        } else {
            assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::Wait), "until its FIN arrives");
        }
    }
}

#[test]
fn copies_of_a_sender_that_died_are_ignored() {
    for dies in [false, true] {
        let mut pair = Pair::in_ring();
        let [sending, demoted] = &mut pair.endpoints;
        assert_eq!(sending.sender.write([&b"rest"[..]], usize::MAX, None), Ok(4));
        assert!(sending.sender.may_wake());
        assert_eq!(sending.sender.announce_copies(), Ok(4));
        sending.sender.copied(if dies { 3 } else { 4 });
        match dies {
            true => sending.sender.resume(),
            false => sending.sender.end_copies(true),
        }
        sending.sender.kernel_refused();
        demoted.receiver.demote();
        let (wake_ups, owed) = if dies { (3, 4) } else { (0, 0) };
        assert_eq!(demoted.receiver.demotion_step(), Ok(DemotionStep::WakeUps(wake_ups)));
        assert_eq!(sending.sender.recall(), Ok(owed));
    }
}

#[test]
fn no_wake_up_byte_goes_to_a_peer_that_closes() {
    let mut pair = Pair::new();
    let [closing, other] = &mut pair.endpoints;
    assert!(other.sender.may_wake());
    assert!(closing.receiver.is_given_more(), "it is on its way");
    other.sender.wake_up_was_accepted();
    assert!(closing.receiver.is_given_more(), "it is counted");
    closing.receiver.consumed_tcp(1);
    closing.receiver.mark_ended(true);
    assert!(!other.sender.may_wake());
    assert!(!closing.receiver.is_given_more());
}

#[test]
fn a_tcp_run_is_possible_though_no_record_was_read() {
    let mut pair = Pair::new();
    pair.endpoints[1].receiver.mark_aware();
    let sender = &mut pair.endpoints[0].sender;
    let mut opened = 0;
    while sender.open_ring().unwrap() {
        opened += 1;
        assert!(sender.open_tcp().unwrap());
        assert!(opened <= 3, "seven records are three ring runs");
    }
    assert_eq!(opened, 3);
    // The peer passes them all, since no bytes lie between.
    pair.endpoints[1].receiver.check().unwrap();
    assert!(pair.endpoints[0].sender.open_ring().unwrap());
}

/// The record that opened the current run is read again by a successor, however many
/// follow it.
#[test]
fn a_successor_finds_the_start_of_its_run_though_many_follow() {
    let mut pair = Pair::in_ring();
    let [first, second] = &mut pair.endpoints;
    assert!(first.sender.open_tcp().unwrap());
    first.sender.sent_over_tcp(3);
    while first.sender.open_ring().unwrap() {
        // Passes the run of the three bytes, and none behind it.
        second.receiver.check().unwrap();
        assert!(first.sender.open_tcp().unwrap());
    }
    second.receiver.save();
    second.receiver.resume().unwrap();
    assert_eq!(second.receiver.tcp(3).unwrap(), Front::Data(3));
}

/// Section 3, return to the start: a question and its answer touch one cache line.
#[test]
fn questions_and_answers_stay_in_the_first_bytes() {
    let mut pair = Pair::in_ring();
    for turn in 0..50_u8 {
        for (from, to) in [(0, 1), (1, 0)] {
            assert_eq!(pair.endpoints[from].write([[turn; 40].as_slice()], usize::MAX).unwrap(), 40);
            let mut buffer = [0; 64];
            assert_eq!(pair.endpoints[to].receiver.read(&mut buffer).unwrap(), 40);
            assert_eq!(buffer[..40], [turn; 40]);
            assert!(turn == 0 || pair.ring_position(from) == 40, "turn {turn} of endpoint {from}");
        }
    }
}

#[test]
fn an_endpoint_is_woken_once_or_for_each_publication() {
    let mut pair = Pair::in_ring();
    let [first, second] = &mut pair.endpoints;
    for each in [true, false, true] {
        second.receiver.requests_each(each);
        let mut buffer = [0; 64];
        while second.receiver.read(&mut buffer).unwrap() > 0 {}
        assert!(!second.receiver.arm(WakeUp::Tcp).unwrap());
        for publication in 0..3 {
            assert_eq!(first.sender.write([b"ring".as_slice()], 4, None).unwrap(), 4);
            let wanted = first.sender.wants_tcp_wake_up(&pair.peers[0]);
            assert_eq!(wanted, each || publication == 0);
            if wanted {
                first.sender.woke_peer(&pair.peers[0], true);
            }
        }
        second.receiver.disarm();
        assert!(!first.sender.wants_tcp_wake_up(&pair.peers[0]));
    }
}

#[test]
fn wake_up_bytes_before_a_tcp_run_are_no_data() {
    let mut pair = Pair::in_ring();
    let [first, second] = &mut pair.endpoints;
    assert!(!second.receiver.arm(WakeUp::Tcp).unwrap());
    assert_eq!(first.sender.write([b"ring".as_slice()], 4, None).unwrap(), 4);
    assert!(first.sender.wants_tcp_wake_up(&pair.peers[0]));
    first.sender.woke_peer(&pair.peers[0], true);
    assert!(!first.sender.wants_tcp_wake_up(&pair.peers[0]));
    assert!(first.sender.open_tcp().unwrap());
    first.sender.sent_over_tcp(3);
    // Four bytes lie in the kernel: a wake-up byte, and the data that follows the ring
    // bytes.
    assert_eq!(second.receiver.tcp(4).unwrap(), Front::WakeUps(1));
    second.receiver.consumed_tcp(1);
    assert_eq!(second.receiver.tcp(3).unwrap(), Front::Later);
    assert_eq!(second.receiver.check().unwrap(), Ready::Ring(4));
    let (mut start, mut rest) = ([0; 1], [0; 9]);
    let buffers = [start.as_mut_slice(), rest.as_mut_slice()];
    assert_eq!(second.receiver.read_vectored(buffers).unwrap(), 4);
    assert_eq!((start, &rest[..3]), (*b"r", b"ing".as_slice()));
    assert_eq!(second.receiver.check().unwrap(), Ready::Tcp { limit: None });
    assert_eq!(second.receiver.tcp(3).unwrap(), Front::Data(3));
    second.receiver.consumed_tcp(3);
    assert!(first.sender.drained().unwrap());
    assert_eq!(second.receiver.stream(), first.sender.stream());
    assert_eq!(second.receiver.tcp_offset(), first.sender.tcp());
}

#[test]
fn a_successor_consumes_nothing_twice() {
    let mut pair = Pair::in_ring();
    let [first, second] = &mut pair.endpoints;
    first.sender.write([b"abcdef".as_slice()], 6, None).unwrap();
    let mut buffer = [0; 3];
    second.receiver.read(&mut buffer).unwrap();
    second.receiver.save();
    second.receiver.resume().unwrap();
    second.receiver.read(&mut buffer).unwrap();
    assert_eq!(buffer, *b"def");
}

/// A holder died after it reached a new run, and before it saved its position.
#[test]
fn a_successor_begins_at_the_run_that_was_reached() {
    let mut pair = Pair::in_ring();
    let [first, second] = &mut pair.endpoints;
    first.sender.write([b"abc".as_slice()], 3, None).unwrap();
    assert!(first.sender.open_tcp().unwrap());
    first.sender.sent_over_tcp(2);
    assert!(first.sender.open_ring().unwrap());
    assert_eq!(second.receiver.read(&mut [0; 3]).unwrap(), 3);
    // Passes the record, and publishes no head.
    assert!(second.receiver.is_at_end_of_ring().unwrap());
    second.receiver.resume().unwrap();
    assert_eq!(second.receiver.check().unwrap(), Ready::Tcp { limit: Some(2) });
    assert_eq!(second.receiver.stream(), 3);
}

#[test]
fn a_successor_counts_the_bytes_that_the_kernel_accepted() {
    let mut pair = Pair::in_ring();
    let sender = &mut pair.endpoints[0].sender;
    sender.kernel_accepted(2);
    assert_eq!((sender.stream(), sender.tcp()), (0, 2), "two wake-up bytes");
    assert!(sender.open_tcp().unwrap());
    sender.kernel_accepted(9);
    sender.resume();
    assert_eq!((sender.stream(), sender.tcp()), (7, 9));
}

struct Waiter {
    alive: bool,
    pauses: u32,
}

impl Wait for Waiter {
    fn is_alive(&mut self, _thread: u32) -> bool {
        self.alive
    }

    fn pause(&mut self, attempt: u32) -> bool {
        assert_eq!(attempt, self.pauses);
        self.pauses += 1;
        self.pauses < 1000
    }
}

#[test]
fn a_lock_is_released_taken_over_or_given_up() {
    let mut pages = Box::new(Pages([0; MIN_SIZE]));
    pages.0[..12].copy_from_slice(&format_region(MIN_SIZE).unwrap());
    let start = NonNull::from(&mut *pages).cast();
    // SAFETY: the pages outlive the lock.
    let region = unsafe { Region::new(start, MIN_SIZE).unwrap() };
    let lock = Lock::new(region.clone(), Direction::Receive);
    let other = Lock::new(region, Direction::Send);
    let waiter = |alive| Waiter { alive, pauses: 0 };
    assert_eq!(lock.acquire(1, &mut waiter(true)), Ok(Acquired::Free));
    assert_eq!(other.acquire(2, &mut waiter(true)), Ok(Acquired::Free));
    assert_eq!(lock.acquire(1, &mut waiter(true)), Err(LockError::Own));
    assert_eq!(lock.acquire(2, &mut waiter(true)), Err(LockError::Busy));
    assert_eq!(lock.acquire(2, &mut waiter(false)), Ok(Acquired::TakenOver));
    lock.release(1);
    assert_eq!(lock.acquire(3, &mut waiter(true)), Err(LockError::Busy), "1 lost it");
    lock.release(2);
    assert_eq!(lock.acquire(3, &mut waiter(true)), Ok(Acquired::Free));
}
