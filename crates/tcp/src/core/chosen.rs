//! What programs have chosen for single connections, which few do: apart from what every connection
//! has.

use std::time::Duration;

use super::Stack;
use super::seq::Seq;
use crate::config::{KeepAlive, Marking};
use crate::control::Control;
use crate::event::Failure;
use crate::time::Time;

/// Of one connection; `None` is as the host has it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chosen {
    /// How long bytes may stay unacknowledged, or unsent for the peer's window.
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) marking: Marking,
    /// Where the peer's window holds bytes back, and since when.
    held: Option<(Seq, Time)>,
    /// What may end it: the network or the silence of the peer.
    pub(crate) trouble: Option<Failure>,
}

const NOTHING: Chosen =
    Chosen { user_timeout: None, keep_alive: None, marking: Marking::HOST, held: None, trouble: None };

/// By the flow's slot, as far as the highest that has an entry. Reserved at its bound, and nothing is
/// written before there is one.
pub(crate) struct Choices(Vec<Chosen>);

impl Choices {
    pub(crate) fn new(bound: usize) -> Choices {
        Choices(Vec::with_capacity(bound))
    }

    pub(crate) fn of(&self, slot: u32) -> &Chosen {
        self.0.get(slot as usize).unwrap_or(&NOTHING)
    }

    pub(crate) fn of_mut(&mut self, slot: u32) -> &mut Chosen {
        let slot = slot as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, NOTHING);
        }
        &mut self.0[slot]
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
        if let Some(chosen) = self.0.get_mut(slot as usize) {
            *chosen = NOTHING;
        }
    }
}

impl<C: Control> Stack<C> {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# (d) An application MUST (MUST-21) be able to set the value for R2 for a particular connection.
    /// How long bytes may stay unacknowledged.
    pub(crate) fn patience(&self, slot: u32) -> Duration {
        self.choices.of(slot).user_timeout.unwrap_or(self.profile.give_up)
    }

    pub(crate) fn keep_alive(&self, slot: u32) -> KeepAlive {
        let chosen = self.choices.of(slot).keep_alive.unwrap_or(KeepAlive {
            idle: self.profile.keep_alive,
            interval: self.profile.keep_alive_interval,
            probes: self.profile.probes,
        });
        chosen.within_bounds()
    }

    /// Whether keep-alive probes have been unanswered for too long: a user timeout decides before
    /// their number does, as with Linux.
    pub(crate) fn is_silent_for_too_long(&self, slot: u32) -> bool {
        let KeepAlive { idle, interval, probes } = self.keep_alive(slot);
        let unanswered = self.flows[slot].probes;
        match self.choices.of(slot).user_timeout {
            Some(most) => unanswered > 0 && idle + interval * u32::from(unanswered) >= most,
            None => unanswered >= probes,
        }
    }

    /// Whether the peer's window has held back the next byte for longer than the user timeout, also
    /// by a peer that answers probes: the program has chosen to wait no longer.
    pub(crate) fn is_held_for_too_long(&mut self, now: Time, slot: u32) -> bool {
        let Some(most) = self.choices.of(slot).user_timeout else { return false };
        let at = self.flows[slot].snd_nxt;
        let chosen = self.choices.of_mut(slot);
        match chosen.held {
            Some((held, since)) if held == at => now.since(since) >= most,
            _ => {
                chosen.held = Some((at, now));
                false
            }
        }
    }

    /// When that will be, if it is.
    pub(crate) fn held_until(&self, slot: u32) -> Option<Time> {
        let chosen = self.choices.of(slot);
        let (at, since) = chosen.held?;
        let most = chosen.user_timeout.filter(|_| at == self.flows[slot].snd_nxt)?;
        Some(since.after(most))
    }
}
