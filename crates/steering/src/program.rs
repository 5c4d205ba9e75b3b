//! The policy, as the kernel runs it at each SYN and for each connection of a member that closes.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use sys::bpf::{
    Arithmetic, AssembleError, Assembler, Code, Condition, Helper, Label, Program,
    Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
    Size, SocketArray, WordArray,
};

use crate::table::{ACCEPTED, AWAY, CANNOT_ACCEPT, CONTROL, HIGHEST, PLACES, STEERED};

/// Connections that a member may have steered to it and not accepted, before others take more: what
/// a thread that is stopped in its wait delays.
pub const BEHIND_MAX: u32 = 8;

/// How long an owner may be away from its wait before others take its connections. Work between two
/// waits is usually shorter; a request that blocks is longer (measured on two cores, with 0.5 % of
/// the requests blocking for 20 ms: p99 of the others 17 ms without this bound, 2 ms with it).
pub const AWAY_MAX: Duration = Duration::from_micros(500);

/// Members that are tried for one that is ready, from one picked at random on.
pub(crate) const TRIES: usize = 16;

/// Where connections go that the member of their CPU should not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPath {
    /// To a member that waits or was away for less than [`AWAY_MAX`], and is not behind.
    /// If there is none, to the member of the CPU after all while that is not behind,
    /// else to the one that is least behind of those that can accept: a busy machine
    /// keeps all owners from running for longer than that, and one that is stopped must
    /// not get more than its share meanwhile.
    OtherMember,
    /// To the socket of [`crate::Steering::share`], from which every owner accepts.
    SharedSocket,
}

/// The arrays that the program reads.
pub(crate) struct Maps<'maps> {
    pub(crate) members: &'maps WordArray,
    pub(crate) places: &'maps WordArray,
    pub(crate) sockets: &'maps SocketArray,
}

/// What the program does with the member it has chosen; a jump to the label tries another.
pub(crate) trait Selection<'maps> {
    fn emit(&self, code: &mut Assembler<'maps>, otherwise: Label);
}

/// Selects the socket of that number for the connection, if there is one.
pub(crate) struct Select<'maps>(pub(crate) BorrowedFd<'maps>);

impl<'maps> Selection<'maps> for Select<'maps> {
    fn emit(&self, code: &mut Assembler<'maps>, otherwise: Label) {
        code.set(R1, R6).set_map(R2, self.0).set(R3, R10).arithmetic(Arithmetic::Add, R3, i32::from(KEY));
        code.set(R4, 0).call(Helper::SelectReuseport).jump_if(Condition::NotEqual, R0, 0, otherwise);
    }
}

