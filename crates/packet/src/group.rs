//! One TUN device for several stacks with the same addresses, each on a queue of its own.
//!
//! The kernel sends a flow to the queue that it chose for the first packet, so a stack gets the
//! packets of its own connections, also of those that it begins from one of
//! [its ports](Queue::ports). ICMP errors, whose queue depends on other addresses, and
//! flows that the kernel moved after silence come to any of them. What a stack does not
//! know it [passes on](Queue::pass_on): the packet visits one stack after the other, and
//! the last one answers it. Nobody keeps a table of who has which connection, and moving
//! packets takes no lock.
//!
//! All queues stay open as long as one stack is there: when one is closed, the kernel
//! moves flows of the others, too. The queue of a stack that is gone, or has not come
//! yet, is read by another one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use crossbeam_queue::ArrayQueue;
use rustix::event::epoll;

use crate::doorbell::Doorbell;
use crate::ports::{Ports, Table};
use crate::tun::{FRAME_MAX, OpenError, Tun};
use crate::{Batch, Capabilities, Device, Frame, Offload};

/// Packets that a stack may have under way to others; further ones are dropped.
const PASSED_MAX: usize = 64;

/// Packets that wait for one stack; further ones are dropped.
const INBOX: usize = 256;

/// Packets of other stacks that are taken in one turn.
const PASSED_PER_TURN: usize = 64;

/// What a buffer holds at first. It grows once for each larger packet.
const BUFFER: usize = 2048;

/// No stack reads this queue.
const NOBODY: usize = usize::MAX;

struct Group {
    members: Box<[Member]>,
    ports: Arc<Table>,
    /// Dropped behind `members`, whose descriptors keep the device.
    closing: Closing,
}

/// Marks the device as closed when it is dropped.
struct Closing(Arc<Closed>);

#[derive(Default)]
struct Closed {
    is_closed: Mutex<bool>,
    changed: Condvar,
}

impl Drop for Closing {
    fn drop(&mut self) {
        *self.0.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

struct Member {
    tun: Tun,
    /// Whether there is a [`Queue`] for it.
    taken: AtomicBool,
    /// The stack that reads `tun`. A stack is there as long as it reads its own queue.
    reader: AtomicUsize,
    /// Packets for this stack from all others.
    inbox: ArrayQueue<Passed>,
    /// Buffers for what this stack passes on.
    free: ArrayQueue<Vec<u8>>,
    /// Readable once there is something in `inbox`, or a queue has lost its reader.
    doorbell: Doorbell,
}

impl Group {
    fn is_there(&self, number: usize) -> bool {
        // PASSED-PAIR: after the fences of `pass_on` and `leave`.
        self.members[number].reader.load(Ordering::Acquire) == number
    }

    /// The first stack behind `from` that is there, if it comes before `origin`.
    fn next(&self, from: usize, origin: usize) -> Option<usize> {
        let count = self.members.len();
        let behind = (1..count).map(|step| (from + step) % count);
        behind.take_while(|&number| number != origin).find(|&number| self.is_there(number))
    }

    fn wake(&self, number: usize) {
        self.members[number].doorbell.ring();
    }

    fn reuse(&self, passed: Passed) {
        let Passed { sender, mut bytes, .. } = passed;
        bytes.clear();
        // There is room: it came from there.
        let _ = self.members[sender].free.push(bytes);
    }

    /// Drops what waits for a stack that is gone.
    fn empty(&self, number: usize) {
        while let Some(passed) = self.members[number].inbox.pop() {
            self.reuse(passed);
        }
    }
}

/// A packet on its way through the group.
struct Passed {
    /// The stack that the kernel gave it to.
    origin: usize,
    /// The stack whose buffer it is in.
    sender: usize,
    bytes: Vec<u8>,
    offload: Offload,
}

/// Packets between a stack and the others of its group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Foreign {
    /// Those that it passed on.
    pub sent: u64,
    /// Those that others passed on to it.
    pub received: u64,
    /// Those that it dropped, since too many were under way.
    pub dropped: u64,
}

impl Foreign {
    /// Counts a packet that the stack does not know. Returns whether it is done with: if
    /// not, it is to be answered.
    pub fn count(&mut self, passed: PassedOn) -> bool {
        match passed {
            PassedOn::Yes => self.sent += 1,
            PassedOn::Dropped => self.dropped += 1,
            PassedOn::Nobody => return false,
        }
        true
    }
}

/// What became of a packet that its receiver does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedOn {
    /// Another stack gets it.
    Yes,
    /// It is lost, since too many are under way.
    Dropped,
    /// It has been to every stack: it is to be answered.
    Nobody,
}

