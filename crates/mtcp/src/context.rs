//! A context as the program has it: numbers, epoll sets and pipes, and its stack, which is here or in a thread
//! of its own.

use std::time::Duration;

use packet::group::Queue;
use tcp::Time;
use tcp::sockets::Socket;

use crate::carrier::Waiter;
use crate::config::Conf;
use crate::errno::{AGAIN, Errno};
use crate::files::{Files, Member};
use crate::link::Link;
use crate::pipe::Pipe;
use crate::stack::Stack;

pub(crate) struct Context {
    pub(crate) link: Link,
    pub(crate) files: Files,
    pub(crate) pipes: Vec<Option<Pipe>>,
    pub(crate) backlog_max: usize,
    /// A call has panicked: its tables may be torn, and are not used any more.
    pub(crate) torn: bool,
}

/// Why a call does not return a result now.
pub(crate) enum Pause {
    /// It has failed.
    Failed(Errno),
    /// It is to be made again after a sleep of this time at most.
    Sleep(Option<Duration>),
}

impl<E: Into<Errno>> From<E> for Pause {
    fn from(error: E) -> Pause {
        Pause::Failed(error.into())
    }
}

impl Context {
    pub(crate) fn new(link: Link, conf: &Conf) -> Context {
        let files = Files::new(conf.descriptors());
        Context { link, files, pipes: Vec::new(), backlog_max: conf.descriptors(), torn: false }
    }

    /// A thread uses the context from now on: its stack reads its queue.
    pub(crate) fn join(&mut self) {
        // Of a stack that is not there any more, the next call says so.
        let _ = self.run(|stack| {
            stack.join();
            Ok(())
        });
    }

    /// No thread uses it any more: another context reads its queue.
    pub(crate) fn leave(&mut self) {
        let _ = self.run(|stack| {
            stack.leave();
            Ok(())
        });
    }

    pub(crate) fn now(&self) -> Time {
        self.link.now()
    }

    /// Does something with the stack, and waits for what comes of it.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Stack) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let Context { link, files, .. } = self;
        link.run(work, |members, bits| files.wake(members, bits))
    }

    /// Moves packets, or takes what the stack's own thread reports.
    pub(crate) fn turn(&mut self) -> Result<(), Errno> {
        let Context { link, files, .. } = self;
        link.turn(|members, bits| files.wake(members, bits))
    }

    /// Prepares a sleep: how to, and for how long at most.
    pub(crate) fn before_sleep(&mut self, limit: Option<Duration>) -> (Waiter, Option<Duration>) {
        (self.waiter(), self.link.before_sleep(limit))
    }

    /// How another thread that sleeps for this context is woken.
    pub(crate) fn waiter(&self) -> Waiter {
        self.link.waiter()
    }

    /// Whether anything happened that another thread may wait for.
    pub(crate) fn take_moved(&mut self) -> bool {
        self.link.take_moved()
    }

    /// Makes a call on a socket. One that would block is tried again after a turn; then it returns EAGAIN if it
    /// may not block, and else a pause.
    pub(crate) fn call<T>(
        &mut self,
        nonblocking: bool,
        mut call: impl FnMut(&mut Link) -> Result<T, tcp::sockets::Errno>,
    ) -> Result<T, Pause> {
        match call(&mut self.link) {
            Err(tcp::sockets::Errno::WouldBlock) => {}
            result => return Ok(result?),
        }
        if nonblocking && self.link.has_just_turned() {
            return Err(AGAIN.into());
        }
        self.turn()?;
        match call(&mut self.link) {
            Err(tcp::sockets::Errno::WouldBlock) if !nonblocking => Err(Pause::Sleep(None)),
            result => Ok(result?),
        }
    }

    /// Closes a socket in this way; it leaves its epoll sets.
    pub(crate) fn close_socket(
        &mut self,
        socket: Socket,
        close: impl FnOnce(&mut Link, Socket) -> Result<Vec<Member>, tcp::sockets::Errno>,
    ) -> Result<(), Errno> {
        let members = close(&mut self.link, socket)?;
        self.files.forget(&members);
        Ok(())
    }

    /// Ends the connections, and gives the queue of the TUN device back. Another context resets those of
    /// a torn one.
    pub(crate) fn end(self) -> Option<Queue> {
        self.link.end(self.torn)
    }
}
