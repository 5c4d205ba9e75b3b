//! The policy once more, for tests: which choices the program has, and what its bounds
//! are good for.

use crate::program::{AWAY_MAX, BEHIND_MAX, SlowPath};

/// A member as the program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) owner: Owner,
    /// Connections steered to it and not accepted.
    pub(crate) behind: i64,
    /// Its socket was closed.
    pub(crate) gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Waits,
    /// For so many nanoseconds.
    Away(i64),
    CannotAccept,
}

impl Member {
    fn can_accept(&self) -> bool {
        self.owner != Owner::CannotAccept
    }

    fn is_ready(&self, bounds: Bounds) -> bool {
        let awake = match self.owner {
            Owner::Waits => true,
            Owner::Away(time) => time <= bounds.away,
            Owner::CannotAccept => false,
        };
        awake && self.behind < bounds.behind
    }
}

#[derive(Clone, Copy)]
struct Bounds {
    behind: i64,
    away: i64,
    /// Where none is ready, the one that is least behind comes before a member of the CPU
    /// that is behind.
    prefers_least: bool,
}

const OURS: Bounds =
    Bounds { behind: BEHIND_MAX as i64, away: AWAY_MAX.as_nanos() as i64, prefers_least: true };

/// What the program may choose for a connection on a CPU of member `own` (0: none,
/// members count from 1): 0 is the shared socket, `None` the hash.
pub(crate) fn choices(group: &[Member], own: u32, slow_path: SlowPath) -> Vec<Option<u32>> {
    choices_within(group, own, slow_path, OURS)
}

fn choices_within(group: &[Member], own: u32, slow_path: SlowPath, bounds: Bounds) -> Vec<Option<u32>> {
    let mine = group.get((own as usize).wrapping_sub(1)).filter(|member| !member.gone);
    if mine.is_some_and(|member| member.is_ready(bounds)) {
        return vec![Some(own)];
    }
    if slow_path == SlowPath::SharedSocket {
        return vec![Some(0)];
    }
    let others = || (1..).zip(group);
    let ready: Vec<Option<u32>> = others()
        .filter(|(_, member)| !member.gone && member.is_ready(bounds))
        .map(|(slot, _)| Some(slot))
        .collect();
    if !ready.is_empty() {
        return ready;
    }
    let last = mine.map(|_| own);
    if mine.is_some_and(|mine| mine.can_accept() && (mine.behind < bounds.behind || !bounds.prefers_least)) {
        return vec![last];
    }
    // One that is gone is found out by choosing it; the next connection finds it unable.
    let able = || others().filter(|(_, member)| member.can_accept());
    let least = able().map(|(_, member)| member.behind).min();
    let chosen = able().filter(|(_, member)| Some(member.behind) == least);
    let mut choices: Vec<_> =
        chosen.map(|(slot, member)| if member.gone { last } else { Some(slot) }).collect();
    if choices.is_empty() {
        choices.push(last);
    }
    choices
}

/// What happens in a simulation.
#[derive(Clone, Copy, Default)]
struct Scene {
    trouble: Option<Trouble>,
    /// From a SYN to the connection in the queue, nanoseconds.
    round_trip: i64,
    /// Other processes keep the second member from running for 5 ms amid each tenth connection.
    busy_machine: bool,
    /// A connection takes 2 ms of work: both can do it, one cannot.
    overload: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The first member is stopped for the second second, in its wait, which it cannot say.
    Stopped,
    /// As before, amid a connection.
    Hangs,
    /// Each two hundredth connection blocks its owner for 20 ms.
    Blocks,
}

struct Simulated {
    /// How long each that did not block itself was under way from its last ACK on, sorted.
    latencies: Vec<i64>,
    /// Those that the member of their CPU got, of a thousand.
    local: usize,
    /// The most that the second member was behind.
    longest: i64,
}

/// Two channels in virtual time, each with the connections of its CPU: 800 a second in
/// all, of which each takes 100 us of work, as a rule. They count as [`crate::Owner`] and
/// its callers do.
fn simulate(bounds: Bounds, scene: Scene) -> Simulated {
    const STEP: i64 = 10_000;
    const SECONDS: i64 = 5;
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut queues: [std::collections::VecDeque<(i64, bool)>; 2] = Default::default();
    // Until when each works, and since when.
    let mut busy: [Option<(i64, i64)>; 2] = [None, None];
    let mut behind = [0; 2];
    let (mut latencies, mut all, mut local, mut longest) = (Vec::new(), 0, 0, 0);
    for now in (0..SECONDS * 1_000_000_000).step_by(STEP as usize) {
        if next(1_000_000_000 / 800 / STEP as u64) == 0 {
            let member = |at: usize| Member {
                owner: busy[at].map_or(Owner::Waits, |(_, since)| Owner::Away(now - since)),
                behind: behind[at],
                gone: false,
            };
            let own = 1 + next(2) as u32;
            let allowed = choices_within(&[member(0), member(1)], own, SlowPath::OtherMember, bounds);
            let chosen = allowed[next(allowed.len() as u64) as usize].expect("no member is gone");
            (all, local) = (all + 1, local + usize::from(chosen == own));
            behind[chosen as usize - 1] += 1;
            longest = longest.max(behind[1]);
            let blocks = scene.trouble == Some(Trouble::Blocks) && next(200) == 0;
            queues[chosen as usize - 1].push_back((now + scene.round_trip, blocks));
        }
        for at in 0..2 {
            let stopped = at == 0 && (1_000_000_000..2_000_000_000).contains(&now);
            let stopped = match scene.trouble {
                Some(Trouble::Stopped) => stopped,
                // It has said that it is away when it hangs.
                Some(Trouble::Hangs) if stopped => {
                    busy[0].get_or_insert((0, now));
                    true
                }
                _ => false,
            };
            if stopped || busy[at].is_some_and(|(until, _)| now < until) {
                continue;
            }
            let has_come = queues[at].front().is_some_and(|&(came, _)| came <= now);
            busy[at] = has_come.then(|| queues[at].pop_front()).flatten().map(|(came, blocks)| {
                behind[at] -= 1;
                let descheduled = scene.busy_machine && at == 1 && next(10) == 0;
                let usual = if scene.overload { 2_000_000 } else { 100_000 };
                let work = if blocks { 20_000_000 } else { usual };
                let done = now + work + if descheduled { 5_000_000 } else { 0 };
                if !blocks {
                    latencies.push(done - came);
                }
                (done, now)
            });
            if busy[at].is_none() {
                behind[at] = 0; // found its queue empty
            }
        }
    }
    latencies.sort_unstable();
    Simulated { latencies, local: local * 1000 / all, longest }
}

