//! Ordered lists of many flows, in blocks of a common pool: nothing is allocated once the pool is made.

use super::few::Few;
use super::table::Table;

/// Items of a block.
pub(crate) const ITEMS: usize = 32;
/// Blocks of a list.
const BLOCKS: usize = 256;

/// Blocks that lists borrow. Each list can have one, whatever the others have; the rest go to those
/// that come first.
pub(crate) struct Pool<T> {
    blocks: Table<Few<T, ITEMS>>,
    /// Blocks beyond the first that lists can still have.
    extra: usize,
}

/// A list, in order of whatever its user orders it by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    blocks: Few<u32, BLOCKS>,
}

/// Where an item is, until the list changes. Behind the last one: the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    block: usize,
    item: usize,
}

impl List {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl<T: Copy + Default> Pool<T> {
    /// For so many lists, which have so many blocks beside their first.
    pub(crate) fn new(lists: usize, extra: usize) -> Pool<T> {
        Pool { blocks: Table::new(lists + extra), extra }
    }

    fn block(&self, list: &List, block: usize) -> Option<&[T]> {
        list.blocks.get(block).map(|&id| &self.blocks[id][..])
    }

    pub(crate) fn get(&self, list: &List, place: Place) -> Option<&T> {
        self.block(list, place.block)?.get(place.item)
    }

    pub(crate) fn get_mut(&mut self, list: &List, place: Place) -> Option<&mut T> {
        let &id = list.blocks.get(place.block)?;
        self.blocks[id].get_mut(place.item)
    }

    pub(crate) fn first(&self, list: &List) -> Option<&T> {
        self.get(list, Place::default())
    }

    pub(crate) fn last_place(&self, list: &List) -> Option<Place> {
        let block = list.blocks.len().checked_sub(1)?;
        Some(Place { block, item: self.blocks[list.blocks[block]].len() - 1 })
    }

    pub(crate) fn last(&self, list: &List) -> Option<&T> {
        self.get(list, self.last_place(list)?)
    }

    /// The place behind.
    pub(crate) fn next(&self, list: &List, place: Place) -> Place {
        match self.block(list, place.block) {
            Some(items) if place.item + 1 < items.len() => Place { item: place.item + 1, ..place },
            Some(_) => Place { block: place.block + 1, item: 0 },
            None => place,
        }
    }

    /// The place before; `None` at the first.
    pub(crate) fn before(&self, list: &List, place: Place) -> Option<Place> {
        if place.item > 0 {
            return Some(Place { item: place.item - 1, ..place });
        }
        let block = place.block.checked_sub(1)?;
        Some(Place { block, item: self.block(list, block)?.len() - 1 })
    }

    /// The first item for which this is false: it has to be so for all behind it.
    pub(crate) fn partition(&self, list: &List, holds: impl Fn(&T) -> bool) -> Place {
        let last = |&id: &u32| self.blocks[id].last().is_some_and(&holds);
        let block = list.blocks.partition_point(last);
        let item = self.block(list, block).map_or(0, |items| items.partition_point(&holds));
        Place { block, item }
    }

    pub(crate) fn iter<'a>(&'a self, list: &'a List) -> impl Iterator<Item = &'a T> {
        list.blocks.iter().flat_map(|&id| self.blocks[id].iter())
    }

    /// Visits all items.
    pub(crate) fn for_each(&mut self, list: &List, mut visit: impl FnMut(&mut T)) {
        for &id in list.blocks.iter() {
            self.blocks[id].iter_mut().for_each(&mut visit);
        }
    }

    /// Puts an item before the one at a place. False: there is no block for it.
    pub(crate) fn insert(&mut self, list: &mut List, place: Place, item: T) -> bool {
        let Place { mut block, item: mut at } = place;
        if block == list.blocks.len() {
            // At the end: behind the last one, if its block has room.
            match self.last_place(list).filter(|last| last.item + 1 < ITEMS) {
                Some(last) => (block, at) = (last.block, last.item + 1),
                None if self.add_block(list, block) => at = 0,
                None => return false,
            }
        } else if self.blocks[list.blocks[block]].is_full() {
            if !self.add_block(list, block + 1) {
                return false;
            }
            let (front, back) = (list.blocks[block], list.blocks[block + 1]);
            // A list that grows at its end fills its blocks.
            let middle = if at == ITEMS - 1 { at } else { ITEMS / 2 };
            let items = self.blocks[front];
            for &item in &items[middle..] {
                self.blocks[back].push(item);
            }
            self.blocks[front].drain(middle, ITEMS - middle);
            if at > middle {
                (block, at) = (block + 1, at - middle);
            }
        }
        self.blocks[list.blocks[block]].insert(at, item);
        true
    }

