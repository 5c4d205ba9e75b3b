//! The protocol of promotion under an explicit-state search: every interleaving of the
//! steps of two endpoints, of the kernel connection between them and of the monitor,
//! within bounds. Each endpoint is the real state machine on real ring memory; a step is
//! one call of it.

mod kernel;
mod memory;
mod search;
mod world;

use memory::RING;
use search::search;
use world::{Act, Bounds, Event, Mutation, Sleep};

const SLEEPS: &[Sleep] = &[Sleep::Hot, Sleep::Cold];
const GOING: &[Act] = &[Act::Close, Act::Kill];
const ENDS: &[Act] = &[Act::Shutdown, Act::Close, Act::Kill];
const ALL: usize = 1 << 16;

/// Both endpoints write a little.
const TALK: Bounds = Bounds {
    writes: [&[1], &[1]],
    reads: &[ALL],
    kernel_room: 600,
    promoted: true,
    delays: false,
    short_fetches: false,
    sleeps: SLEEPS,
    endings: [GOING, GOING],
};

/// One direction, whose second write finds the ring full.
const SPILL: Bounds =
    Bounds { writes: [&[4000, 4000, 1], &[]], endings: [&[Act::Close, Act::Kill], &[Act::Close]], ..TALK };

/// The kernel has room for one byte, and the ring is full.
const NO_ROOM: Bounds =
    Bounds { writes: [&[RING, 1, 1], &[]], kernel_room: 1, endings: [&[Act::Close], &[]], ..TALK };

/// Accepted bytes arrive later.
const LATE: Bounds = Bounds { delays: true, endings: [&[Act::Close], &[Act::Close]], ..TALK };

/// One endpoint writes before, while or after they are promoted.
const PROMOTE: Bounds = Bounds { writes: [&[1], &[]], promoted: false, ..TALK };

/// Searches everything within the bounds, and prints how much that was. `least`: states,
/// so that a search does not become smaller unnoticed; `events`: what has to happen on
/// some path.
fn explore(name: &str, bounds: &'static Bounds, least: usize, events: &[Event]) {
    let found = match search(bounds, Mutation::None) {
        Ok(found) => found,
        Err(failure) => panic!("{name}: {failure}"),
    };
    println!("{name}: {found:?}");
    assert!(found.states >= least, "{name}: only {} states", found.states);
    assert!(found.quiet > 0);
    for event in events {
        assert!(found.events.contains_key(event), "{name}: {event:?} never happened");
    }
}

const SLEEPING: &[Event] = &[Event::SleptCold, Event::SleptHot, Event::StayedAwake, Event::WakeUpAccepted];
const ENDING: &[Event] = &[Event::EndFinished, Event::EndReset, Event::ResetAtClose];
const SPILLING: &[Event] = &[Event::RingFull, Event::Returned];
const PROMOTING: &[Event] = &[Event::Promoted, Event::AloneAware, Event::WroteRing];

#[test]
fn two_endpoints_that_talk() {
    static BOUNDS: Bounds = TALK;
    explore("talk", &BOUNDS, 39_000, &[SLEEPING, ENDING, &[Event::LateWakeUpDropped]].concat());
}

#[test]
fn a_ring_that_spills() {
    static BOUNDS: Bounds = SPILL;
    explore("spill", &BOUNDS, 170_000, &[SLEEPING, ENDING, SPILLING].concat());
}

#[test]
fn a_kernel_without_room() {
    static BOUNDS: Bounds = NO_ROOM;
    explore("no room", &BOUNDS, 34_000, &[SLEEPING, SPILLING, &[Event::WakeUpWithoutRoom]].concat());
}

#[test]
fn a_kernel_that_delivers_late() {
    static BOUNDS: Bounds = LATE;
    explore("late", &BOUNDS, 59_000, &[SLEEPING, ENDING].concat());
}

