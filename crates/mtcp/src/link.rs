//! What a context's calls do with its stack, wherever that is: here, used by the threads that call, or in a
//! thread of its own. Calls that set something up are functions that run on the stack; those that move bytes and
//! connections have a form for each.

use std::net::SocketAddr;
use std::time::Duration;

use packet::group::Queue;
use tcp::sockets::{Errno as Error, Readiness, Socket};
use tcp::{State, Time};

use crate::carrier::Waiter;
use crate::errno::Errno;
use crate::files::{Member, Wake};
use crate::stack::Stack;
use crate::threaded::{Front, Kind};

pub(crate) enum Link {
    Here(Box<Stack>),
    Thread(Box<Front>),
}

impl Link {
    pub(crate) fn now(&self) -> Time {
        match self {
            Link::Here(stack) => stack.now(),
            Link::Thread(front) => front.now(),
        }
    }

    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Stack) -> Result<T, Errno> + Send + 'static,
        wake: impl Wake,
    ) -> Result<T, Errno> {
        match self {
            Link::Here(stack) => work(stack),
            Link::Thread(front) => front.run(work, wake),
        }
    }

    pub(crate) fn turn(&mut self, wake: impl Wake) -> Result<(), Errno> {
        match self {
            Link::Here(stack) => stack.turn(),
            Link::Thread(front) => front.turn(wake),
        }
    }

    pub(crate) fn before_sleep(&mut self, limit: Option<Duration>) -> Option<Duration> {
        match self {
            Link::Here(stack) => stack.before_sleep(limit),
            Link::Thread(front) => front.before_sleep(limit),
        }
    }

    pub(crate) fn waiter(&self) -> Waiter {
        match self {
            Link::Here(stack) => stack.waiter(),
            Link::Thread(front) => front.waiter(),
        }
    }

    pub(crate) fn take_moved(&mut self) -> bool {
        match self {
            Link::Here(stack) => stack.take_moved(),
            Link::Thread(front) => front.take_moved(),
        }
    }

    /// Whether a further turn is not worth it yet.
    pub(crate) fn has_just_turned(&self) -> bool {
        match self {
            Link::Here(stack) => stack.has_just_turned(),
            Link::Thread(_) => false,
        }
    }

    /// Whether the process is a child that was forked from the one with the stack's thread.
    pub(crate) fn is_left_behind(&self) -> bool {
        match self {
            Link::Here(_) => false,
            Link::Thread(front) => front.is_left_behind(),
        }
    }

    /// Whether the stack's thread has panicked.
    pub(crate) fn is_torn(&self) -> bool {
        match self {
            Link::Here(_) => false,
            Link::Thread(front) => front.is_torn(),
        }
    }

    /// The stack has opened this socket.
    pub(crate) fn opened(&mut self, socket: Socket) {
        if let Link::Thread(front) = self {
            front.opened(socket);
        }
    }

    /// It has made this of the socket.
    pub(crate) fn became(&mut self, socket: Socket, kind: Kind) {
        if let Link::Thread(front) = self {
            front.became(socket, kind);
        }
    }

    /// The next connection of a listener, and its peer.
    pub(crate) fn accept(&mut self, listener: Socket) -> Result<(Socket, Option<SocketAddr>), Error> {
        match self {
            Link::Here(stack) => {
                let socket = stack.sockets.accept(stack.now(), listener)?;
                Ok((socket, stack.sockets.peer_address(socket).ok()))
            }
            Link::Thread(front) => front.accept(listener),
        }
    }

    /// Whether the connection is not open yet.
    pub(crate) fn is_opening(&self, socket: Socket) -> Result<bool, Error> {
        match self {
            Link::Here(stack) => {
                Ok(matches!(stack.sockets.info(socket)?.state, State::SynSent | State::SynReceived))
            }
            Link::Thread(front) => front.is_opening(socket),
        }
    }

    pub(crate) fn read(&mut self, socket: Socket, out: &mut [u8], peek: bool) -> Result<usize, Error> {
        match self {
            Link::Here(stack) if peek => stack.sockets.peek(stack.now(), socket, out),
            Link::Here(stack) => stack.sockets.read(stack.now(), socket, out),
            Link::Thread(front) => front.read(socket, out, peek),
        }
    }

    pub(crate) fn write(&mut self, socket: Socket, bytes: &[u8]) -> Result<usize, Error> {
        match self {
            Link::Here(stack) => stack.sockets.write(stack.now(), socket, bytes),
            Link::Thread(front) => front.write(socket, bytes),
        }
    }

    /// Bytes that can be read now.
    pub(crate) fn unread(&self, socket: Socket) -> Result<usize, Error> {
        match self {
            Link::Here(stack) => stack.sockets.unread(socket),
            Link::Thread(front) => front.unread(socket),
        }
    }

    pub(crate) fn readiness(&self, socket: Socket) -> Result<Readiness, Error> {
        match self {
            Link::Here(stack) => stack.sockets.readiness(socket),
            Link::Thread(front) => front.readiness(socket),
        }
    }

    /// Why the connection failed, once.
    pub(crate) fn take_error(&mut self, socket: Socket) -> Result<Option<Error>, Error> {
        match self {
            Link::Here(stack) => stack.sockets.take_error(socket),
            Link::Thread(front) => front.take_error(socket),
        }
    }

    /// Returns the epoll sets that it was in, where the stack does not keep them.
    pub(crate) fn close(&mut self, socket: Socket) -> Result<Vec<Member>, Error> {
        match self {
            Link::Here(stack) => stack.sockets.close(stack.now(), socket).map(|()| Vec::new()),
            Link::Thread(front) => front.close(socket),
        }
    }

    /// Resets a connection, and closes its socket.
    pub(crate) fn abort(&mut self, socket: Socket) -> Result<Vec<Member>, Error> {
        match self {
            Link::Here(stack) => stack.abort(socket).map(|()| Vec::new()),
            Link::Thread(front) => front.abort(socket),
        }
    }

    /// Ends the connections, and gives the queue of the TUN device back. A torn stack is not used any more.
    pub(crate) fn end(self, torn: bool) -> Option<Queue> {
        match self {
            Link::Here(mut stack) => {
                if !torn {
                    stack.drain(std::time::Instant::now());
                }
                stack.into_queue()
            }
            Link::Thread(front) => front.end(),
        }
    }
}
