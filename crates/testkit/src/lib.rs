//! The conformance suite that every channel engine passes, and what Megapipe's tests
//! share: channels with bounded waits, real sockets, child processes, and a record of
//! the tests that could not run here.

pub mod allocations;
pub mod calls;
pub mod confine;
pub mod conformance;
pub mod driver;
pub mod net;
pub mod netns;
pub mod process;
pub mod programs;
pub mod skip;
pub mod stack;
pub mod threads;
