//! A bounded table whose entries keep their index, and whose indices are told apart by
//! generation. It grows by pieces up to its bound, so that none of its entries ever moves, and
//! never shrinks.

const NO_INDEX: u32 = u32::MAX;

/// Entries of a piece.
const PIECE: u32 = 64;

pub(crate) struct Slab<T> {
    pieces: Vec<Box<[Entry<T>; PIECE as usize]>>,
    /// Entries that were ever in use.
    used: u32,
    free: u32,
    len: u32,
    max: u32,
}

/// In this order: what the value begins with is next to its generation.
#[repr(C)]
struct Entry<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(max: u32) -> Self {
        Slab { pieces: Vec::new(), used: 0, free: NO_INDEX, len: 0, max: max.min(NO_INDEX - 1) }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.max
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&Entry<T>> {
        Some(&self.pieces.get((index / PIECE) as usize)?[(index % PIECE) as usize])
    }

    #[inline]
    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<T>> {
        Some(&mut self.pieces.get_mut((index / PIECE) as usize)?[(index % PIECE) as usize])
    }

    /// Puts `value` in a free entry and returns its index and generation; gives the
    /// value back when the table is at its bound.
    pub(crate) fn insert(&mut self, value: T) -> Result<(u32, u32), T> {
        if self.free == NO_INDEX && self.is_full() {
            return Err(value);
        }
        Ok(self.insert_over(value))
    }

    /// Puts `value` in an entry even if the bound is reached: for operations that the
    /// kernel has begun, which cannot be refused any more.
    #[inline]
    pub(crate) fn insert_over(&mut self, value: T) -> (u32, u32) {
        if self.free == NO_INDEX {
            self.free = self.used;
            self.used += 1;
            if self.free / PIECE == self.pieces.len() as u32 {
                self.grow();
            }
        }
        let index = self.free;
        let entry = &mut self.pieces[(index / PIECE) as usize][(index % PIECE) as usize];
        self.free = entry.next_free;
        entry.value = Some(value);
        self.len += 1;
        (index, entry.generation)
    }

    #[cold]
    fn grow(&mut self) {
        let vacant = || Entry { generation: 1, next_free: NO_INDEX, value: None };
        self.pieces.push(Box::new(std::array::from_fn(|_| vacant())));
    }

    #[inline]
    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let entry = self.entry(index)?;
        if entry.generation != generation { None } else { entry.value.as_ref() }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let entry = self.entry_mut(index)?;
        if entry.generation != generation { None } else { entry.value.as_mut() }
    }

    /// The entry at `index`, whatever its generation.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.entry(index)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entry_mut(index)?.value.as_mut()
    }

    #[inline]
    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.entry(index).map_or(0, |entry| entry.generation)
    }

    /// Empties the entry; every name of it is stale from here on.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let free = self.free;
        let entry = self.entry_mut(index)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.next_free = free;
        self.free = index;
        self.len -= 1;
        Some(value)
    }

    /// The indices in use, in no particular order.
    pub(crate) fn indices(&self) -> Vec<u32> {
        (0..self.used).filter(|&index| self.at(index).is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_index_has_another_generation() {
        let mut slab = Slab::new(4);
        let (index, generation) = slab.insert("a").unwrap();
        assert_eq!(slab.remove(index), Some("a"));
        let (again, next) = slab.insert("b").unwrap();
        assert_eq!(index, again);
        assert_ne!(generation, next);
        assert_eq!(slab.get(index, generation), None);
        assert_eq!(slab.get(again, next), Some(&"b"));
    }

    #[test]
    fn the_bound_is_a_normal_result() {
        let mut slab = Slab::new(2);
        slab.insert(1).unwrap();
        let (second, _) = slab.insert(2).unwrap();
        assert_eq!(slab.insert(3), Err(3));
        slab.remove(second);
        assert!(slab.insert(3).is_ok());
    }

    /// Names of one piece are no names of the next.
    #[test]
    fn pieces_follow_each_other() {
        let mut slab = Slab::new(3 * PIECE);
        let names: Vec<_> = (0..3 * PIECE).map(|value| slab.insert(value).unwrap()).collect();
        assert_eq!(slab.insert(0), Err(0));
        for (value, &(index, generation)) in (0..).zip(&names) {
            assert_eq!(slab.get(index, generation), Some(&value));
        }
        assert_eq!(slab.at(3 * PIECE), None);
        assert_eq!(slab.remove(PIECE), Some(PIECE));
        assert_eq!(slab.insert(7).unwrap(), (PIECE, 2));
        assert_eq!(slab.insert_over(8), (3 * PIECE, 1));
        assert_eq!((slab.len(), slab.indices().len()), (3 * PIECE + 1, 3 * PIECE as usize + 1));
    }
}
