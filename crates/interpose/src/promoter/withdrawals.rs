//! Withdrawals of offers and promotions, also while another thread holds the promoter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use promote::wire::Token;

use super::{INSIDE, Promoter, alone, with};
use crate::signals;

/// Withdrawals that can be pending; further ones wait.
const NOTES_MOST: usize = 64;

/// Tokens to be withdrawn, from while another thread held the promoter; 0: none.
static NOTES: [AtomicU64; NOTES_MOST] = [const { AtomicU64::new(0) }; NOTES_MOST];
/// Some are pending.
static NOTED: AtomicBool = AtomicBool::new(false);

/// An offered or promoted socket is gone. The monitor counts its memory until it gets the
/// withdrawal. `unanswered`: an answer may be in flight.
pub(crate) fn withdraw(token: Token, unanswered: bool) {
    loop {
        if with(|promoter| promoter.withdraw(token, unanswered)) {
            return;
        }
        let free = |note: &AtomicU64| {
            note.compare_exchange(0, token.get(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if NOTES.iter().any(free) {
            NOTED.store(true, Ordering::SeqCst);
            // NOTE-PAIR
            fence(Ordering::SeqCst);
            return send_noted();
        }
        if INSIDE.get() || signals::is_on_small_stack() {
            // A signal handler closes more sockets than can be pending, and cannot get the
            // promoter: the monitor cleans up when the process ends.
            return;
        }
        std::thread::yield_now();
    }
}

/// To be called after the promoter was released.
#[inline]
pub(super) fn promoter_is_free() {
    // NOTE-PAIR: released before this check; a thread tries to hold it after it left a note.
    fence(Ordering::SeqCst);
    if NOTED.load(Ordering::Relaxed) {
        send_noted();
    }
}

/// Sends the pending withdrawals. If another thread holds the promoter, it does so afterwards.
#[cold]
fn send_noted() {
    let send = |promoter: &mut Option<Promoter>| match promoter {
        Some(promoter) => send_pending(promoter),
        None => forget(),
    };
    while NOTED.load(Ordering::SeqCst) && alone(send).is_some() {
        fence(Ordering::SeqCst);
    }
}

/// Sends the pending withdrawals; also before an offer, which may reuse a pending token.
pub(super) fn send_pending(promoter: &mut Promoter) {
    if !NOTED.load(Ordering::SeqCst) {
        return;
    }
    // Tokens are stored before this flag is set.
    NOTED.store(false, Ordering::SeqCst);
    for token in NOTES.iter().filter_map(|note| Token::new(note.swap(0, Ordering::SeqCst))) {
        promoter.withdraw(token, true);
    }
}

/// In the child of a fork: pending withdrawals are the parent's.
pub(super) fn forget() {
    NOTES.iter().for_each(|note| note.store(0, Ordering::Relaxed));
    NOTED.store(false, Ordering::Relaxed);
}
