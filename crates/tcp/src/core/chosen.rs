//! What programs have chosen for single connections, which few do: apart from what every connection
//! has.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Stack;
use super::seq::Seq;
use crate::config::{DAY, KeepAlive, Marking};
use crate::control::Control;
use crate::event::Failure;
use crate::time::Time;

/// Up to a day, and at least a millisecond.
#[derive(Clone, Copy, PartialEq)]
struct Millis(NonZeroU32);

impl Millis {
    fn of(time: Duration) -> Millis {
        let millis = time.min(DAY).as_micros().div_ceil(1000) as u32;
        Millis(NonZeroU32::new(millis).unwrap_or(NonZeroU32::MIN))
    }

    fn time(self) -> Duration {
        Duration::from_millis(self.0.get().into())
    }
}

/// Keep-alive times.
#[derive(Clone, Copy, PartialEq)]
struct Probing {
    idle: Millis,
    interval: Millis,
    probes: u8,
}

/// Of one connection; `None` is as the host has it.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    slot: u32,
    /// How long bytes may stay unacknowledged, or unsent for the peer's window.
    user_timeout: Option<Millis>,
    keep_alive: Option<Probing>,
    pub(crate) marking: Marking,
    /// Sizes of the buffers, in bytes; 0: they grow.
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    /// The largest segment that is offered and sent; `ANY_SEGMENT`: what the path takes.
    pub(crate) max_segment: u16,
    /// Less than a full segment waits for more.
    pub(crate) cork: bool,
    /// Where the peer's window holds bytes back, and since which millisecond.
    held: Option<(Seq, NonZeroU32)>,
    /// What may end it: the network or the silence of the peer.
    pub(crate) trouble: Option<Failure>,
}

/// No largest segment is chosen; and the least that can be, as with Linux.
pub(crate) const ANY_SEGMENT: u16 = u16::MAX;
pub(crate) const MAX_SEGMENT_LEAST: u16 = 88;

const NOTHING: Chosen = Chosen {
    slot: 0,
    user_timeout: None,
    keep_alive: None,
    marking: Marking::HOST,
    receive_buffer: 0,
    send_buffer: 0,
    max_segment: ANY_SEGMENT,
    cork: false,
    held: None,
    trouble: None,
};

/// Reserved at its bound. What is written grows with the connections that have an entry, whatever their
/// slots are.
pub(crate) struct Choices {
    /// By the flow's slot: 0, or one more than where its entry is.
    places: Vec<u32>,
    entries: Vec<Chosen>,
}

impl Choices {
    pub(crate) fn new(bound: usize) -> Choices {
        Choices { places: vec![0; bound], entries: Vec::with_capacity(bound) }
    }

    #[inline]
    pub(crate) fn of(&self, slot: u32) -> &Chosen {
        if self.entries.is_empty() {
            return &NOTHING;
        }
        match self.places[slot as usize] {
            0 => &NOTHING,
            place => &self.entries[place as usize - 1],
        }
    }

    pub(crate) fn of_mut(&mut self, slot: u32) -> &mut Chosen {
        let place = &mut self.places[slot as usize];
        if *place == 0 {
            self.entries.push(Chosen { slot, ..NOTHING });
            *place = self.entries.len() as u32;
        }
        &mut self.entries[*place as usize - 1]
    }

    /// Sets one of these. What is chosen already needs no entry.
    pub(crate) fn change<T: PartialEq>(&mut self, slot: u32, of: fn(&mut Chosen) -> &mut T, value: T) {
        let mut chosen = *self.of(slot);
        if *of(&mut chosen) != value {
            *of(self.of_mut(slot)) = value;
        }
    }

    /// For a new connection in this slot.
    pub(crate) fn forget(&mut self, slot: u32) {
        let place = self.places[slot as usize];
        if place == 0 {
            return;
        }
        self.places[slot as usize] = 0;
        let at = place as usize - 1;
        self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            self.places[moved.slot as usize] = place;
        }
    }
}

impl<C: Control> Stack<C> {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# (d) An application MUST (MUST-21) be able to set the value for R2 for a particular connection.
    /// How long bytes may stay unacknowledged.
    pub(crate) fn patience(&self, slot: u32) -> Duration {
        self.user_timeout(slot).unwrap_or(self.profile.give_up)
    }

    /// The largest segment that a connection takes and sends: as the program has chosen, and as the
    /// path does.
    pub(crate) fn own_mss(&self, slot: u32) -> u16 {
        self.path_mss(&self.flows[slot].tuple).min(self.choices.of(slot).max_segment)
    }

    /// The same, where the program has chosen it.
    pub(crate) fn user_timeout(&self, slot: u32) -> Option<Duration> {
        self.choices.of(slot).user_timeout.map(Millis::time)
    }

