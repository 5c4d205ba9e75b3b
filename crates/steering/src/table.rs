//! What all processes of a group share: words for each member, and for each CPU the members that take
//! its connections.

#[cfg(steering_loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(steering_loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Members by which a CPU's connections are divided at most: a program picks one of so many places
/// at random, and n members have 64 / n of them each.
pub(crate) const PLACES: u32 = 64;

/// Entry of [`Lines::members`] that is no member's.
pub(crate) const CONTROL: u32 = 0;
/// Its words: how often the masks have changed, and the highest member's number yet.
pub(crate) const CHANGES: usize = 0;
pub(crate) const HIGHEST: usize = 1;

/// Words of a member, in a cache line that its owner writes: since when the owner is away from its
/// wait (CLOCK_MONOTONIC; 0: it waits, [`CANNOT_ACCEPT`]), and connections it accepted. In others, which
/// the program and changes of masks write: connections steered to it, and its CPUs, 64 a word.
pub(crate) const AWAY: usize = 0;
pub(crate) const CANNOT_ACCEPT: u64 = u64::MAX;
pub(crate) const ACCEPTED: usize = 1;
pub(crate) const STEERED: usize = LINE;
pub(crate) const MASK: usize = LINE + 1;

/// Words of a cache line.
const LINE: usize = 8;

/// Words of an entry of [`Lines::members`]: whole cache lines.
pub(crate) fn words(cpus: u32) -> usize {
    (MASK + cpus.div_ceil(64) as usize).next_multiple_of(LINE)
}

/// Entries of shared words.
pub(crate) trait Entries {
    /// The words of an entry; `None` past the end.
    fn entry(&self, index: u32) -> Option<&[AtomicU64]>;
}

#[cfg(not(steering_loom))]
impl Entries for sys::bpf::WordArray {
    fn entry(&self, index: u32) -> Option<&[AtomicU64]> {
        self.entry(index)
    }
}

/// Changes by others that one change waits for: many more than join or leave meanwhile, and an end to what a hostile
/// process can cause.
const ROUNDS_MAX: u32 = 10_000;

/// The two arrays.
pub(crate) struct Lines<'a, E> {
    /// [`CONTROL`], then the members.
    pub(crate) members: &'a E,
    /// [`PLACES`] words for each CPU: members' numbers, or 0.
    pub(crate) places: &'a E,
}

impl<E: Entries> Lines<'_, E> {
    /// Gives a member its mask, and divides the CPUs' places anew among the members that are `live`.
    ///
    /// Any process may do so at any time, without a lock that a killed one would keep: the last to
    /// write has seen all masks, since one that finds another change after its own writes writes
    /// again.
    pub(crate) fn set_mask(
        &self,
        member: u32,
        cpus: impl Iterator<Item = u32> + Clone,
        live: impl Fn(u32) -> bool,
    ) {
        let (Some(control), Some(line)) = (self.members.entry(CONTROL), self.members.entry(member)) else {
            return;
        };
        for (first, word) in (0..).step_by(64).zip(&line[MASK..]) {
            let bits = cpus.clone().filter(|&cpu| cpu >= first && cpu - first < 64);
            word.store(bits.fold(0, |bits, cpu| bits | 1 << (cpu - first)), Ordering::Relaxed);
        }
        control[HIGHEST].fetch_max(member.into(), Ordering::Relaxed);
        // CHANGES: releases the mask to all that divide after this change, and acquires theirs.
        let mut seen = control[CHANGES].fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        for _ in 0..ROUNDS_MAX {
            self.divide(control[HIGHEST].load(Ordering::Relaxed) as u32, &live);
            // CHANGES: a read-modify-write, as a load might miss a change whose writes ours replaced.
            let now = control[CHANGES].fetch_add(0, Ordering::AcqRel);
            if now == seen {
                return;
            }
            seen = now;
        }
    }

    fn divide(&self, highest: u32, live: &impl Fn(u32) -> bool) {
        // Ends with the array, whatever the shared word says.
        let masks: Vec<(u32, &[AtomicU64])> = (CONTROL + 1..=highest)
            .map_while(|member| Some((member, &self.members.entry(member)?[MASK..])))
            .filter(|&(member, _)| live(member))
            .collect();
        for cpu in 0.. {
            let Some(places) = self.places.entry(cpu) else { return };
            let has = |mask: &[AtomicU64]| {
                let word = mask.get(cpu as usize / 64).map_or(0, |word| word.load(Ordering::Relaxed));
                word >> (cpu % 64) & 1 == 1
            };
            let sharers: Vec<u32> =
                masks.iter().filter(|(_, mask)| has(mask)).map(|&(member, _)| member).collect();
            for (place, word) in places.iter().enumerate() {
                let member = sharers.get(place % sharers.len().max(1)).copied().unwrap_or(0);
                word.store(member.into(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, steering_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Words(Vec<Vec<AtomicU64>>);

    impl Entries for Words {
        fn entry(&self, index: u32) -> Option<&[AtomicU64]> {
            self.0.get(index as usize).map(Vec::as_slice)
        }
    }

    fn array(entries: usize, words: usize) -> Words {
        Words((0..entries).map(|_| (0..words).map(|_| AtomicU64::new(0)).collect()).collect())
    }

    /// Two members join one CPU at once: in the end both have a place.
    #[test]
    fn loom_no_mask_is_missed() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((array(3, MASK + 1), array(1, 2)));
            let join = |member: u32| {
                let shared = Arc::clone(&shared);
                move || {
                    let lines = Lines { members: &shared.0, places: &shared.1 };
                    lines.set_mask(member, [0].into_iter(), |_| true);
                }
            };
            let other = thread::spawn(join(1));
            join(2)();
            other.join().unwrap();
            let places: Vec<u64> = shared.1.0[0].iter().map(|word| word.load(Ordering::Relaxed)).collect();
            assert_eq!(places, [1, 2]);
        });
    }
}
