//! The calls of `include/megapipe_mmsg.h`.
//!
//! Receivers are looked up among the calling thread's, marks among the process's; an address that
//! is none of them is refused and never followed.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use megapipe::SockAddr;
use mmsg::lowat::SetError;
use mmsg::receiver::{AddError, CreateError, Event, Kept, Options, SocketId, WaitError};
use mmsg::{CallError, Mmep, RcvLowat, Receiver};
use sys::mapping::ForkMark;

use crate::errno::{BROKEN, BUSY, Errno, FORKED, HANDLES, INVALID, OPERATIONS, STALE, int, long};
use crate::extensible::{self, Extensible};
use crate::log;

/// `struct mp_receiver_config`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ReceiverConfig {
    size: usize,
    buffers: usize,
    buffer_size: usize,
    sockets: u32,
    flags: u32,
}

// SAFETY: repr(C), and numbers only, which leave no gap.
unsafe impl Extensible for ReceiverConfig {
    const FIRST: usize = offset_of!(ReceiverConfig, flags) + size_of::<u32>();
}

/// `struct mp_message`.
#[repr(C)]
pub struct ReceivedMessage {
    socket: i64,
    cookie: *mut c_void,
    buf: *const c_void,
    size: i64,
    length: i64,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
    segment: u32,
}

/// What `mp_receiver *` points to.
pub struct ReceiverSlot {
    receiver: Receiver,
    /// Senders of the messages that were handed out last.
    senders: Vec<SockAddr>,
    /// What the program keeps, by the address of the data.
    kept: HashMap<usize, Kept>,
}

/// What `mp_lowat *` points to.
pub struct LowatSlot(RcvLowat);

thread_local! {
    // Boxed: C knows them by their addresses.
    #[allow(clippy::vec_box)]
    static RECEIVERS: RefCell<Vec<Box<ReceiverSlot>>> = const { RefCell::new(Vec::new()) };
}

/// The process's marks. Null, or leaked: a forked child leaves the parent's alone, whose lock another thread may
/// have had at the fork, and has a list of its own.
static LOWATS: AtomicPtr<Lowats> = AtomicPtr::new(ptr::null_mut());

struct Lowats {
    fork_mark: ForkMark,
    slots: Mutex<BTreeMap<usize, Arc<LowatSlot>>>,
}

impl Lowats {
    /// This process's, if it has made any.
    fn get() -> Option<&'static Lowats> {
        // SAFETY: null or a list that is never freed.
        let lowats = unsafe { LOWATS.load(Ordering::Acquire).as_ref() };
        lowats.filter(|lowats| lowats.fork_mark.is_here())
    }

    fn get_or_make() -> io::Result<&'static Lowats> {
        loop {
            let before = LOWATS.load(Ordering::Acquire);
            if let Some(lowats) = Lowats::get() {
                return Ok(lowats);
            }
            let made = Lowats { fork_mark: ForkMark::new()?, slots: Mutex::default() };
            let made = Box::into_raw(Box::new(made));
            if LOWATS.compare_exchange(before, made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: it was made just now, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<LowatSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const ADDRESSES: u32 = 1;
const GRO: u32 = 2;
const THREAD: u32 = 1;

/// See recvmmmsg(3).
///
/// # Safety
///
/// `eps` is null or valid for `neps` entries, `msgs` is null or valid for `vlen` headers; see
/// [`mmsg::recvmmmsg`] for what these point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmmsg(
    eps: *mut Mmep,
    neps: c_int,
    msgs: *mut libc::mmsghdr,
    vlen: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { call(eps, neps, msgs, vlen, |eps, msgs| mmsg::recvmmmsg(eps, msgs, flags)) }
}

/// See sendmmmsg(3).
///
/// # Safety
///
/// As for [`recvmmmsg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmmsg(
    eps: *mut Mmep,
    neps: c_int,
    msgs: *mut libc::mmsghdr,
    vlen: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { call(eps, neps, msgs, vlen, |eps, msgs| mmsg::sendmmmsg(eps, msgs, flags)) }
}