    pub(crate) fn choose_user_timeout(&mut self, slot: u32, time: Option<Duration>) {
        self.choices.change(slot, |chosen| &mut chosen.user_timeout, time.map(Millis::of));
    }

    pub(crate) fn choose_keep_alive(&mut self, slot: u32, times: Option<KeepAlive>) {
        let times = times.map(KeepAlive::within_bounds).map(|KeepAlive { idle, interval, probes }| Probing {
            idle: Millis::of(idle),
            interval: Millis::of(interval),
            probes,
        });
        self.choices.change(slot, |chosen| &mut chosen.keep_alive, times);
    }

    pub(crate) fn keep_alive(&self, slot: u32) -> KeepAlive {
        let times = match self.choices.of(slot).keep_alive {
            Some(Probing { idle, interval, probes }) => {
                KeepAlive { idle: idle.time(), interval: interval.time(), probes }
            }
            None => KeepAlive {
                idle: self.profile.keep_alive,
                interval: self.profile.keep_alive_interval,
                probes: self.profile.probes,
            },
        };
        times.within_bounds()
    }

    /// Whether keep-alive probes have been unanswered for too long: a user timeout decides before
    /// their number does, as with Linux.
    pub(crate) fn is_silent_for_too_long(&self, slot: u32) -> bool {
        let KeepAlive { idle, interval, probes } = self.keep_alive(slot);
        let unanswered = self.flows[slot].probes;
        match self.user_timeout(slot) {
            Some(most) => unanswered > 0 && idle + interval * u32::from(unanswered) >= most,
            None => unanswered >= probes,
        }
    }

    /// Whether the peer's window has held back the next byte for longer than the user timeout, also
    /// by a peer that answers probes: the program has chosen to wait no longer.
    pub(crate) fn is_held_for_too_long(&mut self, now: Time, slot: u32) -> bool {
        let Some(most) = self.user_timeout(slot) else { return false };
        let at = self.flows[slot].snd_nxt;
        let chosen = self.choices.of_mut(slot);
        match chosen.held {
            Some((held, since)) if held == at => begun(now, since).after(most) <= now,
            _ => {
                chosen.held = Some((at, millisecond(now)));
                false
            }
        }
    }

    /// When that will be, if it is.
    pub(crate) fn held_until(&self, slot: u32) -> Option<Time> {
        let chosen = self.choices.of(slot);
        let (at, since) = chosen.held?;
        let most = self.user_timeout(slot).filter(|_| at == self.flows[slot].snd_nxt)?;
        Some(begun(self.now, since).after(most))
    }
}

/// Of the caller's clock, modulo 2^32.
fn millisecond(now: Time) -> NonZeroU32 {
    NonZeroU32::new((now.micros() / 1000) as u32).unwrap_or(NonZeroU32::MIN)
}

/// The last moment that was in this millisecond.
fn begun(now: Time, since: NonZeroU32) -> Time {
    let ago = millisecond(now).get().wrapping_sub(since.get());
    Time::from_micros((now.micros() / 1000).saturating_sub(ago.into()) * 1000)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    /// Resident pages of the process.
    fn resident() -> usize {
        let sizes = fs::read_to_string("/proc/self/statm").expect("Linux");
        sizes.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
    }

    /// The first entry costs little, however many connections there may be: errors of the network make
    /// entries.
    #[test]
    fn an_entry_costs_little() {
        const BOUND: u32 = 1 << 20;
        let mut choices = Choices::new(BOUND as usize);
        let before = resident();
        choices.of_mut(BOUND - 1).trouble = Some(Failure::Unreachable);
        // Other tests of this process take less than that.
        let pages = resident().saturating_sub(before);
        assert!(pages < 8_192, "{pages} pages");
        assert_eq!(choices.of(BOUND - 1).trouble, Some(Failure::Unreachable));
    }

    proptest! {
        /// Each slot has what was chosen for it since it was last forgotten, and nothing else has an entry.
        #[test]
        fn entries_are_those_of_their_slots(
            steps in prop::collection::vec((0..8u32, prop::option::of(1..255u8)), 0..100),
        ) {
            let mut choices = Choices::new(8);
            let mut expected = BTreeMap::new();
            for (slot, limit) in steps {
                match limit {
                    Some(_) => {
                        let marking = Marking { traffic_class: 0, hop_limit: limit };
                        choices.change(slot, |chosen| &mut chosen.marking, marking);
                        expected.insert(slot, limit);
                    }
                    None => {
                        choices.forget(slot);
                        expected.remove(&slot);
                    }
                }
                for slot in 0..8 {
                    let limit = expected.get(&slot).copied().flatten();
                    prop_assert_eq!(choices.of(slot).marking.hop_limit, limit);
                }
                prop_assert_eq!(choices.entries.len(), expected.len());
            }
        }
    }
}
