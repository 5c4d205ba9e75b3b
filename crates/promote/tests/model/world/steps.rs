//! What the monitor, the endpoints and the kernel do, step by step.

use promote::{KernelEnd, Machine, Next};
use ring::{Front, WakeUp};

use super::{Event, Life, Mutation, Reply, Sleep, Stage, Verdict, World, corrupt, must, stream};
use crate::kernel::{Flag, Run};
use crate::memory::RING;

const ECONNRESET: i32 = 104;

impl World {
    // The monitor.

    pub(super) fn reply(&mut self, side: usize, reply: Reply) {
        let replies = &mut self.endpoints[side].replies;
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
        let endpoint = &mut self.endpoints[side];
        let [reply, next] = endpoint.replies;
        endpoint.replies = [next, Reply::Nothing];
        match (reply, endpoint.stage) {
            (Reply::Grant, Stage::Offered) => endpoint.stage = Stage::Granted,
            (Reply::Refuse, Stage::Offered) => endpoint.stage = Stage::Refused,
            // A withdrawn grant changes nothing: the peer never is aware.
            _ => {}
        }
    }

    // Sending.

    pub(super) fn adopt(&mut self, side: usize) -> Verdict {
        let (own, peer) = self.memory.regions(side);
        let (written, consumed) = (self.ways[side].written, self.ways[1 - side].consumed);
        let mut machine = Machine::new(own, peer, written, consumed).map_err(corrupt)?;
        machine.mask();
        let first = self.machines[side].replace(machine).is_none();
        let endpoint = &mut self.endpoints[side];
        endpoint.masked = true;
        endpoint.idle = false;
        let again = first && self.mutation == Mutation::GrantTwice;
        endpoint.stage = if again { Stage::Granted } else { Stage::Adopted };
        let event = if self.machines[1 - side].is_some() { Event::Promoted } else { Event::AloneAware };
        self.note(event);
        Ok(())
    }

    pub(super) fn write(&mut self, side: usize) -> Verdict {
        if self.is(Mutation::WakeUpCheckedBeforeWrite) && !self.endpoints[side].wake_up {
            let wanted = self.machines[side]
                .as_mut()
                .is_some_and(|machine| machine.wants_wake_up_by(&self.peers[side], false).is_some());
            self.endpoints[side].wake_up = wanted;
        }
        let count = self.bounds.writes[side][self.endpoints[side].writes];
        let run = Run::data(self.endpoints[side].sent, count);
        let endpoint = &mut self.endpoints[side];
        endpoint.writes += 1;
        endpoint.sent += count as u64;
        let idle = endpoint.waiting.is_empty() || self.mutation == Mutation::RingWhileQueued;
        let over = endpoint.reported.is_some();
        let mut accepted = 0;
        let mut full = false;
        if let Some(machine) = &mut self.machines[side] {
            if !machine.stays_with_kernel() || self.mutation == Mutation::RingAfterFin {
                let returned = !machine.sends_to_ring();
                accepted = machine.send([stream(side, run)], count, idle).map_err(corrupt)?;
                if accepted > 0 && returned && self.endpoints[side].ring_start > 0 {
                    self.note(Event::Returned);
                }
            }
            full = self.machines[side].as_ref().is_some_and(Machine::sends_to_ring);
        }
        let endpoint = &mut self.endpoints[side];
        let (first, rest) = (
            Run { len: accepted as u32, ..run },
            Run::data(run.start as u64 + accepted as u64, count - accepted),
        );
        endpoint.ring.push(first);
        endpoint.accepted += accepted as u64;
        if accepted > 0 {
            must(!over, "bytes in the ring that TCP would answer with a reset")?;
            must(endpoint.waiting.is_empty(), "bytes in the ring ahead of others that wait for the kernel")?;
            endpoint.check_due = !endpoint.wake_up;
            self.note(Event::WroteRing);
        }
        let endpoint = &mut self.endpoints[side];
        if rest.len > 0 && full {
            endpoint.rest = rest.len as usize;
        } else if rest.len > 0 {
            endpoint.waiting.push(rest);
        }
        let words = self.memory.words();
        let mut at = self.endpoints[side].ring_start;
        for run in self.endpoints[side].ring.runs() {
            must(self.memory.holds(side, at, stream(side, *run)), "ring bytes do not lie where they belong")?;
            at += u64::from(run.len);
        }
        must(words.tail(side) == at || self.machines[side].is_none(), "the tail is not behind the last byte")
    }

