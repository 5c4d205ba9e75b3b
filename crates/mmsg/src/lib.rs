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
mod depth;
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
    /// After the call: how many messages there were, or a negative error number. Before it, to send: how many to send; to
    /// receive: nothing, or with [`LIMITED`] how many at most.
    pub num: i32,
    /// The first of them in the message vector: to send, set by the caller; to receive, by the call.
    pub offset: i32,
}

/// A flag of [`recvmmmsg`]: each [`Mmep::num`] is the most messages that its socket may have. No flag of the kernel's has
/// this bit.
pub const LIMITED: i32 = 0x1000_0000;

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
/// Of `eps` only the descriptors are read; `num` and `offset` are results. Sockets are served in the order of the entries, and
/// each may have as many messages as `msgs` has places left. While queues are short, as the last calls found them, a call
/// receives one message of each socket and does not look for a second one, which would cost a third more; what it leaves is
/// readable still. With [`LIMITED`] in `flags`, `num` is the most messages that a socket may have, and it is looked for so many.
///
/// Afterwards `num` is the number of messages, which are filled in as by recvmmsg(2) from `offset` on, or a
/// negative error number: EAGAIN where nothing waits; EBADF, ENOTSOCK, EFAULT and what else
/// recvmsg(2) says; ENOBUFS for an entry that was not served since `msgs` has no place left; EINVAL for a limit below 1.
/// An error that came behind messages is reported by the thread's next call for that socket, behind what is left of a stream's
/// data. A stream that has ended has one message of length 0 in each call. An entry that names a socket again goes on where
/// the one before it ended; a socket that has two descriptors is two, whose order is not defined.
///
/// The result is the number of messages in all. `flags` are those of recvmsg(2). Of a message of one piece without room for
/// an address or control messages, the length and MSG_TRUNC are reported, and other flags (MSG_CTRUNC, MSG_EOR) if one call in
/// 32 finds some, until the next such finds none; with MSG_TRUNC, which asks for the real length of each datagram, never.
///
/// # Safety
///
/// The vector of pieces of each header is null or valid for reads. What else the headers and the pieces point to is valid
/// for writes and used by nobody else during the call, or is not mapped, which is EFAULT.
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
