//! Epoll sets: several a context, by level, by edge or once.

use std::ffi::{c_char, c_int};
use std::slice;
use std::time::Duration;

use tcp::Time;
use tcp::sockets::{Bits, Interests, Notice, Readiness, Trigger};

use crate::context::{Context, Pause};
use crate::errno::{AGAIN, BAD, Errno, FAULT, INVALID, int};
use crate::files::{Epoll, File};
use crate::pipe::{End, Member};
use crate::registry::{self, Handle};

const IN: u32 = 0x001;
const PRI: u32 = 0x002;
const OUT: u32 = 0x004;
const ERR: u32 = 0x008;
const HUP: u32 = 0x010;
const RDHUP: u32 = 0x2000;
const ONESHOT: u32 = 1 << 30;
const ET: u32 = 1 << 31;

const BITS: [(u32, Readiness); 5] = [
    (IN, Readiness::READABLE),
    (OUT, Readiness::WRITABLE),
    (ERR, Readiness::ERROR),
    (HUP, Readiness::HANGUP),
    (RDHUP, Readiness::READ_HANGUP),
];

/// `struct mtcp_epoll_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// Bits of `enum mtcp_event_type`.
    pub events: u32,
    /// The union, as a number.
    pub data: u64,
}

/// A new epoll set. The size is a hint, and positive.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_epoll_create(mctx: Handle, size: c_int) -> c_int {
    if size <= 0 { int(Err(INVALID)) } else { mtcp_epoll_create1(mctx, 0) }
}

/// A new epoll set; flags are 0 or O_CLOEXEC.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_epoll_create1(mctx: Handle, flags: c_int) -> c_int {
    int(registry::with(mctx, |context| {
        if flags & !libc::O_CLOEXEC != 0 {
            return Err(INVALID);
        }
        if !context.files.has_room(1) {
            return Err(Errno(libc::ENFILE));
        }
        let set = context.sockets.create_set(Bits::Apart);
        let pipes = Interests::new(Bits::Apart);
        context.files.insert(File::Epoll(Epoll { set, pipes, notices: Vec::new() }))
    }))
}

