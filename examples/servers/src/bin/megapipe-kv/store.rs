//! The items of the server: what memcached's commands mean, on top of a concurrent cache.
//!
//! Readers touch only the cache. Writers of one key also take that key's lock, of a fixed set of
//! locks, so that what they read of the old item still holds when they put the new one; the cache
//! evicts, and it counts the room that items take.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};
use thiserror::Error;

use super::clock::Moment;
use super::command::{Delta, KEY_MAX, StoreMode};
use super::partial::{self, Charge};

/// Bytes an item takes besides its key and value: its places in the cache's slab and table, and the
/// headers of its allocations.
const ITEM_OVERHEAD: usize = size_of::<Box<[u8]>>() + size_of::<Item>() + 120;

/// Room that a part of the cache must have, in items of the greatest size: with less, eviction could
/// not make room for one.
const ITEMS_PER_SHARD_MIN: u64 = 4;

/// The part of the memory that items leave to partial requests: a sixteenth, and where these hold
/// more, half of the rest. Halves, since the cache's bounds then come back exactly.
const PARTIAL_SHARE: u64 = 16;

const SHARDS_MAX: u64 = 256;
const WRITE_LOCKS: usize = 256;

/// How large a store may grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of all items and partial requests, keys and overhead included.
    pub(crate) memory: u64,
    /// Bytes of one value.
    pub(crate) value: usize,
}

/// The limits cannot hold together.
#[derive(Debug, Error)]
#[error(
    "values of {value} bytes need a memory limit of {least_mib} MiB or more; raise --memory-limit or lower \
     --max-item-size"
)]
pub(crate) struct LimitsError {
    value: usize,
    least_mib: u64,
}

/// The items.
pub(crate) struct Store {
    cache: Cache<Box<[u8]>, Item, ItemWeight, DefaultHashBuilder, EvictionCount>,
    write_locks: Box<[Mutex<()>]>,
    write_lock_hash: DefaultHashBuilder,
    last_unique: AtomicU64,
    /// Items up to this cas unique are gone.
    flushed: AtomicU64,
    /// When a delayed flush is due, in milliseconds of [`Moment`].
    flush_due: AtomicU64,
    evictions: Arc<AtomicU64>,
    stored: AtomicU64,
    partial: partial::Total,
    /// Whether items have half of their room, since partial requests need it.
    squeezed: AtomicBool,
    resizing: Mutex<()>,
    limits: Limits,
}

/// One item. A clone shares the value.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) value: Bytes,
    pub(crate) flags: u32,
    pub(crate) unique: u64,
    deadline: Moment,
}

/// What a storage command brings.
#[derive(Debug)]
pub(crate) struct NewItem {
    pub(crate) mode: StoreMode,
    pub(crate) key: Box<[u8]>,
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    pub(crate) deadline: Moment,
}

/// What became of a storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    Stored,
    /// The condition of `add`, `replace`, `append` or `prepend` does not hold.
    NotStored,
    /// `cas`: changed since the client read it.
    Exists,
    /// `cas`: no such item.
    NotFound,
    /// Larger than [`Limits::value`] together with what is there.
    TooLarge,
}

/// What a key leads to.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    Hit(Item),
    Miss,
    /// There was an item, which has expired.
    Expired,
    /// There was an item, which a flush has ended.
    Flushed,
}

/// Why `incr` and `decr` fail.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum DeltaError {
    #[error("NOT_FOUND")]
    NotFound,
    #[error("CLIENT_ERROR cannot increment or decrement non-numeric value")]
    NotNumeric,
}

impl Store {
    pub(crate) fn new(limits: Limits) -> Result<Self, LimitsError> {
        let largest = (ITEM_OVERHEAD + KEY_MAX + limits.value) as u64;
        let shard = largest * ITEMS_PER_SHARD_MIN;
        // What the items have for sure.
        let room = room_for_items(limits, true);
        if room < shard {
            let least = 2 * shard.div_ceil(PARTIAL_SHARE - 1) * PARTIAL_SHARE;
            return Err(LimitsError { value: limits.value, least_mib: least.div_ceil(1 << 20) });
        }
        let shards = 1 << (room / shard).min(SHARDS_MAX).ilog2();
        // An estimate with which the cache keeps its number of shards, and a bound on the evicted
        // keys that it remembers.
        let items = (limits.memory / 512).max(32 * shards);
        let evictions = Arc::new(AtomicU64::new(0));
        let options = OptionsBuilder::new()
            .shards(shards as usize)
            .estimated_items_capacity(items as usize)
            .weight_capacity(room_for_items(limits, false))
            .build()
            .expect("both capacities are given");
        Ok(Self {
            cache: Cache::with_options(
                options,
                ItemWeight,
                DefaultHashBuilder::default(),
                EvictionCount(evictions.clone()),
            ),
            write_locks: (0..WRITE_LOCKS).map(|_| Mutex::new(())).collect(),
            write_lock_hash: DefaultHashBuilder::default(),
            last_unique: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flush_due: AtomicU64::new(u64::MAX),
            evictions,
            stored: AtomicU64::new(0),
            partial: partial::Total::default(),
            squeezed: AtomicBool::new(false),
            resizing: Mutex::new(()),
            limits,
        })
    }