    pub(super) fn check_wake_up(&mut self, side: usize) -> Verdict {
        self.endpoints[side].check_due = false;
        if self.endpoints[side].wake_up || self.is(Mutation::WakeUpCheckedBeforeWrite) {
            return Ok(());
        }
        let machine = self.machines[side].as_mut().ok_or("a wake-up without a ring")?;
        let wanted = machine.wants_wake_up_by(&self.peers[side], false).is_some();
        self.endpoints[side].wake_up = wanted && !self.is(Mutation::WakeUpOmitted);
        Ok(())
    }

    pub(super) fn spill(&mut self, side: usize) -> Verdict {
        self.note(Event::RingFull);
        if !self.is(Mutation::WakeUpBehindSpill) {
            // A wake-up precedes what follows.
            self.send_wake_up(side);
        }
        let endpoint = &mut self.endpoints[side];
        let rest = Run::data(endpoint.sent - endpoint.rest as u64, endpoint.rest);
        endpoint.rest = 0;
        endpoint.waiting.push(rest);
        if self.is(Mutation::RecordBehindBytes) && self.ways[side].room(self.bounds.kernel_room) > 0 {
            self.kernel_accepts(side);
            self.deliver(side);
            self.fetch(1 - side, usize::MAX)?;
        }
        self.machines[side].as_mut().ok_or("a spill without a ring")?.spill().map_err(corrupt)
    }

    pub(super) fn send_wake_up(&mut self, side: usize) {
        if !std::mem::take(&mut self.endpoints[side].wake_up) {
            return;
        }
        let Some(machine) = &mut self.machines[side] else { return };
        if machine.peer_reads_no_more() {
            self.note(Event::LateWakeUpDropped);
        } else if self.ways[1 - side].reset != Flag::Arrived {
            if self.ways[side].room(self.bounds.kernel_room) > 0 {
                self.ways[side].accept(Run::WAKE_UP);
                if self.mutation != Mutation::WakeUpNotCounted {
                    machine.wake_up_was_accepted();
                }
                self.note(Event::WakeUpAccepted);
            } else {
                self.note(Event::WakeUpWithoutRoom);
            }
        }
        self.send_fin(side);
    }

    pub(super) fn kernel_accepts(&mut self, side: usize) {
        if self.is_reset(side) {
            self.endpoints[side].waiting.clear();
            self.endpoints[side].failed = true;
            return;
        }
        let room = self.ways[side].room(self.bounds.kernel_room);
        let Some(run) = self.endpoints[side].waiting.pop(room) else { return };
        self.ways[side].accept(run);
        self.endpoints[side].accepted += u64::from(run.len);
        if let Some(machine) = &mut self.machines[side]
            && self.mutation != Mutation::KernelBytesNotCounted
        {
            machine.kernel_accepted(run.len as usize);
        }
        self.send_fin(side);
    }

    /// Sends the FIN that waits behind the last byte.
    fn send_fin(&mut self, side: usize) {
        let endpoint = &self.endpoints[side];
        let sent = (endpoint.waiting.is_empty() && !endpoint.wake_up) || self.is(Mutation::FinBeforeBytes);
        let way = &mut self.ways[side];
        if endpoint.shut && sent && way.fin == Flag::Unsent && way.reset == Flag::Unsent {
            way.fin = Flag::OnItsWay;
        }
    }

    fn send_reset(&mut self, side: usize) {
        self.endpoints[side].waiting.clear();
        self.endpoints[side].wake_up = false;
        self.ways[side].cut();
        if self.ways[side].reset == Flag::Unsent {
            self.ways[side].reset = Flag::OnItsWay;
        }
    }

