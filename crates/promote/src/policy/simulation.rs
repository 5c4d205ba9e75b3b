//! Two endpoints that answer each other under the policy, compared with two that sleep at
//! once: how much of a round trip it saves, and its cost on both cores. The model is that
//! of promotion's doorbells: a spinning endpoint sees a message at once, and a sleeping
//! one is woken by a call.

use std::time::Duration;

use super::{LONGEST_PAUSE, MEASURED, Next, Peer, Policy, Spin, WAKE_UP_MAX, WAKE_UP_MIN};

/// Microseconds: to write a message into a ring, to consume it, to wake the peer, to fall
/// asleep, to be woken, and for a yield without and with another thread to run.
const SEND: f64 = 0.15;
const CONSUME: f64 = 0.1;
const WAKE: f64 = 0.6;
const FALL_ASLEEP: f64 = 1.0;
const WOKEN: f64 = 2.0;
const YIELD: f64 = 0.35;
const SWITCH: f64 = 1.2;
/// How long another thread keeps the core, at most.
const SLICE: f64 = 3000.0;

const ROUND_TRIPS: usize = 6000;

/// A linear congruential generator (Knuth, MMIX).
struct Random(u64);

impl Random {
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.share()
    }
}

/// The work of an endpoint between a message and its answer.
#[derive(Clone, Copy, Debug)]
enum Think {
    For(f64),
    UpTo(f64),
    /// 2 us, and 200 us in one of ten.
    Mostly,
}

