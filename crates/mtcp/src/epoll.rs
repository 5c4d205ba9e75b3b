//! Epoll sets: several a context, by level, by edge or once.

use std::ffi::{c_char, c_int};
use std::slice;
use std::time::Duration;

use tcp::Time;
use tcp::sockets::{Bits, Interests, Notice, Readiness, Set, Socket, Trigger};

use crate::context::{Context, Pause};
use crate::errno::{AGAIN, BAD, Errno, FAULT, INVALID, int};
use crate::files::{self, Epoll, File, Key};
use crate::link::Link;
use crate::registry::{self, Handle};
use crate::stack::Stack;

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
        let set = match &mut context.link {
            Link::Here(stack) => Some(stack.sockets.create_set(Bits::Apart)),
            Link::Thread(_) => None,
        };
        let others = Interests::new(Bits::Apart);
        context.files.insert(File::Epoll(Epoll { set, others, notices: Vec::new() }))
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

/// A member of an epoll set.
enum Member<'a> {
    /// A socket, which the stack has in a set of its own.
    Here(&'a mut Stack, Set, Socket),
    Other(Key),
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
        let key = match self.whose(epid, id)? {
            Member::Here(stack, set, socket) => {
                let changed = match operation {
                    Operation::Add => stack.sockets.add(set, socket, wanted, trigger, data),
                    Operation::Modify => stack.sockets.modify(set, socket, wanted, trigger, data),
                };
                return Ok(changed?);
            }
            Member::Other(key) => key,
        };
        let place = self.place(key, epid)?;
        let others = &mut self.files.epoll(epid)?.others;
        match (operation, place) {
            (Operation::Add, None) => {
                let place = others.insert(key, wanted, trigger, data);
                self.members(key)?.push(files::Member { epoll: epid, place });
            }
            (Operation::Modify, Some(place)) => others.modify(place, wanted, trigger, data),
            (Operation::Add, Some(_)) => return Err(Errno(libc::EEXIST)),
            (Operation::Modify, None) => return Err(Errno(libc::ENOENT)),
        }
        Ok(())
    }

    fn remove(&mut self, epid: c_int, id: c_int) -> Result<(), Errno> {
        let key = match self.whose(epid, id)? {
            Member::Here(stack, set, socket) => return Ok(stack.sockets.remove(set, socket)?),
            Member::Other(key) => key,
        };
        let place = self.place(key, epid)?.ok_or(Errno(libc::ENOENT))?;
        self.members(key)?.retain(|member| member.epoll != epid);
        self.files.epoll(epid)?.others.remove(place);
        Ok(())
    }

    /// What a number stands for, as a member of an epoll set.
    fn whose(&mut self, epid: c_int, id: c_int) -> Result<Member<'_>, Errno> {
        let set = self.files.epoll(epid)?.set;
        Ok(match (self.files.get(id)?, &mut self.link, set) {
            (File::Socket { socket, .. }, Link::Here(stack), Some(set)) => Member::Here(stack, set, *socket),
            (File::Socket { socket, .. }, ..) => Member::Other(Key::Socket(*socket)),
            (File::Pipe { pipe, end, .. }, ..) => Member::Other(Key::Pipe(*pipe, *end)),
            (File::Epoll(_), ..) => return Err(INVALID),
        })
    }

    /// The epoll sets that something is in.
    fn members(&mut self, key: Key) -> Result<&mut Vec<files::Member>, Errno> {
        match (key, &mut self.link) {
            (Key::Pipe(pipe, end), _) => Ok(&mut self.pipes[pipe].as_mut().ok_or(BAD)?.members[end as usize]),
            (Key::Socket(socket), Link::Thread(front)) => Ok(front.members(socket)?),
            (Key::Socket(_), Link::Here(_)) => Err(BAD),
        }
    }

    /// Its place in this set.
    fn place(&mut self, key: Key, epid: c_int) -> Result<Option<u32>, Errno> {
        let member = self.members(key)?.iter().find(|member| member.epoll == epid);
        Ok(member.map(|member| member.place))
    }

    /// Writes what is ready, as much as there is room for.
    fn collect(&mut self, epid: c_int, out: &mut [Event]) -> Result<usize, Errno> {
        let epoll = self.files.epoll(epid)?;
        if epoll.notices.len() < out.len() {
            epoll.notices.resize(out.len(), Notice::default());
        }
        let notices = &mut epoll.notices[..out.len()];
        let (link, pipes) = (&mut self.link, &self.pipes);
        let mut count = epoll.others.report(notices, |key| match key {
            Key::Pipe(pipe, end) => pipes[pipe].as_ref().map_or(Readiness::NONE, |held| held.readiness(end)),
            Key::Socket(socket) => link.readiness(socket).unwrap_or_default(),
        });
        if let (Link::Here(stack), Some(set)) = (link, epoll.set) {
            count += stack.sockets.wait(set, &mut notices[count..])?;
        }
        for (event, notice) in out.iter_mut().zip(&notices[..count]) {
            *event = Event { events: bits(notice.readiness), data: notice.data };
        }
        Ok(count)
    }

    /// Ends a set; what is in it stays open.
    pub(crate) fn close_epoll(&mut self, epid: c_int, epoll: &Epoll) -> Result<(), Errno> {
        let keys: Vec<_> = epoll.others.keys().collect();
        for key in keys {
            if let Ok(members) = self.members(key) {
                members.retain(|member| member.epoll != epid);
            }
        }
        match (&mut self.link, epoll.set) {
            (Link::Here(stack), Some(set)) => Ok(stack.sockets.close_set(set)?),
            _ => Ok(()),
        }
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