/// Adds, modifies or removes what a set reports of a socket or a pipe.
///
/// # Safety
/// `event` is null or valid for reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_ctl(
    mctx: Handle,
    epid: c_int,
    operation: c_int,
    id: c_int,
    event: *const Event,
) -> c_int {
    int(registry::with(mctx, |context| {
        context.files.epoll(epid)?;
        let operation = match operation {
            libc::EPOLL_CTL_ADD => Operation::Add,
            libc::EPOLL_CTL_MOD => Operation::Modify,
            libc::EPOLL_CTL_DEL => return context.remove(epid, id).map(|()| 0),
            _ => return Err(INVALID),
        };
        if event.is_null() {
            return Err(INVALID);
        }
        // SAFETY: as the caller promises.
        let event = unsafe { event.read_unaligned() };
        context.change(epid, operation, id, event).map(|()| 0)
    }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    Modify,
}

impl Context {
    fn change(&mut self, epid: c_int, operation: Operation, id: c_int, event: Event) -> Result<(), Errno> {
        let wanted = BITS.iter().filter(|(bit, _)| event.events & bit != 0);
        let wanted = wanted.fold(Readiness::NONE, |wanted, &(_, readiness)| wanted.with(readiness));
        let trigger = match event.events {
            events if events & ONESHOT != 0 => Trigger::Once,
            events if events & ET != 0 => Trigger::Edge,
            _ => Trigger::Level,
        };
        let data = event.data;
        match *self.files.get(id)? {
            File::Socket { socket, .. } => {
                let set = self.files.epoll(epid)?.set;
                match operation {
                    Operation::Add => self.sockets.add(set, socket, wanted, trigger, data)?,
                    Operation::Modify => self.sockets.modify(set, socket, wanted, trigger, data)?,
                }
            }
            File::Pipe { pipe, end, .. } => {
                let pipes = &mut self.files.epoll(epid)?.pipes;
                let held = self.pipes[pipe].as_mut().ok_or(BAD)?;
                match (operation, held.place(end, epid)) {
                    (Operation::Add, None) => {
                        let place = pipes.insert((pipe, end), wanted, trigger, data);
                        held.members.push(Member { end, epoll: epid, place });
                    }
                    (Operation::Modify, Some(place)) => pipes.modify(place, wanted, trigger, data),
                    (Operation::Add, Some(_)) => return Err(Errno(libc::EEXIST)),
                    (Operation::Modify, None) => return Err(Errno(libc::ENOENT)),
                }
            }
            File::Epoll(_) => return Err(INVALID),
        }
        Ok(())
    }

    fn remove(&mut self, epid: c_int, id: c_int) -> Result<(), Errno> {
        match *self.files.get(id)? {
            File::Socket { socket, .. } => {
                let set = self.files.epoll(epid)?.set;
                self.sockets.remove(set, socket)?;
            }
            File::Pipe { pipe, end, .. } => {
                let held = self.pipes[pipe].as_mut().ok_or(BAD)?;
                let place = held.place(end, epid).ok_or(Errno(libc::ENOENT))?;
                held.members.retain(|member| (member.end, member.epoll) != (end, epid));
                self.files.epoll(epid)?.pipes.remove(place);
            }
            File::Epoll(_) => return Err(INVALID),
        }
        Ok(())
    }

    /// Writes what is ready, as much as there is room for.
    fn collect(&mut self, epid: c_int, out: &mut [Event]) -> Result<usize, Errno> {
        let epoll = self.files.epoll(epid)?;
        if epoll.notices.len() < out.len() {
            epoll.notices.resize(out.len(), Notice::default());
        }
        let notices = &mut epoll.notices[..out.len()];
        let pipes = &self.pipes;
        let ready = |(pipe, end): (usize, End)| pipes[pipe].as_ref().map(|held| held.readiness(end));
        let mut count = epoll.pipes.report(notices, |key| ready(key).unwrap_or_default());
        count += self.sockets.wait(epoll.set, &mut notices[count..])?;
        for (event, notice) in out.iter_mut().zip(&notices[..count]) {
            *event = Event { events: bits(notice.readiness), data: notice.data };
        }
        Ok(count)
    }

    /// Ends a set; what is in it stays open.
    pub(crate) fn close_epoll(&mut self, epid: c_int, epoll: &Epoll) -> Result<(), Errno> {
        for (pipe, _) in epoll.pipes.keys() {
            if let Some(held) = &mut self.pipes[pipe] {
                held.members.retain(|member| member.epoll != epid);
            }
        }
        Ok(self.sockets.close_set(epoll.set)?)
    }

    /// Moves packets, and writes what is ready; a pause if that is nothing.
    fn wait(
        &mut self,
        epid: c_int,
        out: &mut [Event],
        limit: Option<Duration>,
        begin: Time,
    ) -> Result<usize, Pause> {
        self.turn()?;
        let count = self.collect(epid, out)?;
        let elapsed = self.now().since(begin);
        if count > 0 || limit.is_some_and(|limit| elapsed >= limit) {
            return Ok(count);
        }
        Err(Pause::Sleep(limit.map(|limit| limit - elapsed)))
    }
}

fn bits(readiness: Readiness) -> u32 {
    BITS.iter().filter(|(_, one)| readiness.has(*one)).fold(0, |bits, (bit, _)| bits | bit)
}

/// Moves packets, and reports what is ready in a set. Waits for so many milliseconds at most; for
/// ever if that is negative.
///
/// # Safety
/// `events` is null or valid for writes of `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_wait(
    mctx: Handle,
    epid: c_int,
    events: *mut Event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let mut begin = None;
    let result = registry::with_waits(mctx, |context| {
        context.files.epoll(epid)?;
        let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(INVALID)?;
        if events.is_null() {
            return Err(FAULT.into());
        }
        // SAFETY: as the caller promises; any bytes are an event.
        let out = unsafe { slice::from_raw_parts_mut(events, count) };
        let begin = *begin.get_or_insert_with(|| context.now());
        Ok(context.wait(epid, out, limit, begin)? as c_int)
    });
    // AGAIN: a device of the caller's that does not sleep.
    int(if result == Err(AGAIN) { Ok(0) } else { result })
}

/// The name of an event, for messages.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // mTCP's name
pub extern "C" fn EventToString(event: u32) -> *mut c_char {
    let name = match event {
        0 => c"NONE",
        IN => c"IN",
        PRI => c"PRI",
        OUT => c"OUT",
        ERR => c"ERR",
        HUP => c"HUP",
        RDHUP => c"RDHUP",
        // mTCP ends the program here.
        _ => c"several events",
    };
    name.as_ptr().cast_mut()
}
