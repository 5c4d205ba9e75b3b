//! libmegapipe: the C face of the Megapipe channel.
//!
//! `include/megapipe.h` is the interface and `man/` its description; this crate checks
//! what comes in, calls the channel, and converts what goes out.
//!
//! * [`number`]: handles, operations and lightweight sockets as C has them;
//! * [`thread`]: which channels the calling thread has, and the guard around each call;
//! * [`errno`]: errors as negative numbers;
//! * [`abi`]: the structs of the header;
//! * `extensible`: those that begin with their size, from older and newer programs;
//! * [`lifecycle`], [`handle`], [`transfer`], [`socket`], [`tun`], [`dispatch`]: the calls;
//! * [`mod@mmsg`]: those of `include/megapipe_mmsg.h`, which need no channel.
//!
//! # Handles are numbers
//!
//! A handle names its channel, its index and its generation in 64 bits, and is looked up,
//! never followed. A stale, foreign or invented one is an error and never undefined
//! behaviour, also after its channel is gone; an idle connection costs no object for its
//! handle; and the lookup among the calling thread's channels is the check that the
//! thread is the right one. `mp_channel *` is looked up the same way.
//!
//! # Panics
//!
//! None is expected. One that happens all the same stops at the call, which returns
//! ENOTRECOVERABLE, as does every later call on the channel: its tables may be torn.

pub mod abi;
pub mod dispatch;
pub mod errno;
mod extensible;
pub mod handle;
pub mod lifecycle;
mod log;
pub mod mmsg;
pub mod number;
pub mod poll;
pub mod socket;
mod table;
pub mod thread;
pub mod transfer;
pub mod tun;
