//! Hot connections: the channel polls their rings while it is awake, and asks for no
//! wake-ups.

use std::time::Duration;

use super::Promoter;
use crate::channel::Channel;
use crate::completion::Completion;
use crate::core::Core;
use crate::id::Handle;
use crate::now::Now;
use crate::promoted::ReaderState;

/// Rings polled while the channel is awake; more would delay the busy ones.
const HOT_MAX: usize = 64;

/// Sleeps of the channel without bytes on a connection, after which it is cold.
const COOLING: u8 = 4;

/// This time counts as one sleep: a channel that never sleeps would poll quiet rings for
/// ever otherwise, at the cost of the busy ones.
const COOLS_EVERY: Duration = Duration::from_millis(1);

impl Promoter {
    fn sleep(&mut self) {
        self.own_loops.sleep();
    }

    fn wake(&self) {
        self.own_loops.wake();
    }

    /// Adds what became hot to the polled rings, in place of those that have been hot for
    /// the longest.
    #[inline(always)]
    pub(super) fn take_heated(&mut self, core: &mut Core) {
        if !core.heated.is_empty() {
            self.take_all_heated(core);
        }
    }

    #[cold]
    fn take_all_heated(&mut self, core: &mut Core) {
        while let Some(handle) = core.heated.pop() {
            if self.hot.len() >= HOT_MAX {
                let place = self.cursor % self.hot.len();
                let coldest = self.hot.swap_remove(place);
                if cool(core, coldest) {
                    self.hot.push(coldest);
                }
            }
            self.hot.push(handle);
        }
    }
}

/// Stops polling a connection and asks for wake-ups. True if bytes came meanwhile: it
/// stays hot.
fn cool(core: &mut Core, handle: Handle) -> bool {
    let reader_state = core.reader_state(handle.index);
    let Some(entry) = core.handles.get_mut(handle.index, handle.generation) else { return false };
    let Some(promoted) = entry.promoted.as_deref_mut() else { return false };
    promoted.hot = match reader_state {
        // Bytes that only wait for a free buffer are polled for again.
        ReaderState::Reading => promoted.has_kernel_bytes() || promoted.arm(),
        ReaderState::Blocked => true,
        ReaderState::Absent => {
            promoted.mask();
            false
        }
    };
    promoted.hot
}

/// Before a sleep: masks connections that cannot be read. An unread wake-up of one would
/// otherwise count as sent for all connections of the peer.
fn mask_blocked(core: &mut Core, promoter: &mut Promoter) {
    promoter.hot.retain(|handle| {
        let reader_state = core.reader_state(handle.index);
        let entry = core.handles.get_mut(handle.index, handle.generation);
        let Some(promoted) = entry.and_then(|entry| entry.promoted.as_deref_mut()) else { return false };
        if reader_state != ReaderState::Reading && !promoted.masked {
            promoted.mask();
        } else if reader_state == ReaderState::Reading && promoted.masked {
            promoted.connection.disarm();
        }
        promoted.masked = reader_state == ReaderState::Blocked;
        promoted.hot = reader_state != ReaderState::Absent;
        promoted.hot
    });
}

impl Channel {
    /// The next completion from a hot ring, if there is one.
    #[inline(always)]
    pub(crate) fn next_from_rings(&mut self) -> Option<Completion> {
        let promoter = self.promoter.as_deref_mut()?;
        promoter.take_heated(&mut self.core);
        for _ in 0..promoter.hot.len() {
            if promoter.cursor >= promoter.hot.len() {
                promoter.cursor = 0;
            }
            let handle = promoter.hot[promoter.cursor];
            let found = self.core.next_of_promoted(handle);
            if found.is_some() {
                promoter.cursor += 1;
                return found;
            }
            match self.core.handles.get(handle.index, handle.generation) {
                Some(_) => promoter.cursor += 1,
                None => _ = promoter.hot.swap_remove(promoter.cursor),
            }
        }
        None
    }

    /// Cools quiet connections of a channel that does not sleep, as a sleep would.
    #[inline]
    pub(crate) fn cool_quiet(&mut self, now: &Now) {
        if !self.has_hot_rings() {
            return;
        }
        let Some(promoter) = self.promoter.as_deref_mut() else { return };
        let now = now.get();
        if now.saturating_duration_since(promoter.cooled) < COOLS_EVERY {
            return;
        }
        promoter.cooled = now;
        promoter.hot.retain(|&handle| match self.core.promoted(handle.index) {
            Some(promoted) if promoted.sleeps < COOLING => {
                promoted.sleeps += 1;
                true
            }
            _ => cool(&mut self.core, handle),
        });
    }

    /// Whether a read of a hot ring would return something.
    pub(crate) fn rings_are_ready(&mut self) -> bool {
        let Some(promoter) = &self.promoter else { return false };
        promoter.hot.iter().any(|handle| self.core.promoted_is_ready(handle.index))
    }

    /// Whether the channel polls rings while it is awake.
    #[inline]
    pub(crate) fn has_hot_rings(&self) -> bool {
        self.promoter().is_some_and(|promoter| !promoter.hot.is_empty() || !self.core.heated.is_empty())
    }

    /// Whether any connection has a ring, hot or cold.
    pub(crate) fn has_rings(&self) -> bool {
        self.promoter().is_some_and(|promoter| promoter.own_loops.are_used())
    }

    /// Before a sleep: publishes it, cools quiet connections, and polls once more. False
    /// if something came: the channel does not sleep.
    #[inline]
    pub(crate) fn go_to_sleep(&mut self) -> bool {
        !self.core.found_monitor || self.publish_sleep()
    }

    fn publish_sleep(&mut self) -> bool {
        let Some(promoter) = self.promoter.as_deref_mut() else { return true };
        promoter.take_heated(&mut self.core);
        mask_blocked(&mut self.core, promoter);
        promoter.sleep();
        let mut ready = false;
        let mut place = 0;
        while place < promoter.hot.len() {
            let handle = promoter.hot[place];
            if let Some(promoted) = self.core.promoted(handle.index) {
                promoted.connection.publish_counts();
            }
            if self.core.promoted_is_ready(handle.index) {
                ready = true;
                break;
            }
            let cools = match self.core.handles.get_mut(handle.index, handle.generation) {
                Some(entry) => entry.promoted.as_deref_mut().is_none_or(|promoted| {
                    promoted.sleeps = promoted.sleeps.saturating_add(1);
                    promoted.sleeps > COOLING
                }),
                None => true,
            };
            if cools && !cool(&mut self.core, handle) {
                promoter.hot.swap_remove(place);
            } else {
                place += 1;
            }
        }
        if ready {
            promoter.wake();
        }
        !ready
    }

    /// After a sleep.
    #[inline]
    pub(crate) fn woke_up(&mut self) {
        if let Some(promoter) = self.promoter() {
            promoter.wake();
        }
    }
}
