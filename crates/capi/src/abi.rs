//! The structs of `megapipe.h`. Sizes and offsets are the interface: they are compared
//! with the header by a test.

use std::ffi::c_void;
use std::mem::offset_of;
use std::time::Duration;

use megapipe::{Config, EngineKind, LatencyBound, Promotion, Spin, Stats};

use crate::errno::{Errno, INVALID};
use crate::extensible::Extensible;
use crate::number::HANDLE_BITS;

/// `struct mp_config`. In each field, 0 stands for the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // mp_create(3) describes the fields
pub struct MpConfig {
    pub size: usize,
    pub engine: u32,
    pub batch_threshold: u32,
    pub operations_max: u32,
    pub handles_max: u32,
    pub lwsockets_max: u32,
    pub read_buffers: u32,
    pub buffer_size: u32,
    pub write_buffers: u32,
    pub write_queue_max: u32,
    pub spin: u32,
    pub spin_ns: i64,
    pub close_timeout_ns: i64,
    pub latency_completions: u32,
    pub reserved: u32,
    pub latency_delay_ns: i64,
    pub promotion: u32,
    pub ring_buffers: u32,
}

// SAFETY: repr(C), and numbers only, which leave no gap.
unsafe impl Extensible for MpConfig {
    const FIRST: usize = offset_of!(MpConfig, latency_delay_ns) + size_of::<i64>();
}

/// `struct mp_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // mp_dispatch(3) describes the fields
pub struct MpEvent {
    pub cookie: *mut c_void,
    pub handle: i64,
    pub op: i64,
    pub size: i64,
    pub buf: *mut c_void,
    pub addr: *const libc::sockaddr,
    pub addrlen: libc::socklen_t,
    pub cmd: u32,
    pub fd: i32,
    pub buffer: u32,
    pub more: u8,
    pub pending: u8,
    pub truncated: u8,
    pub reserved: [u8; 21],
}

/// `struct mp_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // mp_stats(3) describes the fields
pub struct MpStats {
    pub completions: u64,
    pub turns: u64,
    pub system_calls: u64,
    pub pool_dry: u64,
    pub accepts_paused: u64,
    pub close_timeouts: u64,
    pub promoted: u64,
    pub promotions_refused: u64,
    pub ring_reads: u64,
    pub ring_writes: u64,
    pub bells: u64,
    pub spills: u64,
    pub packets_received: u64,
    pub packets_sent: u64,
    pub segments_unowned: u64,
    pub foreign_sent: u64,
    pub foreign_received: u64,
    pub foreign_dropped: u64,
    pub doorbells: u64,
}

/// Values of `mp_config.engine`.
pub(crate) const ENGINE_URING: u32 = 1;
pub(crate) const ENGINE_EPOLL: u32 = 2;

/// Values of `mp_config.spin`; 0 is automatic.
pub(crate) const SPIN_OFF: u32 = 1;
pub(crate) const SPIN_FOR: u32 = 2;

/// Values of `mp_config.promotion`.
pub(crate) const PROMOTION_OFF: u32 = 0;
pub(crate) const PROMOTION_AUTO: u32 = 1;
pub(crate) const PROMOTION_EAGER: u32 = 2;

/// Values of `mp_event.cmd`.
pub(crate) const ACCEPT: u32 = 1;
pub(crate) const CONNECT: u32 = 2;
pub(crate) const READ: u32 = 3;
pub(crate) const WRITE: u32 = 4;
pub(crate) const DISCONNECT: u32 = 5;
pub(crate) const TIMER: u32 = 6;
pub(crate) const WAKE: u32 = 7;
pub(crate) const WRITABLE: u32 = 8;
pub(crate) const POLL: u32 = 9;

impl MpConfig {
    /// All bytes 0: every default.
    pub(crate) const ZERO: MpConfig = MpConfig {
        size: size_of::<MpConfig>(),
        engine: 0,
        batch_threshold: 0,
        operations_max: 0,
        handles_max: 0,
        lwsockets_max: 0,
        read_buffers: 0,
        buffer_size: 0,
        write_buffers: 0,
        write_queue_max: 0,
        spin: 0,
        spin_ns: 0,
        close_timeout_ns: 0,
        latency_completions: 0,
        reserved: 0,
        latency_delay_ns: 0,
        promotion: 0,
        ring_buffers: 0,
    };

