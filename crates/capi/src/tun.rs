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
    queues: Queues,
}

static SHARED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// A queue of the device that the first call makes. EINVAL where a later call means another device
/// by its name, EBUSY where a channel has each queue.
fn next_queue(network: &TunNetwork, count: usize) -> Result<Queue, Errno> {
    if count == 0 {
        return Err(INVALID);
    }
    // A panic leaves no device half made.
    let mut devices = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        devices.retain(|device| device.queues.is_open());
        let Some(device) = devices.iter().find(|device| device.network.name() == network.name()) else {
            // The others are free, and stay open with this one.
            let first = network.open_queues(count)?.swap_remove(0);
            devices.push(Shared { network: network.clone(), queues: first.all() });
            return Ok(first);
        };
        if device.network != *network || device.queues.count() != count {
            return Err(INVALID);
        }
        match device.queues.take()? {
            Some(queue) => return Ok(queue),
            None if device.queues.is_open() => return Err(Errno(libc::EBUSY)),
            // Its last channel has ended meanwhile.
            None => {}
        }
    }
}
