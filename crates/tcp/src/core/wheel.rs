//! One timer wheel for everything: six levels of 64 buckets, ticks of 64 us.
//!
//! Each owner has one node, so nothing is allocated. An owner's deadlines move later far more
//! often than earlier, and a later one leaves the node where it is: when the node comes due, the
//! owner checks its deadlines and schedules again. An earlier one moves the node.

const LEVELS: usize = 6;
const BUCKETS: usize = 64;
const NIL: u32 = u32::MAX;
/// List of the nodes that are due.
const DUE: u16 = (LEVELS * BUCKETS) as u16;
const UNLINKED: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Node {
    tick: u64,
    previous: u32,
    next: u32,
    list: u16,
}

pub(crate) struct Wheel {
    nodes: Vec<Node>,
    heads: [u32; LEVELS * BUCKETS + 1],
    /// A bit for each bucket that is not empty.
    occupied: [u64; LEVELS],
    elapsed: u64,
}

impl Wheel {
    /// For owners 0 to `owners` - 1.
    pub(crate) fn new(owners: usize) -> Wheel {
        let node = Node { tick: 0, previous: NIL, next: NIL, list: UNLINKED };
        Wheel {
            nodes: vec![node; owners],
            heads: [NIL; LEVELS * BUCKETS + 1],
            occupied: [0; LEVELS],
            elapsed: 0,
        }
    }

    /// Has the owner come due at this tick at the latest.
    pub(crate) fn schedule(&mut self, owner: u32, tick: u64) {
        let node = self.nodes[owner as usize];
        if node.list != UNLINKED {
            if node.tick <= tick {
                return;
            }
            self.unlink(owner);
        }
        self.link(owner, tick);
    }

    /// Forgets the owner.
    pub(crate) fn cancel(&mut self, owner: u32) {
        if self.nodes[owner as usize].list != UNLINKED {
            self.unlink(owner);
        }
    }

    /// When the owner comes due.
    pub(crate) fn scheduled(&self, owner: u32) -> Option<u64> {
        let node = self.nodes[owner as usize];
        (node.list != UNLINKED).then_some(node.tick)
    }

    /// The next owner that is due at this tick, removed.
    #[inline]
    pub(crate) fn pop(&mut self, now: u64) -> Option<u32> {
        loop {
            let owner = self.heads[usize::from(DUE)];
            if owner != NIL {
                self.unlink(owner);
                return Some(owner);
            }
            if now <= self.elapsed {
                return None;
            }
            match self.next_bucket() {
                Some((level, bucket, tick)) if tick <= now => self.cascade(level, bucket, tick),
                _ => {
                    self.elapsed = self.elapsed.max(now);
                    return None;
                }
            }
        }
    }

    /// A tick at which something may be due: never too late, and early at most once a level.
    pub(crate) fn deadline(&self) -> Option<u64> {
        if self.heads[usize::from(DUE)] != NIL {
            return Some(self.elapsed);
        }
        self.next_bucket().map(|(_, _, tick)| tick)
    }

    /// The earliest bucket that is not empty, and the tick at which it begins.
    fn next_bucket(&self) -> Option<(usize, usize, u64)> {
        (0..LEVELS).find_map(|level| {
            let occupied = self.occupied[level];
            if occupied == 0 {
                return None;
            }
            let shift = 6 * level as u32;
            let current = (self.elapsed >> shift) as u32 & 63;
            let bucket = (occupied.rotate_right(current).trailing_zeros() + current) & 63;
            let turn = 1u64 << (shift + 6);
            let mut tick = (self.elapsed & !(turn - 1)) + (u64::from(bucket) << shift);
            if bucket < current {
                // Only the topmost level wraps; lower ones never hold a later turn.
                tick += turn;
            }
            Some((level, bucket as usize, tick))
        })
    }

    /// Moves the nodes of a bucket whose time has begun to lower levels.
    fn cascade(&mut self, level: usize, bucket: usize, tick: u64) {
        self.elapsed = self.elapsed.max(tick);
        let list = level * BUCKETS + bucket;
        while self.heads[list] != NIL {
            let owner = self.heads[list];
            self.unlink(owner);
            self.link(owner, self.nodes[owner as usize].tick);
        }
    }

    fn link(&mut self, owner: u32, tick: u64) {
        let list = if tick <= self.elapsed {
            DUE
        } else {
            let differ = (tick ^ self.elapsed) | (BUCKETS as u64 - 1);
            let level = ((63 - differ.leading_zeros()) / 6).min(LEVELS as u32 - 1);
            let bucket = (tick >> (6 * level)) & 63;
            self.occupied[level as usize] |= 1 << bucket;
            (level as u16) * BUCKETS as u16 + bucket as u16
        };
        let next = self.heads[usize::from(list)];
        if next != NIL {
            self.nodes[next as usize].previous = owner;
        }
        self.heads[usize::from(list)] = owner;
        self.nodes[owner as usize] = Node { tick, previous: NIL, next, list };
    }

    fn unlink(&mut self, owner: u32) {
        let node = self.nodes[owner as usize];
        if node.previous == NIL {
            self.heads[usize::from(node.list)] = node.next;
            if node.next == NIL && node.list != DUE {
                self.occupied[usize::from(node.list) / BUCKETS] &= !(1 << (usize::from(node.list) % BUCKETS));
            }
        } else {
            self.nodes[node.previous as usize].next = node.next;
        }
        if node.next != NIL {
            self.nodes[node.next as usize].previous = node.previous;
        }
        self.nodes[owner as usize].list = UNLINKED;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every owner comes due at its tick, not before, and the deadline is never late.
        #[test]
        fn owners_come_due_in_time(
            steps in prop::collection::vec((0u32..20, 0u32..34, any::<u32>(), 0u32..26), 1..150),
        ) {
            let mut wheel = Wheel::new(20);
            let mut due = BTreeMap::new();
            let mut now = 0u64;
            for (owner, bits, ahead, step) in steps {
                let tick = now + (u64::from(ahead) & ((1 << bits) - 1));
                let earliest = due.get(&owner).copied().unwrap_or(u64::MAX).min(tick);
                wheel.schedule(owner, tick);
                due.insert(owner, earliest);
                let earliest = due.values().copied().min().expect("one is scheduled");
                prop_assert!(wheel.deadline().is_some_and(|deadline| deadline <= earliest));
                now += (1 << step) - 1;
                while let Some(owner) = wheel.pop(now) {
                    let tick = due.remove(&owner);
                    prop_assert!(tick.is_some_and(|tick| tick <= now), "{:?} at {}", tick, now);
                }
                prop_assert!(due.values().all(|&tick| tick > now), "late at {now}: {due:?}");
            }
        }
    }
}