/// ```text
/// own = places[this CPU][random]
/// if ready(own) -> own
/// slow path of a shared socket: -> socket 0
/// slow path of members: for TRIES members from a random one on: if ready(member) -> member
///                       if !can_accept(own) || behind(own) >= BEHIND_MAX:
///                           -> of TRIES members from a random one on, if can_accept(member):
///                              the first with the least behind(member)
/// -> own; without one, or if it has no socket: by hash
///
/// can_accept(member) = away != CANNOT_ACCEPT
/// behind(member) = steered - accepted
/// ready(member) = behind(member) < BEHIND_MAX && (away == 0 || now - away <= AWAY_MAX)
/// ```
pub(crate) fn assemble<'maps>(
    maps: &Maps<'maps>,
    slow_path: SlowPath,
    selection: &impl Selection<'maps>,
) -> Result<Code<'maps>, AssembleError> {
    let mut code = Assembler::new();
    let (slow, least, own, end) = (code.label(), code.label(), code.label(), code.label());
    code.set(R6, R1).store(Size::Word, R10, OWN, 0);

    code.call(Helper::Cpu).store(Size::Word, R10, KEY, R0);
    look_up(&mut code, maps.places.as_fd(), slow);
    code.set(R7, R0).call(Helper::Random).arithmetic(Arithmetic::And, R0, PLACES as i32 - 1);
    code.arithmetic(Arithmetic::ShiftLeft, R0, 3).arithmetic(Arithmetic::Add, R7, R0);
    code.load(Size::Double, R7, R7, 0).jump_if(Condition::Equal, R7, 0, slow);
    code.store(Size::Word, R10, OWN, R7).store(Size::Word, R10, KEY, R7);
    look_up(&mut code, maps.members.as_fd(), slow);
    unless_ready(&mut code, slow);
    take(&mut code, selection, slow, end);

    code.place(slow).store(Size::Word, R10, KEY, CONTROL as i32);
    match slow_path {
        SlowPath::SharedSocket => {
            selection.emit(&mut code, own);
            code.jump(end);
        }
        SlowPath::OtherMember => {
            look_up(&mut code, maps.members.as_fd(), own);
            code.load(Size::Double, R9, R0, offset(HIGHEST)).jump_if(Condition::Equal, R9, 0, end);
            try_others(&mut code, maps, selection, end);
            code.load(Size::Word, R7, R10, OWN).store(Size::Word, R10, KEY, R7);
            code.jump_if(Condition::Equal, R7, 0, least);
            look_up(&mut code, maps.members.as_fd(), least);
            unless_able(&mut code, least);
            unless_not_behind(&mut code, least);
            take(&mut code, selection, least, end);
            code.place(least);
            take_least_behind(&mut code, maps, selection, end);
        }
    }

    code.place(own).load(Size::Word, R7, R10, OWN).jump_if(Condition::Equal, R7, 0, end);
    code.store(Size::Word, R10, KEY, R7);
    look_up(&mut code, maps.members.as_fd(), end);
    code.store(Size::Double, R10, LINE, R0);
    take(&mut code, selection, end, end);
    code.place(end).set(R0, Program::PASS).exit();
    code.finish()
}

/// Takes one of [`TRIES`] members that is ready. R9 has the highest member's number.
fn try_others<'maps>(
    code: &mut Assembler<'maps>,
    maps: &Maps<'maps>,
    selection: &impl Selection<'maps>,
    end: Label,
) {
    for_others(code, maps, |code, next| {
        unless_ready(code, next);
        take(code, selection, next, end);
    });
}

/// Takes the one of [`TRIES`] members that is least behind, of those that can accept. R9
/// has the highest member's number. One that is gone would be the least behind for ever:
/// it counts as unable from then on.
fn take_least_behind<'maps>(
    code: &mut Assembler<'maps>,
    maps: &Maps<'maps>,
    selection: &impl Selection<'maps>,
    end: Label,
) {
    let (gone, none) = (code.label(), code.label());
    code.set_wide(R1, i64::MAX as u64).store(Size::Double, R10, LEAST, R1).store(Size::Word, R10, FOUND, 0);
    for_others(code, maps, |code, next| {
        let less = code.label();
        unless_able(code, next);
        load_behind(code);
        code.load(Size::Double, R2, R10, LEAST).jump_if(Condition::SignedGreater, R2, R1, less).jump(next);
        code.place(less).store(Size::Double, R10, LEAST, R1);
        code.load(Size::Word, R1, R10, KEY).store(Size::Word, R10, FOUND, R1);
    });
    code.load(Size::Word, R1, R10, FOUND).jump_if(Condition::Equal, R1, 0, none);
    code.store(Size::Word, R10, KEY, R1);
    look_up(code, maps.members.as_fd(), none);
    code.store(Size::Double, R10, LINE, R0);
    take(code, selection, gone, end);
    code.place(gone).load(Size::Double, R1, R10, LINE);
    code.store(Size::Double, R1, offset(AWAY), CANNOT_ACCEPT as i32);
    code.place(none);
}

/// Looks [`TRIES`] members up, from a random one on: [`KEY`] has the number, R0 the
/// words. `each` jumps to its label for the next one. R9 has the highest member's number.
/// It is no loop: without CAP_PERFMON the verifier also follows what a CPU may speculate,
/// which is a loop without end.
fn for_others<'maps>(
    code: &mut Assembler<'maps>,
    maps: &Maps<'maps>,
    each: impl Fn(&mut Assembler<'maps>, Label),
) {
    code.call(Helper::Random).set(R8, R0);
    for _ in 0..TRIES {
        let next = code.label();
        code.arithmetic(Arithmetic::Add, R8, 1);
        code.set(R1, R8).arithmetic(Arithmetic::Modulo, R1, R9).arithmetic(Arithmetic::Add, R1, 1);
        code.store(Size::Word, R10, KEY, R1);
        look_up(code, maps.members.as_fd(), next);
        each(code, next);
        code.place(next);
    }
}

