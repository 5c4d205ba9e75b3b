//! The policy once more, for tests: which choices the program has, and what its bounds are good for.

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
}

const OURS: Bounds = Bounds { behind: BEHIND_MAX as i64, away: AWAY_MAX.as_nanos() as i64 };

/// What the program may choose for a connection on a CPU of member `own` (0: none, members count from
/// 1): 0 is the shared socket, `None` the hash.
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
    let those = |fits: &dyn Fn(&Member) -> bool| -> Vec<Option<u32>> {
        let there = (1..).zip(group).filter(|(_, member)| !member.gone && fits(member));
        there.map(|(slot, _)| Some(slot)).collect()
    };
    let ready = those(&|member| member.is_ready(bounds));
    let able = those(&|member| member.owner != Owner::CannotAccept);
    match mine {
        _ if !ready.is_empty() => ready,
        Some(mine) if mine.owner == Owner::CannotAccept && !able.is_empty() => able,
        Some(_) => vec![Some(own)],
        None if !able.is_empty() => able,
        None => vec![None],
    }
}

/// Two members in virtual time, each with the connections of its CPU: 800 a second in all, of which
/// each takes 100 us of work. Returns how long each that did not block itself was under way, sorted.
fn simulate(bounds: Bounds, trouble: Trouble) -> Vec<i64> {
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
    let mut latencies = Vec::new();
    for now in (0..SECONDS * 1_000_000_000).step_by(STEP as usize) {
        if next(1_000_000_000 / 800 / STEP as u64) == 0 {
            let member = |at: usize| Member {
                owner: busy[at].map_or(Owner::Waits, |(_, since)| Owner::Away(now - since)),
                behind: queues[at].len() as i64,
                gone: false,
            };
            let own = 1 + next(2) as u32;
            let allowed = choices_within(&[member(0), member(1)], own, SlowPath::OtherMember, bounds);
            let chosen = allowed[next(allowed.len() as u64) as usize].expect("no member is gone");
            queues[chosen as usize - 1].push_back((now, trouble == Trouble::Blocks && next(200) == 0));
        }
        for at in 0..2 {
            // One that is stopped in its wait does not say so.
            let stopped =
                trouble == Trouble::Stopped && at == 0 && (1_000_000_000..2_000_000_000).contains(&now);
            if stopped || busy[at].is_some_and(|(until, _)| now < until) {
                continue;
            }
            busy[at] = queues[at].pop_front().map(|(came, blocks)| {
                let done = now + if blocks { 20_000_000 } else { 100_000 };
                if !blocks {
                    latencies.push(done - came);
                }
                (done, now)
            });
        }
    }
    latencies.sort_unstable();
    latencies
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// One member is stopped for a second, in its wait.
    Stopped,
    /// Each two hundredth connection blocks its owner for 20 ms.
    Blocks,
}

const SLOW: i64 = 10_000_000;

fn slow(latencies: &[i64]) -> usize {
    latencies.iter().filter(|&&latency| latency > SLOW).count()
}

#[test]
fn a_stopped_member_delays_as_many_connections_as_it_may_be_behind() {
    let unbounded = Bounds { behind: i64::MAX, ..OURS };
    assert!(slow(&simulate(unbounded, Trouble::Stopped)) > 300, "half of a second's connections");
    let delayed = slow(&simulate(OURS, Trouble::Stopped));
    assert!((1..=BEHIND_MAX as usize).contains(&delayed), "{delayed}");
    // Twice the bound delays about twice as many, and half of it half as many.
    for behind in [2 * OURS.behind, OURS.behind / 2] {
        assert_eq!(slow(&simulate(Bounds { behind, ..OURS }, Trouble::Stopped)) as i64, behind);
    }
}

#[test]
fn an_owner_that_blocks_delays_what_came_before_it_was_seen_to_be_away() {
    let p99 = |away: i64| {
        let latencies = simulate(Bounds { away, ..OURS }, Trouble::Blocks);
        latencies[latencies.len() * 99 / 100]
    };
    let ours = p99(OURS.away);
    assert!(ours < 2_000_000, "p99 of {ours} ns");
    assert!(p99(i64::MAX) > 10 * ours, "without the bound a connection waits for the blocked one");
    assert!(p99(20 * OURS.away) > 4 * ours, "with a bound of 10 ms too many do");
}
