//! What the monitor, the ends and the kernel do, step by step.

use promote::{KernelEnd, Machine, Next};
use ring::{Front, WakeUp};

use super::{Event, Life, Mutation, Reply, Sleep, Stage, Verdict, World, corrupt, must, stream};
use crate::kernel::{Flag, Run};
use crate::memory::RING;

const ECONNRESET: i32 = 104;

impl World {
    // The monitor.

    pub(super) fn reply(&mut self, side: usize, reply: Reply) {
        let replies = &mut self.ends[side].replies;
        let place = usize::from(replies[0] != Reply::Nothing);
        replies[place] = reply;
    }

    pub(super) fn grant(&mut self, side: usize, both: bool) {
        self.monitor = Some([false; 2]);
        self.reply(side, Reply::Grant);
        if both {
            self.reply(1 - side, Reply::Grant);
        } else {
            self.reply(side, Reply::Refuse);
        }
        if self.is(Mutation::AwareAtGrant) {
            [0, 1].into_iter().for_each(|side| self.memory.pretend_aware(side));
        }
    }

    pub(super) fn receive(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let [reply, next] = end.replies;
        end.replies = [next, Reply::Nothing];
        match (reply, end.stage) {
            (Reply::Grant, Stage::Offered) => end.stage = Stage::Granted,
            (Reply::Refuse, Stage::Offered) => end.stage = Stage::Refused,
            // One that takes a grant back changes nothing: the other end never is aware.
            _ => {}
        }
    }

    // Sending.

    pub(super) fn adopt(&mut self, side: usize) -> Verdict {
        let (own, peer) = self.memory.segments(side);
        let (written, consumed) = (self.ways[side].written, self.ways[1 - side].consumed);
        let mut machine = Machine::new(own, peer, written, consumed).map_err(corrupt)?;
        machine.mask();
        let first = self.machines[side].replace(machine).is_none();
        let end = &mut self.ends[side];
        end.muted = true;
        end.idle = false;
        let again = first && self.mutation == Mutation::GrantTwice;
        end.stage = if again { Stage::Granted } else { Stage::Adopted };
        let event = if self.machines[1 - side].is_some() { Event::Promoted } else { Event::AloneAware };
        self.note(event);
        Ok(())
    }

    pub(super) fn write(&mut self, side: usize) -> Verdict {
        if self.is(Mutation::BellAskedBeforeWrite) && !self.ends[side].bell {
            let wanted = self.machines[side]
                .as_mut()
                .is_some_and(|machine| machine.wants_wake_up_by(&self.peers[side], false).is_some());
            self.ends[side].bell = wanted;
        }
        let count = self.bounds.writes[side][self.ends[side].writes];
        let run = Run::data(self.ends[side].sent, count);
        let end = &mut self.ends[side];
        end.writes += 1;
        end.sent += count as u64;
        let idle = end.waiting.is_empty() || self.mutation == Mutation::RingWhileQueued;
        let over = end.told.is_some();
        let mut taken = 0;
        let mut full = false;
        if let Some(machine) = &mut self.machines[side] {
            if !machine.stays_with_kernel() || self.mutation == Mutation::RingAfterFin {
                let returned = !machine.sends_to_ring();
                taken = machine.send([stream(side, run)], count, idle).map_err(corrupt)?;
                if taken > 0 && returned && self.ends[side].ring_start > 0 {
                    self.note(Event::Returned);
                }
            }
            full = self.machines[side].as_ref().is_some_and(Machine::sends_to_ring);
        }
        let end = &mut self.ends[side];
        let (first, rest) =
            (Run { len: taken as u32, ..run }, Run::data(run.start as u64 + taken as u64, count - taken));
        end.ring.push(first);
        end.accepted += taken as u64;
        if taken > 0 {
            must(!over, "bytes in the ring that TCP would answer with a reset")?;
            must(end.waiting.is_empty(), "bytes in the ring ahead of others that wait for the kernel")?;
            end.owes_ask = !end.bell;
            self.note(Event::WroteRing);
        }
        let end = &mut self.ends[side];
        if rest.len > 0 && full {
            end.rest = rest.len as usize;
        } else if rest.len > 0 {
            end.waiting.push(rest);
        }
        let words = self.memory.words();
        let mut at = self.ends[side].ring_start;
        for run in self.ends[side].ring.runs() {
            must(self.memory.holds(side, at, stream(side, *run)), "ring bytes do not lie where they belong")?;
            at += u64::from(run.len);
        }
        must(words.tail(side) == at || self.machines[side].is_none(), "the tail is not behind the last byte")
    }