/// R0 = the words of entry [`KEY`].
fn look_up<'maps>(code: &mut Assembler<'maps>, map: BorrowedFd<'maps>, otherwise: Label) {
    code.set_map(R1, map)
        .set(R2, R10)
        .arithmetic(Arithmetic::Add, R2, i32::from(KEY))
        .call(Helper::MapLookup);
    code.jump_if(Condition::Equal, R0, 0, otherwise);
}

/// Of the member whose words are at R0, which are kept at [`LINE`].
fn unless_ready(code: &mut Assembler<'_>, otherwise: Label) {
    let ready = code.label();
    code.store(Size::Double, R10, LINE, R0);
    unless_not_behind(code, otherwise);
    code.load(Size::Double, R1, R0, offset(AWAY)).jump_if(Condition::Equal, R1, 0, ready);
    code.store(Size::Double, R10, SINCE, R1).call(Helper::MonotonicTime).load(Size::Double, R1, R10, SINCE);
    code.arithmetic(Arithmetic::Subtract, R0, R1);
    code.jump_if(Condition::SignedGreater, R0, AWAY_MAX.as_nanos() as i32, otherwise);
    code.place(ready);
}

/// As [`unless_ready`], for an owner that cannot accept.
fn unless_able(code: &mut Assembler<'_>, otherwise: Label) {
    code.store(Size::Double, R10, LINE, R0).load(Size::Double, R1, R0, offset(AWAY));
    code.jump_if(Condition::Equal, R1, CANNOT_ACCEPT as i32, otherwise);
}

/// Of the member whose words are at R0.
fn unless_not_behind(code: &mut Assembler<'_>, otherwise: Label) {
    load_behind(code);
    code.jump_if(Condition::SignedGreater, R1, BEHIND_MAX as i32 - 1, otherwise);
}

/// R1 = how far the member is behind whose words are at R0.
fn load_behind(code: &mut Assembler<'_>) {
    code.load(Size::Double, R1, R0, offset(STEERED)).load(Size::Double, R2, R0, offset(ACCEPTED));
    code.arithmetic(Arithmetic::Subtract, R1, R2);
}

/// Selects member [`KEY`], whose words are at [`LINE`], counts it as steered to, and ends.
fn take<'maps>(code: &mut Assembler<'maps>, selection: &impl Selection<'maps>, otherwise: Label, end: Label) {
    selection.emit(code, otherwise);
    code.load(Size::Double, R1, R10, LINE).set(R2, 1).atomic_add(R1, offset(STEERED), R2).jump(end);
}

/// Of a word in its entry, in bytes.
const fn offset(word: usize) -> i16 {
    8 * word as i16
}