    /// The defaults as numbers.
    pub(crate) fn defaults() -> MpConfig {
        let config = Config::default();
        MpConfig {
            batch_threshold: config.batch_threshold,
            operations_max: config.operations_max,
            handles_max: config.handles_max,
            lwsockets_max: config.lwsockets_max,
            read_buffers: config.read_buffers.into(),
            buffer_size: config.buffer_size,
            write_buffers: config.write_buffers.into(),
            write_queue_max: config.write_queue_max,
            close_timeout_ns: config.close_timeout.as_nanos() as i64,
            ring_buffers: config.ring_buffers.into(),
            ..MpConfig::ZERO
        }
    }

    pub(crate) fn to_config(self) -> Result<Config, Errno> {
        let engine = match self.engine {
            0 => None,
            ENGINE_URING => Some(EngineKind::Uring),
            ENGINE_EPOLL => Some(EngineKind::Epoll),
            _ => return Err(INVALID),
        };
        let spin = match self.spin {
            0 => Spin::Auto,
            SPIN_OFF => Spin::Off,
            SPIN_FOR => Spin::For(duration(self.spin_ns)?),
            _ => return Err(INVALID),
        };
        if self.reserved != 0 {
            return Err(INVALID);
        }
        let promotion = match self.promotion {
            PROMOTION_OFF => Promotion::Off,
            PROMOTION_AUTO => Promotion::Auto,
            PROMOTION_EAGER => Promotion::Eager,
            _ => return Err(INVALID),
        };
        let mut config = Config { engine, spin, promotion, ..Config::default() };
        let set = |field: &mut u32, value| {
            if value != 0 {
                *field = value;
            }
        };
        set(&mut config.batch_threshold, self.batch_threshold);
        set(&mut config.operations_max, self.operations_max);
        set(&mut config.handles_max, self.handles_max);
        set(&mut config.lwsockets_max, self.lwsockets_max);
        set(&mut config.buffer_size, self.buffer_size);
        set(&mut config.write_queue_max, self.write_queue_max);
        if self.read_buffers != 0 {
            config.read_buffers = u16::try_from(self.read_buffers).map_err(|_| INVALID)?;
        }
        if self.write_buffers != 0 {
            config.write_buffers = u16::try_from(self.write_buffers).map_err(|_| INVALID)?;
        }
        if self.ring_buffers != 0 {
            config.ring_buffers = u16::try_from(self.ring_buffers).map_err(|_| INVALID)?;
        }
        if self.close_timeout_ns != 0 {
            config.close_timeout = duration(self.close_timeout_ns)?;
        }
        if self.latency_completions != 0 {
            let delay = duration(self.latency_delay_ns)?;
            config.latency_bound = Some(LatencyBound { completions: self.latency_completions, delay });
        }
        // A handle of C has so many bits for its index.
        if config.handles_max > 1 << HANDLE_BITS {
            return Err(INVALID);
        }
        Ok(config)
    }
}

impl MpEvent {
    pub(crate) const NONE: MpEvent = MpEvent {
        cookie: std::ptr::null_mut(),
        handle: 0,
        op: 0,
        size: 0,
        buf: std::ptr::null_mut(),
        addr: std::ptr::null(),
        addrlen: 0,
        cmd: 0,
        fd: -1,
        buffer: 0,
        more: 0,
        pending: 0,
        truncated: 0,
        reserved: [0; 21],
    };
}

