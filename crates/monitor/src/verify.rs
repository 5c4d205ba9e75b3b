//! The kernel's account of an offered descriptor, verified again when the offer is
//! matched.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use promote::Reason;
use sys::socket_diag::SocketDiag;
use sys::tcp::{self, ESTABLISHED, Endpoint, NotAnEndpoint};

use crate::closing::{Closed, Foreign};

/// An offered endpoint, as far as the monitor keeps it.
#[derive(Debug)]
pub(crate) struct Verified {
    /// The kernel's account.
    pub(crate) endpoint: Endpoint,
    /// Only of a namespace where the monitor cannot ask by cookie: the descriptor.
    kept: Option<Foreign>,
}

/// The result of verifying an offered descriptor.
pub(crate) type Outcome = Result<Verified, Reason>;

/// Asks the kernel.
pub(crate) struct Verifier {
    diag: SocketDiag,
}

impl Verifier {
    pub(crate) fn new() -> io::Result<Verifier> {
        Ok(Verifier { diag: SocketDiag::new()? })
    }

    /// Verifies an offered descriptor, and begins to close it. It is kept only if it is
    /// of another namespace than the monitor's.
    pub(crate) fn examine(&self, descriptor: Foreign) -> (Outcome, Option<Closed>) {
        match self.endpoint_of(descriptor.as_fd()) {
            Ok(endpoint) if self.is_foreign(&endpoint) => {
                (Ok(Verified { endpoint, kept: Some(descriptor) }), None)
            }
            found => (found.map(|endpoint| Verified { endpoint, kept: None }), Some(descriptor.close())),
        }
    }

    fn endpoint_of(&self, descriptor: BorrowedFd<'_>) -> Result<Endpoint, Reason> {
        let endpoint = endpoint_at(descriptor)?;
        // A socket connected to itself has no other endpoint.
        if endpoint.local == endpoint.peer
            || (!self.is_foreign(&endpoint) && !tcp::is_local(endpoint.peer.ip()))
        {
            return Err(Reason::OtherHost);
        }
        Ok(endpoint)
    }

    fn is_foreign(&self, endpoint: &Endpoint) -> bool {
        endpoint.namespace != self.diag.namespace()
    }

    /// The user of the other endpoint, if it is another than `own`. Nothing is known of
    /// another namespace.
    pub(crate) fn other_user(&mut self, verified: &Verified, own: u32) -> Option<u32> {
        let known = match verified.kept {
            Some(_) => None,
            None => self.diag.user_of_peer(&verified.endpoint).unwrap_or_else(|error| {
                self.begin_anew(&error);
                None
            }),
        };
        known.filter(|user| *user != own)
    }

    /// Whether the endpoint still is that connection.
    pub(crate) fn is_still(&mut self, verified: &Verified) -> bool {
        match &verified.kept {
            Some(descriptor) => endpoint_at(descriptor.as_fd()) == Ok(verified.endpoint),
            None => match self.diag.is_still(&verified.endpoint) {
                Ok(still) => still,
                Err(error) => {
                    self.begin_anew(&error);
                    false
                }
            },
        }
    }

    /// Opens a new socket for the next question after an error.
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

fn endpoint_at(descriptor: BorrowedFd<'_>) -> Result<Endpoint, Reason> {
    match tcp::endpoint(descriptor) {
        Ok(endpoint) if endpoint.state == ESTABLISHED => Ok(endpoint),
        Ok(_) | Err(NotAnEndpoint::NotConnected | NotAnEndpoint::NotTcp) => Err(Reason::ClosedEarly),
        Err(NotAnEndpoint::Unreadable(error)) => {
            tracing::warn!(%error, "the state of a socket cannot be read; its connection stays on TCP");
            Err(Reason::ClosedEarly)
        }
    }
}
