//! Whether a connection carries enough for a promotion to pay off.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{answers, offer};
use crate::clock::milliseconds;
use crate::mode;
use crate::real;
use crate::sockets::{self, Socket, State};

/// Messages each way after which a promotion pays off. A cost above the savings of this many
/// messages would slow short connections (some 25 messages of Redis pay for one).
const WORTH_MESSAGES: u32 = 16;
/// The upper bound of that, if connections end soon after a promotion.
const PATIENCE_MOST: u32 = 1024;
/// Messages that pay for a promotion.
const PAYS: u64 = 64;
/// Messages that would have paid for one at the connection's beginning.
const PAYS_EARLY: u64 = 4 * PAYS;
/// Bytes in either direction after which a promotion pays off, too.
const WORTH_BYTES: u64 = 256 << 10;
/// Messages a second, in both directions, below which no promotion pays off, counting all
/// connections of a process: it sleeps between any two messages, and the kernel's wake-ups cost
/// less.
const BRISK: u64 = 128;
/// Messages after which the rate is checked again.
const PACE: u32 = 16;

/// Messages each way before an offer, adapted to this process's connections.
static PATIENCE: AtomicU32 = AtomicU32::new(WORTH_MESSAGES);

/// A connection ends after `carried` messages since its offer; `None`: it was not offered. Short
/// connections had better not be promoted, which only earlier ones can show. Many connections that
/// were offered at the same patience count as one.
#[inline]
pub(crate) fn ended(socket: &Socket, carried: Option<u64>) {
    let patience = PATIENCE.load(Ordering::Relaxed);
    if carried.is_some() || patience > WORTH_MESSAGES {
        learn(socket, carried, patience);
    }
}

fn learn(socket: &Socket, carried: Option<u64>, patience: u32) {
    let [sent, received] = [&socket.messages_sent, &socket.messages_received]
        .map(|count| u64::from(count.load(Ordering::Relaxed)));
    if sent + received + carried.unwrap_or(0) >= PAYS_EARLY {
        PATIENCE.store((patience / 2).max(WORTH_MESSAGES), Ordering::Relaxed);
    } else if carried.is_some_and(|carried| carried < PAYS)
        && socket.patience.load(Ordering::Relaxed) == patience
    {
        PATIENCE.store((patience * 2).min(PATIENCE_MOST), Ordering::Relaxed);
    }
}

/// After a message over a plain socket: offers it if a promotion pays off, or handles the monitor's
/// answer. Leaves errno alone.
#[inline]
pub(crate) fn after_message(socket: &'static Socket, number: u32) {
    match socket.state() {
        State::Plain => {
            let sent = socket.messages_sent.load(Ordering::Relaxed);
            let received = socket.messages_received.load(Ordering::Relaxed);
            if sent.wrapping_add(received) >= socket.check_at.load(Ordering::Relaxed) {
                check(socket, number, sent, received);
            }
        }
        State::Offered => answers(),
        State::Kernel | State::Promoted | State::Free => {}
    }
}

/// Offers the socket if it carries enough; otherwise checks again a little later.
#[cold]
fn check(socket: &'static Socket, number: u32, sent: u32, received: u32) {
    let messages = sent.wrapping_add(received);
    let bytes = socket.sent.load(Ordering::Relaxed) + socket.received.load(Ordering::Relaxed);
    let much = mode::is_eager() || bytes >= WORTH_BYTES;
    let patience = PATIENCE.load(Ordering::Relaxed);
    let missing = patience.saturating_sub(sent).saturating_add(patience.saturating_sub(received));
    if !much && missing > 0 {
        // Soon at first: a stream carries enough after few messages.
        let pause = missing.min(messages.clamp(1, PACE));
        return socket.check_at.store(messages.saturating_add(pause), Ordering::Relaxed);
    }
    if is_brisk(socket, messages) || much {
        // An offer for its bytes says nothing about messages.
        socket.patience.store(if much { 0 } else { patience }, Ordering::Relaxed);
        real::kept_errno(|| offer(socket, number));
    }
}

/// Whether this process carries enough, if all its connections are like this one. Checked again
/// later if not.
#[cold]
fn is_brisk(socket: &Socket, messages: u32) -> bool {
    let now = milliseconds();
    let since = now.saturating_sub(socket.checked_when.swap(now, Ordering::Relaxed));
    let came = messages.wrapping_sub(socket.checked_at.swap(messages, Ordering::Relaxed));
    let brisk = u64::from(came) * u64::from(sockets::connected().max(1)) * 1000 >= BRISK * since;
    if !brisk {
        socket.check_at.store(messages.saturating_add(PACE), Ordering::Relaxed);
    }
    brisk
}

/// Messages over TCP, both ways.
fn messages(socket: &Socket) -> u32 {
    let sent = socket.messages_sent.load(Ordering::Relaxed);
    sent.wrapping_add(socket.messages_received.load(Ordering::Relaxed))
}

/// Next considered after as many messages again, if nothing comes of it now.
pub(super) fn check_later(socket: &Socket) {
    let messages = messages(socket);
    let again =
        if mode::is_eager() { messages.saturating_add(1) } else { messages.saturating_mul(2).max(16) };
    socket.check_at.store(again, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short connections that were offered at the same patience double it once.
    #[test]
    fn many_short_connections_at_a_time_are_one_lesson() {
        sockets::make().expect("memory");
        let add = |fd| sockets::add(fd, false).expect("a record");
        let batch: Vec<_> = (0..60).map(add).collect();
        let offered_at = PATIENCE.load(Ordering::Relaxed);
        batch.iter().for_each(|(_, socket)| socket.patience.store(offered_at, Ordering::Relaxed));
        batch.iter().for_each(|(_, socket)| ended(socket, Some(PAYS - 1)));
        assert_eq!(PATIENCE.load(Ordering::Relaxed), 2 * offered_at);
        ended(batch[0].1, Some(PAYS_EARLY));
        assert_eq!(PATIENCE.load(Ordering::Relaxed), offered_at);
        batch.iter().for_each(|(number, _)| sockets::remove(*number));
    }
}
