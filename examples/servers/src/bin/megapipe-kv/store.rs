//! The items: what memcached's commands mean, on top of a concurrent cache, which evicts.
//!
//! Readers touch only the cache. Writers of a key also take its lock, of a fixed set:
//! what they read of the old item still holds when they put the new one.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// The largest value, in bytes.
pub(crate) const VALUE_MAX: usize = 1 << 20;

/// Bytes an item takes besides its key and value: its places in the cache, and the
/// headers of its allocations.
const ITEM_OVERHEAD: usize = size_of::<Box<[u8]>>() + size_of::<Item>() + 120;

/// Room that a part of the cache, under a lock of its own, must have so that eviction
/// makes room for any item.
const SHARD_MIN: u64 = 4 * (VALUE_MAX as u64 + 1024);
const SHARDS_MAX: u64 = 256;

const LOCKS: usize = 256;

/// Exptimes above this many seconds are seconds since the epoch (protocol.txt,
/// "Expiration times").
const RELATIVE_MAX: u64 = 60 * 60 * 24 * 30;

/// One item. A clone shares the value.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) value: Bytes,
    pub(crate) flags: u32,
    pub(crate) unique: u64,
    /// When it expires; never if there is none.
    pub(crate) deadline: Option<Instant>,
}

impl Item {
    fn is_alive(&self, now: Instant) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }
}

/// The items.
pub(crate) struct Store {
    cache: Cache<Box<[u8]>, Item, ItemWeight>,
    locks: [Mutex<()>; LOCKS],
    lock_hash: DefaultHashBuilder,
    last_unique: AtomicU64,
}

impl Store {
    /// A store whose items take so many bytes of memory, keys and overhead included.
    pub(crate) fn new(memory: u64) -> Self {
        let shards = 1 << (memory / SHARD_MIN).clamp(1, SHARDS_MAX).ilog2();
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity((memory / 512) as usize)
            .weight_capacity(memory)
            .build()
            .expect("both capacities are given");
        let (hash, lock_hash) = <(DefaultHashBuilder, DefaultHashBuilder)>::default();
        let cache = Cache::with_options(options, ItemWeight, hash, DefaultLifecycle::default());
        let locks = [const { Mutex::new(()) }; LOCKS];
        Self { cache, locks, lock_hash, last_unique: AtomicU64::new(0) }
    }

    /// A new item, which is not stored yet.
    pub(crate) fn item(&self, value: Vec<u8>, flags: u32, deadline: Option<Instant>) -> Item {
        let unique = self.last_unique.fetch_add(1, Ordering::Relaxed) + 1;
        // With an owner, handing out the value never allocates; a plain `Bytes` does the
        // first time.
        Item { value: Bytes::from_owner(value), flags, unique, deadline }
    }

    pub(crate) fn get(&self, key: &[u8], now: Instant) -> Option<Item> {
        self.cache.get(key).filter(|item| item.is_alive(now))
    }

    pub(crate) fn set(&self, key: &[u8], item: Item) {
        let _lock = self.lock(key);
        self.cache.insert(key.into(), item);
    }

    /// Puts what `change` makes of the item of this key, without another thread in
    /// between; its error is returned.
    pub(crate) fn update<E>(
        &self,
        key: &[u8],
        now: Instant,
        change: impl FnOnce(Option<Item>) -> Result<Item, E>,
    ) -> Result<(), E> {
        let _lock = self.lock(key);
        self.cache.insert(key.into(), change(self.get(key, now))?);
        Ok(())
    }

    /// Whether there was an item.
    pub(crate) fn delete(&self, key: &[u8], now: Instant) -> bool {
        let _lock = self.lock(key);
        self.cache.remove(key).is_some_and(|(_, item)| item.is_alive(now))
    }

    fn lock(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let lock = self.lock_hash.hash_one(key) as usize % LOCKS;
        self.locks[lock].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.cache.clear();
    }

    /// Items held, those included that have expired and were not replaced since.
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Bytes that the items take, and may take.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.cache.capacity())
    }
}

/// When something ends that is given this exptime `now`: 0 is never, negative is at once.
pub(crate) fn deadline(exptime: i64, now: Instant) -> Option<Instant> {
    let after = match u64::try_from(exptime) {
        Err(_) => Duration::ZERO,
        Ok(0) => return None,
        Ok(seconds @ ..=RELATIVE_MAX) => Duration::from_secs(seconds),
        Ok(seconds) => {
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Duration::from_secs(seconds).saturating_sub(unix)
        }
    };
    // Later than a clock can count is never.
    now.checked_add(after)
}

#[derive(Clone)]
struct ItemWeight;

impl Weighter<Box<[u8]>, Item> for ItemWeight {
    fn weight(&self, key: &Box<[u8]>, item: &Item) -> u64 {
        (ITEM_OVERHEAD + key.len() + item.value.len()) as u64
    }
}
