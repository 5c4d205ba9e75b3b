//! Why a listener stays on its shared queue alone, for `--verbose`: one line for each reason.

use std::ffi::c_int;
use std::fmt;

use crate::kernel;

/// Why a listener has no local queue here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The kernel refuses the steering program, or its maps to this process.
    Bpf,
    /// The program has several listeners at its address.
    Group,
    /// The listener has queues of a process whose steering this one did not inherit, or too many.
    Places,
    /// Waits that the library does not track.
    Waits,
    /// Accepts by raw system calls.
    Accepts,
    /// An option that cannot be copied.
    Option,
    /// A user other than the listener's cannot bind to its address.
    User,
    /// The listener came from another process by its descriptor.
    Received,
    /// The process restricts its own system calls.
    Confined,
    /// No descriptors, or more listeners or epoll sets than are tracked.
    Descriptors,
}

/// A listener by its address, for messages.
pub(super) fn name(fd: c_int) -> String {
    kernel::address(fd).map_or_else(|| format!("descriptor {fd}"), |address| address.to_string())
}

impl Word {
    /// The line for a listener.
    pub(super) fn of(self, fd: c_int) -> impl fmt::Display {
        format!("local-listen: {} stays on its shared queue: {self}", name(fd))
    }
}

impl fmt::Display for Word {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Word::Bpf => {
                "bpf (the kernel refuses the steering program; it needs CAP_BPF and Linux 5.14, or 5.19 \
                 where workers drop their privileges)"
            }
            Word::Group => "group (the program has several listeners at this address)",
            Word::Places => {
                "places (it has the queues of a process that this library cannot go on with, or 1,023 of them)"
            }
            Word::Waits => "waits (it blocks, is one-shot, or is waited for by other calls than epoll's)",
            Word::Accepts => "accepts (the program accepts by system calls that this library does not see)",
            Word::Option => "option (the listener has an option that cannot be copied)",
            Word::User => "user (the process changed its user before it made its queues)",
            Word::Received => "received (another process passed the listener to this one by SCM_RIGHTS)",
            Word::Confined => "confined (the process restricts its system calls by seccomp)",
            Word::Descriptors => "descriptors (too few, or too many listeners or epoll sets)",
        })
    }
}
