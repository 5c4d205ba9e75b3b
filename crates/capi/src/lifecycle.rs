//! Making, ending and observing channels.

use std::ffi::{c_char, c_int};
use std::panic::catch_unwind;
use std::ptr;

use channel::{Channel, EngineKind};

use crate::abi::{MpConfig, MpStats};
use crate::errno::{BROKEN, Errno, INVALID, int};
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
    if config.is_null() || size < size_of::<MpConfig>() {
        return int(Err(INVALID));
    }
    let defaults = MpConfig { size, ..MpConfig::defaults() };
    // SAFETY: the caller's struct has `size` bytes, which are no fewer than ours.
    unsafe {
        ptr::write_bytes(config.cast::<u8>(), 0, size);
        config.write_unaligned(defaults);
    }
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
    // SAFETY: as the caller promises for `config`.
    let made = unsafe { read_config(config) }.and_then(|config| {
        let config = config.to_config()?;
        catch_unwind(|| {
            log::start();
            thread::add(Channel::new(config)?)
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

/// The caller's settings. A program that is newer than the library may have more fields,
/// as long as it leaves them 0.
unsafe fn read_config(config: *const MpConfig) -> Result<MpConfig, Errno> {
    const OURS: usize = size_of::<MpConfig>();
    if config.is_null() {
        return Ok(MpConfig::ZERO);
    }
    // SAFETY: the caller promises a struct that begins with its size.
    let size = unsafe { (&raw const (*config).size).read_unaligned() };
    if size < OURS {
        return Err(INVALID);
    }
    // SAFETY: the struct has `size` bytes, as its first field tells.
    let (config, rest) = unsafe {
        let rest = std::slice::from_raw_parts(config.cast::<u8>().add(OURS), size - OURS);
        (config.read_unaligned(), rest)
    };
    if rest.iter().any(|&byte| byte != 0) { Err(Errno(libc::E2BIG)) } else { Ok(config) }
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
        let known = size.min(size_of::<MpStats>());
        // SAFETY: the caller's struct has `size` bytes; ours is plain numbers.
        unsafe {
            ptr::write_bytes(stats.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const now).cast::<u8>(), stats.cast::<u8>(), known);
        }
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
