//! Two endpoints that answer each other, with a simulated clock: how soon a pair whose spinning
//! pays is awake, and that no other pair goes on spinning.

use std::time::{Duration, Instant};

use super::*;

const fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A store that the other core sees.
const CACHE_LINE: Duration = Duration::from_nanos(100);

/// From one thread to another on the same core.
const SWITCH: Duration = us(2);

const ROUND_TRIPS: u32 = 6000;

/// The last round trips, whose mean counts.
const SETTLED: u32 = 2000;

/// So many round trips in a row with a sleep are a pair that is not awake: fewer are those in
/// which each endpoint measures its wake-ups again.
const ASLEEP: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cores {
    /// One for each endpoint.
    Two,
    /// Both share one, and a spinning endpoint yields it.
    OneYielded,
    /// Both share one, and a spinning endpoint keeps it, as with plain sockets.
    OneKept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Initial {
    Fresh,
    /// Awake, with the true wake-up latency.
    Awake,
    /// After many misses, with the true wake-up latency.
    Paused,
    /// One endpoint as `Awake`, the other as `Paused`.
    OnePaused,
    /// After many misses, with the least wake-up latency that a sample may give.
    TooLow,
    /// Awake, with the greatest.
    TooHigh,
}

const INITIAL: [Initial; 6] =
    [Initial::Fresh, Initial::Awake, Initial::Paused, Initial::OnePaused, Initial::TooLow, Initial::TooHigh];

#[derive(Clone, Copy)]
struct Scene {
    cores: Cores,
    wake_up: Duration,
    /// From a message's arrival to the answer.
    think: Duration,
    initial: Initial,
}

/// Durations are since `start`.
struct Endpoint {
    policy: SpinPolicy,
    waits_since: Duration,
    budget: Duration,
    spun: Duration,
    sleeps: u32,
}

impl Endpoint {
    fn new(scene: Scene, paused: bool, start: Instant) -> Endpoint {
        let mut policy = SpinPolicy::new(Spin::Auto);
        policy.wake_up = match scene.initial {
            Initial::Fresh => None,
            Initial::TooLow => Some(WAKE_UP_LEAST),
            Initial::TooHigh => Some(WAKE_UP_MOST),
            _ => Some(scene.wake_up.clamp(WAKE_UP_LEAST, WAKE_UP_MOST)),
        };
        let budget = policy.wake_up() * 2;
        (0..if paused { 8 } else { 0 }).for_each(|_| policy.missed(budget, start));
        // Asleep, whatever comes next.
        Endpoint {
            policy,
            waits_since: Duration::ZERO,
            budget: Duration::ZERO,
            spun: Duration::ZERO,
            sleeps: 0,
        }
    }

    fn begin_wait(&mut self, now: Duration, rings: bool, start: Instant) {
        self.waits_since = now;
        self.budget = self.policy.budget(2, rings, || start + now);
    }

    fn find(&mut self, spent: Duration) {
        self.policy.found(spent);
        self.spun += spent;
    }

    fn miss(&mut self, spent: Duration, start: Instant) {
        if self.budget > Duration::ZERO {
            self.policy.missed(spent, start + self.waits_since + spent);
        }
    }

    /// Was asleep when it was woken at `called`, and ran at `ran`.
    fn wake(&mut self, called: Duration, ran: Duration) {
        self.sleeps += 1;
        self.policy.slept(ran - self.waits_since, ran.as_nanos() as u64);
        self.policy.woken_at(called.as_nanos() as u64);
    }
}

struct Machine {
    scene: Scene,
    start: Instant,
    random: u64,
}

impl Machine {
    /// A wake-up takes a quarter less to a quarter more.
    fn wake_up(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.scene.wake_up * (750 + (self.random % 501) as u32) / 1000
    }

    /// `sender` publishes a message and waits. When `receiver`, which waits, has it.
    fn send(&mut self, at: Duration, sender: &mut Endpoint, receiver: &mut Endpoint) -> Duration {
        let spent = at + CACHE_LINE - receiver.waits_since;
        let got = match self.scene.cores {
            Cores::Two if spent < receiver.budget => {
                receiver.find(spent);
                sender.policy.wrote(false);
                at + CACHE_LINE
            }
            Cores::Two => {
                let budget = receiver.budget;
                receiver.miss(budget, self.start);
                receiver.spun += budget;
                sender.policy.wrote(true);
                let got = at + self.wake_up();
                receiver.wake(at, got);
                got
            }
            // Yields, or sleeps, and the receiver runs.
            Cores::OneYielded if receiver.budget > Duration::ZERO => {
                let spent = spent + SWITCH;
                match spent < receiver.budget {
                    true => receiver.policy.found(spent),
                    false => receiver.miss(spent, self.start),
                }
                sender.policy.wrote(false);
                at + SWITCH
            }
            Cores::OneYielded => {
                sender.policy.wrote(true);
                let got = at + self.wake_up() + SWITCH;
                receiver.wake(at, got);
                got
            }
            // The receiver slept before the sender could run; now the sender has to sleep first.
            Cores::OneKept => {
                receiver.sleeps += 1;
                sender.begin_wait(at, false, self.start);
                let budget = sender.budget;
                sender.miss(budget, self.start);
                sender.spun += budget;
                return at + budget + self.wake_up();
            }
        };
        sender.begin_wait(at, true, self.start);
        got
    }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    /// Round trips until the last of [`ASLEEP`] in a row in which one slept; none: it goes on.
    awake_after: Option<u32>,
    mean: Duration,
    /// Of the time of both endpoints.
    spun: f64,
}

fn run(scene: Scene) -> Outcome {
    let start = Instant::now();
    let paused = matches!(scene.initial, Initial::Paused | Initial::TooLow);
    let mut first = Endpoint::new(scene, paused, start);
    let mut second = Endpoint::new(scene, paused || scene.initial == Initial::OnePaused, start);
    let mut machine = Machine { scene, start, random: 0x9e37_79b9_7f4a_7c15 };
    let begin = us(10_000);
    let mut now = begin;
    let (mut last_asleep, mut slept_in_row) = (0, 0);
    let (mut settled_at, mut spun_before) = (begin, Duration::ZERO);
    for round_trip in 1..=ROUND_TRIPS {
        let sleeps = first.sleeps + second.sleeps;
        let got = machine.send(now, &mut first, &mut second);
        now = machine.send(got + scene.think, &mut second, &mut first) + scene.think;
        slept_in_row = if first.sleeps + second.sleeps > sleeps { slept_in_row + 1 } else { 0 };
        if slept_in_row >= ASLEEP {
            last_asleep = round_trip;
        }
        if round_trip == ROUND_TRIPS - SETTLED {
            (settled_at, spun_before) = (now, first.spun + second.spun);
        }
    }
    let settled = now - settled_at;
    Outcome {
        awake_after: (last_asleep < ROUND_TRIPS - SETTLED).then_some(last_asleep),
        mean: settled / SETTLED,
        spun: (first.spun + second.spun - spun_before).as_secs_f64() / settled.as_secs_f64() / 2.0,
    }
}

impl Outcome {
    fn keeps_the_rule(&self, pays: bool) -> bool {
        match self.awake_after {
            Some(count) => pays && count <= 100,
            None => !pays && self.spun < 0.02,
        }
    }
}

/// The table that ADR 13 quotes: `cargo test -p megapipe simulation -- --nocapture`.
#[test]
fn a_pair_is_awake_soon_where_that_pays_and_nowhere_else() {
    let quoted = include_str!("../../../../docs/adr/0013-how-long-to-spin.md");
    let mut wrong = Vec::new();
    for wake_up in [5, 30, 100, 300] {
        for think in [1, 20, 200, 2000] {
            let pays = think <= wake_up;
            let scene =
                |initial| Scene { cores: Cores::Two, wake_up: us(wake_up), think: us(think), initial };
            let outcomes = INITIAL.map(|initial| run(scene(initial)));
            let mut line = format!("| {wake_up} us | {think} us |");
            for outcome in &outcomes {
                let count = outcome.awake_after.map_or("never".into(), |count| count.to_string());
                line += &format!(" {count} |");
            }
            let mean = outcomes.iter().map(|outcome| outcome.mean.as_secs_f64() * 1e6).fold(0.0, f64::max);
            let spun = outcomes.iter().map(|outcome| outcome.spun * 100.0).fold(0.0, f64::max);
            line += &format!(" {mean:.1} us | {spun:.1} % |");
            println!("{line}");
            if !outcomes.iter().all(|outcome| outcome.keeps_the_rule(pays)) || !quoted.contains(&line) {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "these break the rule, or the ADR has others:\n{}", wrong.join("\n"));
}

/// On one core yielding hands the core to the peer, and keeping it delays the peer.
#[test]
fn a_pair_on_one_core_spins_only_if_it_yields() {
    for initial in INITIAL {
        for think in [1, 200, 2000] {
            let scene = |cores| Scene { cores, wake_up: us(5), think: us(think), initial };
            let kept = run(scene(Cores::OneKept));
            assert!(kept.awake_after.is_none() && kept.spun < 0.04, "{initial:?} {kept:?}");
            // Asleep all the time: twice 5 us, and the thinking.
            assert!(kept.mean < (us(5) + us(think)) * 2 * 11 / 10, "{initial:?} {kept:?}");
            let yielded = run(scene(Cores::OneYielded));
            assert_eq!(yielded.awake_after.is_some_and(|count| count <= 100), think == 1, "{initial:?}");
        }
    }
}