    /// The item of `key`, if it is alive.
    pub(crate) fn get(&self, key: &[u8], now: Moment) -> Lookup {
        self.flush_if_due(now);
        let Some(item) = self.cache.get(key) else {
            return Lookup::Miss;
        };
        if item.unique <= self.flushed.load(Ordering::Acquire) {
            return Lookup::Flushed;
        }
        if item.deadline <= now {
            self.cache.remove_if(key, |found| found.unique == item.unique && found.deadline <= now);
            return Lookup::Expired;
        }
        Lookup::Hit(item)
    }

    pub(crate) fn store(&self, new: NewItem, now: Moment) -> StoreOutcome {
        let _lock = self.write_lock(&new.key);
        if matches!(new.mode, StoreMode::Set) {
            self.flush_if_due(now);
            return self.put(new.key, new.value, new.flags, new.deadline, now);
        }
        let old = self.live(&new.key, now);
        match (new.mode, old) {
            (StoreMode::Set, _) | (StoreMode::Add, None) | (StoreMode::Replace, Some(_)) => {}
            (StoreMode::Add, Some(_))
            | (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => {
                return StoreOutcome::NotStored;
            }
            (StoreMode::Cas(_), None) => return StoreOutcome::NotFound,
            (StoreMode::Cas(unique), Some(old)) => {
                if unique != old.unique {
                    return StoreOutcome::Exists;
                }
            }
            (StoreMode::Append, Some(old)) => {
                return self.join(new.key, &old, &old.value, &new.value, now);
            }
            (StoreMode::Prepend, Some(old)) => {
                return self.join(new.key, &old, &new.value, &old.value, now);
            }
        }
        self.put(new.key, new.value, new.flags, new.deadline, now)
    }

    /// Charges a connection for what it holds of requests that have come in part; false if there is
    /// no room for that.
    pub(crate) fn charge(&self, charge: &mut Charge, bytes: usize) -> bool {
        let bytes = bytes as u64;
        if bytes == charge.bytes() {
            return true;
        }
        let most = self.limits.memory - room_for_items(self.limits, true);
        if !charge.set(bytes, &self.partial, most) {
            return false;
        }
        self.fit_items();
        true
    }

    /// Bytes that partial requests hold.
    pub(crate) fn partial_bytes(&self) -> u64 {
        self.partial.load(Ordering::SeqCst)
    }

    /// Gives items half of their room while partial requests need it, and all of it afterwards; not
    /// at once, since each squeeze evicts.
    fn fit_items(&self) {
        let share = self.limits.memory / PARTIAL_SHARE;
        let due = || {
            let bound = if self.squeezed.load(Ordering::SeqCst) { share / 4 } else { share };
            (self.partial_bytes() > bound) != self.squeezed.load(Ordering::SeqCst)
        };
        if !due() {
            return;
        }
        let _lock = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        if !due() {
            return;
        }
        if !self.squeezed.load(Ordering::SeqCst) {
            self.cache.set_capacity(room_for_items(self.limits, true));
            self.squeezed.store(true, Ordering::SeqCst);
            return;
        }
        // Stored before the total is read: a charge that comes too late for this read sees it and
        // waits for the lock.
        self.squeezed.store(false, Ordering::SeqCst);
        if self.partial_bytes() <= share {
            self.cache.set_capacity(room_for_items(self.limits, false));
        } else {
            self.squeezed.store(true, Ordering::SeqCst);
        }
    }

    /// Whether there was an item to delete.
    pub(crate) fn delete(&self, key: &[u8], now: Moment) -> bool {
        let _lock = self.write_lock(key);
        let found = self.live(key, now).is_some();
        self.cache.remove(key);
        found
    }

    /// Changes the number that an item's value is, and returns the new number.
    pub(crate) fn delta(&self, key: &[u8], delta: Delta, now: Moment) -> Result<u64, DeltaError> {
        let _lock = self.write_lock(key);
        let old = self.live(key, now).ok_or(DeltaError::NotFound)?;
        let number = leading_number(&old.value).ok_or(DeltaError::NotNumeric)?;
        let number = match delta {
            Delta::Increment(amount) => number.wrapping_add(amount),
            Delta::Decrement(amount) => number.saturating_sub(amount),
        };
        let mut value = itoa::Buffer::new().format(number).as_bytes().to_vec();
        // memcached writes over the old digits, so that a value never gets shorter.
        let length = value.len().max(old.value.len());
        value.resize(length, b' ');
        self.put(key.into(), value, old.flags, old.deadline, now);
        Ok(number)
    }

    /// Gives the item of `key` a new deadline, and returns the item.
    pub(crate) fn touch(&self, key: &[u8], deadline: Moment, now: Moment) -> Option<Item> {
        let _lock = self.write_lock(key);
        let mut item = self.live(key, now)?;
        item.deadline = deadline;
        self.cache.insert(key.into(), item.clone());
        Some(item)
    }

    /// Removes the item of `key` when a new value for it had to be refused: what is there is stale.
    pub(crate) fn forget(&self, key: &[u8]) {
        let _lock = self.write_lock(key);
        self.cache.remove(key);
    }

    /// Ends all items stored until `due`, in place of the flush that may be pending.
    pub(crate) fn flush(&self, due: Moment, now: Moment) {
        self.flush_due.store(due.0, Ordering::Release);
        self.flush_if_due(now);
    }

    /// Items held, those included that have expired and were not asked for since.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Bytes that the items take, keys and overhead included.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// Items removed to make room.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Items ever stored.
    pub(crate) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    fn live(&self, key: &[u8], now: Moment) -> Option<Item> {
        match self.get(key, now) {
            Lookup::Hit(item) => Some(item),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed => None,
        }
    }

    fn join(&self, key: Box<[u8]>, old: &Item, first: &[u8], second: &[u8], now: Moment) -> StoreOutcome {
        if first.len() + second.len() > self.limits.value {
            return StoreOutcome::TooLarge;
        }
        let value = [first, second].concat();
        self.put(key, value, old.flags, old.deadline, now)
    }

    /// Puts an item, with the key's lock held.
    fn put(&self, key: Box<[u8]>, value: Vec<u8>, flags: u32, deadline: Moment, now: Moment) -> StoreOutcome {
        if value.len() > self.limits.value {
            return StoreOutcome::TooLarge;
        }
        self.stored.fetch_add(1, Ordering::Relaxed);
        if deadline <= now {
            self.cache.remove(&key);
            return StoreOutcome::Stored;
        }
        self.fit_items();
        let unique = self.last_unique.fetch_add(1, Ordering::AcqRel) + 1;
        // With an owner, handing out the value never allocates; a plain `Bytes` does the first time.
        let value = Bytes::from_owner(value);
        self.cache.insert(key, Item { value, flags, unique, deadline });
        StoreOutcome::Stored
    }

    fn write_lock(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let lock = self.write_lock_hash.hash_one(key) as usize % self.write_locks.len();
        self.write_locks[lock].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush_if_due(&self, now: Moment) {
        let due = self.flush_due.load(Ordering::Acquire);
        if due > now.0 {
            return;
        }
        let claimed = self.flush_due.compare_exchange(due, u64::MAX, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_ok() {
            let last = self.last_unique.load(Ordering::Acquire);
            self.flushed.fetch_max(last, Ordering::AcqRel);
            self.cache.retain(|_, item| item.unique > last);
        }
    }
}

/// Bytes for items: all but the share of partial requests, or half of that.
fn room_for_items(limits: Limits, squeezed: bool) -> u64 {
    let room = limits.memory / PARTIAL_SHARE * (PARTIAL_SHARE - 1);
    if squeezed { room / 2 } else { room }
}

/// The number at the start of a value, as memcached reads it: with blanks before, and nothing or
/// blanks after.
fn leading_number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii_start();
    let end = digits.iter().position(u8::is_ascii_whitespace).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[derive(Clone)]
struct ItemWeight;

impl Weighter<Box<[u8]>, Item> for ItemWeight {
    fn weight(&self, key: &Box<[u8]>, item: &Item) -> u64 {
        (ITEM_OVERHEAD + key.len() + item.value.len()) as u64
    }
}

#[derive(Clone)]
struct EvictionCount(Arc<AtomicU64>);

impl Lifecycle<Box<[u8]>, Item> for EvictionCount {
    type RequestState = ();

    // Not `on_evict`, which is also called for an item that another one replaces.
    fn before_evict(&self, (): &mut (), _key: &Box<[u8]>, _item: &mut Item) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_000);
    const LIMITS: Limits = Limits { memory: 16 << 20, value: 1 << 20 };

    fn store_of(limits: Limits) -> Store {
        Store::new(limits).expect("limits that hold together")
    }

    fn item(mode: StoreMode, key: &str, value: &[u8]) -> NewItem {
        NewItem { mode, key: key.as_bytes().into(), value: value.into(), flags: 3, deadline: Moment::NEVER }
    }

    fn value(store: &Store, key: &str, now: Moment) -> Option<Vec<u8>> {
        store.live(key.as_bytes(), now).map(|item| item.value.to_vec())
    }

    #[test]
    fn modes_keep_their_conditions() {
        use StoreOutcome::*;
        let store = store_of(LIMITS);
        let run = |mode, text: &str| store.store(item(mode, "k", text.as_bytes()), NOW);
        assert_eq!(run(StoreMode::Replace, "x"), NotStored);
        assert_eq!(run(StoreMode::Append, "x"), NotStored);
        assert_eq!(run(StoreMode::Cas(1), "x"), NotFound);
        assert_eq!(run(StoreMode::Add, "b"), Stored);
        assert_eq!(run(StoreMode::Add, "x"), NotStored);
        assert_eq!(run(StoreMode::Append, "c"), Stored);
        assert_eq!(run(StoreMode::Prepend, "a"), Stored);
        assert_eq!(value(&store, "k", NOW).as_deref(), Some(&b"abc"[..]));
        let unique = store.live(b"k", NOW).expect("an item").unique;
        assert_eq!(run(StoreMode::Cas(unique + 1), "x"), Exists);
        assert_eq!(run(StoreMode::Cas(unique), "d"), Stored);
        assert_eq!(run(StoreMode::Cas(unique), "x"), Exists);
        assert_eq!(value(&store, "k", NOW).as_deref(), Some(&b"d"[..]));
    }

    #[test]
    fn items_expire_and_can_be_touched() {
        let store = store_of(LIMITS);
        let mut new = item(StoreMode::Set, "k", b"v");
        new.deadline = Moment(2_000);
        store.store(new, NOW);
        assert!(value(&store, "k", Moment(1_999)).is_some());
        assert!(store.touch(b"k", Moment(3_000), NOW).is_some());
        assert!(value(&store, "k", Moment(2_999)).is_some());
        assert!(matches!(store.get(b"k", Moment(3_000)), Lookup::Expired));
        assert!(matches!(store.get(b"k", Moment(3_000)), Lookup::Miss));
        assert_eq!(store.len(), 0);
    }

    #[test]
    fn a_flush_ends_what_was_stored_before_it() {
        let store = store_of(LIMITS);
        store.store(item(StoreMode::Set, "a", b"v"), NOW);
        store.flush(Moment(2_000), NOW);
        store.store(item(StoreMode::Set, "b", b"v"), NOW);
        assert!(value(&store, "a", Moment(1_999)).is_some());
        store.store(item(StoreMode::Set, "c", b"v"), Moment(2_000));
        for (key, alive) in [("a", false), ("b", false), ("c", true)] {
            assert_eq!(value(&store, key, Moment(2_000)).is_some(), alive, "{key}");
        }
        store.flush(NOW, NOW);
        assert_eq!(store.len(), 0);
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn numbers_wrap_saturate_and_keep_their_width() {
        let store = store_of(LIMITS);
        assert_eq!(store.delta(b"n", Delta::Increment(1), NOW), Err(DeltaError::NotFound));
        store.store(item(StoreMode::Set, "n", b"10"), NOW);
        assert_eq!(store.delta(b"n", Delta::Decrement(1), NOW), Ok(9));
        assert_eq!(value(&store, "n", NOW).as_deref(), Some(&b"9 "[..]));
        assert_eq!(store.delta(b"n", Delta::Increment(u64::MAX), NOW), Ok(8));
        assert_eq!(store.delta(b"n", Delta::Decrement(100), NOW), Ok(0));
        store.store(item(StoreMode::Set, "n", b"1x"), NOW);
        assert_eq!(store.delta(b"n", Delta::Increment(1), NOW), Err(DeltaError::NotNumeric));
        assert_eq!(leading_number(b" 7 8"), Some(7));
        assert_eq!(leading_number(b""), None);
        assert_eq!(leading_number(b"18446744073709551616"), None);
    }

    #[test]
    fn memory_stays_within_its_limit() {
        let store = store_of(Limits { memory: 1 << 20, value: 10_000 });
        for index in 0..2_000 {
            let stored = store.store(item(StoreMode::Set, &format!("key{index}"), &[7; 5_000]), NOW);
            assert_eq!(stored, StoreOutcome::Stored);
            assert!(value(&store, &format!("key{index}"), NOW).is_some());
            assert!(store.bytes() <= 1 << 20);
        }
        assert!(store.evictions() > 1_000);
        assert_eq!(store.evictions() + store.len() as u64, 2_000);
    }

    #[test]
    fn partial_requests_and_items_share_the_limit() {
        const MEMORY: u64 = 16 << 20;
        let store = store_of(Limits { memory: MEMORY, value: 100_000 });
        let fill = |store: &Store| {
            for index in 0..400 {
                store.store(item(StoreMode::Set, &format!("key{index}"), &[7; 50_000]), NOW);
                assert!(store.bytes() + store.partial_bytes() <= MEMORY);
            }
        };
        fill(&store);
        let full = store.bytes();
        assert!(full > MEMORY * 7 / 8, "{full}");
        for round in 0..3 {
            let mut held: Vec<Charge> = Vec::new();
            let refused = loop {
                let mut charge = Charge::default();
                if !store.charge(&mut charge, 100_000) {
                    break charge;
                }
                held.push(charge);
                assert!(store.bytes() + store.partial_bytes() <= MEMORY);
            };
            assert_eq!(refused.bytes(), 0);
            assert_eq!(store.partial_bytes(), held.len() as u64 * 100_000);
            assert!(store.partial_bytes() > MEMORY / 2 - 100_000, "{round}");
            // One that gives back makes room for another, and none is lost.
            assert!(store.charge(&mut held[0], 1));
            assert!(store.charge(&mut Charge::default(), 50_000));
            fill(&store);
            drop(held);
            assert_eq!(store.partial_bytes(), 0);
            fill(&store);
            assert!(store.bytes() > MEMORY * 7 / 8, "{round}: {}", store.bytes());
        }
    }

    #[test]
    fn growing_items_evict_others() {
        let store = store_of(Limits { memory: 1 << 20, value: 100_000 });
        for index in 0..1_000 {
            store.store(item(StoreMode::Set, &format!("key{index}"), b"v"), NOW);
        }
        for index in 0..1_000 {
            store.store(item(StoreMode::Append, &format!("key{index}"), &[7; 20_000]), NOW);
            assert!(store.bytes() <= 1 << 20);
        }
    }

    #[test]
    fn values_have_a_greatest_size() {
        let store = store_of(Limits { memory: 1 << 20, value: 100 });
        assert_eq!(store.store(item(StoreMode::Set, "k", &[7; 101]), NOW), StoreOutcome::TooLarge);
        assert_eq!(store.store(item(StoreMode::Set, "k", &[7; 100]), NOW), StoreOutcome::Stored);
        assert_eq!(store.store(item(StoreMode::Append, "k", b"x"), NOW), StoreOutcome::TooLarge);
        assert_eq!(value(&store, "k", NOW).map(|value| value.len()), Some(100));
    }

    #[test]
    fn limits_that_cannot_hold_are_refused() {
        let refused = Store::new(Limits { memory: 1 << 20, value: 1 << 20 });
        assert!(refused.is_err_and(|error| error.to_string().contains("9 MiB")));
    }

    #[test]
    fn concurrent_writers_lose_no_update() {
        let store = store_of(LIMITS);
        store.store(item(StoreMode::Set, "n", b"0"), NOW);
        store.store(item(StoreMode::Set, "text", b""), NOW);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        store.delta(b"n", Delta::Increment(1), NOW).expect("a number");
                        store.store(item(StoreMode::Append, "text", b"x"), NOW);
                    }
                });
            }
        });
        assert_eq!(value(&store, "n", NOW).as_deref(), Some(&b"2000"[..]));
        assert_eq!(value(&store, "text", NOW).map(|text| text.len()), Some(2_000));
    }
}