unsafe fn call(
    eps: *mut Mmep,
    neps: c_int,
    msgs: *mut libc::mmsghdr,
    vlen: c_int,
    call: impl FnOnce(&mut [Mmep], &mut [libc::mmsghdr]) -> Result<usize, CallError>,
) -> c_int {
    log::start();
    let checked = || {
        // SAFETY: as the caller promises.
        let (eps, msgs) = unsafe { (vector(eps, neps)?, vector(msgs, vlen)?) };
        call(eps, msgs).map_err(Errno::from)
    };
    let done = catch_unwind(AssertUnwindSafe(checked)).unwrap_or(Err(BROKEN));
    int(done.map(|count| count as c_int))
}

/// # Safety
///
/// `first` is null or valid for `count` elements, which nobody else uses.
unsafe fn vector<'call, T>(first: *mut T, count: c_int) -> Result<&'call mut [T], Errno> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    if count == 0 {
        return Ok(&mut []);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: not null, aligned, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// See mp_gso_set(3).
///
/// # Safety
///
/// `message` is null or valid for writes, `room` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_gso_set(
    message: *mut libc::msghdr,
    room: *mut c_void,
    size: usize,
    segment: u16,
) -> c_int {
    let space = mmsg::GSO_SPACE;
    let room = room.cast::<u8>();
    if message.is_null() || room.is_null() || size < space || segment == 0 {
        return int(Err(INVALID));
    }
    if !room.cast::<libc::cmsghdr>().is_aligned() || !message.is_aligned() {
        return int(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: neither is null, both are aligned, and the caller promises the rest.
    unsafe { mmsg::set_segment(&mut *message, room, segment) };
    0
}

/// See mp_receiver_create(3).
///
/// # Safety
///
/// `config` is null or points to a struct whose first field tells its size; `receiver` is null
/// or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_receiver_create(
    config: *const ReceiverConfig,
    receiver: *mut *const ReceiverSlot,
) -> c_int {
    let make = || {
        if receiver.is_null() {
            return Err(INVALID);
        }
        log::start();
        // SAFETY: as the caller promises.
        let options = unsafe { options(config)? };
        let made = Receiver::new(&options)?;
        let slot = Box::new(ReceiverSlot { receiver: made, senders: Vec::new(), kept: HashMap::new() });
        let address: *const ReceiverSlot = &raw const *slot;
        RECEIVERS
            .try_with(|receivers| receivers.try_borrow_mut().map(|mut receivers| receivers.push(slot)))
            .map_err(|_| INVALID)?
            .map_err(|_| BUSY)?;
        // SAFETY: not null, and the caller promises the rest.
        unsafe { receiver.write(address) };
        Ok(0)
    };
    int(catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(BROKEN)))
}

/// # Safety
///
/// As for [`mp_receiver_create`].
unsafe fn options(config: *const ReceiverConfig) -> Result<Options, Errno> {
    let mut options = Options::default();
    if config.is_null() {
        return Ok(options);
    }
    // SAFETY: not null, and the caller promises the rest.
    let config = unsafe { extensible::read(config)? };
    if config.flags & !(ADDRESSES | GRO) != 0 {
        return Err(INVALID);
    }
    let or = |value: usize, default: usize| if value == 0 { default } else { value };
    options.buffers = or(config.buffers, options.buffers);
    options.buffer_size = or(config.buffer_size, options.buffer_size);
    options.sockets = if config.sockets == 0 { options.sockets } else { config.sockets };
    options.addresses = config.flags & ADDRESSES != 0;
    options.gro = config.flags & GRO != 0;
    Ok(options)
}

/// See mp_receiver_destroy(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_receiver_destroy(receiver: *const ReceiverSlot) -> c_int {
    let slot = RECEIVERS.try_with(|receivers| {
        let mut receivers = receivers.try_borrow_mut().map_err(|_| BUSY)?;
        let at = receivers.iter().position(|slot| ptr::eq(&raw const **slot, receiver)).ok_or(STALE)?;
        Ok(receivers.swap_remove(at))
    });
    // Dropped here, when the list is free again.
    int(slot.unwrap_or(Err(INVALID)).map(|_slot| 0))
}