/// A queue of a device, for one stack of a group.
///
/// As a [`Device`] it carries the packets of its own queue alone. All else is announced by
/// [`signal`](Queue::signal). When it is dropped, another stack reads its queue, until it is
/// [taken](Queues::take) again.
pub struct Queue {
    group: Arc<Group>,
    number: usize,
    /// Of the doorbell, and of the queues that it reads for others.
    signal: OwnedFd,
    /// Whether it reads the queue of this number for another.
    adopted: Vec<bool>,
}

impl Queue {
    /// Makes a device with so many queues, at least one, as [`Tun::open`] does.
    pub fn open(name: &str, mtu: u16, queues: usize) -> Result<Vec<Queue>, OpenError> {
        let count = queues.max(1);
        let devices = Tun::open_queues(name, mtu, count)?;
        let buffers = if count > 1 { PASSED_MAX } else { 0 };
        let members: io::Result<Vec<Member>> = devices
            .into_iter()
            .map(|tun| {
                let free = ArrayQueue::new(PASSED_MAX);
                for _ in 0..buffers {
                    let _ = free.push(Vec::with_capacity(BUFFER));
                }
                let (inbox, reader) = (ArrayQueue::new(INBOX), AtomicUsize::new(NOBODY));
                let taken = AtomicBool::new(true);
                Ok(Member { tun, taken, reader, inbox, free, doorbell: Doorbell::new()? })
            })
            .collect();
        let group = Arc::new(Group {
            members: members?.into(),
            ports: Arc::new(Table::new(count)),
            closing: Closing(Arc::default()),
        });
        let queues: io::Result<Vec<Queue>> =
            (0..count).map(|number| Queue::of(group.clone(), number)).collect();
        Ok(queues?)
    }

