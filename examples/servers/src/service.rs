//! What a server is made of besides its connections.

use crate::output::Output;

/// A protocol, and what its connections share. One value serves all threads.
pub trait Service: Send + Sync + 'static {
    /// Where one connection stands.
    type Session: Default;

    /// Takes input of a connection and answers it. `thread` is the number of the calling thread.
    fn receive(
        &self,
        thread: usize,
        session: &mut Self::Session,
        input: &[u8],
        output: &mut Output,
    ) -> Progress;

    /// What a client gets to read that comes when there are too many.
    fn refusal(&self) -> &'static [u8];

    /// Is told what happens to the connections of a thread.
    fn count(&self, thread: usize, traffic: Traffic);
}

/// How far a session came with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What to do with the connection.
    pub next: Next,
    /// Bytes of the input that were taken. The rest has to be given again, before newer input.
    pub consumed: usize,
}

/// What a connection is to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read on. All input was taken.
    Read,
    /// Write the output before giving further input, if only an empty one: there is more to answer.
    Drain,
    /// Write the output, then close.
    Close,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Accepted.
    Opened,
    /// Gone, for whatever reason.
    Closed,
    /// Closed at once, since there were too many.
    Refused,
    /// Bytes read.
    Read(usize),
    /// Bytes written.
    Written(usize),
}
