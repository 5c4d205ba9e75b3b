//! What is below a context: a device, a clock, and a way to sleep until packets arrive.
//!
//! A thread sleeps outside of the context, so that other threads can make calls meanwhile: what it
//! needs for that is a [`Waiter`] of its own.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet::{Batch, Capabilities, Device, Offload, group};
use tcp::Time;

use crate::errno::{Errno, INVALID};
use crate::signal::Interrupt;

/// A device with its clock.
pub(crate) trait Carrier: Device + Send {
    fn now(&self) -> Time;

    fn waiter(&self) -> Waiter;

    /// Its place among the contexts of a device.
    fn queue(&mut self) -> Option<&mut group::Queue> {
        None
    }

    /// Gives the queue back.
    fn into_queue(self: Box<Self>) -> Option<group::Queue> {
        None
    }
}

/// How to sleep until packets may have arrived.
#[derive(Clone)]
pub(crate) enum Waiter {
    /// On the descriptors of a queue: for packets, and for what the other contexts pass on.
    Queue(Arc<[OwnedFd; 2]>, &'static Interrupt),
    /// By the caller's function.
    Caller(CallerDevice),
    /// Until the stack's own thread has something to report.
    Thread(&'static Interrupt),
}

impl Waiter {
    /// On a queue, until packets arrive or the interrupt is raised.
    pub(crate) fn on(queue: &group::Queue, interrupt: &'static Interrupt) -> io::Result<Waiter> {
        let fds = [queue.as_fd().try_clone_to_owned()?, queue.signal().try_clone_to_owned()?];
        Ok(Waiter::Queue(Arc::new(fds), interrupt))
    }

    /// Sleeps for this time at most. Returns whether packets may have arrived. EINTR: a handler of a signal has
    /// run. EAGAIN: the caller's device does not sleep.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool, Errno> {
        match self {
            Waiter::Queue(fds, interrupt) => {
                let [tun, group] = &**fds;
                let ready = poll([tun.as_fd(), group.as_fd(), interrupt.as_fd()], timeout)?;
                if ready[2] && interrupt.clear() {
                    return Err(Errno(libc::EINTR));
                }
                Ok(ready[0] || ready[1])
            }
            Waiter::Thread(interrupt) => {
                if poll([interrupt.as_fd()], timeout)?[0] && interrupt.clear() {
                    return Err(Errno(libc::EINTR));
                }
                Ok(false)
            }
            Waiter::Caller(device) => {
                let wait = device.wait.ok_or(Errno(libc::EAGAIN))?;
                let micros = timeout.map_or(-1, |timeout| i64::try_from(timeout.as_micros()).unwrap_or(-1));
                // SAFETY: as `Foreign::new` was promised.
                let status = unsafe { wait(device.user, micros) };
                if status < 0 { Err(Errno(libc::EINTR)) } else { Ok(true) }
            }
        }
    }

    /// Whether another thread can end the sleep. A caller's function ends by itself.
    pub(crate) fn can_wake(&self) -> bool {
        !matches!(self, Waiter::Caller(_))
    }

    /// Ends the sleep of another thread, where that can be done.
    pub(crate) fn wake(&self) {
        match self {
            Waiter::Queue(_, interrupt) | Waiter::Thread(interrupt) => interrupt.wake(),
            Waiter::Caller(_) => {}
        }
    }
}

/// A queue of a TUN device, under the machine's clock.
pub(crate) struct Queue {
    queue: group::Queue,
    origin: Instant,
    waiter: Waiter,
}

impl Queue {
    /// `waiter` is [on](Waiter::on) this queue.
    pub(crate) fn new(queue: group::Queue, waiter: Waiter) -> Queue {
        Queue { queue, origin: Instant::now(), waiter }
    }
}

impl Device for Queue {
    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.queue.receive(batch)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.queue.send(batch)
    }
}

impl Carrier for Queue {
    fn now(&self) -> Time {
        Time::from_micros(self.origin.elapsed().as_micros() as u64)
    }

    fn waiter(&self) -> Waiter {
        self.waiter.clone()
    }

    fn queue(&mut self) -> Option<&mut group::Queue> {
        Some(&mut self.queue)
    }

    fn into_queue(self: Box<Self>) -> Option<group::Queue> {
        Some(self.queue)
    }
}

/// Which of these are readable, after this time at the latest.
fn poll<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Option<Duration>) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: so many live pollfds, a live timespec or null, and no signal mask.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, timeout, std::ptr::null()) };
    if ready < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(polled.map(|fd| fd.revents != 0))
}

/// `struct mtcp_device` of `mtcp_device.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CallerDevice {
    /// Bytes of this struct.
    pub size: usize,
    /// Passed to each function.
    pub user: *mut c_void,
    /// Longest packet.
    pub mtu: usize,
    /// Writes one received packet; returns its length, or 0.
    pub receive: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> isize>,
    /// Sends one packet; returns 0, or -1 while it takes none.
    pub send: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int>,
    /// Microseconds that never go back; null for the machine's clock.
    pub now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// Sleeps so many microseconds, -1 for ever, or until packets arrive; -1 for EINTR. Null never
    /// sleeps.
    pub wait: Option<unsafe extern "C" fn(*mut c_void, i64) -> c_int>,
}

// SAFETY: the caller of mtcp_create_context_on promises that any thread that uses the context may
// call the device's functions (mtcp_device.h).
unsafe impl Send for CallerDevice {}

/// A device of the caller's.
pub(crate) struct Foreign {
    device: CallerDevice,
    origin: Instant,
}

impl Foreign {
    /// # Safety
    /// The functions of the device can be called with its `user` while the context lives.
    pub(crate) unsafe fn new(device: CallerDevice) -> Result<Foreign, Errno> {
        // 576: what each host of IPv4 takes.
        let whole = device.size >= size_of::<CallerDevice>() && (576..=65_535).contains(&device.mtu);
        if !whole || device.receive.is_none() || device.send.is_none() {
            return Err(INVALID);
        }
        Ok(Foreign { device, origin: Instant::now() })
    }
}

impl Device for Foreign {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.device.mtu, checksum: false, segment: 0 }
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let CallerDevice { user, mtu, receive, .. } = self.device;
        let Some(receive) = receive else { return Ok(0) };
        let mut count = 0;
        while let Ok(room) = batch.room(mtu) {
            // SAFETY: as `new` was promised; the room is `mtu` bytes.
            let len = unsafe { receive(user, room.as_mut_ptr().cast(), room.len()) };
            match usize::try_from(len) {
                Ok(len @ 1..) if len <= mtu => batch.commit(len, Offload::default()),
                _ => break,
            }
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let CallerDevice { user, send, .. } = self.device;
        let Some(send) = send else { return Ok(0) };
        let mut count = 0;
        while let Some(frame) = batch.first() {
            // SAFETY: as `new` was promised; the frame lives for the call.
            if unsafe { send(user, frame.bytes.as_ptr().cast(), frame.bytes.len()) } != 0 {
                break;
            }
            batch.remove_first();
            count += 1;
        }
        Ok(count)
    }
}

impl Carrier for Foreign {
    fn now(&self) -> Time {
        Time::from_micros(match self.device.now {
            // SAFETY: as `new` was promised.
            Some(now) => unsafe { now(self.device.user) },
            None => self.origin.elapsed().as_micros() as u64,
        })
    }

    fn waiter(&self) -> Waiter {
        Waiter::Caller(self.device)
    }
}