impl From<Stats> for MpStats {
    fn from(stats: Stats) -> MpStats {
        MpStats {
            completions: stats.completions,
            turns: stats.turns,
            system_calls: stats.system_calls,
            pool_dry: stats.pool_dry,
            accepts_paused: stats.accepts_paused,
            close_timeouts: stats.close_timeouts,
            promoted: stats.promoted,
            promotions_refused: stats.promotions_refused,
            ring_reads: stats.ring_reads,
            ring_writes: stats.ring_writes,
            bells: stats.bells,
            spills: stats.spills,
            packets_received: stats.packets_received,
            packets_sent: stats.packets_sent,
            segments_unowned: stats.segments_unowned,
            foreign_sent: stats.foreign_sent,
            foreign_received: stats.foreign_received,
            foreign_dropped: stats.foreign_dropped,
            doorbells: stats.doorbells,
        }
    }
}

fn duration(nanoseconds: i64) -> Result<Duration, Errno> {
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| INVALID)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::process::Command;

    use super::*;
    use crate::errno;

    /// Lets the C compiler compare sizes, offsets and constants with the header's.
    #[test]
    fn the_header_agrees() {
        let mut code = String::from("#include <megapipe.h>\n");
        let mut claim = |what: &str, value: i64| {
            writeln!(code, "_Static_assert({what} == {value}, \"{what}\");").expect("memory");
        };
        macro_rules! layout {
            ($ours:ident, $theirs:literal, $($field:ident)*) => {
                claim(concat!("sizeof(struct ", $theirs, ")"), size_of::<$ours>() as i64);
                $(claim(
                    concat!("offsetof(struct ", $theirs, ", ", stringify!($field), ")"),
                    offset_of!($ours, $field) as i64,
                );)*
            };
        }
        layout!(MpConfig, "mp_config", size engine batch_threshold operations_max handles_max lwsockets_max
            read_buffers buffer_size write_buffers write_queue_max spin spin_ns close_timeout_ns
            latency_completions reserved latency_delay_ns promotion ring_buffers);
        layout!(MpEvent, "mp_event", cookie handle op size buf addr addrlen cmd fd buffer more pending
            truncated reserved);
        layout!(MpStats, "mp_stats", completions turns system_calls pool_dry accepts_paused close_timeouts
            promoted promotions_refused ring_reads ring_writes bells spills packets_received packets_sent
            segments_unowned foreign_sent foreign_received foreign_dropped doorbells);
        for (name, value) in [
            ("MP_ENGINE_URING", ENGINE_URING),
            ("MP_ENGINE_EPOLL", ENGINE_EPOLL),
            ("MP_SPIN_OFF", SPIN_OFF),
            ("MP_SPIN_FOR", SPIN_FOR),
            ("MP_PROMOTION_OFF", PROMOTION_OFF),
            ("MP_PROMOTION_AUTO", PROMOTION_AUTO),
            ("MP_PROMOTION_EAGER", PROMOTION_EAGER),
            ("MP_ACCEPT", ACCEPT),
            ("MP_CONNECT", CONNECT),
            ("MP_READ", READ),
            ("MP_WRITE", WRITE),
            ("MP_DISCONNECT", DISCONNECT),
            ("MP_TIMER", TIMER),
            ("MP_WAKE", WAKE),
            ("MP_POLL", POLL),
            ("MP_WRITABLE", WRITABLE),
        ] {
            claim(name, value.into());
        }
        for (name, Errno(value)) in [
            ("MP_EHANDLES", errno::HANDLES),
            ("MP_EOPERATIONS", errno::OPERATIONS),
            ("MP_EQUEUE", errno::QUEUE),
            ("MP_ELWSOCKETS", errno::LWSOCKETS),
            ("MP_ECHANNELS", errno::CHANNELS),
            ("MP_EWRONGTHREAD", errno::WRONG_THREAD),
            ("MP_EFORKED", errno::FORKED),
            ("MP_EBUSY", errno::BUSY),
            ("MP_EBROKEN", errno::BROKEN),
        ] {
            claim(name, value.into());
        }
        let source = std::env::temp_dir().join(format!("megapipe-layout-{}.c", std::process::id()));
        std::fs::write(&source, code).expect("a file");
        let compiled = Command::new("cc")
            .args(["-std=c11", "-fsyntax-only", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/include")])
            .arg(&source)
            .output()
            .expect("cc runs");
        std::fs::remove_file(&source).expect("still there");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
}
