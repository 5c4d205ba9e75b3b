//! How much of the congestion window is used, and how fast.

use super::seq::{Seq, Span};
use crate::control::Window;
use crate::time::Time;

/// The most that was in flight within a round trip: a window that is not used says nothing of the
/// path, and does not grow (RFC 7661, 4.1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    most: u32,
    /// The window has held something back.
    limited: bool,
    /// The round is over when this is acknowledged.
    until: Option<Seq>,
}

impl Usage {
    /// Something was sent up to `nxt`, with so much in flight then.
    pub(crate) fn sent(&mut self, una: Seq, nxt: Seq, flight: u32, limited: bool) {
        let over = self.until.is_none_or(|until| until.upto(una));
        if over || limited || !self.limited && flight > self.most {
            *self = Usage { most: flight, limited, until: Some(nxt) };
        }
    }

    /// Whether the window may grow. In slow start it has to be far ahead of what is in flight, since it
    /// doubles.
    pub(crate) fn may_grow(&self, window: &Window) -> bool {
        let slow_start = window.congestion < window.threshold;
        self.limited || slow_start && window.congestion / 2 < self.most
    }
}

/// The most that was in flight lately: how much of its window a flow is known to use, round trip by round trip
/// (pipeACK of RFC 7661, 4.2, by what was sent and not by what came back).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pipe {
    /// In this period and in the one before.
    most: u32,
    before: u32,
    /// The millisecond in which it began, modulo 2^32.
    begun: u32,
    /// Since which second less than half of the window is used; 0: it is used.
    unused: u32,
}

/// Milliseconds of a period at least (RFC 7661, 4.2: the pipeACK sampling period).
const PERIOD_MILLIS: u32 = 1_000;
/// For so many seconds a window that is not used is kept (RFC 7661, 4.4: the non-validated period).
const KEPT_SECONDS: u32 = 300;

impl Pipe {
    /// So much is in flight. Returns whether the window was not used for too long.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, flight: u32, window: &Window, srtt: u32) -> bool {
        let millis = (now.micros() / 1_000) as u32;
        let elapsed = millis.wrapping_sub(self.begun);
        let is_idle = elapsed >= PERIOD_MILLIS && self.period_ends(millis, elapsed, window, srtt);
        self.most = self.most.max(flight);
        is_idle
    }

    #[inline(never)]
    fn period_ends(&mut self, millis: u32, elapsed: u32, window: &Window, srtt: u32) -> bool {
        let period = PERIOD_MILLIS.max(srtt / 1_000 * 3);
        if elapsed < period {
            return false;
        }
        let is_used = self.uses(window);
        // After a silence the last period is none any more.
        self.before = if elapsed < 2 * period { self.most } else { 0 };
        (self.most, self.begun) = (0, millis);
        let second = (millis / 1_000).max(1);
        if is_used {
            self.unused = 0;
        } else if self.unused == 0 {
            self.unused = second;
        } else if second.wrapping_sub(self.unused) >= KEPT_SECONDS {
            self.unused = second;
            return true;
        }
        false
    }

    fn uses(&self, window: &Window) -> bool {
        self.most.max(self.before) >= window.congestion / 2
    }

    /// Before a reduction: of a window that is not used what is counts (RFC 7661, 4.4.3).
    pub(crate) fn validate(&self, window: &mut Window, flight: u32) {
        if !self.uses(window) {
            window.congestion = window.congestion.min(self.most.max(self.before).max(flight));
        }
    }
}

/// How fast bytes are delivered, by round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivery {
    begun_at: Time,
    bytes: u64,
    /// The round is over when this is acknowledged.
    until: Option<Seq>,
}

impl Delivery {
    /// So many bytes were delivered, and all before `ack`. Returns the bytes a second of a round trip that
    /// is over.
    pub(crate) fn delivered(&mut self, now: Time, bytes: u32, ack: Seq, nxt: Seq) -> Option<u32> {
        self.bytes += u64::from(bytes);
        if self.until.is_some_and(|until| until.after(ack)) {
            return None;
        }
        let micros = now.micros() - self.begun_at.micros();
        let rate = self.bytes.saturating_mul(1_000_000).checked_div(micros);
        let is_whole = self.until.is_some();
        *self = Delivery { begun_at: now, bytes: 0, until: Some(nxt) };
        rate.filter(|_| is_whole).map(|rate| rate.min(u32::MAX.into()) as u32)
    }
}

