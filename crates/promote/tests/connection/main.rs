//! Long random schedules of two promoted endpoints on mapped memory, with sizes of all
//! kinds: exactly the bytes that were sent come, in order, and then the end of stream; a
//! sleeping endpoint is woken. Every schedule within small bounds is searched by
//! `tests/model`.

mod model;

use model::{Act, World};
use proptest::prelude::*;

fn act() -> impl Strategy<Value = (usize, Act)> {
    let act = prop_oneof![
        8 => (1..6000usize).prop_map(Act::Send),
        8 => (1..40usize).prop_map(Act::Send),
        8 => (1..700usize).prop_map(Act::KernelAccepts),
        8 => Just(Act::SendWakeUp),
        8 => (1..700usize).prop_map(Act::Fetch),
        16 => (1..9000usize).prop_map(Act::Consume),
        4 => Just(Act::SleepCold),
        4 => Just(Act::SleepHot),
        2 => Just(Act::Timer),
        2 => Just(Act::Adopt),
    ];
    (0..2usize, act)
}

fn last_act() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let ending = prop_oneof![Just(Act::Shutdown), Just(Act::Close), Just(Act::Reset)];
    proptest::collection::vec((0..2usize, ending), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_random_schedules_deliver_the_bytes(
        acts in proptest::collection::vec(act(), 0..600),
        last in last_act(),
        more in proptest::collection::vec(act(), 0..40),
    ) {
        let mut world = World::new();
        for (side, act) in acts.into_iter().chain(last).chain(more) {
            if world.can(side, act) {
                world.step(side, act);
            }
        }
        world.drain();
    }
}

/// The schedules above reach a full ring and the return from it.
#[test]
fn rings_fill_and_are_returned_to() {
    let mut world = World::new();
    for (side, act) in [
        (0, Act::Adopt),
        (1, Act::Adopt),
        (0, Act::Send(5000)),
        (0, Act::Send(2500)),
        (0, Act::KernelAccepts(600)),
        (1, Act::Consume(9000)),
        (1, Act::Fetch(600)),
        (1, Act::Consume(600)),
    ] {
        assert!(world.can(side, act), "{act:?}");
        world.step(side, act);
    }
    let before = world.ring_bytes;
    world.drain();
    assert!(world.can(0, Act::Send(1000)));
    world.step(0, Act::Send(1000));
    assert!(world.spills == 1 && world.ring_bytes > before);
    world.drain();
}
