//! The socket calls of unmodified programs, as plain Rust: every function of [`calls`] takes
//! and returns what the C function of its name does, errno included, and does on promoted
//! connections what Linux does on TCP. `megapipe-preload` puts the C names before them.
//!
//! A descriptor's state is one array access away (`table`); a descriptor that is none of
//! ours costs that, and the way to libc. What a connection moves over shared memory, and what
//! over the kernel, is decided in `promote`, whose state machine this drives.

mod adopt;
mod arming;
mod beside;
mod buffer;
mod call_limit;
pub mod calls;
mod clock;
mod confined;
mod contended;
mod descriptors;
mod doorbell;
mod epoll;
mod faults;
mod fork;
mod free_list;
mod heir;
mod hidden;
mod holders;
mod kernel;
mod kernel_options;
mod leaving;
mod local_listen;
mod lock;
mod mappings;
mod memory;
mod mode;
mod options;
mod pages;
mod peek;
mod poll;
mod promoter;
mod quota;
pub mod real;
mod receive;
mod recorded;
mod report;
mod sanitizer;
mod select;
mod send;
mod sets;
mod settings;
mod signals;
mod sockets;
mod spin;
mod start;
mod stats;
mod table;
mod take;
mod threads;
mod unseen;
mod uring;
mod vfork;
mod waiter;
mod waiters;

pub use settings::{Mode, Settings, Stats};
pub use start::{finish, start};
#[cfg(fuzzing)]
pub use uring::forget as forget_rings;
