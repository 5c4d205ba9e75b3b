//! Readiness of a socket, and sets that report the ready ones among many.

use super::{Errno, Kind, Member, Socket, Sockets, Stream, VecDeque};
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

    const fn of(self, interest: Readiness) -> Readiness {
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

struct Interest {
    socket: Socket,
    wanted: Readiness,
    trigger: Trigger,
    data: u64,
    queued: bool,
    /// A `Trigger::Once` that has been reported.
    spent: bool,
}

/// Interests of one set, and those among them that may be ready.
#[derive(Default)]
pub(super) struct Interests {
    places: Vec<Option<Interest>>,
    /// Empty places. One whose number is still queued is not free yet, or its successor would be
    /// reported out of turn.
    free: Vec<u32>,
    ready: VecDeque<u32>,
}

impl Interests {
    fn insert(&mut self, interest: Interest) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(interest);
            return place;
        }
        self.places.push(Some(interest));
        self.ready.reserve(self.places.len() - self.ready.len());
        self.places.len() as u32 - 1
    }

    pub(super) fn remove(&mut self, place: u32) {
        if self.places[place as usize].take().is_some_and(|interest| !interest.queued) {
            self.free.push(place);
        }
    }

    pub(super) fn wake(&mut self, place: u32) {
        if let Some(interest) = &mut self.places[place as usize]
            && !interest.queued
            && !interest.spent
        {
            interest.queued = true;
            self.ready.push_back(place);
        }
    }
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
    pub fn create_set(&mut self) -> Set {
        let place = self.sets.iter().position(Option::is_none).unwrap_or(self.sets.len());
        if place == self.sets.len() {
            self.sets.push(None);
        }
        self.sets[place] = Some(Interests::default());
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
        let interest = Interest { socket, wanted, trigger, data, queued: false, spent: false };
        let interests = self.interests(set)?;
        let place = interests.insert(interest);
        interests.wake(place);
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
        let interests = self.interests(set)?;
        if let Some(interest) = &mut interests.places[place as usize] {
            *interest = Interest { wanted, trigger, data, spent: false, ..*interest };
        }
        interests.wake(place);
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
        let mut count = 0;
        let queued = self.interests(set)?.ready.len();
        for _ in 0..queued {
            if count == out.len() {
                break;
            }
            let interests = self.interests(set)?;
            let Some(place) = interests.ready.pop_front() else { break };
            let Some(interest) = &mut interests.places[place as usize] else {
                interests.free.push(place);
                continue;
            };
            interest.queued = false;
            let socket = interest.socket;
            let now_ready = self.readiness(socket)?;
            let interests = self.interests(set)?;
            let Some(interest) = &mut interests.places[place as usize] else { continue };
            let readiness = now_ready.of(interest.wanted);
            if readiness.is_none() {
                continue;
            }
            out[count] = Notice { readiness, data: interest.data };
            count += 1;
            match interest.trigger {
                Trigger::Level => interests.wake(place),
                Trigger::Edge => {}
                Trigger::Once => interest.spent = true,
            }
        }
        Ok(count)
    }

    fn interests(&mut self, set: Set) -> Result<&mut Interests, Errno> {
        self.sets.get_mut(set.0 as usize).and_then(Option::as_mut).ok_or(Errno::BadDescriptor)
    }

    fn place(&self, set: Set, socket: Socket) -> Result<u32, Errno> {
        self.sets.get(set.0 as usize).and_then(Option::as_ref).ok_or(Errno::BadDescriptor)?;
        let members = &self.entry(socket)?.members;
        let member = members.iter().find(|member| member.set == set.0).ok_or(Errno::NotFound)?;
        Ok(member.place)
    }
}
