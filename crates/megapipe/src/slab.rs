//! A bounded table whose entries keep their index, and whose indices are told apart by
//! generation. It grows by doubling up to its bound and never shrinks.

const NO_INDEX: u32 = u32::MAX;

pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: u32,
    max: u32,
}

struct Entry<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(max: u32) -> Self {
        Slab { entries: Vec::new(), free: NO_INDEX, len: 0, max: max.min(NO_INDEX - 1) }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.max
    }

    /// Puts `value` in a free entry and returns its index and generation; gives the
    /// value back when the table is at its bound.
    pub(crate) fn insert(&mut self, value: T) -> Result<(u32, u32), T> {
        if self.free != NO_INDEX {
            let index = self.free;
            let entry = &mut self.entries[index as usize];
            self.free = entry.next_free;
            entry.value = Some(value);
            self.len += 1;
            return Ok((index, entry.generation));
        }
        if self.is_full() {
            return Err(value);
        }
        Ok(self.grow(value))
    }

    /// Puts `value` in an entry even if the bound is reached: for what the kernel has begun
    /// and nobody can refuse any more.
    pub(crate) fn insert_over(&mut self, value: T) -> (u32, u32) {
        self.insert(value).unwrap_or_else(|value| self.grow(value))
    }

    fn grow(&mut self, value: T) -> (u32, u32) {
        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 1, next_free: NO_INDEX, value: Some(value) });
        self.len += 1;
        (index, 1)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let entry = self.entries.get(index as usize)?;
        if entry.generation != generation { None } else { entry.value.as_ref() }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut(index as usize)?;
        if entry.generation != generation { None } else { entry.value.as_mut() }
    }

    /// The entry at `index`, whatever its generation.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    pub(crate) fn generation(&self, index: u32) -> u32 {
        self.entries.get(index as usize).map_or(0, |entry| entry.generation)
    }

    /// Empties the entry; every name of it is stale from here on.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.next_free = self.free;
        self.free = index;
        self.len -= 1;
        Some(value)
    }

    /// The indices in use, in no particular order.
    pub(crate) fn indices(&self) -> Vec<u32> {
        (0..self.entries.len() as u32).filter(|&index| self.at(index).is_some()).collect()
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
}
