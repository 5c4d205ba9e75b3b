//! Bulk transfers: one connection on which bytes go one way as fast as they can, by calls that wait.

use std::io::{ErrorKind, Read};
use std::iter;

use super::{CHECK_INTERVAL, LoadError, Meter, Options, Outcome, Request, socket};

/// Moves bytes until the load is stopped, to the server or from it. What is counted as requests are bytes.
pub(super) fn run(options: &Options, mut meter: Meter) -> Result<Outcome, LoadError> {
    let failed = |error| LoadError::Server(1, error);
    let socket = socket::connected(&options.target, CHECK_INTERVAL).map_err(failed)?;
    let mut bytes = options.request.bytes();
    meter.start();
    while !meter.is_over(1) {
        let moved = match options.request {
            // Zero if the socket had no room for a while.
            Request::Upload(_) => socket::send(&socket, &bytes),
            _ => match (&socket).read(&mut bytes) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
                read => read,
            },
        };
        meter.add_bytes(moved.map_err(failed)?);
    }
    Ok(meter.finish(iter::empty(), false))
}
