//! Bulk transfers: one connection on which bytes go one way as fast as they can, by calls that wait.

use std::io::ErrorKind;

use super::socket::ClientSocket;
use super::{CHECK_INTERVAL, LoadError, Meter, Options, Outcome};

/// Which way bytes go.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    ToServer,
    FromServer,
}

/// Moves so many bytes with a call until the load is stopped. What is counted as requests are bytes.
pub(super) fn run(
    options: &Options,
    direction: Direction,
    size: usize,
    mut meter: Meter,
) -> Result<Outcome, LoadError> {
    let failed = |error| LoadError::Server(1, error);
    let socket = ClientSocket::blocking(&options.target, CHECK_INTERVAL).map_err(failed)?;
    let mut bytes = vec![b'q'; size];
    meter.start();
    while !meter.is_stopped() {
        let moved = match direction {
            Direction::ToServer => socket.send(&bytes),
            Direction::FromServer => socket.receive(&mut bytes),
        };
        match (moved, direction) {
            (Ok(0), Direction::FromServer) => return Err(failed(ErrorKind::UnexpectedEof.into())),
            (Ok(count), _) => meter.bytes(count),
            (Err(error), _) if error.kind() == ErrorKind::WouldBlock => {} // nothing moved for a while
            (Err(error), _) => return Err(failed(error)),
        }
    }
    Ok(meter.finish(0))
}