impl Think {
    fn time(self, random: &mut Random) -> f64 {
        match self {
            Think::For(time) => time,
            Think::UpTo(most) => random.between(0.0, most),
            Think::Mostly if random.share() < 0.1 => 200.0,
            Think::Mostly => 2.0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Machine {
    wake_up: f64,
    /// The share of yields that find another thread runnable. A woken thread preempts it.
    contested: f64,
    /// The first endpoint sends once in each period of this many microseconds: an open
    /// loop.
    period: f64,
    start: Start,
    /// The endpoints are channels.
    channels: bool,
}

/// The initial state of the endpoints, both asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Nothing,
    /// Both pause: many spins have found nothing.
    Paused,
    /// One of them pauses.
    OnePaused,
    /// Both pause, and measured the shortest wake-up time.
    TooShort,
    /// Both measured the longest wake-up time.
    TooLong,
}

impl Machine {
    fn policies(self) -> [Policy; 2] {
        let new = if self.channels { Policy::of_channel() } else { Policy::new() };
        let measured = match self.start {
            Start::Nothing => return [new; 2],
            Start::TooShort => WAKE_UP_MIN,
            Start::TooLong => WAKE_UP_MAX,
            Start::Paused | Start::OnePaused => time(self.wake_up),
        };
        let pauses = match self.start {
            Start::Paused | Start::TooShort => [LONGEST_PAUSE, LONGEST_PAUSE / 2],
            Start::OnePaused => [0, LONGEST_PAUSE],
            Start::Nothing | Start::TooLong => [0; 2],
        };
        pauses.map(|skip| {
            let pause = if skip > 0 { LONGEST_PAUSE } else { 1 };
            let mut policy = new;
            (policy.skip, policy.pause) = (skip, pause);
            (0..MEASURED).for_each(|_| policy.woke(measured));
            policy
        })
    }
}

impl Machine {
    const fn new(wake_up: f64) -> Machine {
        Machine { wake_up, contested: 0.0, period: 0.0, start: Start::Nothing, channels: false }
    }
}

/// Microseconds: the mean round trip of the second half, and the CPU time of both cores
/// for each.
struct Outcome {
    round_trip: f64,
    cpu: f64,
}

fn time(microseconds: f64) -> Duration {
    Duration::from_nanos((microseconds * 1000.0) as u64)
}

/// The result of one wait from `began` on for a message that arrives at `comes`: when it
/// is found, or since when the endpoint sleeps.
enum Waited {
    Found(f64),
    Asleep(f64),
}

/// `spin` polls until then; its time on the core is added to `cpu`.
fn wait(
    policy: &mut Policy,
    mut spin: Spin,
    began: f64,
    comes: f64,
    contested: bool,
    random: &mut Random,
    cpu: &mut f64,
) -> Waited {
    let mut now = began;
    loop {
        if now >= comes {
            policy.found(&spin, time(now));
            return Waited::Found(now);
        }
        match spin.next(time(now)) {
            Next::Poll => {
                now += 0.1;
                *cpu += 0.1;
            }
            Next::Yield if contested => {
                let began = now;
                now += SWITCH + random.between(0.0, SLICE);
                *cpu += SWITCH;
                policy.yielded(&mut spin, time(began), time(now));
            }
            Next::Yield => {
                policy.yielded(&mut spin, time(now), time(now + YIELD));
                now += YIELD;
                *cpu += YIELD;
            }
            Next::Sleep => {
                policy.missed(&spin, time(now));
                return Waited::Asleep(now);
            }
        }
    }
}

/// Two endpoints, a core each.
fn two_cores(machine: Machine, think: Think, spins: bool) -> Outcome {
    let mut random = Random(7);
    let mut policies = machine.policies();
    // When the waiting endpoint began, and its spin.
    let mut waits: [(f64, Option<Spin>); 2] = [(0.0, None), (0.0, None)];
    let (mut now, mut cpu, mut next_at) = (1.0, 0.0, 0.0);
    let (mut sum, mut sum_cpu) = (0.0, 0.0);
    for round in 0..ROUND_TRIPS {
        // The endpoint that waits for its time to send sleeps meanwhile, as with a timer.
        now = f64::max(now, next_at);
        next_at += machine.period;
        let (begin, cpu_before) = (now, cpu);
        for me in 0..2 {
            let thought = think.time(&mut random);
            now += thought + SEND;
            cpu += thought + SEND;
            let (began, spin) = waits[1 - me];
            let contested = random.share() < machine.contested;
            let peer = &mut policies[1 - me];
            let asleep = match spin {
                None => began,
                Some(spin) => match wait(peer, spin, began, now, contested, &mut random, &mut cpu) {
                    Waited::Found(at) => {
                        waits[me] = (now, policies[me].begin(time(now), Peer::Awake).filter(|_| spins));
                        now = at.max(now) + CONSUME;
                        continue;
                    }
                    Waited::Asleep(since) => since,
                },
            };
            now += WAKE;
            cpu += WAKE + FALL_ASLEEP + WOKEN;
            let wake_up = machine.wake_up * random.between(0.75, 1.25);
            let woke = now.max(asleep + FALL_ASLEEP) + wake_up;
            policies[1 - me].woke(time(woke - now));
            waits[me] = (now, policies[me].begin(time(now), Peer::Woken).filter(|_| spins));
            now = woke;
        }
        if round >= ROUND_TRIPS / 2 {
            sum += now - begin;
            sum_cpu += cpu - cpu_before;
        }
    }
    let rounds = (ROUND_TRIPS / 2) as f64;
    Outcome { round_trip: sum / rounds, cpu: sum_cpu / rounds }
}

/// Two endpoints that share a core: a yield or a sleep gives it to the other one. Without
/// rings neither has evidence of the other, and a yield that ran others ends a channel's
/// spin: it counts as a miss, and the message that it would sleep for has arrived.
fn one_core(machine: Machine, think: Think, spins: bool, rings: bool) -> f64 {
    let mut random = Random(7);
    let mut policies = machine.policies();
    // The spin of the endpoint without the core, and when it yielded the core.
    let mut away: (f64, Option<Spin>) = (0.0, None);
    let (mut now, mut half_time) = (1.0, 0.0);
    for turn in 0..2 * ROUND_TRIPS {
        if turn == ROUND_TRIPS {
            half_time = now;
        }
        let (me, other) = (turn % 2, 1 - turn % 2);
        now += think.time(&mut random) + SEND;
        let peer = if away.1.is_some() { Peer::Awake } else { Peer::Woken };
        let called = now;
        if peer == Peer::Woken {
            now += WAKE;
        }
        // It waits for the answer.
        let evidence = if rings { peer } else { Peer::Unknown };
        let mut spin = policies[me].begin(time(now), evidence).filter(|_| spins);
        while let Some(polls) = &spin {
            match polls.next(time(now)) {
                Next::Yield => break,
                Next::Poll => now += 0.1,
                Next::Sleep => {
                    policies[me].missed(polls, time(now));
                    spin = None;
                }
            }
        }
        let gave = now;
        match &mut away {
            (began, Some(polls)) => {
                now += SWITCH;
                policies[other].yielded(polls, time(*began), time(now));
                match rings {
                    true => _ = policies[other].found(polls, time(now)),
                    false => policies[other].missed(polls, time(now)),
                }
            }
            (_, None) => {
                now = f64::max(now + FALL_ASLEEP, called + machine.wake_up * random.between(0.75, 1.25));
                if rings {
                    policies[other].woke(time(now - called));
                }
            }
        }
        now += CONSUME;
        away = (gave, spin);
    }
    (now - half_time) / (ROUND_TRIPS / 2) as f64
}

/// The round trip and CPU time, relative to two that never spin.
fn ratios(machine: Machine, think: Think) -> (f64, f64) {
    let [plain, ours] = [false, true].map(|spins| two_cores(machine, think, spins));
    (ours.round_trip / plain.round_trip, ours.cpu / plain.cpu)
}

const THINK: [Think; 8] = [
    Think::For(1.0),
    Think::For(20.0),
    Think::For(50.0),
    Think::For(100.0),
    Think::For(200.0),
    Think::UpTo(20.0),
    Think::UpTo(200.0),
    Think::Mostly,
];

#[test]
fn a_closed_loop_gains_or_loses_little() {
    for (wake_up, channels) in
        [5.0, 30.0, 100.0, 300.0].into_iter().flat_map(|time| [(time, false), (time, true)])
    {
        let machine = Machine { channels, ..Machine::new(wake_up) };
        for think in THINK {
            let (time, cpu) = ratios(machine, think);
            println!("wake-up {wake_up:3} {channels} {think:?}: time {time:.2} cpu {cpu:.2}");
            // Where spinning pays it may use both cores; elsewhere it costs only an
            // occasional try.
            assert!(
                time <= 1.02 && cpu <= 2.0 && (time < 0.95 || cpu < 1.12),
                "{wake_up} {channels} {think:?}: {time} {cpu}"
            );
        }
        let (time, _) = ratios(machine, Think::For(1.0));
        assert!(time < 0.5, "{wake_up}: {time}");
    }
}

#[test]
fn earlier_measurements_cost_no_time() {
    for wake_up in [30.0, 100.0, 300.0] {
        for think in [Think::For(1.0), Think::For(20.0), Think::For(1000.0), Think::Mostly] {
            let (fresh, _) = ratios(Machine::new(wake_up), think);
            for start in [Start::Paused, Start::OnePaused, Start::TooShort, Start::TooLong] {
                let (time, cpu) = ratios(Machine { start, ..Machine::new(wake_up) }, think);
                println!(
                    "wake-up {wake_up:3} {think:?} {start:?}: fresh {fresh:.2} time {time:.2} cpu {cpu:.2}"
                );
                // A wake-up time that is too long stays so while each spin finds
                // something.
                assert!(
                    time < fresh + 0.05 && cpu <= 2.0,
                    "{wake_up} {think:?} {start:?}: {fresh} {time} {cpu}"
                );
            }
        }
    }
}

#[test]
fn one_miss_in_ten_does_not_end_it() {
    let (time, cpu) = ratios(Machine::new(30.0), Think::Mostly);
    assert!(time < 0.6 && cpu < 1.5, "{time} {cpu}");
}

#[test]
fn cores_that_others_want_are_left_to_them() {
    for (wake_up, contested) in [(30.0, 0.3), (100.0, 0.3), (5.0, 0.9), (30.0, 0.9), (100.0, 0.9)] {
        for think in THINK {
            let (time, cpu) = ratios(Machine { contested, ..Machine::new(wake_up) }, think);
            println!("contested {contested}, wake-up {wake_up:3} {think:?}: time {time:.2} cpu {cpu:.2}");
            assert!(time <= 1.06 && time * cpu <= 1.2, "{contested} {wake_up} {think:?}: {time} {cpu}");
        }
    }
}

#[test]
fn a_fixed_rate_costs_no_more() {
    for period in [500.0, 1000.0, 5000.0] {
        for wake_up in [5.0, 30.0, 100.0] {
            let (time, cpu) = ratios(Machine { period, ..Machine::new(wake_up) }, Think::For(5.0));
            println!("each {period} us, wake-up {wake_up}: time {time:.2} cpu {cpu:.2}");
            assert!(time * cpu <= 1.1 && cpu <= 1.3, "{period} {wake_up}: {time} {cpu}");
        }
    }
}

#[test]
fn a_channel_spins_through_wake_ups_at_a_fixed_rate() {
    for wake_up in [5.0, 30.0, 100.0] {
        let machine = Machine { period: 1000.0, channels: true, ..Machine::new(wake_up) };
        let [plain, ours] = [false, true].map(|spins| two_cores(machine, Think::For(5.0), spins));
        let (time, cpu) = (ours.round_trip / plain.round_trip, ours.cpu - plain.cpu);
        println!("each 1000 us, wake-up {wake_up}: time {time:.2}, {cpu:.1} us more of both cores");
        assert!(time <= 0.8 && cpu <= (wake_up + 5.0) * 1.1, "{wake_up}: {time} {cpu}");
    }
}

#[test]
fn two_on_one_core_hand_it_to_each_other() {
    for (wake_up, rings) in [(5.0, true), (5.0, false), (30.0, true), (30.0, false)] {
        let both = |machine, think| [false, true].map(|spins| one_core(machine, think, spins, rings));
        for think in THINK {
            // Without rings no wake-up is measured.
            let starts = [Start::Nothing, Start::Paused, Start::TooLong];
            for &start in &starts[..if rings { 3 } else { 2 }] {
                let [plain, ours] = both(Machine { start, channels: !rings, ..Machine::new(wake_up) }, think);
                println!("wake-up {wake_up:3} {think:?} {start:?} {rings}: {plain:.1} {ours:.1}");
                assert!(ours <= plain * 1.05, "{wake_up} {think:?} {start:?} {rings}: {plain} {ours}");
            }
        }
        let [plain, ours] = both(Machine::new(wake_up), Think::For(1.0));
        assert!(!rings || ours < plain * 0.7, "{wake_up}: {plain} {ours}");
    }
}