impl Simulated {
    /// Slower than 10 ms.
    fn slow(&self) -> i64 {
        self.latencies.iter().filter(|&&latency| latency > 10_000_000).count() as i64
    }

    /// Slower than half of what a member is stopped for: nothing else takes as long.
    fn stuck(&self) -> i64 {
        self.latencies.iter().filter(|&&latency| latency > 500_000_000).count() as i64
    }

    fn p99(&self) -> i64 {
        self.latencies[self.latencies.len() * 99 / 100]
    }
}

fn with(trouble: Trouble) -> Scene {
    Scene { trouble: Some(trouble), ..Scene::default() }
}

#[test]
fn a_stopped_member_delays_as_many_connections_as_it_may_be_behind() {
    let unbounded = Bounds { behind: i64::MAX, ..OURS };
    assert!(simulate(unbounded, with(Trouble::Stopped)).slow() > 300, "half of a second's connections");
    // Twice the bound delays twice as many, and half of it half as many.
    for behind in [OURS.behind, 2 * OURS.behind, OURS.behind / 2] {
        assert_eq!(simulate(Bounds { behind, ..OURS }, with(Trouble::Stopped)).slow(), behind);
    }
}

/// One that is seen to be away delays what came within the bound: at 400 a second, one in
/// five times.
#[test]
fn a_member_that_hangs_delays_hardly_any() {
    let delayed = simulate(OURS, with(Trouble::Hangs)).slow();
    assert!(delayed <= 2, "{delayed}");
    let unbounded = Bounds { away: i64::MAX, ..OURS };
    assert_eq!(simulate(unbounded, with(Trouble::Hangs)).slow(), OURS.behind, "what the other bound allows");
}

/// Two bounds hold at once: what one member may be behind, and what the others are.
#[test]
fn a_stopped_member_is_no_further_behind_than_the_others() {
    let busy = Scene { busy_machine: true, ..Scene::default() };
    let overload = Scene { overload: true, ..Scene::default() };
    for (scene, saves) in [(busy, 4), (overload, 2)] {
        for trouble in [Trouble::Stopped, Trouble::Hangs] {
            let scene = Scene { trouble: Some(trouble), ..scene };
            let without = simulate(Bounds { prefers_least: false, ..OURS }, scene).stuck();
            assert!(without > 4 * OURS.behind, "{without}");
            let ours = simulate(OURS, scene);
            let (stuck, most) = (ours.stuck(), OURS.behind.max(ours.longest + 1));
            assert!(
                stuck <= most && stuck < without / saves,
                "{trouble:?}: {stuck}, {without} without, {most} at most"
            );
        }
    }
}

/// A connection is counted from its SYN on, and waits for its owner a round trip later. Each wait
/// starts the count anew, so that handshakes do not make the owner seem behind; those
/// under way when it is stopped come to its queue besides those that the bound allows.
#[test]
fn handshakes_under_way_count_until_the_next_wait() {
    for round_trip in [20_000_000, 200_000_000] {
        let calm = simulate(OURS, Scene { round_trip, ..Scene::default() });
        assert!(calm.local > 990, "{} of 1000 with a round trip of {round_trip} ns", calm.local);
        let stopped = simulate(OURS, Scene { round_trip, ..with(Trouble::Stopped) });
        let under_way = 400 * round_trip / 1_000_000_000;
        // Of so many random arrivals, four standard deviations more.
        let most = OURS.behind + under_way + 4 * under_way.isqrt();
        let stuck = stopped.stuck();
        assert!((OURS.behind + 1..=most).contains(&stuck), "{stuck} with a round trip of {round_trip} ns");
    }
}

#[test]
fn an_owner_that_blocks_delays_what_came_before_it_was_seen_to_be_away() {
    let p99 = |away: i64| simulate(Bounds { away, ..OURS }, with(Trouble::Blocks)).p99();
    let ours = p99(OURS.away);
    assert!(ours < 2_000_000, "p99 of {ours} ns");
    assert!(p99(i64::MAX) > 10 * ours, "without the bound a connection waits for the blocked one");
    assert!(p99(20 * OURS.away) > 4 * ours, "with a bound of 10 ms too many do");
}