    pub(super) fn ask_bell(&mut self, side: usize) -> Verdict {
        self.ends[side].owes_ask = false;
        if self.ends[side].bell || self.is(Mutation::BellAskedBeforeWrite) {
            return Ok(());
        }
        let machine = self.machines[side].as_mut().ok_or("a bell without a ring")?;
        let wanted = machine.wants_wake_up_by(&self.peers[side], false).is_some();
        self.ends[side].bell = wanted && !self.is(Mutation::BellOmitted);
        Ok(())
    }

    pub(super) fn spill(&mut self, side: usize) -> Verdict {
        self.note(Event::RingFull);
        if !self.is(Mutation::BellBehindSpill) {
            // A bell has its place before what follows.
            self.bell(side);
        }
        let end = &mut self.ends[side];
        let rest = Run::data(end.sent - end.rest as u64, end.rest);
        end.rest = 0;
        end.waiting.push(rest);
        if self.is(Mutation::RecordBehindBytes) && self.ways[side].room(self.bounds.kernel_room) > 0 {
            self.kernel_takes(side);
            self.deliver(side);
            self.fetch(1 - side, usize::MAX)?;
        }
        self.machines[side].as_mut().ok_or("a spill without a ring")?.spill().map_err(corrupt)
    }

    pub(super) fn bell(&mut self, side: usize) {
        if !std::mem::take(&mut self.ends[side].bell) {
            return;
        }
        let Some(machine) = &mut self.machines[side] else { return };
        if machine.peer_reads_no_more() {
            self.note(Event::LateBellDropped);
        } else if self.ways[1 - side].reset != Flag::Arrived {
            if self.ways[side].room(self.bounds.kernel_room) > 0 {
                self.ways[side].take_in(Run::BELL);
                if self.mutation != Mutation::BellNotCounted {
                    machine.wake_up_was_accepted();
                }
                self.note(Event::BellTaken);
            } else {
                self.note(Event::BellWithoutRoom);
            }
        }
        self.send_fin(side);
    }

    pub(super) fn kernel_takes(&mut self, side: usize) {
        if self.is_reset(side) {
            self.ends[side].waiting.clear();
            self.ends[side].failed = true;
            return;
        }
        let room = self.ways[side].room(self.bounds.kernel_room);
        let Some(run) = self.ends[side].waiting.pop(room) else { return };
        self.ways[side].take_in(run);
        self.ends[side].accepted += u64::from(run.len);
        if let Some(machine) = &mut self.machines[side]
            && self.mutation != Mutation::KernelBytesNotCounted
        {
            machine.kernel_accepted(run.len as usize);
        }
        self.send_fin(side);
    }

    /// Sends the FIN that waits behind the last byte.
    fn send_fin(&mut self, side: usize) {
        let end = &self.ends[side];
        let sent = (end.waiting.is_empty() && !end.bell) || self.is(Mutation::FinBeforeBytes);
        let way = &mut self.ways[side];
        if end.shut && sent && way.fin == Flag::Unsent && way.reset == Flag::Unsent {
            way.fin = Flag::OnItsWay;
        }
    }

    fn send_reset(&mut self, side: usize) {
        self.ends[side].waiting.clear();
        self.ends[side].bell = false;
        self.ways[side].cut();
        if self.ways[side].reset == Flag::Unsent {
            self.ways[side].reset = Flag::OnItsWay;
        }
    }

    /// What is first on its way from this end arrives.
    pub(super) fn deliver(&mut self, side: usize) {
        let left = matches!(self.ends[1 - side].life, Life::Gone | Life::Killed);
        let (way, back) = match &mut self.ways {
            [one, other] if side == 0 => (one, other),
            [other, one] => (one, other),
        };
        if let Some(run) = way.sending.pop(usize::MAX) {
            if !left {
                way.receiving.push(run);
            } else {
                if run.bell {
                    self.events |= 1 << Event::BellMetReset as u32;
                }
                back.cut();
                if back.reset == Flag::Unsent {
                    self.reset_by_bell[1 - side] = run.bell;
                    back.reset = Flag::OnItsWay;
                }
            }
        } else if way.fin == Flag::OnItsWay {
            way.fin = Flag::Arrived;
        } else if way.reset == Flag::OnItsWay {
            way.reset = Flag::Arrived;
            back.cut();
        }
    }

    // Receiving.

    pub(super) fn wake(&mut self, side: usize) {
        if self.ends[side].sleep != Sleep::Awake && self.mutation != Mutation::WakeStaysAsleep {
            self.pages[side].wake(0);
            if let Some(machine) = &mut self.machines[side] {
                machine.disarm();
            }
        }
        self.ends[side].sleep = Sleep::Awake;
        self.ends[side].idle = false;
    }

