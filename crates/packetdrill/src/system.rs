//! What a script runs on: sockets, a way for packets in and out, and a clock.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tcp::sockets::{Errno, How, Options, Readiness, Trigger};
use tcp::{Profile, Time};

use crate::Cause;
use crate::settings::Settings;

/// What was sent, and when.
pub(crate) type Sent = VecDeque<(Time, Vec<u8>)>;

/// Why a call failed: with an error of its own, or because it cannot be made here.
pub(crate) enum Failed {
    Errno(Errno),
    Cause(Cause),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed::Errno(errno)
    }
}

/// A TCP with the calls of POSIX. Sockets and epoll sets have numbers of its own choice; no call
/// blocks.
pub(crate) trait System {
    fn now(&self) -> Time;

    /// Settings of FreeBSD that hold from now on. What is open keeps its own.
    fn configure(&mut self, settings: &Settings);

    /// Whether its clock runs by itself: then what happens late makes late what follows.
    fn runs_by_itself(&self) -> bool;

    /// How late it may do what is due after this time, beside the script's tolerance.
    fn lateness(&self, wait: Duration) -> Duration;

    /// Lets time pass until `until`. With `stop`, at most until something has been sent.
    fn pass(&mut self, until: Time, stop: bool, sent: &mut Sent);

    /// A packet of the peer arrives.
    fn input(&mut self, packet: &[u8]);

    fn socket(&mut self, v6: bool) -> Result<u32, Failed>;
    fn bind(&mut self, socket: u32, local: SocketAddr) -> Result<(), Failed>;
    fn listen(&mut self, socket: u32, backlog: usize) -> Result<(), Failed>;
    fn accept(&mut self, socket: u32) -> Result<u32, Failed>;
    fn connect(&mut self, socket: u32, remote: SocketAddr) -> Result<(), Failed>;
    fn local_address(&self, socket: u32) -> Result<SocketAddr, Failed>;
    fn read(&mut self, socket: u32, out: &mut [u8], peek: bool) -> Result<usize, Failed>;
    fn write(&mut self, socket: u32, bytes: &[u8]) -> Result<usize, Failed>;
    fn shutdown(&mut self, socket: u32, how: How) -> Result<(), Failed>;
    fn close(&mut self, socket: u32) -> Result<(), Failed>;
    fn options(&self, socket: u32) -> Result<Options, Failed>;
    fn set_options(&mut self, socket: u32, options: Options) -> Result<(), Failed>;
    /// TCP_MAXSEG.
    fn segment_size(&self, socket: u32) -> Result<u32, Failed>;
    /// SO_ERROR.
    fn take_error(&mut self, socket: u32) -> Result<Option<Errno>, Failed>;
    /// A field of TCP_INFO: times in microseconds, windows in segments. `None`: unknown here.
    fn info(&self, socket: u32, field: &str) -> Result<Option<i64>, Failed>;

    /// Times of its connection, and how many keep-alive probes it sends.
    fn profile(&self, socket: u32) -> Result<Profile, Failed>;

    /// What poll(2) reports of it, if asked for everything.
    fn poll(&self, socket: u32) -> Result<Readiness, Failed>;
    fn create_set(&mut self) -> Result<u32, Failed>;
    fn close_set(&mut self, set: u32) -> Result<(), Failed>;
    fn watch(&mut self, set: u32, socket: u32, change: Watch, data: u64) -> Result<(), Failed>;
    /// What a set reports of its sockets now, at most `most`.
    fn wait(&mut self, set: u32, most: usize) -> Result<Vec<(Readiness, u64)>, Failed>;
}

/// States of a connection, by the names that `TCPI_` precedes in scripts, and Linux' numbers of them.
pub(crate) const STATES: [(&str, i64); 11] = [
    ("ESTABLISHED", 1),
    ("SYN_SENT", 2),
    ("SYN_RECEIVED", 3),
    ("FIN_WAIT_1", 4),
    ("FIN_WAIT_2", 5),
    ("TIME_WAIT", 6),
    ("CLOSED", 7),
    ("CLOSE_WAIT", 8),
    ("LAST_ACK", 9),
    ("LISTEN", 10),
    ("CLOSING", 11),
];

/// Numbers of the states without a connection.
pub(crate) const CLOSED: i64 = 7;
pub(crate) const LISTEN: i64 = 10;

/// Bits of `tcpi_options`, by the names that `TCPI_` precedes.
pub(crate) const OPTIONS: [(&str, i64); 4] =
    [("OPT_TIMESTAMPS", 1), ("OPT_SACK", 2), ("OPT_WSCALE", 4), ("OPT_ECN", 8)];

/// A change of what a set reports of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    Add(Readiness, Trigger),
    Modify(Readiness, Trigger),
    Remove,
}
