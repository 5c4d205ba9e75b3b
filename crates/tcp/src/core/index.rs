//! Which record belongs to a tuple: one keyed hash table for flows, half-open connections and
//! TIME_WAIT.
//!
//! Open addressing with slots of 8 bytes, at most half of them used. It is reserved at its
//! bound and never grows.

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Flow = 1,
    Syn = 2,
    Wait = 3,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The upper 30 bits are the entry's hash, the lower two its kind; 0 is an empty slot.
    tag: u32,
    id: u32,
}

pub(crate) struct Index {
    slots: Vec<Slot>,
    mask: u32,
}

impl Index {
    /// For so many entries.
    pub(crate) fn new(entries: usize) -> Index {
        let size = (entries.max(8) * 2).next_power_of_two().min(1 << 30);
        Index { slots: vec![Slot::default(); size], mask: size as u32 - 1 }
    }

    /// What nearly always is the only entry of this hash: the first one with its tag.
    pub(crate) fn likely(&self, hash: u64) -> Option<(Kind, u32)> {
        self.find(hash, |_, _| true)
    }

    /// The entry of this hash for which `same` holds.
    pub(crate) fn find(&self, hash: u64, same: impl Fn(Kind, u32) -> bool) -> Option<(Kind, u32)> {
        let tag = tag_of(hash);
        let mut at = home(tag) & self.mask;
        loop {
            let slot = self.slots[at as usize];
            let kind = kind_of(slot)?;
            if slot.tag & !3 == tag && same(kind, slot.id) {
                return Some((kind, slot.id));
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds an entry. The caller's tables bound their number, so there is room.
    pub(crate) fn insert(&mut self, hash: u64, kind: Kind, id: u32) {
        let tag = tag_of(hash);
        let mut at = home(tag) & self.mask;
        while self.slots[at as usize].tag != 0 {
            at = (at + 1) & self.mask;
        }
        self.slots[at as usize] = Slot { tag: tag | kind as u32, id };
    }

    /// Removes an entry, and moves later ones of its run back, so that no grave stays.
    pub(crate) fn remove(&mut self, hash: u64, kind: Kind, id: u32) {
        let tag = tag_of(hash) | kind as u32;
        let mut hole = home(tag) & self.mask;
        loop {
            let slot = self.slots[hole as usize];
            if slot.tag == 0 {
                return;
            }
            if slot.tag == tag && slot.id == id {
                break;
            }
            hole = (hole + 1) & self.mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at as usize];
            if slot.tag == 0 {
                break;
            }
            let from_home = at.wrapping_sub(home(slot.tag)) & self.mask;
            let from_hole = at.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.slots[hole as usize] = slot;
                hole = at;
            }
        }
        self.slots[hole as usize] = Slot::default();
    }
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32 & !3
}

fn home(tag: u32) -> u32 {
    tag >> 2
}

fn kind_of(slot: Slot) -> Option<Kind> {
    match slot.tag & 3 {
        1 => Some(Kind::Flow),
        2 => Some(Kind::Syn),
        3 => Some(Kind::Wait),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The table holds what a map holds, with colliding hashes and wrapping runs.
        #[test]
        fn equals_a_map(steps in prop::collection::vec((0u32..12, 0u64..6, any::<bool>()), 1..200)) {
            let mut index = Index::new(16);
            let mut map = HashMap::new();
            // The top of the hash decides the place: all near the end of the table.
            let hash = |h: u64| (((1u64 << 30) - 3 + h) << 34) | 7;
            for (id, h, add) in steps {
                if add {
                    map.entry(id).or_insert_with(|| {
                        index.insert(hash(h), Kind::Syn, id);
                        h
                    });
                } else if let Some(h) = map.remove(&id) {
                    index.remove(hash(h), Kind::Syn, id);
                }
                for id in 0..12 {
                    let expected = map.get(&id).map(|_| (Kind::Syn, id));
                    let h = map.get(&id).copied().unwrap_or(0);
                    prop_assert_eq!(index.find(hash(h), |_, found| found == id), expected);
                }
            }
        }
    }
}
