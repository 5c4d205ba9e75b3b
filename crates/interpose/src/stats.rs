//! The counters of one process, for its summary.

use std::sync::atomic::{AtomicU64, Ordering};

use promote::Reason;
use promote::summary::{Counters, RingObstacle};

use crate::mode;
use crate::sockets::Socket;

pub(crate) static COUNTERS: Counters = Counters::new();

#[inline]
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// [`Socket::word`] of a connection: the number of a reason, or [`IN_MEMORY`], and whether it is
/// among this process's connections.
const COUNTED: u8 = 0x80;
const IN_MEMORY: u8 = 0x7f;

/// A socket is connected, or about to be. From here on its connection counts, under one word.
pub(crate) fn begins(socket: &Socket) {
    change(socket, |word| Some(COUNTED | if word == 0 { at_first() as u8 } else { word }));
}

fn at_first() -> Reason {
    match () {
        () if mode::is_confined() => Reason::Confined,
        () if mode::observes() => Reason::Observe,
        () => Reason::LittleTraffic,
    }
}

/// A connection is on TCP for this reason from here on, unless it was in memory.
pub(crate) fn stays_on_tcp(socket: &Socket, why: Reason) {
    change(socket, |word| (word & !COUNTED != IN_MEMORY).then_some(word & COUNTED | why as u8));
}

/// It is not offered, as the last offers had no match: it gets their reason, unless the monitor
/// answered for it.
pub(crate) fn skipped(socket: &Socket, theirs: Reason) {
    let is_answered = |word: u8| {
        [Reason::NoPeer, Reason::OtherUser].into_iter().any(|reason| word & !COUNTED == reason as u8)
    };
    let may_change = |word: u8| word & !COUNTED != IN_MEMORY && !is_answered(word);
    change(socket, |word| may_change(word).then_some(word & COUNTED | theirs as u8));
}

/// It is offered, with an open outcome. An earlier answer stands until there is another.
pub(crate) fn offered(socket: &Socket) {
    let unknown =
        |word: u8| word & !COUNTED == Reason::LittleTraffic as u8 || word & !COUNTED == Reason::Shared as u8;
    change(socket, |word| {
        Some(COUNTED | if unknown(word) || word == 0 { Reason::ClosedEarly as u8 } else { word })
    });
}

/// It is in memory.
pub(crate) fn in_memory(socket: &Socket) {
    change(socket, |_| Some(COUNTED | IN_MEMORY));
}

/// Several processes have it, and this one has had little traffic on it: the others count it.
pub(crate) fn count_as_shared(socket: &Socket) {
    let little = COUNTED | Reason::LittleTraffic as u8;
    change(socket, |word| (word == little).then_some(COUNTED | Reason::Shared as u8));
}

fn change(socket: &Socket, to: impl Fn(u8) -> Option<u8>) {
    let changes = |word| to(word).filter(|new| *new != word);
    let Ok(old) = socket.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changes) else { return };
    // The same value as was stored: it follows from the old word alone.
    if let Some(counter) = to(old).and_then(counter) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(counter) = counter(old) {
        counter.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counter(word: u8) -> Option<&'static AtomicU64> {
    match word.checked_sub(COUNTED)? {
        IN_MEMORY => Some(&COUNTERS.promoted),
        number => COUNTERS.reasons.get(usize::from(number).checked_sub(1)?),
    }
}

/// The peer of a connection runs as another user.
pub(crate) fn note_other_user(user: u32) {
    COUNTERS.other_user.store(u64::from(user) + 1, Ordering::Relaxed);
}

/// The peer's program keeps a connection on TCP.
pub(crate) fn note_declined(reason: Reason) {
    COUNTERS.declined.store(reason as u64, Ordering::Relaxed);
}

/// A ring of this process cannot be tracked; the first reason stands.
pub(crate) fn note_ring(obstacle: RingObstacle) {
    let word = &COUNTERS.ring_obstacle;
    let _ = word.compare_exchange(0, obstacle as u64, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the order of events, each connection has one word.
    #[test]
    fn every_connection_has_one_word() {
        crate::sockets::make().unwrap();
        for seed in 0..200u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let sockets: Vec<_> =
                (0..8).filter_map(|fd| crate::sockets::add(fd, false)).map(|(_, socket)| socket).collect();
            let before = COUNTERS.summary();
            let (mut connected, mut promoted) = ([false; 8], [false; 8]);
            for _ in 0..next(100) {
                let place = next(8) as usize;
                let socket = sockets[place];
                let earlier = socket.word.load(Ordering::Relaxed) & !COUNTED;
                let action = next(7);
                match action {
                    0 => begins(socket),
                    1 => offered(socket),
                    2 => in_memory(socket),
                    3 => count_as_shared(socket),
                    4 => skipped(socket, Reason::OtherUser),
                    _ => stays_on_tcp(socket, Reason::ALL[next(Reason::ALL.len() as u64) as usize]),
                }
                let word = socket.word.load(Ordering::Relaxed);
                if action == 4 {
                    let keeps = [IN_MEMORY, Reason::NoPeer as u8].contains(&earlier);
                    let expected = if keeps { earlier } else { Reason::OtherUser as u8 };
                    assert_eq!(word & !COUNTED, expected, "seed {seed}: its own answer or that of others");
                }
                promoted[place] |= word == COUNTED | IN_MEMORY;
                connected[place] |= word & COUNTED != 0;
                assert!(!promoted[place] || word == COUNTED | IN_MEMORY, "seed {seed}: memory stays");
            }
            let after = COUNTERS.summary();
            let many = |of: [bool; 8]| of.into_iter().filter(|is| *is).count() as u64;
            assert_eq!(after.connections() - before.connections(), many(connected), "seed {seed}");
            assert_eq!(after.promoted - before.promoted, many(promoted), "seed {seed}");
            sockets.iter().for_each(|socket| crate::sockets::remove(socket.number()));
        }
    }
}
