//! Options of a socket: a connection has those that its socket had when it began, or its listener when
//! it was accepted, as on the kernel's TCP. Each connection keeps a copy, so they are small.

use std::io;
use std::num::{NonZeroU8, NonZeroU32};
use std::ops::RangeInclusive;
use std::time::Duration;

use tcp::{Flow, Host, Time};

use crate::engine::sockets::KeepAlive;

/// The kernel's bounds (tcp(7), TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT).
const PROBE_SECONDS: RangeInclusive<u64> = 1..=32_767;
const PROBES: RangeInclusive<u32> = 1..=127;

#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    /// Small segments go out at once.
    pub(super) no_delay: bool,
    /// Of an idle connection.
    pub(super) probes: Option<Probes>,
    /// In milliseconds.
    pub(super) user_timeout: Option<NonZeroU32>,
}

impl Options {
    /// Sets them on a new connection, which has none.
    pub(super) fn apply(self, now: Time, host: &mut Host, flow: Flow) {
        if self.no_delay {
            host.set_no_delay(now, flow, true);
        }
        if self.probes.is_some() {
            set_probes(now, host, flow, self.probes);
        }
        if self.user_timeout.is_some() {
            set_user_timeout(now, host, flow, self.user_timeout);
        }
    }
}

/// Keep-alive; times are in seconds.
#[derive(Clone, Copy)]
pub(super) struct Probes {
    idle: u16,
    interval: u16,
    count: NonZeroU8,
}

impl Probes {
    /// EINVAL beyond the kernel's bounds.
    pub(super) fn new(asked: KeepAlive) -> io::Result<Probes> {
        let KeepAlive { idle, interval, probes } = asked;
        let seconds = |time: Duration| {
            Some(time.as_secs())
                .filter(|seconds| PROBE_SECONDS.contains(seconds))
                .map(|seconds| seconds as u16)
        };
        let count = Some(probes).filter(|count| PROBES.contains(count));
        let count = count.and_then(|count| NonZeroU8::new(count as u8));
        match (seconds(idle), seconds(interval), count) {
            (Some(idle), Some(interval), Some(count)) => Ok(Probes { idle, interval, count }),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }
}

/// Has a silent peer of the connection probed, or not.
pub(super) fn set_probes(now: Time, host: &mut Host, flow: Flow, probes: Option<Probes>) {
    let times = probes.map(|Probes { idle, interval, count }| tcp::KeepAlive {
        idle: Duration::from_secs(idle.into()),
        interval: Duration::from_secs(interval.into()),
        probes: count.get(),
    });
    host.set_keep_alive_times(now, flow, times);
    host.set_keep_alive(now, flow, times.is_some());
}

/// Bounds how long the peer may acknowledge nothing, or keep its window closed.
pub(super) fn set_user_timeout(now: Time, host: &mut Host, flow: Flow, millis: Option<NonZeroU32>) {
    let time = millis.map(|millis| Duration::from_millis(millis.get().into()));
    host.set_user_timeout(flow, time);
    // It bounds an attempt, too, as with the kernel's TCP.
    let attempt = host.profile().attempt;
    host.set_connect_timeout(now, flow, time.map_or(attempt, |time| time.min(attempt)));
}
