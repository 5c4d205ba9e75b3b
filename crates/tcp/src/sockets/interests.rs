//! What a set reports of each of its members, and the list of those that may be ready.

use std::collections::VecDeque;

use super::readiness::{Notice, Readiness, Trigger};

/// How a set reports several things that a member is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bits {
    /// In one notice, as epoll(7).
    #[default]
    Together,
    /// Each in a notice of its own, the next one in a later wait, as mTCP. An edge brings only the
    /// bit that it is about. HANGUP is not reported, and nothing of a socket that was not opened.
    Apart,
}

/// The order in which [`Bits::Apart`] reports them.
const ORDER: [Readiness; 4] =
    [Readiness::ERROR, Readiness::READABLE, Readiness::READ_HANGUP, Readiness::WRITABLE];

struct Interest<K> {
    key: K,
    wanted: Readiness,
    trigger: Trigger,
    data: u64,
    queued: bool,
    /// A `Trigger::Once` that has been reported.
    spent: bool,
    /// What to report since something happened.
    due: Readiness,
    /// The bit that was reported last, where they are apart: the turn is that of those behind it.
    last: Readiness,
}

/// Interests of one set, and those among them that may be ready. Members are found by the places
/// that they were given.
///
/// [`Sockets`](super::Sockets) has sets of sockets. With this a caller can have other things in
/// sets of the same kind.
pub struct Interests<K> {
    places: Vec<Option<Interest<K>>>,
    /// Empty places. One whose number is still queued is not free yet, or its successor would be
    /// reported out of turn.
    free: Vec<u32>,
    ready: VecDeque<u32>,
    bits: Bits,
}

impl<K: Copy> Default for Interests<K> {
    fn default() -> Interests<K> {
        Interests::new(Bits::default())
    }
}

impl<K: Copy> Interests<K> {
    /// A set without members.
    pub fn new(bits: Bits) -> Interests<K> {
        Interests { places: Vec::new(), free: Vec::new(), ready: VecDeque::new(), bits }
    }

    /// How it reports several things.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// Adds a member, and returns its place. If it is ready already, the next report says so.
    pub fn insert(&mut self, key: K, wanted: Readiness, trigger: Trigger, data: u64) -> u32 {
        let (due, last) = (Readiness::NONE, Readiness::NONE);
        let interest = Interest { key, wanted, trigger, data, queued: false, spent: false, due, last };
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(interest);
                place
            }
            None => {
                self.places.push(Some(interest));
                self.ready.reserve(self.places.len() - self.ready.len());
                self.places.len() as u32 - 1
            }
        };
        self.queue(place, Readiness::ALL);
        place
    }

    /// Changes what is reported of a member.
    pub fn modify(&mut self, place: u32, wanted: Readiness, trigger: Trigger, data: u64) {
        if let Some(interest) = &mut self.places[place as usize] {
            (interest.wanted, interest.trigger, interest.data) = (wanted, trigger, data);
            interest.spent = false;
        }
        self.queue(place, Readiness::ALL);
    }

    /// Removes a member.
    pub fn remove(&mut self, place: u32) {
        if self.places[place as usize].take().is_some_and(|interest| !interest.queued) {
            self.free.push(place);
        }
    }

    /// The members.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.places.iter().flatten().map(|interest| interest.key)
    }

    /// Something happened to a member, which may be ready for these now.
    pub fn wake(&mut self, place: u32, bits: Readiness) {
        if let Some(interest) = &mut self.places[place as usize]
            && bits.has(Readiness::READ_HANGUP)
        {
            // The bytes before the end come first again.
            interest.last = Readiness::NONE;
        }
        self.queue(place, bits);
    }

    fn queue(&mut self, place: u32, bits: Readiness) {
        let Some(interest) = &mut self.places[place as usize] else { return };
        interest.due = interest.due.with(if self.bits == Bits::Together { Readiness::ALL } else { bits });
        if !interest.queued && !interest.spent {
            interest.queued = true;
            self.ready.push_back(place);
        }
    }

    /// Reports members that are ready, as many as there is room for, in turn. Costs nothing for those
    /// to which nothing happened. `ready` says what a member is ready for now.
    pub fn report(&mut self, out: &mut [Notice], ready: impl Fn(K) -> Readiness) -> usize {
        let mut count = 0;
        for _ in 0..self.ready.len() {
            if count == out.len() {
                break;
            }
            let Some(place) = self.ready.pop_front() else { break };
            let Some(interest) = &mut self.places[place as usize] else {
                self.free.push(place);
                continue;
            };
            interest.queued = false;
            let due = ready(interest.key).of(interest.wanted).both(interest.due);
            let (readiness, rest) = match self.bits {
                Bits::Together => (due, Readiness::NONE),
                Bits::Apart => interest.next(due),
            };
            interest.due = Readiness::NONE;
            if readiness.is_none() {
                continue;
            }
            interest.last = readiness;
            out[count] = Notice { readiness, data: interest.data };
            count += 1;
            match interest.trigger {
                Trigger::Level => self.queue(place, Readiness::ALL),
                Trigger::Edge if rest.is_none() => {}
                Trigger::Edge => self.queue(place, rest),
                Trigger::Once => interest.spent = true,
            }
        }
        count
    }
}

