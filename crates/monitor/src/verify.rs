//! What the kernel says of an offered descriptor, and whether it still says so when the
//! offer is matched.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use promote::Reason;
use sys::socket_diag::SocketDiag;
use sys::tcp::{self, ESTABLISHED, End, NotAnEnd};

use crate::closing::{Closed, Foreign};

/// An offered end, as far as the monitor keeps hold of it.
#[derive(Debug)]
pub(crate) struct Verified {
    /// What the kernel said.
    pub(crate) end: End,
    /// Only of a namespace where the monitor cannot ask by cookie: the descriptor.
    kept: Option<Foreign>,
}

/// What an offered descriptor is found to be.
pub(crate) type Outcome = Result<Verified, Reason>;

/// Asks the kernel.
pub(crate) struct Verifier {
    diag: SocketDiag,
}

impl Verifier {
    pub(crate) fn new() -> io::Result<Verifier> {
        Ok(Verifier { diag: SocketDiag::new()? })
    }

    /// Looks at what was offered, and begins to close it: only of a namespace that is not the monitor's own it is kept.
    pub(crate) fn examine(&self, descriptor: Foreign) -> (Outcome, Option<Closed>) {
        match self.end_of(descriptor.as_fd()) {
            Ok(end) if self.is_foreign(&end) => (Ok(Verified { end, kept: Some(descriptor) }), None),
            found => (found.map(|end| Verified { end, kept: None }), Some(descriptor.close())),
        }
    }

    fn end_of(&self, descriptor: BorrowedFd<'_>) -> Result<End, Reason> {
        let end = look(descriptor)?;
        // A socket connected to itself has no other end.
        if end.local == end.peer || (!self.is_foreign(&end) && !tcp::is_local(end.peer.ip())) {
            return Err(Reason::OtherHost);
        }
        Ok(end)
    }

    fn is_foreign(&self, end: &End) -> bool {
        end.namespace != self.diag.namespace()
    }

    /// Whose the other endpoint is, if it is another user's than `own`. Nothing can be said of another namespace.
    pub(crate) fn other_user(&mut self, verified: &Verified, own: u32) -> Option<u32> {
        let known = match verified.kept {
            Some(_) => None,
            None => self.diag.user_of_peer(&verified.end).unwrap_or_else(|error| {
                self.begin_anew(&error);
                None
            }),
        };
        known.filter(|user| *user != own)
    }

    /// Whether the end still is that connection.
    pub(crate) fn is_still(&mut self, verified: &Verified) -> bool {
        match &verified.kept {
            Some(descriptor) => look(descriptor.as_fd()) == Ok(verified.end),
            None => match self.diag.is_still(&verified.end) {
                Ok(still) => still,
                Err(error) => {
                    self.begin_anew(&error);
                    false
                }
            },
        }
    }

    /// A broken conversation is begun anew for the next question.
    fn begin_anew(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the kernel does not answer questions about sockets (sock_diag); connections stay on TCP meanwhile");
        if let Ok(diag) = SocketDiag::new() {
            self.diag = diag;
        }
    }
}

impl Verified {
    /// Whether the monitor had to keep the descriptor.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }
}

fn look(descriptor: BorrowedFd<'_>) -> Result<End, Reason> {
    match tcp::end(descriptor) {
        Ok(end) if end.state == ESTABLISHED => Ok(end),
        Ok(_) | Err(NotAnEnd::NotConnected | NotAnEnd::NotTcp) => Err(Reason::ClosedEarly),
        Err(NotAnEnd::Untold(error)) => {
            tracing::warn!(%error, "the state of a socket cannot be read; its connection stays on TCP");
            Err(Reason::ClosedEarly)
        }
    }
}