    /// The first of what this endpoint has sent arrives.
    pub(super) fn deliver(&mut self, side: usize) {
        let gone = matches!(self.endpoints[1 - side].life, Life::Gone | Life::Killed);
        let (way, back) = match &mut self.ways {
            [one, other] if side == 0 => (one, other),
            [other, one] => (one, other),
        };
        if let Some(run) = way.sending.pop(usize::MAX) {
            if !gone {
                way.receiving.push(run);
            } else {
                if run.wake_up {
                    self.events |= 1 << Event::WakeUpAfterClose as u32;
                }
                back.cut();
                if back.reset == Flag::Unsent {
                    self.reset_by_wake_up[1 - side] = run.wake_up;
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
        if self.endpoints[side].sleep != Sleep::Awake && self.mutation != Mutation::WakeStaysAsleep {
            self.pages[side].wake(0);
            if let Some(machine) = &mut self.machines[side] {
                machine.disarm();
            }
        }
        self.endpoints[side].sleep = Sleep::Awake;
        self.endpoints[side].idle = false;
    }

    pub(super) fn fetch(&mut self, side: usize, runs: usize) -> Verdict {
        self.wake(side);
        let input = &mut self.ways[1 - side];
        let endpoint = &mut self.endpoints[side];
        if input.receiving.is_empty() {
            let how = match input.fin {
                Flag::Arrived => KernelEnd::Finished,
                _ => KernelEnd::Failed(ECONNRESET),
            };
            match &mut self.machines[side] {
                Some(machine) => machine.kernel_ended(how),
                None => endpoint.kernel_end = Some(how),
            }
            let early = match how {
                KernelEnd::Finished => self.mutation == Mutation::EndBeforeRing,
                KernelEnd::Failed(_) => self.mutation == Mutation::ResetBeforeRing,
            };
            return if early { self.report(side, how) } else { Ok(()) };
        }
        for _ in 0..runs {
            let Some(run) = input.receiving.pop(usize::MAX) else { break };
            input.consumed += u64::from(run.len);
            endpoint.fetched.push(run);
        }
        self.discard_wake_ups(side)
    }

    fn discard_wake_ups(&mut self, side: usize) -> Verdict {
        let Some(machine) = &mut self.machines[side] else { return Ok(()) };
        let endpoint = &mut self.endpoints[side];
        while !endpoint.fetched.is_empty()
            && self.mutation != Mutation::WakeUpAsData
            && let Front::WakeUps(wake_ups) = machine.front(endpoint.fetched.bytes()).map_err(corrupt)?
        {
            for _ in 0..wake_ups {
                must(
                    endpoint.fetched.pop(1).is_some_and(|run| run.wake_up),
                    "bytes are discarded as wake-ups",
                )?;
            }
            if self.mutation != Mutation::DiscardedWakeUpsNotCounted {
                machine.kernel_delivered(wake_ups as usize);
            }
        }
        Ok(())
    }

    pub(super) fn consume(&mut self, side: usize, count: usize) -> Verdict {
        let endpoint = &mut self.endpoints[side];
        let Some(machine) = &mut self.machines[side] else {
            if let Some(run) = endpoint.fetched.pop(count) {
                return self.got(side, run);
            }
            return match endpoint.kernel_end {
                Some(how) => self.report(side, how),
                None => Ok(()),
            };
        };
        if std::mem::take(&mut endpoint.masked) {
            machine.disarm();
        }
        match machine.next(endpoint.fetched.bytes()).map_err(corrupt)? {
            Next::Ring(here) => {
                let mut bytes = [0; RING];
                let room = count.min(bytes.len());
                let consumed = machine.read_ring(&mut bytes[..room]).map_err(corrupt)?;
                must(
                    consumed > 0 && consumed <= here,
                    "a read of the ring that returns nothing, or too much",
                )?;
                let mut at = 0;
                while at < consumed {
                    let run = self.endpoints[1 - side]
                        .ring
                        .pop(consumed - at)
                        .ok_or("ring bytes out of nothing")?;
                    self.endpoints[1 - side].ring_start += u64::from(run.len);
                    must(
                        &bytes[at..][..run.len as usize] == stream(1 - side, run),
                        "other bytes in the ring",
                    )?;
                    at += run.len as usize;
                    self.got(side, run)?;
                }
                Ok(())
            }
            Next::Kernel => match machine.front(endpoint.fetched.bytes()).map_err(corrupt)? {
                Front::WakeUps(_) => self.discard_wake_ups(side),
                Front::Data(here) => {
                    let mut left = count.min(here as usize);
                    machine.kernel_delivered(left);
                    while left > 0 {
                        let run =
                            self.endpoints[side].fetched.pop(left).ok_or("kernel bytes out of nothing")?;
                        left -= run.len as usize;
                        self.got(side, run)?;
                    }
                    Ok(())
                }
                Front::Later => Err("kernel bytes that come next come later".into()),
            },
            Next::Nothing => {
                endpoint.idle = true;
                Ok(())
            }
            Next::End(how) => self.report(side, how),
        }
    }

    fn got(&mut self, side: usize, run: Run) -> Verdict {
        let endpoint = &mut self.endpoints[side];
        must(!run.wake_up, "a wake-up is read as a byte")?;
        must(u64::from(run.start) == endpoint.got, "bytes out of order")?;
        endpoint.got += u64::from(run.len);
        Ok(())
    }

    fn report(&mut self, side: usize, how: KernelEnd) -> Verdict {
        if let Some(machine) = &mut self.machines[side] {
            machine.end_was_reported();
        }
        self.endpoints[side].reported = Some(how);
        let (endpoint, peer) = (self.endpoints[side], self.endpoints[1 - side]);
        match how {
            KernelEnd::Finished => {
                must(peer.shut || peer.life == Life::Killed, "an end of stream that was not sent")?;
                must(
                    endpoint.got == peer.accepted && peer.waiting.is_empty(),
                    "the end comes before the last byte",
                )?;
                let reset = self.is_reset(side) && self.ways[1 - side].fin != Flag::Arrived;
                must(!reset || self.reset_by_wake_up[1 - side], "an end of stream where TCP would reset")?;
                self.note(Event::EndFinished);
            }
            KernelEnd::Failed(_) => {
                let next = peer
                    .ring
                    .first()
                    .into_iter()
                    .chain(endpoint.fetched.first())
                    .find(|run| !run.wake_up && u64::from(run.start) == endpoint.got);
                must(self.is_reset(side), "a reset out of nothing")?;
                must(next.is_none(), "a reset hides bytes that are here")?;
                let lost = endpoint.got < peer.accepted;
                if self.reset_by_wake_up[1 - side] {
                    self.note(if lost { Event::LostToWakeUp } else { Event::ResetByWakeUp });
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
        let ready = machine.arm(WakeUp::Tcp).map_err(corrupt)?;
        let asleep = !ready || self.mutation == Mutation::ColdWithoutPoll;
        self.endpoints[side].idle = false;
        if asleep {
            self.endpoints[side].sleep = Sleep::Cold;
        }
        self.note(if asleep { Event::SleptCold } else { Event::StayedAwake });
        Ok(())
    }

    pub(super) fn sleep_hot(&mut self, side: usize) {
        self.pages[side].sleep(0);
        self.endpoints[side].idle = false;
        self.endpoints[side].sleep = Sleep::Dozing;
    }

    pub(super) fn check_ring(&mut self, side: usize) -> Verdict {
        let machine = self.machines[side].as_mut().ok_or("no ring to poll")?;
        let ready = machine.poll().map_err(corrupt)? && self.mutation != Mutation::HotWithoutPoll;
        if ready {
            self.wake(side);
        } else {
            self.endpoints[side].sleep = Sleep::Hot;
        }
        self.note(if ready { Event::StayedAwake } else { Event::SleptHot });
        Ok(())
    }

    // Ending.

    pub(super) fn shutdown(&mut self, side: usize) {
        self.endpoints[side].shut = true;
        if let Some(machine) = &mut self.machines[side] {
            machine.kernel_sends();
        }
        self.send_fin(side);
    }

    pub(super) fn close(&mut self, side: usize) -> Verdict {
        while !self.ways[1 - side].receiving.is_empty() {
            self.fetch(side, usize::MAX)?;
        }
        if self.mutation != Mutation::WakeUpsUnreadAtClose {
            self.discard_wake_ups(side)?;
        }
        let endpoint = &mut self.endpoints[side];
        let mut unread = !endpoint.fetched.is_empty();
        if let Some(machine) = &mut self.machines[side] {
            unread |= machine.has_unread() && self.mutation != Mutation::CloseForgetsRing;
            machine.reads_no_more(true);
            machine.kernel_sends();
        }
        let endpoint = &mut self.endpoints[side];
        endpoint.life = Life::Closing;
        endpoint.shut = true;
        // Its FIN wakes the peer as well.
        endpoint.wake_up = false;
        let left = endpoint.fetched.has_data() || !self.endpoints[1 - side].ring.is_empty();
        must(unread == left, "a close is a reset exactly over unread bytes")?;
        if unread {
            self.note(Event::ResetAtClose);
            self.machines[side] = None;
            self.endpoints[side].life = Life::Gone;
            self.send_reset(side);
        } else {
            self.send_fin(side);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, side: usize) {
        self.endpoints[side].life = Life::Gone;
        self.machines[side] = None;
        if !self.ways[1 - side].receiving.is_empty() {
            self.reset_by_wake_up[side] = !self.ways[1 - side].receiving.has_data();
            self.send_reset(side);
        }
        self.ways[1 - side].receiving.clear();
        self.endpoints[side].waiting.clear();
        self.send_fin(side);
    }

    pub(super) fn kill(&mut self, side: usize) {
        let unread = !self.ways[1 - side].receiving.is_empty();
        let data = self.ways[1 - side].receiving.has_data() || !self.endpoints[1 - side].ring.is_empty();
        match (unread, data) {
            (true, false) => {
                self.reset_by_wake_up[side] = true;
                self.note(Event::KilledOverWakeUps);
            }
            (false, true) => self.note(Event::KilledOverRing),
            _ => {}
        }
        let endpoint = &mut self.endpoints[side];
        endpoint.life = Life::Killed;
        endpoint.shut = true;
        endpoint.wake_up = false;
        (endpoint.check_due, endpoint.rest, endpoint.sleep, endpoint.idle) = (false, 0, Sleep::Awake, false);
        endpoint.waiting.clear();
        self.machines[side] = None;
        self.ways[1 - side].receiving.clear();
        if unread { self.send_reset(side) } else { self.send_fin(side) }
    }
}
