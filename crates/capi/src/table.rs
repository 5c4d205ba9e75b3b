//! Objects that C knows by a small number: index and generation, so that a number that
//! was given back is refused.

pub(crate) struct Table<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    index_bits: u32,
    generations: u32,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// Numbers of `index_bits` for the place and `generation_bits` for the generation.
    pub(crate) const fn new(index_bits: u32, generation_bits: u32) -> Table<T> {
        Table { entries: Vec::new(), free: Vec::new(), index_bits, generations: (1 << generation_bits) - 1 }
    }

    /// The new number, never 0; the value back if all places are taken.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() >> self.index_bits != 0 => return Err(value),
            None => {
                self.entries.push(Entry { generation: 1, value: None });
                self.entries.len() as u32 - 1
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Ok(entry.generation << self.index_bits | index)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let entry = self.entries.get(self.index(number))?;
        if entry.generation == number >> self.index_bits { entry.value.as_ref() } else { None }
    }

    pub(crate) fn take(&mut self, number: u32) -> Option<T> {
        let index = self.index(number);
        let generations = self.generations;
        let entry = self.entries.get_mut(index)?;
        if entry.generation != number >> self.index_bits {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation & generations) % generations + 1;
        self.free.push(index as u32);
        Some(value)
    }

    /// Puts back what was just taken, under the same number.
    pub(crate) fn put_back(&mut self, number: u32, value: T) {
        let index = self.index(number);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.generation = number >> self.index_bits;
            entry.value = Some(value);
            self.free.retain(|&free| free as usize != index);
        }
    }

    fn index(&self, number: u32) -> usize {
        (number & ((1 << self.index_bits) - 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_back_is_refused() {
        let mut table = Table::new(4, 2);
        let a = table.insert('a').unwrap();
        assert_eq!(table.take(a), Some('a'));
        assert_eq!(table.take(a), None);
        let b = table.insert('b').unwrap();
        assert_ne!(a, b);
        assert_eq!(table.get(a), None);
        assert_eq!(table.get(b), Some(&'b'));
        assert_eq!(table.take(b), Some('b'));
        table.put_back(b, 'b');
        assert_eq!(table.take(b), Some('b'));
    }

    #[test]
    fn numbers_stay_within_their_bits_and_are_never_zero() {
        let mut table = Table::new(2, 2);
        for _ in 0..20 {
            let numbers: Vec<_> = (0..4).map(|value| table.insert(value).unwrap()).collect();
            assert_eq!(table.insert(4), Err(4));
            for number in numbers {
                assert!(number > 0 && number < 1 << 4);
                table.take(number);
            }
        }
    }
}
