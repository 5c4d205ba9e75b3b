//! Making the engine: its ring, what is registered with it, and how much of that fits.

use std::io;
use std::time::Duration;

use sys::capabilities::{Capabilities, RingUnavailable};
use sys::uring::{Ring, until_memory_is_unlocked_within};

use super::Uring;
use super::requests::Requests;
use super::stock::Stock;
use crate::config::Config;
use crate::engine::polls::Polls;
use crate::engine::view::View;
use crate::error::CreateError;
use crate::waker::Waker;

/// Slots beyond `lwsockets_max`: a multishot accept that is being stopped may still
/// bring what waits in the accept queue, and the kernel drops what finds no slot.
const SPARE_SLOTS: u32 = 4096;

/// The largest completion queue that the kernel makes (IORING_MAX_CQ_ENTRIES).
const COMPLETIONS_MAX: u32 = 1 << 16;

impl Uring {
    pub(crate) fn new(config: &Config, view: &mut View<'_>) -> Result<Uring, CreateError> {
        let capabilities = Capabilities::get();
        if let Err(unavailable) = capabilities.ring {
            return Err(match unavailable {
                RingUnavailable::LockedMemory(errno)
                | RingUnavailable::Memory(errno)
                | RingUnavailable::Descriptors(errno) => ring_error(io::Error::from_raw_os_error(errno)),
                _ => CreateError::RingUnavailable(io::Error::other(unavailable)),
            });
        }
        if let Some(feature) = capabilities.lacks() {
            let cause = io::Error::other(format!("the engine cannot do without {feature}"));
            return Err(CreateError::RingUnavailable(cause));
        }
        let entries = (config.batch_threshold * 4).next_power_of_two().max(256);
        let direct = capabilities.sparse_files
            && capabilities.direct_descriptors_safe
            && capabilities.fixed_fd_install;
        let slots =
            if direct { file_table_size(view).map_err(resources("the limit of open files"))? } else { 0 };
        let (ring, stock) = make_ring(entries, config, |completions| {
            let ring = Ring::new(entries, completions, capabilities)?;
            let stock = Stock::new(&ring, view.read_pool())?;
            if direct {
                ring.register_files(slots)?;
            }
            Ok((ring, stock))
        })?;
        view.use_slots(direct);
        let waker = Waker::new().map_err(resources("an eventfd"))?;
        Ok(Uring {
            ring,
            stock,
            requests: Requests::new(entries as usize),
            waker,
            capabilities,
            pending: 0,
            watched: 0,
            unwatched: Vec::new(),
            shutdowns: 0,
            cancelled_accepts: Vec::new(),
            polls: Polls::default(),
            polls_ready: false,
            direct,
            control: None,
            waker_armed: false,
            reaped: 0,
        })
    }
}

/// How long a channel waits at the most for the locked memory of one that was closed: the probe has found that there is room.
const UNLOCKED: Duration = Duration::from_secs(1);

/// A ring, with the memory that it pins, whose completion queue has room for one completion of each operation that
/// may be pending, as far as the kernel makes them so large and RLIMIT_MEMLOCK leaves room.
fn make_ring<T>(
    entries: u32,
    config: &Config,
    mut attempt: impl FnMut(u32) -> io::Result<T>,
) -> Result<T, CreateError> {
    let least = entries * 2;
    let mut completions = config.operations_max.clamp(least, COMPLETIONS_MAX);
    while completions > least {
        match attempt(completions) {
            // Before Linux 6.10 the queue is one piece of physical memory, which may be too scattered for it.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => completions /= 2,
            settled => return settled.map_err(ring_error),
        }
    }
    until_memory_is_unlocked_within(UNLOCKED, || attempt(least)).map_err(ring_error)
}

fn ring_error(cause: io::Error) -> CreateError {
    match cause.raw_os_error().map(RingUnavailable::from_errno) {
        // Forbidden since the capabilities were probed.
        Some(RingUnavailable::Forbidden(_) | RingUnavailable::Missing(_)) => {
            CreateError::RingUnavailable(cause)
        }
        Some(short @ RingUnavailable::LockedMemory(_)) => CreateError::LockedMemory(io::Error::other(short)),
        _ => CreateError::Resources { what: "a ring", cause },
    }
}

fn resources(what: &'static str) -> impl Fn(io::Error) -> CreateError {
    move |cause| CreateError::Resources { what, cause }
}

/// How large the ring's file table is to be; lowers the number of the kernel's lightweight sockets
/// to what RLIMIT_NOFILE allows.
fn file_table_size(view: &mut View<'_>) -> io::Result<u32> {
    let wanted = view.lwsockets_max().saturating_add(SPARE_SLOTS);
    let limit = sys::file::raise_open_files(wanted.into())?.min(1 << 20) as u32;
    if wanted > limit {
        let spare = SPARE_SLOTS.min(limit / 4);
        view.limit_kernel_lwsockets(limit - spare);
    }
    Ok(wanted.min(limit))
}