/// See mp_receiver_add(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_receiver_add(receiver: *const ReceiverSlot, fd: c_int, cookie: *mut c_void) -> i64 {
    long(with_receiver(receiver, |slot| {
        // What is no socket, or finds no place, stays the caller's.
        sys::message::protocol(fd)?;
        if !slot.receiver.belongs_here() {
            return Err(FORKED);
        }
        if slot.receiver.holds(fd) {
            return Err(Errno(libc::EEXIST));
        }
        if slot.receiver.is_full() {
            return Err(HANDLES);
        }
        // SAFETY: the number was just seen to be a socket, and the caller gives it away.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let id = slot.receiver.add(fd, cookie as u64)?;
        Ok(id.to_bits() as i64)
    }))
}

/// See mp_receiver_remove(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_receiver_remove(receiver: *const ReceiverSlot, socket: i64) -> c_int {
    int(with_receiver(receiver, |slot| {
        let removed = slot.receiver.remove(SocketId::from_bits(socket as u64));
        removed.map(IntoRawFd::into_raw_fd).ok_or(STALE)
    }))
}

/// See mp_receiver_wait(3).
///
/// # Safety
///
/// `msgs` is null or valid for writes of `most` messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_receiver_wait(
    receiver: *const ReceiverSlot,
    msgs: *mut ReceivedMessage,
    most: c_int,
    timeout: i64,
) -> c_int {
    int(with_receiver(receiver, |slot| {
        let most = usize::try_from(most).ok().filter(|&most| most > 0).ok_or(INVALID)?;
        if msgs.is_null() {
            return Err(INVALID);
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_nanos);
        let batch = slot.receiver.wait(most, timeout)?;
        let count = batch.len();
        slot.senders.clear();
        slot.senders.reserve(count);
        for (at, message) in batch.iter().enumerate() {
            let mut told = ReceivedMessage {
                socket: message.socket.to_bits() as i64,
                cookie: message.cookie as *mut c_void,
                buf: ptr::null(),
                size: 0,
                length: 0,
                addr: ptr::null(),
                addrlen: 0,
                segment: 0,
            };
            match message.event {
                Event::Data { data, len, from, segment } => {
                    told.buf = data.as_ptr().cast();
                    (told.size, told.length) = (data.len() as i64, len as i64);
                    told.segment = segment.unwrap_or(0) as u32;
                    if let Some(from) = from {
                        // No more than the batch has are pushed, so they stay where they are.
                        slot.senders.push(from);
                        let from = &slot.senders[slot.senders.len() - 1];
                        (told.addr, told.addrlen) = (from.as_ptr().cast(), from.len());
                    }
                }
                Event::End => {}
                Event::Error(error) => told.size = -i64::from(Errno::from(error).0),
            }
            // SAFETY: there are `most` messages, and the batch has no more.
            unsafe { msgs.add(at).write(told) };
        }
        // Its buffers are given back by the next wait.
        std::mem::forget(batch);
        Ok(count as c_int)
    }))
}

/// See mp_receiver_keep(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_receiver_keep(receiver: *const ReceiverSlot, index: c_int) -> c_int {
    int(with_receiver(receiver, |slot| {
        let index = usize::try_from(index).map_err(|_| INVALID)?;
        let mut batch = slot.receiver.forgotten();
        let kept = batch.keep(index);
        // The others stay until the next wait.
        std::mem::forget(batch);
        let kept = kept.ok_or(INVALID)?;
        slot.kept.insert(kept.as_ptr() as usize, kept);
        Ok(0)
    }))
}

/// See mp_receiver_release(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_receiver_release(receiver: *const ReceiverSlot, buf: *const c_void) -> c_int {
    int(with_receiver(receiver, |slot| slot.kept.remove(&(buf as usize)).map(|_kept| 0).ok_or(INVALID)))
}

/// A call on a receiver of the calling thread.
fn with_receiver<T>(
    receiver: *const ReceiverSlot,
    call: impl FnOnce(&mut ReceiverSlot) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let run = || {
        RECEIVERS.try_with(|receivers| {
            // A signal handler that calls while a call is under way.
            let mut receivers = receivers.try_borrow_mut().map_err(|_| BUSY)?;
            let slot =
                receivers.iter_mut().find(|slot| ptr::eq(&raw const ***slot, receiver)).ok_or(STALE)?;
            call(slot)
        })
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done.unwrap_or(Err(INVALID)),
        Err(_) => Err(BROKEN),
    }
}