/// A reduction of the window that may have been needless: it was if everything that was sent again since
/// arrives twice (DSACK: RFC 3708, 2), or if an acknowledgement of the first of it echoes an earlier
/// timestamp (Eifel: RFC 3522, 3.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo<M> {
    before: (Window, M),
    /// What was sent again lies here.
    range: Option<Span>,
    /// Bytes of it that were not reported as having arrived twice.
    open: u32,
    /// Where the first of it begins, and its timestamp, until that is acknowledged.
    first: Option<(Seq, u32)>,
}

impl<M: Copy> Undo<M> {
    /// The window, and what the controller remembered, were these.
    pub(crate) fn new(window: Window, memory: M) -> Undo<M> {
        Undo { before: (window, memory), range: None, open: 0, first: None }
    }

    /// Bytes were sent again, with this timestamp.
    pub(crate) fn sent_again(&mut self, span: Span, stamp: u32) {
        if self.range.is_none() {
            self.first = Some((span.start, stamp));
        }
        let range = self.range.unwrap_or(span);
        self.range = Some(Span::new(range.start.min(span.start), range.end.max(span.end)));
        self.open += span.len();
    }

    /// Takes a report. Returns what was before if there was no need to reduce the window.
    pub(crate) fn arrived_twice(&mut self, twice: Span) -> Option<(Window, M)> {
        let ours = self.range.is_some_and(|range| range.contains(twice));
        if ours {
            self.open = self.open.saturating_sub(twice.len());
        }
        (ours && self.open == 0).then_some(self.before)
    }

    /// Takes an acknowledgement of all before `ack`, and the timestamp that it echoes. Returns the same.
    pub(crate) fn acknowledged(&mut self, ack: Seq, echo: u32) -> Option<(Window, M)> {
        let (_, stamp) = self.first.take_if(|(start, _)| ack.after(*start))?;
        let earlier = (echo.wrapping_sub(stamp) as i32) < 0;
        earlier.then_some(self.before)
    }
}

/// What may be sent at once, at least: in microseconds of the rate. Timers of programs are no more
/// precise than that.
const BURST_MICROS: u64 = 1_000;
/// And in segments: an initial window.
const BURST_SEGMENTS: u64 = 10;
/// Of a burst so much (microseconds) is collected before a flow that is held sends on, so that it does
/// not wake for each segment.
const COLLECT_MICROS: u64 = 500;

/// Spreads a window over a round trip, so that no queue has to take it at once: twice as fast in slow
/// start and 1.2 times else, as Linux does. Windows that leave within a burst are not spread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// When everything that was sent would have left at the rate.
    due: Time,
    /// Nothing more is sent until then.
    held_until: Option<Time>,
}

impl Pace {
    /// So many bytes were sent.
    pub(crate) fn sent(&mut self, now: Time, bytes: u32, window: &Window, srtt: u32, mss: u16) {
        let congestion = u64::from(window.congestion.max(1));
        let srtt = u64::from(srtt);
        // Microseconds in which a window leaves.
        let whole = if window.congestion < window.threshold { srtt / 2 } else { srtt * 5 / 6 };
        let burst = BURST_MICROS.max(whole * BURST_SEGMENTS * u64::from(mss) / congestion);
        if burst >= whole {
            return;
        }
        let begin = Time::from_micros(now.micros().saturating_sub(burst));
        self.due = self.due.max(begin).plus(whole * u64::from(bytes) / congestion);
        if self.due > now {
            self.held_until = Some(self.due.plus(COLLECT_MICROS.min(burst / 2)));
        }
    }

    /// Until when nothing is sent.
    pub(crate) fn held_until(&self) -> Option<Time> {
        self.held_until
    }

    /// Ends the hold once it is over, or if nothing is outstanding.
    pub(crate) fn release(&mut self, now: Time, quiet: bool) {
        self.held_until = self.held_until.filter(|&until| until > now && !quiet);
    }
}
