//! Endpoints whose programs will not offer them: an offer of the peer is refused with their reason.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use promote::Reason;
use sys::tcp::End;

use crate::offers::Place;

/// Both endpoints of a connection count the same messages, so the peer's offer is near.
const KEPT_FOR: Duration = Duration::from_secs(10);
const MOST: usize = 4096;

/// The last of them.
#[derive(Default)]
pub(crate) struct Declined {
    reasons: HashMap<Place, Reason>,
    order: VecDeque<(Instant, Place)>,
}

impl Declined {
    pub(crate) fn keep(&mut self, end: &End, reason: Reason, now: Instant) {
        let is_due = |at: &Instant| now >= *at + KEPT_FOR;
        while self.order.len() >= MOST || self.order.front().is_some_and(|(at, _)| is_due(at)) {
            self.order.pop_front().map(|(_, place)| self.reasons.remove(&place));
        }
        let place = Place::of(end);
        if self.reasons.insert(place, reason).is_none() {
            self.order.push_back((now, place));
        }
    }

    /// Why the peer of an endpoint is not offered.
    pub(crate) fn of_peer(&self, end: &End) -> Option<Reason> {
        self.reasons.get(&Place::of(end).mirrored()).copied()
    }
}