/// See mp_lowat_create(3).
///
/// # Safety
///
/// `lowat` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_lowat_create(flags: u32, lowat: *mut *const LowatSlot) -> c_int {
    if lowat.is_null() || flags & !THREAD != 0 {
        return int(Err(INVALID));
    }
    let make = || {
        let lowats = Lowats::get_or_make()?;
        let made = if flags & THREAD != 0 { RcvLowat::in_background() } else { RcvLowat::new() };
        let slot = Arc::new(LowatSlot(made?));
        let address = Arc::as_ptr(&slot);
        lowats.lock().insert(address as usize, slot);
        // SAFETY: not null, and the caller promises the rest.
        unsafe { lowat.write(address) };
        Ok(0)
    };
    int(make())
}

/// See mp_lowat_destroy(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lowat_destroy(lowat: *const LowatSlot) -> c_int {
    let removed = Lowats::get().and_then(|lowats| lowats.lock().remove(&(lowat as usize)));
    // Dropped when the list is free again, and no other thread's call uses it.
    int(removed.map(|_slot| 0).ok_or(STALE))
}

/// See mp_lowat_set(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lowat_set(lowat: *const LowatSlot, fd: c_int, mark: u32, timeout: i64) -> c_int {
    int(with_lowat(lowat, |lowat| {
        let timeout = u64::try_from(timeout).map_err(|_| INVALID)?;
        lowat.set_raw(fd, mark, Duration::from_nanos(timeout))?;
        Ok(0)
    }))
}

/// See mp_lowat_clear(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lowat_clear(lowat: *const LowatSlot, fd: c_int) -> c_int {
    int(with_lowat(lowat, |lowat| if lowat.clear_raw(fd) { Ok(0) } else { Err(Errno(libc::ENOENT)) }))
}

/// See mp_lowat_rearm(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lowat_rearm(lowat: *const LowatSlot, fd: c_int) -> c_int {
    int(with_lowat(lowat, |lowat| if lowat.rearm_raw(fd) { Ok(0) } else { Err(Errno(libc::ENOENT)) }))
}

/// See mp_lowat_fd(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lowat_fd(lowat: *const LowatSlot) -> c_int {
    int(with_lowat(lowat, |lowat| Ok(lowat.timer().ok_or(Errno(libc::EINVAL))?.as_raw_fd())))
}

/// See mp_lowat_expire(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lowat_expire(lowat: *const LowatSlot) -> c_int {
    int(with_lowat(lowat, |lowat| Ok(lowat.expire().map(|()| 0)?)))
}

fn with_lowat<T>(
    lowat: *const LowatSlot,
    call: impl FnOnce(&RcvLowat) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let slot = Lowats::get().and_then(|lowats| lowats.lock().get(&(lowat as usize)).cloned());
    let slot = slot.ok_or(STALE)?;
    catch_unwind(AssertUnwindSafe(|| call(&slot.0))).unwrap_or(Err(BROKEN))
}

impl From<CallError> for Errno {
    fn from(error: CallError) -> Errno {
        match error {
            CallError::Flags | CallError::TooLong => INVALID,
            CallError::Busy => BUSY,
        }
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Errno {
        match error {
            CreateError::Setting(..) => INVALID,
            CreateError::Resources(error) => error.into(),
        }
    }
}

impl From<AddError> for Errno {
    fn from(error: AddError) -> Errno {
        match error {
            AddError::Full => HANDLES,
            AddError::Forked => FORKED,
            AddError::Io(error) => error.into(),
        }
    }
}

impl From<WaitError> for Errno {
    fn from(error: WaitError) -> Errno {
        match error {
            WaitError::Interrupted => Errno(libc::EINTR),
            WaitError::NoBuffers => OPERATIONS,
            WaitError::Forked => FORKED,
            WaitError::Io(error) => error.into(),
        }
    }
}

impl From<SetError> for Errno {
    fn from(error: SetError) -> Errno {
        match error {
            SetError::NotTcp => Errno(libc::EOPNOTSUPP),
            SetError::Argument => INVALID,
            SetError::Forked => FORKED,
            SetError::Io(error) => error.into(),
        }
    }
}