    pub(super) fn fetch(&mut self, side: usize, runs: usize) -> Verdict {
        self.wake(side);
        let input = &mut self.ways[1 - side];
        let end = &mut self.ends[side];
        if input.receiving.is_empty() {
            let how = match input.fin {
                Flag::Arrived => KernelEnd::Finished,
                _ => KernelEnd::Failed(ECONNRESET),
            };
            match &mut self.machines[side] {
                Some(machine) => machine.kernel_ended(how),
                None => end.kernel_end = Some(how),
            }
            let early = match how {
                KernelEnd::Finished => self.mutation == Mutation::EndBeforeRing,
                KernelEnd::Failed(_) => self.mutation == Mutation::ResetBeforeRing,
            };
            return if early { self.tell(side, how) } else { Ok(()) };
        }
        for _ in 0..runs {
            let Some(run) = input.receiving.pop(usize::MAX) else { break };
            input.consumed += u64::from(run.len);
            end.fetched.push(run);
        }
        self.drop_bells(side)
    }

    fn drop_bells(&mut self, side: usize) -> Verdict {
        let Some(machine) = &mut self.machines[side] else { return Ok(()) };
        let end = &mut self.ends[side];
        while !end.fetched.is_empty()
            && self.mutation != Mutation::BellAsData
            && let Front::WakeUps(bells) = machine.front(end.fetched.bytes()).map_err(corrupt)?
        {
            for _ in 0..bells {
                must(end.fetched.pop(1).is_some_and(|run| run.bell), "bytes are dropped as bells")?;
            }
            if self.mutation != Mutation::DroppedBellsNotCounted {
                machine.kernel_delivered(bells as usize);
            }
        }
        Ok(())
    }

    pub(super) fn take(&mut self, side: usize, count: usize) -> Verdict {
        let end = &mut self.ends[side];
        let Some(machine) = &mut self.machines[side] else {
            if let Some(run) = end.fetched.pop(count) {
                return self.got(side, run);
            }
            return match end.kernel_end {
                Some(how) => self.tell(side, how),
                None => Ok(()),
            };
        };
        if std::mem::take(&mut end.muted) {
            machine.disarm();
        }
        match machine.next(end.fetched.bytes()).map_err(corrupt)? {
            Next::Ring(here) => {
                let mut bytes = [0; RING];
                let room = count.min(bytes.len());
                let taken = machine.read_ring(&mut bytes[..room]).map_err(corrupt)?;
                must(taken > 0 && taken <= here, "a read of the ring that gives nothing, or too much")?;
                let mut at = 0;
                while at < taken {
                    let run = self.ends[1 - side].ring.pop(taken - at).ok_or("ring bytes out of nothing")?;
                    self.ends[1 - side].ring_start += u64::from(run.len);
                    must(
                        &bytes[at..][..run.len as usize] == stream(1 - side, run),
                        "other bytes in the ring",
                    )?;
                    at += run.len as usize;
                    self.got(side, run)?;
                }
                Ok(())
            }
            Next::Kernel => match machine.front(end.fetched.bytes()).map_err(corrupt)? {
                Front::WakeUps(_) => self.drop_bells(side),
                Front::Data(here) => {
                    let mut left = count.min(here as usize);
                    machine.kernel_delivered(left);
                    while left > 0 {
                        let run = self.ends[side].fetched.pop(left).ok_or("kernel bytes out of nothing")?;
                        left -= run.len as usize;
                        self.got(side, run)?;
                    }
                    Ok(())
                }
                Front::Later => Err("kernel bytes that come next come later".into()),
            },
            Next::Nothing => {
                end.idle = true;
                Ok(())
            }
            Next::End(how) => self.tell(side, how),
        }
    }

    fn got(&mut self, side: usize, run: Run) -> Verdict {
        let end = &mut self.ends[side];
        must(!run.bell, "a bell is taken for a byte")?;
        must(u64::from(run.start) == end.got, "bytes out of order")?;
        end.got += u64::from(run.len);
        Ok(())
    }

