//! Every short schedule of two promoted ends, and long random ones: exactly the bytes that
//! were sent come, in order, and then the end; who sleeps is woken.

mod model;

use model::{Act, Memory, World};
use proptest::prelude::*;

/// What schedules are made of; what cannot happen at some point is left out there.
const ACTS: [Act; 13] = [
    Act::Adopt,
    Act::Send(1),
    Act::Send(5000),
    Act::KernelTakes(1),
    Act::KernelTakes(usize::MAX),
    Act::Bell,
    Act::Fetch(usize::MAX),
    Act::Take(3000),
    Act::SleepCold,
    Act::SleepHot,
    Act::Shutdown,
    Act::Close,
    Act::Reset,
];

/// What went before a schedule.
const BEGINNINGS: [&[(usize, Act)]; 7] = [
    // Bytes of TCP are under way both ways.
    &[(0, Act::Send(3)), (0, Act::KernelTakes(3)), (1, Act::Send(2)), (1, Act::KernelTakes(2))],
    // One end has taken its memory up, the other has not.
    &[(0, Act::Send(3)), (0, Act::KernelTakes(3)), (0, Act::Adopt)],
    // Both have, and one sleeps hot.
    &[(0, Act::Adopt), (1, Act::Adopt), (1, Act::SleepHot), (0, Act::Send(1))],
    // Or cold.
    &[(0, Act::Adopt), (1, Act::Adopt), (1, Act::SleepCold), (0, Act::Send(1))],
    // The ring is nearly full, with a bell on its way.
    &[(0, Act::Adopt), (1, Act::Adopt), (1, Act::SleepHot), (0, Act::Send(5000)), (0, Act::Bell)],
    // It was full, and the kernel took some of the rest.
    &[
        (0, Act::Adopt),
        (1, Act::Adopt),
        (1, Act::SleepCold),
        (0, Act::Send(5000)),
        (0, Act::Send(5000)),
        (0, Act::KernelTakes(100)),
    ],
    // It was full, all was taken, and the next bytes return to the ring.
    &[
        (0, Act::Adopt),
        (1, Act::Adopt),
        (0, Act::Send(5000)),
        (0, Act::Send(2500)),
        (0, Act::KernelTakes(600)),
        (1, Act::Take(9000)),
        (1, Act::Fetch(600)),
        (1, Act::Take(600)),
    ],
];

/// Runs a schedule; false if one of its acts was impossible.
fn run(world: &mut World, schedule: &[(usize, Act)]) -> bool {
    for &(side, act) in schedule {
        if !world.can(side, act) {
            return false;
        }
        world.step(side, act);
    }
    true
}

/// Tells which schedule a panic came from.
struct Told<'a>(&'a [(usize, Act)]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("schedule: {:?}", self.0);
        }
    }
}

fn explore(memory: &Memory, schedule: &mut Vec<(usize, Act)>, depth: u32, runs: &mut u64) {
    let mut world = World::new(memory);
    let told = Told(schedule);
    assert!(run(&mut world, schedule));
    let mut next = Vec::new();
    if depth > 0 {
        for side in [0, 1] {
            next.extend(ACTS.iter().filter(|act| world.can(side, **act)).map(|act| (side, *act)));
        }
    }
    world.drain();
    *runs += 1;
    std::mem::forget(told);
    for step in next {
        schedule.push(step);
        explore(memory, schedule, depth - 1, runs);
        schedule.pop();
    }
}

/// Acts that follow a beginning in every possible way.
const DEPTH: u32 = 3;

#[test]
fn every_short_schedule_delivers_the_bytes() {
    let threads = BEGINNINGS.map(|beginning| {
        std::thread::spawn(move || {
            let mut runs = 0;
            explore(&Memory::new(), &mut beginning.to_vec(), DEPTH, &mut runs);
            assert!(runs > 500, "only {runs} schedules");
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

fn act() -> impl Strategy<Value = (usize, Act)> {
    let act = prop_oneof![
        8 => (1..6000usize).prop_map(Act::Send),
        8 => (1..40usize).prop_map(Act::Send),
        8 => (1..700usize).prop_map(Act::KernelTakes),
        8 => Just(Act::Bell),
        8 => (1..700usize).prop_map(Act::Fetch),
        16 => (1..9000usize).prop_map(Act::Take),
        4 => Just(Act::SleepCold),
        4 => Just(Act::SleepHot),
        2 => Just(Act::Adopt),
    ];
    (0..2usize, act)
}

fn last_act() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let end = prop_oneof![Just(Act::Shutdown), Just(Act::Close), Just(Act::Reset)];
    proptest::collection::vec((0..2usize, end), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_random_schedules_deliver_the_bytes(
        acts in proptest::collection::vec(act(), 0..600),
        last in last_act(),
        more in proptest::collection::vec(act(), 0..40),
    ) {
        let mut world = World::new(&Memory::new());
        for (side, act) in acts.into_iter().chain(last).chain(more) {
            if world.can(side, act) {
                world.step(side, act);
            }
        }
        world.drain();
    }
}

#[test]
fn rings_fill_and_are_returned_to() {
    let memory = Memory::new();
    let mut world = World::new(&memory);
    assert!(run(&mut world, BEGINNINGS[6]));
    let before = world.ring_bytes;
    world.drain();
    assert!(run(&mut world, &[(0, Act::Send(1000))]));
    assert!(world.spills == 1 && world.ring_bytes > before);
    world.drain();
}
