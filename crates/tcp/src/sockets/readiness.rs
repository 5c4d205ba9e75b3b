//! Readiness of a socket, and sets that report the ready ones among many.

use super::interests::{Bits, Interests};
use super::{Errno, Kind, Member, Socket, Sockets, Stream};
use crate::control::Control;
use crate::core::state::State;

/// What a socket is ready for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness(u8);

impl Readiness {
    /// Nothing.
    pub const NONE: Readiness = Readiness(0);
    /// EPOLLIN: a read or an accept would not return EAGAIN.
    pub const READABLE: Readiness = Readiness(1);
    /// EPOLLOUT: a write would not return EAGAIN.
    pub const WRITABLE: Readiness = Readiness(2);
    /// EPOLLERR: the connection has failed. Reported whether asked for or not.
    pub const ERROR: Readiness = Readiness(4);
    /// EPOLLHUP: both directions are over. Reported whether asked for or not.
    pub const HANGUP: Readiness = Readiness(8);
    /// EPOLLRDHUP: the peer has ended its stream.
    pub const READ_HANGUP: Readiness = Readiness(16);

    /// All of them.
    pub const ALL: Readiness = Readiness(31);

    /// Both.
    pub const fn with(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn has(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it is empty.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// What is in both.
    pub(super) const fn both(self, other: Readiness) -> Readiness {
        Readiness(self.0 & other.0)
    }

    /// What is not in `other`.
    pub(super) const fn without(self, other: Readiness) -> Readiness {
        Readiness(self.0 & !other.0)
    }

    /// What of it is reported to this interest.
    pub(super) const fn of(self, interest: Readiness) -> Readiness {
        Readiness(self.0 & (interest.0 | Readiness::ERROR.0 | Readiness::HANGUP.0))
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = ["READABLE", "WRITABLE", "ERROR", "HANGUP", "READ_HANGUP"];
        let set = names.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.debug_set().entries(set.map(|(_, name)| name)).finish()
    }
}

/// When a set reports a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// At each wait, as long as it is ready.
    #[default]
    Level,
    /// Once for each time that something happened (EPOLLET).
    Edge,
    /// Once, until the interest is modified (EPOLLONESHOT).
    Once,
}

/// A set of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Set(pub u32);

/// A ready socket, as a set reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// What it is ready for.
    pub readiness: Readiness,
    /// The number that came with the interest.
    pub data: u64,
}

impl<C: Control> Sockets<C> {
    /// What a socket is ready for now.
    pub fn readiness(&self, socket: Socket) -> Result<Readiness, Errno> {
        Ok(match self.entry(socket)?.kind {
            Kind::New => Readiness::WRITABLE.with(Readiness::HANGUP),
            Kind::Listener { incoming: true, .. } => Readiness::READABLE,
            Kind::Listener { .. } => Readiness::NONE,
            Kind::Stream(stream) => self.stream_readiness(&stream),
        })
    }

    fn stream_readiness(&self, stream: &Stream) -> Readiness {
        let all = Readiness::READABLE.with(Readiness::WRITABLE);
        let Some(info) = self.host.info(stream.flow) else { return all.with(Readiness::HANGUP) };
        let mut ready = Readiness::NONE;
        match info.state {
            State::SynSent | State::SynReceived => return ready,
            State::Closed => {
                ready = all.with(Readiness::HANGUP).with(Readiness::READ_HANGUP);
                if self.cause(stream.flow).is_some() && !stream.reported {
                    ready = ready.with(Readiness::ERROR);
                }
            }
            state => {
                if !stream.full || !state.can_send() {
                    ready = ready.with(Readiness::WRITABLE);
                }
                if stream.ended && !state.can_send() {
                    ready = ready.with(Readiness::HANGUP);
                }
            }
        }
        if info.unread > 0 || stream.ended || stream.read_shut {
            ready = ready.with(Readiness::READABLE);
        }
        if stream.ended {
            ready = ready.with(Readiness::READ_HANGUP);
        }
        ready
    }

    /// A new, empty set (epoll_create).
    pub fn create_set(&mut self, bits: Bits) -> Set {
        let place = self.sets.iter().position(Option::is_none).unwrap_or(self.sets.len());
        if place == self.sets.len() {
            self.sets.push(None);
        }
        self.sets[place] = Some(Interests::new(bits));
        Set(place as u32)
    }

    /// Ends a set; its sockets stay open.
    pub fn close_set(&mut self, set: Set) -> Result<(), Errno> {
        self.interests(set)?;
        self.sets[set.0 as usize] = None;
        for entry in self.entries.iter_mut().flatten() {
            entry.members.retain(|member| member.set != set.0);
        }
        Ok(())
    }

    /// Adds a socket to a set (EPOLL_CTL_ADD). If it is ready already, the next wait reports it.
    pub fn add(
        &mut self,
        set: Set,
        socket: Socket,
        wanted: Readiness,
        trigger: Trigger,
        data: u64,
    ) -> Result<(), Errno> {
        if self.place(set, socket).is_ok() {
            return Err(Errno::Exists);
        }
        self.entry(socket)?;
        let place = self.interests(set)?.insert(socket, wanted, trigger, data);
        self.entry_mut(socket)?.members.push(Member { set: set.0, place });
        Ok(())
    }

    /// Changes what a set reports of a socket (EPOLL_CTL_MOD).
    pub fn modify(
        &mut self,
        set: Set,
        socket: Socket,
        wanted: Readiness,
        trigger: Trigger,
        data: u64,
    ) -> Result<(), Errno> {
        let place = self.place(set, socket)?;
        self.interests(set)?.modify(place, wanted, trigger, data);
        Ok(())
    }

    /// Removes a socket from a set (EPOLL_CTL_DEL).
    pub fn remove(&mut self, set: Set, socket: Socket) -> Result<(), Errno> {
        let place = self.place(set, socket)?;
        self.interests(set)?.remove(place);
        self.entry_mut(socket)?.members.retain(|member| member.set != set.0);
        Ok(())
    }

    /// Reports ready sockets of a set, as many as there is room for, in turn. Costs nothing for
    /// those to which nothing happened.
    pub fn wait(&mut self, set: Set, out: &mut [Notice]) -> Result<usize, Errno> {
        let mut interests = std::mem::take(self.interests(set)?);
        let apart = interests.bits() == Bits::Apart;
        let count = interests.report(out, |socket| match self.entry(socket) {
            Ok(entry) if apart && matches!(entry.kind, Kind::New) => Readiness::NONE,
            _ => self.readiness(socket).unwrap_or_default(),
        });
        *self.interests(set)? = interests;
        Ok(count)
    }

    fn interests(&mut self, set: Set) -> Result<&mut Interests<Socket>, Errno> {
        self.sets.get_mut(set.0 as usize).and_then(Option::as_mut).ok_or(Errno::BadDescriptor)
    }

    fn place(&self, set: Set, socket: Socket) -> Result<u32, Errno> {
        self.sets.get(set.0 as usize).and_then(Option::as_ref).ok_or(Errno::BadDescriptor)?;
        let members = &self.entry(socket)?.members;
        let member = members.iter().find(|member| member.set == set.0).ok_or(Errno::NotFound)?;
        Ok(member.place)
    }
}
