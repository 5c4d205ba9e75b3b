//! Many sockets and many messages in one call, for programs with an event loop of their own.
//!
//! * [`recvmmmsg`] and [`sendmmmsg`]: the calls that Jadhav, Cao and Sarma proposed for the
//!   kernel (netdev 0x13, 2019), on a stock one. They are to sockets what recvmmsg(2) is to
//!   messages. [`Inbox`] and [`Outbox`] are the same without raw pointers.
//! * [`Receiver`]: for sockets that stay the same; they are registered once, no epoll is needed,
//!   and a message costs about three quarters of what it costs with epoll and recvmsg(2).
//! * [`RcvLowat`]: readable when so many bytes wait, or when the first of them has waited so long.
//!
//! They use io_uring where the kernel allows it and system calls elsewhere, with the same results.
#![warn(missing_docs)]

mod batch;
mod caller;
mod late;
pub mod lowat;
mod messages;
mod notices;
pub mod receiver;
mod repeats;
mod rooms;

use std::cell::RefCell;
use std::env;

pub use caller::Caller;
pub use lowat::RcvLowat;
pub use messages::{GSO_SPACE, Inbox, Outbox, Received, set_segment};
pub use receiver::Receiver;

/// One socket of a call and its messages: `struct mmep`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mmep {
    /// The socket.
    pub sockfd: i32,
    /// Before the call: how many messages. After it: how many there were, or a negative error
    /// number.
    pub num: i32,
    /// The first of them in the message vector.
    pub offset: i32,
}

/// How the calls reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// One submission to a ring for many sockets.
    Uring,
    /// recvmmsg(2) and sendmmsg(2) for each socket.
    Syscalls,
}

impl Backend {
    /// What this process is to use: io_uring, unless `MEGAPIPE_ENGINE=epoll` says otherwise. A value that means
    /// nothing is told of in the log.
    pub fn chosen() -> Backend {
        let engine = env::var("MEGAPIPE_ENGINE").unwrap_or_default();
        let means_nothing = !["", "uring", "epoll"].contains(&engine.as_str());
        notices::settings(means_nothing.then_some(&*engine));
        if engine == "epoll" { Backend::Syscalls } else { Backend::Uring }
    }
}

/// Why a call did nothing. What concerns one socket is in its [`Mmep::num`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The flags have MSG_CMSG_COMPAT, which the kernel keeps for itself.
    #[error("MSG_CMSG_COMPAT is no flag for programs")]
    Flags,
    /// The message vector has more than 2^31 - 1 messages.
    #[error("offsets of 32 bits do not reach over so many messages")]
    TooLong,
    /// A signal handler made the call while the thread was in another one.
    #[error("the thread is in another such call; a signal handler must not make one")]
    Busy,
}

thread_local! {
    static CALLER: RefCell<Caller> = RefCell::new(Caller::new());
}

/// Receives the messages that wait in many sockets. It never waits.
///
/// Each entry of `eps` with a `num` above 0 receives at most so many messages, in the places of
/// `msgs` from `offset` on; places of two entries may not overlap. Entries with `num` 0 share
/// the other places evenly, and their `offset` tells afterwards where they are. Entries may come
/// in any order. One that names a socket again goes on where the one before it ended; a socket that has two
/// descriptors is two, whose order is not defined.
///
/// Afterwards `num` is the number of messages, which are filled in as by recvmmsg(2), or a
/// negative error number: EAGAIN where nothing waits; EBADF, ENOTSOCK, EFAULT and what else
/// recvmsg(2) says; EINVAL for places that do not exist or belong to another entry, or a `num` that was still negative; ENOBUFS for
/// an entry that shared places which were too few, and was not looked at (another time it is
/// another one). Fewer messages than asked for mean that no more waited, or that an error came
/// then: the thread's next call for that socket tells it, behind what is left of a stream's data.
///
/// The result is the number of messages in all. `flags` are those of recvmsg(2). With MSG_TRUNC,
/// which asks for the real length of each datagram, messages of one piece without address and
/// control data are received at less cost; then MSG_CTRUNC is not reported.
///
/// # Safety
///
/// What the headers of `msgs` point to is valid for writes and used by nobody else during the
/// call. Memory that is not mapped is no harm (EFAULT), but nobody unmaps it during the call.
///
/// # Errors
///
/// Of the call as a whole: see [`CallError`].
pub unsafe fn recvmmmsg(
    eps: &mut [Mmep],
    msgs: &mut [libc::mmsghdr],
    flags: i32,
) -> Result<usize, CallError> {
    with_caller(|caller| {
        // SAFETY: passed on to the caller.
        unsafe { caller.recvmmmsg(eps, msgs, flags) }
    })
}

/// Sends messages down many sockets. It never waits, and raises no SIGPIPE.
///
/// Each entry of `eps` sends the `num` messages of `msgs` from `offset` on, in order, up to its
/// first error or the first message of which only a part went. Entries may share messages, which are sent on each of their sockets. An entry
/// that names a socket again begins when the one before it has ended; a socket that has two descriptors is two, whose
/// order is not defined.
///
/// Afterwards `num` is the number of messages sent, with the bytes of each in `msg_len`, or a
/// negative error number if the first one failed: EAGAIN where there is no room, EINVAL for
/// messages that `msgs` does not have, or a `num` that was still negative. The result is the number of messages in all.
///
/// # Safety
///
/// What the headers of `msgs` point to is valid for reads during the call; memory that is not
/// mapped is no harm (EFAULT).
///
/// # Errors
///
/// Of the call as a whole: see [`CallError`].
pub unsafe fn sendmmmsg(
    eps: &mut [Mmep],
    msgs: &mut [libc::mmsghdr],
    flags: i32,
) -> Result<usize, CallError> {
    with_caller(|caller| {
        // SAFETY: passed on to the caller.
        unsafe { caller.sendmmmsg(eps, msgs, flags) }
    })
}

/// Runs a call with the thread's caller; with one of its own when the thread is about to end.
fn with_caller<T>(call: impl FnOnce(&mut Caller) -> Result<T, CallError>) -> Result<T, CallError> {
    let mut call = Some(call);
    let mut run = |caller: &mut Caller| call.take().map_or(Err(CallError::Busy), |call| call(caller));
    let done = CALLER.try_with(|caller| match caller.try_borrow_mut() {
        Ok(mut caller) => run(&mut caller),
        Err(_) => Err(CallError::Busy),
    });
    done.unwrap_or_else(|_| run(&mut Caller::with_backend(Backend::Syscalls)))
}

/// The program of the page is compiled with the documentation's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/mmsg.md")]
struct Page;