impl<K> Interest<K> {
    /// The bit whose turn it is, and the others. Turns go round: excluding the last bit alone would let
    /// two that last starve a third.
    fn next(&self, due: Readiness) -> (Readiness, Readiness) {
        let from = ORDER.iter().position(|&bit| bit == self.last).map_or(0, |at| at + 1);
        let mut turns = ORDER.into_iter().cycle().skip(from).take(ORDER.len());
        let next = turns.find(|&bit| due.has(bit)).unwrap_or(Readiness::NONE);
        (next, due.without(next).without(Readiness::HANGUP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Readiness = Readiness::READABLE.with(Readiness::WRITABLE);

    /// Bits of one report, each with the number of the member.
    fn report(set: &mut Interests<Readiness>) -> Vec<(Readiness, u64)> {
        let mut notices = [Notice::default(); 8];
        let count = set.report(&mut notices, |ready| ready);
        notices[..count].iter().map(|notice| (notice.readiness, notice.data)).collect()
    }

    /// Each bit comes in its turn, one a wait, for as long as the level is there.
    #[test]
    fn bits_of_a_level_take_turns() {
        let mut set = Interests::new(Bits::Apart);
        set.insert(BOTH.with(Readiness::HANGUP), BOTH, Trigger::Level, 1);
        set.insert(Readiness::WRITABLE, BOTH, Trigger::Level, 2);
        for bit in [Readiness::READABLE, Readiness::WRITABLE, Readiness::READABLE] {
            let mut both = report(&mut set);
            both.sort_by_key(|&(_, member)| member);
            assert_eq!(both, [(bit, 1), (Readiness::WRITABLE, 2)]);
        }
    }

    /// None of several lasting bits is passed over, by level and by a `Once` that is asked for again.
    #[test]
    fn lasting_bits_all_have_their_turn() {
        let all = BOTH.with(Readiness::READ_HANGUP);
        for trigger in [Trigger::Level, Trigger::Once] {
            let mut set = Interests::new(Bits::Apart);
            let place = set.insert(all.with(Readiness::HANGUP), all, trigger, 1);
            for turn in 0..7 {
                let bit = [Readiness::READABLE, Readiness::READ_HANGUP, Readiness::WRITABLE][turn % 3];
                assert_eq!(report(&mut set), [(bit, 1)], "{trigger:?}, turn {turn}");
                if trigger == Trigger::Once {
                    set.modify(place, all, trigger, 1);
                }
            }
        }
    }

    /// An edge brings its own bit; none is lost while another one comes again and again, and what was
    /// not reported of a member that is gone is forgotten.
    #[test]
    fn edges_are_reported_one_after_the_other() {
        let mut set = Interests::new(Bits::Apart);
        let place = set.insert(BOTH, BOTH, Trigger::Edge, 1);
        assert_eq!(report(&mut set), [(Readiness::READABLE, 1)]);
        set.wake(place, Readiness::READABLE);
        assert_eq!(report(&mut set), [(Readiness::WRITABLE, 1)]);
        assert_eq!(report(&mut set), [(Readiness::READABLE, 1)]);
        assert_eq!(report(&mut set), []);
        set.wake(place, Readiness::WRITABLE);
        assert_eq!(report(&mut set), [(Readiness::WRITABLE, 1)]);
        set.wake(place, BOTH);
        set.remove(place);
        assert_eq!(report(&mut set), []);
    }

    /// Bytes come before the end that came with them, whatever was reported last.
    #[test]
    fn bytes_come_before_the_end() {
        let end = Readiness::READABLE.with(Readiness::READ_HANGUP);
        let mut set = Interests::new(Bits::Apart);
        let place = set.insert(end, end, Trigger::Edge, 1);
        for _ in 0..2 {
            assert_eq!(report(&mut set), [(Readiness::READABLE, 1)]);
            assert_eq!(report(&mut set), [(Readiness::READ_HANGUP, 1)]);
            assert_eq!(report(&mut set), []);
            set.wake(place, Readiness::READABLE);
            assert_eq!(report(&mut set), [(Readiness::READABLE, 1)]);
            set.wake(place, end);
        }
    }
}
