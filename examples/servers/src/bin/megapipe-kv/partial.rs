//! Memory of requests that have come in part: values and lines that wait for their rest, and keys
//! that wait for a client to read. One counter for all threads, which the store's limit includes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that partial requests hold, in all threads.
pub(crate) type Total = Arc<AtomicU64>;

/// What one connection holds of the total; given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    bytes: u64,
    total: Option<Total>,
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes what is held; false, with nothing changed, if the total would exceed `most`.
    pub(crate) fn set(&mut self, bytes: u64, total: &Total, most: u64) -> bool {
        let added = bytes.saturating_sub(self.bytes);
        if added > 0 && total.fetch_add(added, Ordering::SeqCst) + added > most {
            total.fetch_sub(added, Ordering::SeqCst);
            return false;
        }
        total.fetch_sub(self.bytes.saturating_sub(bytes), Ordering::SeqCst);
        self.bytes = bytes;
        self.total.get_or_insert_with(|| Arc::clone(total));
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(total) = &self.total {
            total.fetch_sub(self.bytes, Ordering::SeqCst);
        }
    }
}