    fn tell(&mut self, side: usize, how: KernelEnd) -> Verdict {
        if let Some(machine) = &mut self.machines[side] {
            machine.end_was_reported();
        }
        self.ends[side].told = Some(how);
        let (end, peer) = (self.ends[side], self.ends[1 - side]);
        match how {
            KernelEnd::Finished => {
                must(peer.shut || peer.life == Life::Killed, "an end that nobody sent")?;
                must(
                    end.got == peer.accepted && peer.waiting.is_empty(),
                    "the end comes before the last byte",
                )?;
                let reset = self.is_reset(side) && self.ways[1 - side].fin != Flag::Arrived;
                must(!reset || self.reset_by_bell[1 - side], "an end where TCP would reset")?;
                self.note(Event::EndFinished);
            }
            KernelEnd::Failed(_) => {
                let next = peer
                    .ring
                    .first()
                    .into_iter()
                    .chain(end.fetched.first())
                    .find(|run| !run.bell && u64::from(run.start) == end.got);
                must(self.is_reset(side), "a reset out of nothing")?;
                must(next.is_none(), "a reset hides bytes that are here")?;
                let lost = end.got < peer.accepted;
                if self.reset_by_bell[1 - side] {
                    self.note(if lost { Event::LostToBell } else { Event::ResetByBell });
                    let known = self.bounds.delays || peer.life == Life::Killed;
                    must(known, "a reset that TCP would not have sent")?;
                }
                self.note(Event::EndReset);
            }
        }
        Ok(())
    }

    pub(super) fn sleep_cold(&mut self, side: usize) -> Verdict {
        let machine = self.machines[side].as_mut().ok_or("no ring to wait for")?;
        let news = machine.arm(WakeUp::Tcp).map_err(corrupt)?;
        let asleep = !news || self.mutation == Mutation::ColdWithoutLook;
        self.ends[side].idle = false;
        if asleep {
            self.ends[side].sleep = Sleep::Cold;
        }
        self.note(if asleep { Event::SleptCold } else { Event::StayedAwake });
        Ok(())
    }

    pub(super) fn sleep_hot(&mut self, side: usize) {
        self.pages[side].sleep(0);
        self.ends[side].idle = false;
        self.ends[side].sleep = Sleep::Dozing;
    }

    pub(super) fn check_ring(&mut self, side: usize) -> Verdict {
        let machine = self.machines[side].as_mut().ok_or("no ring to look at")?;
        let news = machine.poll().map_err(corrupt)? && self.mutation != Mutation::HotWithoutLook;
        if news {
            self.wake(side);
        } else {
            self.ends[side].sleep = Sleep::Hot;
        }
        self.note(if news { Event::StayedAwake } else { Event::SleptHot });
        Ok(())
    }

    // Ending.

    pub(super) fn shutdown(&mut self, side: usize) {
        self.ends[side].shut = true;
        if let Some(machine) = &mut self.machines[side] {
            machine.kernel_sends();
        }
        self.send_fin(side);
    }

    pub(super) fn close(&mut self, side: usize) -> Verdict {
        while !self.ways[1 - side].receiving.is_empty() {
            self.fetch(side, usize::MAX)?;
        }
        if self.mutation != Mutation::BellsUnreadAtClose {
            self.drop_bells(side)?;
        }
        let end = &mut self.ends[side];
        let mut unread = !end.fetched.is_empty();
        if let Some(machine) = &mut self.machines[side] {
            unread |= machine.has_unread() && self.mutation != Mutation::CloseForgetsRing;
            machine.reads_no_more(true);
            machine.kernel_sends();
        }
        let end = &mut self.ends[side];
        end.life = Life::Closing;
        end.shut = true;
        // Its FIN wakes as well.
        end.bell = false;
        let left = end.fetched.has_data() || !self.ends[1 - side].ring.is_empty();
        must(unread == left, "a close is a reset exactly over unread bytes")?;
        if unread {
            self.note(Event::ResetAtClose);
            self.machines[side] = None;
            self.ends[side].life = Life::Gone;
            self.send_reset(side);
        } else {
            self.send_fin(side);
        }
        Ok(())
    }

    pub(super) fn demote(&mut self, side: usize) {
        self.ends[side].life = Life::Gone;
        self.machines[side] = None;
        if !self.ways[1 - side].receiving.is_empty() {
            self.reset_by_bell[side] = !self.ways[1 - side].receiving.has_data();
            self.send_reset(side);
        }
        self.ways[1 - side].receiving.clear();
        self.ends[side].waiting.clear();
        self.send_fin(side);
    }

    pub(super) fn kill(&mut self, side: usize) {
        let unread = !self.ways[1 - side].receiving.is_empty();
        let data = self.ways[1 - side].receiving.has_data() || !self.ends[1 - side].ring.is_empty();
        match (unread, data) {
            (true, false) => {
                self.reset_by_bell[side] = true;
                self.note(Event::KilledOverBells);
            }
            (false, true) => self.note(Event::KilledOverRing),
            _ => {}
        }
        let end = &mut self.ends[side];
        end.life = Life::Killed;
        end.shut = true;
        end.bell = false;
        (end.owes_ask, end.rest, end.sleep, end.idle) = (false, 0, Sleep::Awake, false);
        end.waiting.clear();
        self.machines[side] = None;
        self.ways[1 - side].receiving.clear();
        if unread { self.send_reset(side) } else { self.send_fin(side) }
    }
}
