//! The socket calls of unmodified programs, as plain Rust: every function of [`calls`] has the
//! arguments, result and errno of the C function of its name, and does on promoted connections what
//! Linux does on TCP. `megapipe-preload` exports the C names for them.
//!
//! A descriptor's state is one array access away (`table`); any other descriptor costs that access
//! and the call of libc. `promote` decides which bytes of a connection go over shared memory and
//! which over the kernel; this crate drives its state machine.

mod adopt;
mod arming;
mod buffer;
mod call_limit;
pub mod calls;
mod clock;
mod confined;
mod consume;
mod demotion;
mod descriptors;
mod doorbell;
mod epoll;
mod faults;
mod fork;
mod free_list;
mod hidden;
mod holders;
mod kernel;
mod kernel_options;
mod local_listen;
mod lock;
mod mappings;
mod memory;
mod mode;
mod options;
mod pages;
mod peek;
mod poll;
mod poll_entries;
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
mod several_waiters;
mod signals;
mod sockets;
mod spin;
mod start;
mod stats;
mod successor;
mod table;
mod threads;
mod unseen;
mod uring;
mod vfork;
mod waiter;
mod waiters;
mod watch;

pub use settings::{Mode, Settings, Stats};
pub use start::{finish, start};
#[cfg(fuzzing)]
pub use uring::forget as forget_rings;
