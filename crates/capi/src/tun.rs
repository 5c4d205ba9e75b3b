//! Stacks on TUN devices.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::{Mutex, PoisonError};

use megapipe::packet::group::{Queue, Queues};
use megapipe::{Stack, TunNetwork};

use crate::errno::{Errno, INVALID, int};
use crate::thread::{Slot, with_channel};

/// See mp_attach_tun(3).
///
/// # Safety
///
/// `name` and `addresses` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_attach_tun(
    channel: *const Slot,
    name: *const c_char,
    addresses: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        attach(channel, name, addresses, |network| {
            Ok(Stack::new(network.open()?, network.networks().to_vec()))
        })
    }
}

/// See mp_attach_tun_queue(3).
///
/// # Safety
///
/// As for [`mp_attach_tun`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_attach_tun_queue(
    channel: *const Slot,
    name: *const c_char,
    addresses: *const c_char,
    queues: c_uint,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        attach(channel, name, addresses, |network| {
            let queue = next_queue(network, queues as usize)?;
            Ok(Stack::on_queue(queue, network.networks().to_vec()))
        })
    }
}

/// # Safety
///
/// As for [`mp_attach_tun`].
unsafe fn attach(
    channel: *const Slot,
    name: *const c_char,
    addresses: *const c_char,
    make: impl FnOnce(&TunNetwork) -> Result<Stack, Errno>,
) -> c_int {
    if channel.is_null() || name.is_null() || addresses.is_null() {
        return int(Err(INVALID));
    }
    // SAFETY: as the caller promises.
    let (name, addresses) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(addresses)) };
    int(with_channel(channel, |inner| {
        let text = |part: &CStr| part.to_str().map(str::to_owned).map_err(|_| INVALID);
        let network = format!("tun:{},{}", text(name)?, text(addresses)?);
        let network: TunNetwork = network.parse().map_err(|_| INVALID)?;
        inner.channel.attach(make(&network)?)?;
        Ok(0)
    }))
}

/// A device whose queues the channels of several threads get.
struct Shared {
    network: TunNetwork,
    all: Queues,
    /// Those that no channel has had yet.
    free: Vec<Queue>,
}

impl Shared {
    fn open(network: &TunNetwork, queues: usize) -> Result<Shared, Errno> {
        let mut free = network.open_queues(queues)?;
        free.reverse();
        let all = free.first().map(Queue::all).ok_or(INVALID)?;
        Ok(Shared { network: network.clone(), all, free })
    }

    fn is_used(&self) -> bool {
        self.all.alive() > self.free.len()
    }
}

static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// A queue of the device that the first call makes. EINVAL where a later call means another device
/// by its name, EBUSY where every queue was given to a channel.
fn next_queue(network: &TunNetwork, queues: usize) -> Result<Queue, Errno> {
    if queues == 0 {
        return Err(INVALID);
    }
    // A panic leaves no device half made.
    let mut devices = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(Shared::is_used);
    let known = devices.iter().position(|device| device.network.name() == network.name());
    let at = match known {
        Some(at) => at,
        None => {
            devices.push(Shared::open(network, queues)?);
            devices.len() - 1
        }
    };
    let device = &mut devices[at];
    if device.network != *network || device.all.count() != queues {
        return Err(INVALID);
    }
    device.free.pop().ok_or(Errno(libc::EBUSY))
}