    /// Of a member that was marked as taken.
    fn of(group: Arc<Group>, number: usize) -> io::Result<Queue> {
        let member = &group.members[number];
        let watch = || {
            let signal = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&signal, &member.doorbell, data, epoll::EventFlags::IN)?;
            Ok(signal)
        };
        let signal = watch().inspect_err(|_: &io::Error| member.taken.store(false, Ordering::Release))?;
        let adopted = vec![false; group.members.len()];
        Ok(Queue { group, number, signal, adopted })
    }

    fn own(&self) -> &Member {
        &self.group.members[self.number]
    }

    /// The device.
    pub fn tun(&self) -> &Tun {
        &self.own().tun
    }

    /// Its number among the queues of the device.
    pub fn number(&self) -> usize {
        self.number
    }

    /// How many queues the device has.
    pub fn count(&self) -> usize {
        self.group.members.len()
    }

    /// All queues of the device, without keeping it.
    pub fn all(&self) -> Queues {
        Queues {
            group: Arc::downgrade(&self.group),
            closed: self.group.closing.0.clone(),
            count: self.count(),
        }
    }

    /// Ports for connections that this stack begins and no other; none where any will do.
    pub fn ports(&self) -> Option<Ports> {
        (self.count() > 1).then(|| Ports::new(self.number, self.group.ports.clone()))
    }

    /// From now on a stack is there. It reads the queues that no other does as well.
    pub fn join(&mut self) {
        let before = self.own().reader.swap(self.number, Ordering::AcqRel);
        if before != NOBODY && before != self.number {
            self.group.wake(before);
        }
        self.adopt();
    }

    /// The stack is gone. Another one reads its queue, and those that it read for others. The
    /// [`signal`](Queue::signal) stays as it is: a forked child shares it with its parent.
    pub fn leave(&self) {
        let mut left = false;
        for member in &self.group.members {
            left |= member
                .reader
                .compare_exchange(self.number, NOBODY, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        }
        // PASSED-PAIR: who passes something on either is seen here, or sees that nobody is there.
        fence(Ordering::SeqCst);
        self.group.empty(self.number);
        if left {
            (0..self.count())
                .filter(|&number| self.group.is_there(number))
                .for_each(|it| self.group.wake(it));
        }
    }

    /// Reads the queues without a reader from now on, if a stack is there, and those of
    /// others no more.
    fn adopt(&mut self) {
        let is_there = self.group.is_there(self.number);
        for (number, member) in self.group.members.iter().enumerate().filter(|&(it, _)| it != self.number) {
            let reader = match is_there {
                true => member
                    .reader
                    .compare_exchange(NOBODY, self.number, Ordering::AcqRel, Ordering::Acquire)
                    .map_or_else(|reader| reader, |_| self.number),
                false => NOBODY,
            };
            let reads = reader == self.number;
            if reads == self.adopted[number] {
                continue;
            }
            let changed = if reads {
                let data = epoll::EventData::new_u64(number as u64);
                epoll::add(&self.signal, &member.tun, data, epoll::EventFlags::IN)
            } else {
                epoll::delete(&self.signal, &member.tun)
            };
            if changed.is_ok() {
                self.adopted[number] = reads;
            }
        }
    }

    /// Readable when others have passed something on, or a queue that is read for others
    /// has packets.
    pub fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    /// Whether [`receive_from_group`](Queue::receive_from_group) may give something. It makes no
    /// system call, for stacks that seldom look at the [`signal`](Queue::signal).
    pub fn may_receive_from_group(&self) -> bool {
        self.own().doorbell.is_rung() || self.has_passed() || self.adopted.contains(&true)
    }

    /// Takes what there is from the group: some of the packets that other stacks have
    /// passed on, and a batch of the queues that are read for others.
    ///
    /// `input` gets each with a function that hands it on if the stack does not know it; that
    /// returns false for a packet which is to be answered. Returns whether there may be more.
    pub fn receive_from_group(
        &mut self,
        batch: &mut Batch,
        foreign: &mut Foreign,
        mut input: impl for<'a> FnMut(&mut dyn Iterator<Item = Frame<'a>>, &mut dyn FnMut(Frame<'a>) -> bool),
    ) -> io::Result<bool> {
        // Before what was announced is taken.
        if self.own().doorbell.heed() {
            self.adopt();
        }
        for _ in 0..PASSED_PER_TURN {
            let taken = self.take_passed(|frame, origin| {
                input(&mut [frame].into_iter(), &mut |frame| foreign.count(self.pass_on(frame, origin)));
            });
            if taken.is_none() {
                break;
            }
            foreign.received += 1;
        }
        batch.clear();
        let adopted = self.receive_adopted(batch);
        input(&mut batch.frames(), &mut |frame| foreign.count(self.pass_on(frame, self.number)));
        adopted?;
        Ok(self.has_passed() || batch.room(FRAME_MAX).is_err())
    }

    /// Receives packets of the queues that are read for others.
    fn receive_adopted(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut received = 0;
        for (member, _) in self.group.members.iter().zip(&self.adopted).filter(|&(_, &reads)| reads) {
            received += member.tun.receive_frames(batch)?;
        }
        Ok(received)
    }

    /// The next packet that another stack has passed on, and the stack that the kernel gave it to.
    /// `take` gets it, and that number for [`pass_on`](Queue::pass_on).
    pub fn take_passed<T>(&self, take: impl FnOnce(Frame<'_>, usize) -> T) -> Option<T> {
        let passed = self.own().inbox.pop()?;
        let taken = take(Frame { bytes: &passed.bytes, offload: passed.offload }, passed.origin);
        self.group.reuse(passed);
        Some(taken)
    }

    /// Whether other stacks have passed on more.
    pub fn has_passed(&self) -> bool {
        !self.own().inbox.is_empty()
    }

    /// Hands a packet on that the stack does not know. `origin` is the number of this queue for one
    /// from the kernel.
    pub fn pass_on(&self, frame: Frame<'_>, origin: usize) -> PassedOn {
        let Some(next) = self.group.next(self.number, origin) else { return PassedOn::Nobody };
        let Some(mut bytes) = self.own().free.pop() else { return PassedOn::Dropped };
        bytes.extend_from_slice(frame.bytes);
        let passed = Passed { origin, sender: self.number, bytes, offload: frame.offload };
        if let Err(passed) = self.group.members[next].inbox.push(passed) {
            self.group.reuse(passed);
            return PassedOn::Dropped;
        }
        // PASSED-PAIR: the next stack may have left meanwhile.
        fence(Ordering::SeqCst);
        if !self.group.is_there(next) {
            self.group.empty(next);
            return PassedOn::Dropped;
        }
        self.group.wake(next);
        PassedOn::Yes
    }
}

/// The queues of a device, without keeping it open.
pub struct Queues {
    group: Weak<Group>,
    closed: Arc<Closed>,
    count: usize,
}

impl Queues {
    /// How many the device was made with.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether a queue of the device is in use, which keeps it open. Where it is not, returns when
    /// the thread that dropped the last one has closed it: then its name is free.
    pub fn is_open(&self) -> bool {
        if self.group.strong_count() > 0 {
            return true;
        }
        let closed = self.closed.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.closed.changed.wait_while(closed, |closed| !*closed));
        false
    }

    /// A queue that is not in use: it was dropped, and the device is still open. None if
    /// there is none.
    pub fn take(&self) -> io::Result<Option<Queue>> {
        let Some(group) = self.group.upgrade() else { return Ok(None) };
        let is_free = |member: &Member| !member.taken.swap(true, Ordering::AcqRel);
        let Some(number) = group.members.iter().position(is_free) else { return Ok(None) };
        Queue::of(group, number).map(Some)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.leave();
        self.own().taken.store(false, Ordering::Release);
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own().tun.as_fd()
    }
}

impl Device for Queue {
    fn capabilities(&self) -> Capabilities {
        self.own().tun.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.own().tun.receive_frames(batch)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.own().tun.send_frames(batch)
    }
}
