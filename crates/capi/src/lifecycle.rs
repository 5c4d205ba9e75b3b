//! Making, ending and observing channels.

use std::ffi::{c_char, c_int};
use std::panic::catch_unwind;
use std::ptr;

use megapipe::{Channel, EngineKind};

use crate::abi::{MpConfig, MpStats};
use crate::errno::{BROKEN, INVALID, int};
use crate::extensible::{self, Extensible};
use crate::log;
use crate::thread::{self, Slot, with_channel};

/// See mp_version(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// See mp_config_init(3).
///
/// # Safety
///
/// `config` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_config_init(config: *mut MpConfig, size: usize) -> c_int {
    if config.is_null() || size < MpConfig::FIRST {
        return int(Err(INVALID));
    }
    let defaults = MpConfig { size, ..MpConfig::defaults() };
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { extensible::write(&defaults, config, size) };
    0
}

/// See mp_create(3).
///
/// # Safety
///
/// `config` is null or points to a struct whose first field tells its size; `channel` is
/// null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_create(config: *const MpConfig, channel: *mut *const Slot) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    let config = if config.is_null() {
        Ok(MpConfig::ZERO)
    } else {
        // SAFETY: not null, and the caller promises the rest.
        unsafe { extensible::read(config) }
    };
    let made = config.and_then(|config| {
        let config = config.to_config()?;
        catch_unwind(|| {
            log::start();
            // A number says neither which setting it was nor what to do.
            let channel = Channel::new(config).inspect_err(|error| tracing::warn!("mp_create: {error}"))?;
            thread::add(channel)
        })
        .unwrap_or(Err(BROKEN))
    });
    match made {
        Ok(slot) => {
            // SAFETY: not null, and the caller promises the rest.
            unsafe { channel.write(slot) };
            0
        }
        Err(errno) => int(Err(errno)),
    }
}

/// See mp_destroy(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_destroy(channel: *const Slot) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(thread::remove(channel).map(|()| 0))
}

/// See mp_engine_name(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_engine_name(channel: *const Slot) -> *const c_char {
    let name = with_channel(channel, |inner| {
        Ok(match inner.channel.engine() {
            EngineKind::Uring => c"uring",
            EngineKind::Epoll => c"epoll",
        })
    });
    name.map_or(ptr::null(), |name| name.as_ptr())
}

/// See mp_stats(3).
///
/// # Safety
///
/// `stats` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_stats(channel: *const Slot, stats: *mut MpStats, size: usize) -> c_int {
    if channel.is_null() || stats.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        let now = MpStats::from(inner.channel.stats());
        // SAFETY: the caller's struct has `size` bytes.
        unsafe { extensible::write(&now, stats, size) };
        Ok(0)
    }))
}

/// See mp_wakeup(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_wakeup(channel: *const Slot) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(thread::wake(channel).map(|()| 0))
}
