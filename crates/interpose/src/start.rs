//! The start and the end of a program's run.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock;
use crate::descriptors;
use crate::fork;
use crate::hidden;
use crate::holders;
use crate::local_listen;
use crate::mode;
use crate::promoter;
use crate::recorded;
use crate::report;
use crate::sanitizer;
use crate::settings::{Mode, Settings, Stats};
use crate::sockets;
use crate::spin;
use crate::table;
use crate::threads;
use crate::uring;
use crate::vfork;
use crate::waiters;

/// Starts tracking this process's sockets, once, before the program's own code runs. Without it
/// every function of [`crate::calls`] calls the kernel.
pub fn start(settings: Settings) {
    if settings.mode != Mode::Off || settings.local_listen {
        vfork::owns_memory(std::process::id());
        clock::find();
        threads::find();
        sanitizer::find();
        report::prepare(&settings);
        local_listen::start(&settings);
    }
    if settings.mode == Mode::Off
        || sockets::make().and_then(|()| holders::make()).and_then(|()| table::make()).is_err()
    {
        return;
    }
    fork::register();
    spin::start(settings.spin);
    waiters::arm_always(settings.arm_always);
    uring::trusts(settings.rings_for_files);
    if let Stats::Recorded(recorder) = settings.stats {
        recorded::start(recorder, &report::program_name());
    }
    hidden::make_room();
    promoter::start(settings);
    descriptors::inherited();
}

static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Closes promoted connections and writes the summary of MEGAPIPE_STATS, once, when the process
/// ends: by exit(3), or by _exit(2), which signal handlers and the children of vfork(2) call, too.
pub fn finish() {
    if has_watched() && !vfork::borrows_memory() && !WRITTEN.swap(true, Ordering::Relaxed) {
        descriptors::exit();
        if !mode::is_confined() {
            recorded::finish();
        }
        report::write_summary();
    }
}

/// Whether there is anything to summarize.
fn has_watched() -> bool {
    sockets::any() || local_listen::is_on()
}

/// The same before another program replaces this one; if the exec fails this one continues.
pub(crate) fn before_exec() {
    if has_watched() && !vfork::borrows_memory() && !mode::is_confined() {
        report::write_summary();
    }
}

/// Writes the summary now, since it cannot be written at the end.
pub(crate) fn write_summary_now() {
    if !WRITTEN.swap(true, Ordering::Relaxed) {
        report::write_summary();
    }
}

/// In the child of a fork.
pub(crate) fn forked() {
    WRITTEN.store(mode::is_confined(), Ordering::Relaxed);
    recorded::forked();
}
