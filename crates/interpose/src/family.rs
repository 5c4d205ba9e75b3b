//! What processes that were forked from one another learn together, since many servers have one for each connection.
#![allow(unsafe_code)] // words in memory that is mapped once, for good

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::mappings;
use crate::sockets;
use crate::worth::WINDOW;

/// The most that the doubt comes to.
const DOUBT_MOST: u32 = 128;
/// The most offers that are counted as unproven: many rings pay only once the other end's connections are all on
/// rings, and few would never prove it.
const UNPROVEN_MOST: u32 = 16;

/// Connections of one process beyond which it learns nothing from the family about offers: while few of many are on
/// rings, others keep both ends away from these, and each of their messages needs a bell.
const FEW: u32 = 4;

/// In memory that a process shares with all that were forked from it. Each may write anything there: it is hints.
struct Family {
    /// Whether rings pay at all for programs like this one: windows of messages that went past rings that did not,
    /// less those that went through rings that did.
    doubt: AtomicU32,
    /// Connections that were offered, less the windows of messages that went through rings that paid.
    unproven: AtomicU32,
}

static FAMILY: AtomicPtr<Family> = AtomicPtr::new(null_mut());
/// This process was forked.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Makes room. Without it nothing is learned together.
pub(crate) fn make() {
    if let Ok(memory) = mappings::reserve(size_of::<Family>(), libc::MAP_SHARED) {
        FAMILY.store(memory.cast(), Ordering::Release);
    }
}

/// In the child of a fork.
pub(crate) fn forked() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

fn family() -> Option<&'static Family> {
    // SAFETY: `make` mapped zeroed words for good.
    unsafe { FAMILY.load(Ordering::Acquire).as_ref() }
}

/// The same, of a server that forks: one process alone learns by itself.
fn of_children() -> Option<&'static Family> {
    family().filter(|_| IS_CHILD.load(Ordering::Relaxed))
}

/// A ring does not pay, and rests for so many messages.
pub(crate) fn does_not_pay(messages: u32) {
    add(|family| &family.doubt, messages / WINDOW, DOUBT_MOST);
}

/// A ring pays.
pub(crate) fn pays() {
    let Some(family) = family() else { return };
    [&family.doubt, &family.unproven].into_iter().for_each(less);
}

/// The same, of a process with few connections.
fn of_few(family: Option<&'static Family>) -> Option<&'static Family> {
    family.filter(|_| sockets::connected() <= FEW)
}

/// How much it is doubted that rings pay.
pub(crate) fn doubt() -> u32 {
    of_few(family()).map_or(0, |family| family.doubt.load(Ordering::Relaxed)).min(DOUBT_MOST)
}

/// A connection was offered.
pub(crate) fn offered() {
    add(|family| &family.unproven, 1, UNPROVEN_MOST);
}

/// One that was offered will not be promoted.
pub(crate) fn refused() {
    if let Some(family) = family() {
        less(&family.unproven);
    }
}

/// How many connections of a server that forks were offered, and have not shown yet whether rings pay.
pub(crate) fn unproven() -> u32 {
    of_few(of_children()).map_or(0, |family| family.unproven.load(Ordering::Relaxed)).min(UNPROVEN_MOST)
}

fn less(count: &AtomicU32) {
    // Mostly there is nothing to write.
    if count.load(Ordering::Relaxed) > 0 {
        let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

fn add(count: impl FnOnce(&Family) -> &AtomicU32, more: u32, most: u32) {
    if let Some(family) = family() {
        let sum = |count: u32| Some(count.saturating_add(more).min(most));
        let _ = count(family).fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}
