//! Hot connections: those whose rings a channel looks at while it is awake, instead of waiting for
//! bells.

use std::time::Duration;

use super::Promoter;
use crate::channel::Channel;
use crate::completion::Completion;
use crate::core::Core;
use crate::id::Handle;
use crate::lane::Listening;
use crate::now::Now;

/// Rings that are looked at while the channel is awake; more would cost the awake ones.
const HOT_MAX: usize = 64;

/// Sleeps of the channel without anything new on it after which a connection is cold.
const COOLING: u8 = 4;

/// So much time counts as one sleep: a channel that never sleeps would look at quiet
/// rings for ever otherwise, at the cost of the busy ones.
const COOLS_EVERY: Duration = Duration::from_millis(1);

impl Promoter {
    fn sleep(&mut self) {
        self.own_loops.sleep();
    }

    fn wake(&self) {
        self.own_loops.wake();
    }

    /// Looks at what became hot; what was hot for the longest gives way to it.
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

/// Has a connection wait for bells. True if something came meanwhile: it stays hot.
fn cool(core: &mut Core, handle: Handle) -> bool {
    let listening = core.listening(handle.index);
    let Some(entry) = core.handles.get_mut(handle.index, handle.generation) else { return false };
    let Some(lane) = entry.lane.as_deref_mut() else { return false };
    lane.hot = match listening {
        // What only waits for a free buffer is looked at again.
        Listening::Yes => lane.has_stash() || lane.arm(),
        Listening::Deaf => true,
        Listening::No => {
            lane.mute();
            false
        }
    };
    lane.hot
}

/// Before a sleep: a bell that nobody hears must not stand for those of other connections.
fn mute_deaf(core: &mut Core, promoter: &mut Promoter) {
    promoter.hot.retain(|handle| {
        let listening = core.listening(handle.index);
        let entry = core.handles.get_mut(handle.index, handle.generation);
        let Some(lane) = entry.and_then(|entry| entry.lane.as_deref_mut()) else { return false };
        if listening != Listening::Yes && !lane.muted {
            lane.mute();
        } else if listening == Listening::Yes && lane.muted {
            lane.connection.disarm();
        }
        lane.muted = listening == Listening::Deaf;
        lane.hot = listening != Listening::No;
        lane.hot
    });
}

impl Channel {
    /// Something from a hot ring, if anything is there.
    #[inline(always)]
    pub(crate) fn next_from_rings(&mut self) -> Option<Completion> {
        let promoter = self.promoter.as_deref_mut()?;
        promoter.take_heated(&mut self.core);
        for _ in 0..promoter.hot.len() {
            if promoter.cursor >= promoter.hot.len() {
                promoter.cursor = 0;
            }
            let handle = promoter.hot[promoter.cursor];
            let found = self.core.lane_next(handle);
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

    /// Has hot connections of a channel that does not sleep turn cold as a sleep would.
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
        promoter.hot.retain(|&handle| match self.core.lane(handle.index) {
            Some(lane) if lane.sleeps < COOLING => {
                lane.sleeps += 1;
                true
            }
            _ => cool(&mut self.core, handle),
        });
    }

    /// Whether anything new lies in a hot ring.
    pub(crate) fn news_in_rings(&mut self) -> bool {
        let Some(promoter) = &self.promoter else { return false };
        promoter.hot.iter().any(|handle| self.core.lane_has_news(handle.index))
    }

    /// Whether rings are looked at while the channel is awake.
    #[inline]
    pub(crate) fn has_hot_rings(&self) -> bool {
        self.promoter().is_some_and(|promoter| !promoter.hot.is_empty() || !self.core.heated.is_empty())
    }

    /// Whether any connection has a ring, looked at or not.
    pub(crate) fn has_rings(&self) -> bool {
        self.promoter().is_some_and(|promoter| promoter.own_loops.are_used())
    }

    /// Before a sleep: lets everyone know, cools what has been quiet, and looks once more.
    /// False if there is news, and no reason to sleep.
    #[inline]
    pub(crate) fn go_to_sleep(&mut self) -> bool {
        !self.core.met_monitor || self.tell_of_sleep()
    }

    fn tell_of_sleep(&mut self) -> bool {
        let Some(promoter) = self.promoter.as_deref_mut() else { return true };
        promoter.take_heated(&mut self.core);
        mute_deaf(&mut self.core, promoter);
        promoter.sleep();
        let mut news = false;
        let mut place = 0;
        while place < promoter.hot.len() {
            let handle = promoter.hot[place];
            if let Some(lane) = self.core.lane(handle.index) {
                lane.connection.publish_counts();
            }
            if self.core.lane_has_news(handle.index) {
                news = true;
                break;
            }
            let cools = match self.core.handles.get_mut(handle.index, handle.generation) {
                Some(entry) => entry.lane.as_deref_mut().is_none_or(|lane| {
                    lane.sleeps = lane.sleeps.saturating_add(1);
                    lane.sleeps > COOLING
                }),
                None => true,
            };
            if cools && !cool(&mut self.core, handle) {
                promoter.hot.swap_remove(place);
            } else {
                place += 1;
            }
        }
        if news {
            promoter.wake();
        }
        !news
    }

    /// After a sleep.
    #[inline]
    pub(crate) fn woke_up(&mut self) {
        if let Some(promoter) = self.promoter() {
            promoter.wake();
        }
    }
}