    /// Adds an item at the end. False: there is no block for it.
    pub(crate) fn push(&mut self, list: &mut List, item: T) -> bool {
        self.insert(list, Place { block: list.blocks.len(), item: 0 }, item)
    }

    fn add_block(&mut self, list: &mut List, at: usize) -> bool {
        let first = list.blocks.is_empty();
        if !first && (self.extra == 0 || list.blocks.is_full()) {
            return false;
        }
        let Some(id) = self.blocks.insert_reset(Few::clear) else { return false };
        self.extra -= usize::from(!first);
        list.blocks.insert(at, id);
        true
    }

    fn remove_block(&mut self, list: &mut List, at: usize) {
        let id = list.blocks.remove(at);
        self.blocks.remove(id);
        self.extra += usize::from(!list.blocks.is_empty());
    }

    /// Removes an item. Places before it stay what they are.
    pub(crate) fn remove(&mut self, list: &mut List, place: Place) -> Option<T> {
        let &id = list.blocks.get(place.block)?;
        let items = &mut self.blocks[id];
        let item = *items.get(place.item)?;
        items.drain(place.item, 1);
        if items.is_empty() {
            self.remove_block(list, place.block);
        }
        Some(item)
    }

    pub(crate) fn clear(&mut self, list: &mut List) {
        while let Some(last) = list.blocks.len().checked_sub(1) {
            self.remove_block(list, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(pool: &Pool<u32>, list: &List, at: usize) -> Place {
        (0..at).fold(Place::default(), |place, _| pool.next(list, place))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Two lists are what vectors would be, until there are no blocks; each has its first one.
        #[test]
        fn equals_vectors(steps in prop::collection::vec((0usize..2, 0u8..8, any::<prop::sample::Index>()), 0..400)) {
            let mut pool = Pool::<u32>::new(2, 5);
            let mut lists = [List::default(); 2];
            let mut models = [const { Vec::<u32>::new() }; 2];
            for (which, what, index) in steps {
                let (list, model) = (&mut lists[which], &mut models[which]);
                let at = index.index(model.len() + 1);
                let here = place(&pool, list, at);
                match what {
                    0..=4 => {
                        // Between its neighbours, so that the list is in order.
                        let low = if at == 0 { 0 } else { model[at - 1] };
                        let high = model.get(at).copied().unwrap_or(1 << 30);
                        let number = low.midpoint(high);
                        let done = pool.insert(list, here, number);
                        prop_assert!(done || model.len() >= ITEMS / 2);
                        if done {
                            model.insert(at, number);
                        }
                    }
                    5 | 6 => {
                        let removed = pool.remove(list, here);
                        prop_assert_eq!(removed, (at < model.len()).then(|| model.remove(at)));
                    }
                    _ => {
                        pool.clear(list);
                        model.clear();
                    }
                }
                prop_assert!(pool.iter(list).eq(model.iter()));
                prop_assert_eq!(pool.last(list), model.last());
                prop_assert_eq!(list.is_empty(), model.is_empty());
                let bound = index.index(1 << 20) as u32 * 1024;
                let found = pool.partition(list, |&number| number < bound);
                let position = model.partition_point(|&number| number < bound);
                prop_assert_eq!(pool.get(list, found), model.get(position));
                let back = pool.before(list, found).and_then(|place| pool.get(list, place).copied());
                prop_assert_eq!(back, position.checked_sub(1).map(|before| model[before]));
            }
            for list in &mut lists {
                pool.clear(list);
            }
            prop_assert_eq!((pool.extra, pool.blocks.len()), (5, 0));
        }
    }
}