#[test]
fn endpoints_that_are_promoted() {
    static BOUNDS: Bounds = PROMOTE;
    explore("promote", &BOUNDS, 41_000, &[SLEEPING, ENDING, PROMOTING].concat());
}

#[test]
fn directions_that_end_alone() {
    const FIN: &[Act] = &[Act::Shutdown];
    static IN_TALK: Bounds = Bounds { endings: [FIN, FIN], ..TALK };
    static BEHIND_A_SPILL: Bounds = Bounds { endings: [FIN, &[Act::Close]], ..SPILL };
    static IN_PROMOTION: Bounds = Bounds { endings: [FIN, &[Act::Shutdown, Act::Close]], ..PROMOTE };
    explore("shut down in talk", &IN_TALK, 28_000, &[SLEEPING, &[Event::EndFinished]].concat());
    explore("shut down behind a spill", &BEHIND_A_SPILL, 170_000, &[SLEEPING, ENDING, SPILLING].concat());
    explore("shut down in promotion", &IN_PROMOTION, 28_000, &[SLEEPING, ENDING, PROMOTING].concat());
}

/// Each is found, by the search of the bounds in which it does harm.
#[test]
fn what_goes_wrong_is_found() {
    use Mutation::*;
    static BOUNDS: [Bounds; 2] = [SPILL, Bounds { writes: [&[1, 1], &[1]], ..PROMOTE }];
    let [spill, promote] = &BOUNDS;
    let mutations = [
        (WakeUpOmitted, spill),
        (WakeUpCheckedBeforeWrite, spill),
        (WakeUpNotCounted, spill),
        (WakeUpAsData, spill),
        (WakeUpBehindSpill, spill),
        (WakeUpsUnreadAtClose, spill),
        (DiscardedWakeUpsNotCounted, spill),
        (RecordBehindBytes, spill),
        (KernelBytesNotCounted, spill),
        (AwareAtGrant, promote),
        (GrantTwice, promote),
        (AdoptOverFetched, promote),
        (HotWithoutPoll, spill),
        (ColdWithoutPoll, spill),
        (WakeStaysAsleep, spill),
        (FinBeforeBytes, promote),
        (EndBeforeRing, spill),
        (ResetBeforeRing, promote),
        (CloseForgetsRing, spill),
        (RingAfterFin, spill),
        (RingWhileQueued, spill),
    ];
    for (mutation, bounds) in mutations {
        match search(bounds, mutation) {
            Ok(found) => panic!("{mutation:?} is not found in {} states", found.states),
            Err(failure) => println!("{mutation:?}: {failure}"),
        }
    }
}

macro_rules! at_length {
    ($($name:ident, $least:expr, $bounds:expr;)*) => { $(
        #[test]
        #[ignore = "takes minutes: make model"]
        fn $name() {
            static BOUNDS: Bounds = $bounds;
            explore(stringify!($name), &BOUNDS, $least, ENDING);
        }
    )* };
}

at_length! {
    talk_at_length, 4_400_000, Bounds { writes: [&[1, 1], &[1, 1]], endings: [ENDS, ENDS], ..TALK };
    no_room_at_length, 890_000, Bounds { writes: [&[RING, 1, 1], &[1]], endings: [&[Act::Close], &[Act::Close]], ..NO_ROOM };
    spill_at_length, 13_000_000, Bounds { delays: true, reads: &[ALL, 3000], endings: [ENDS, ENDS], ..SPILL };
    spill_both_ways, 3_500_000,
        Bounds { writes: [&[4000, 4000], &[4000, 4000]], endings: [&[Act::Close], &[Act::Close]], ..TALK };
    late_at_length, 900_000, Bounds { writes: [&[1, 1], &[1]], short_fetches: true, ..LATE };
    promote_at_length, 4_600_000, Bounds { writes: [&[1, 1], &[1]], endings: [ENDS, ENDS], ..PROMOTE };
    promote_late, 1_300_000, Bounds { writes: [&[1], &[1]], delays: true, endings: [ENDS, ENDS], ..PROMOTE };
}