// The stack frame.
const KEY: i16 = -4;
const OWN: i16 = -8;
const LINE: i16 = -16;
const SINCE: i16 = -24;
const LEAST: i16 = -32;
const FOUND: i16 = -36;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use sys::bpf::Kind;

    use super::*;
    use crate::policy::{self, Member, Owner};
    use crate::table;

    /// As of [`Select`], in a program that can be tried: writes the number to `chosen`, unless the
    /// member's word in `gone` is set.
    struct Note<'maps> {
        gone: BorrowedFd<'maps>,
        chosen: BorrowedFd<'maps>,
    }

    impl<'maps> Selection<'maps> for Note<'maps> {
        fn emit(&self, code: &mut Assembler<'maps>, otherwise: Label) {
            look_up(code, self.gone, otherwise);
            code.load(Size::Double, R1, R0, 0).jump_if(Condition::NotEqual, R1, 0, otherwise);
            const ZERO: i16 = -40;
            code.store(Size::Word, R10, ZERO, 0).set_map(R1, self.chosen);
            code.set(R2, R10).arithmetic(Arithmetic::Add, R2, i32::from(ZERO)).call(Helper::MapLookup);
            code.jump_if(Condition::Equal, R0, 0, otherwise);
            code.load(Size::Word, R1, R10, KEY).store(Size::Double, R0, 0, R1);
        }
    }

    fn member() -> impl Strategy<Value = Member> {
        // Away for no time yet or for a minute; a clock that goes on makes no difference.
        let away = [-60_000_000_000, 60_000_000_000].map(Owner::Away);
        let owner = prop::sample::select([Owner::Waits, away[0], away[1], Owner::CannotAccept].to_vec());
        (owner, -20..20_i64, any::<bool>()).prop_map(|(owner, behind, gone)| Member { owner, behind, gone })
    }

    #[test]
    fn the_kernel_decides_as_the_policy_says() {
        const MOST: u32 = 8;
        let cpus = crate::steering::possible_cpus();
        let made = || {
            Ok::<_, sys::bpf::Error>((
                WordArray::new("members", MOST + 1, table::words(cpus))?,
                WordArray::new("places", cpus, PLACES as usize)?,
                SocketArray::new("sockets", MOST + 1)?,
                WordArray::new("gone", MOST + 1, 1)?,
                WordArray::new("chosen", 1, 1)?,
            ))
        };
        let (members, places, sockets, gone, chosen) = match made() {
            Ok(arrays) => arrays,
            Err(error) => {
                let skipped = testkit::skip::Skipped::because(error.to_string());
                return testkit::skip::record("the_kernel_decides_as_the_policy_says", &skipped);
            }
        };
        let maps = Maps { members: &members, places: &places, sockets: &sockets };
        let note = Note { gone: gone.as_fd(), chosen: chosen.as_fd() };
        let load = |slow_path| {
            let code = assemble(&maps, slow_path, &note).unwrap();
            Program::load("steering_test", Kind::SocketFilter, &code).unwrap()
        };
        let programs = [SlowPath::OtherMember, SlowPath::SharedSocket].map(|path| (path, load(path)));

        let group = proptest::collection::vec(member(), 0..=MOST as usize);
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let result = runner.run(&(group, 0..=MOST), |(group, own)| {
            let own = if own as usize <= group.len() { own } else { 0 };
            let now = sys::clock::monotonic() as i64;
            for (slot, member) in (1..).zip(&group) {
                let words = members.entry(slot).unwrap();
                let away = match member.owner {
                    Owner::Waits => 0,
                    Owner::Away(time) => (now - time) as u64,
                    Owner::CannotAccept => CANNOT_ACCEPT,
                };
                words[AWAY].store(away, Ordering::Relaxed);
                words[ACCEPTED].store(1 << 40, Ordering::Relaxed);
                words[STEERED].store(((1 << 40) + member.behind) as u64, Ordering::Relaxed);
                gone.entry(slot).unwrap()[0].store(member.gone.into(), Ordering::Relaxed);
            }
            members.entry(CONTROL).unwrap()[HIGHEST].store(group.len() as u64, Ordering::Relaxed);
            for cpu in 0..cpus {
                places.entry(cpu).unwrap().iter().for_each(|word| word.store(own.into(), Ordering::Relaxed));
            }
            for (path, program) in &programs {
                let result = &chosen.entry(0).unwrap()[0];
                result.store(u64::MAX, Ordering::Relaxed);
                let steered = || -> Vec<u64> {
                    let of = |slot| members.entry(slot).unwrap()[STEERED].load(Ordering::Relaxed);
                    (1..=group.len() as u32).map(of).collect()
                };
                let before = steered();
                assert_eq!(program.run(&[0; 64]).unwrap(), Program::PASS as u32);
                let taken = u32::try_from(result.load(Ordering::Relaxed)).ok();
                let allowed = policy::choices(&group, own, *path);
                prop_assert!(allowed.contains(&taken), "{path:?}: {taken:?} is none of {allowed:?}");
                for (slot, (before, after)) in (1..).zip(before.into_iter().zip(steered())) {
                    prop_assert_eq!(after - before, u64::from(taken == Some(slot)), "steered to {}", slot);
                    // The next program meets the same group.
                    members.entry(slot).unwrap()[STEERED].store(before, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        result.unwrap();
    }
}
