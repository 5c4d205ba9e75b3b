//! Offers and promotions that are taken back, also while another thread has the promoter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use promote::wire::Token;

use super::{INSIDE, Promoter, alone, with};
use crate::signals;

/// Withdrawals that wait for the promoter; those beyond wait themselves.
const NOTES_MOST: usize = 64;

/// Tokens that were to be withdrawn while another thread had the promoter; 0: none.
static NOTES: [AtomicU64; NOTES_MOST] = [const { AtomicU64::new(0) }; NOTES_MOST];
/// There are some.
static NOTED: AtomicBool = AtomicBool::new(false);

/// A socket that was offered or promoted is gone. The monitor counts its memory until it is told. `unanswered`: an answer
/// may be on its way.
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
            return tell_noted();
        }
        if INSIDE.get() || signals::is_on_small_stack() {
            // A signal handler closes more than can be noted, and cannot have the promoter: the monitor learns of it when
            // the process ends.
            return;
        }
        std::thread::yield_now();
    }
}

/// To be called when nobody has the promoter any more.
#[inline]
pub(super) fn promoter_is_free() {
    // NOTE-PAIR: it is free before the look; whoever leaves a note tries for it after.
    fence(Ordering::SeqCst);
    if NOTED.load(Ordering::Relaxed) {
        tell_noted();
    }
}

/// Tells the monitor what was noted while somebody else had the promoter; who has it now does
/// so afterwards.
#[cold]
fn tell_noted() {
    let tell = |promoter: &mut Option<Promoter>| match promoter {
        Some(promoter) => tell_all(promoter),
        None => forget(),
    };
    while NOTED.load(Ordering::SeqCst) && alone(tell).is_some() {
        fence(Ordering::SeqCst);
    }
}

/// Tells what was noted; before an offer, too, which may be of a token that was noted.
pub(super) fn tell_all(promoter: &mut Promoter) {
    if !NOTED.load(Ordering::SeqCst) {
        return;
    }
    // Notes are left before this is set.
    NOTED.store(false, Ordering::SeqCst);
    for token in NOTES.iter().filter_map(|note| Token::new(note.swap(0, Ordering::SeqCst))) {
        promoter.withdraw(token, true);
    }
}

/// In the child of a fork: the notes are the parent's.
pub(super) fn forget() {
    NOTES.iter().for_each(|note| note.store(0, Ordering::Relaxed));
    NOTED.store(false, Ordering::Relaxed);
}
