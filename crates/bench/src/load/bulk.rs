//! Bulk transfers: one connection on which bytes go one way as fast as they can, by calls that wait.

use std::io::ErrorKind;

use super::socket::ClientSocket;
use super::{CHECK_INTERVAL, LoadError, Meter, Options, Outcome};

/// Moves so many bytes with a call until the load is stopped, to the server or from it. What is counted as requests
/// are bytes.
pub(super) fn run(
    options: &Options,
    size: usize,
    to_server: bool,
    mut meter: Meter,
) -> Result<Outcome, LoadError> {
    let failed = |error| LoadError::Server(1, error);
    let socket = ClientSocket::blocking(&options.target, CHECK_INTERVAL).map_err(failed)?;
    let mut bytes = vec![b'q'; size];
    meter.start();
    while !meter.is_stopped() {
        match if to_server { socket.send(&bytes) } else { socket.receive(&mut bytes) } {
            Ok(0) if !to_server => return Err(failed(ErrorKind::UnexpectedEof.into())),
            Ok(count) => meter.bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {} // nothing moved for a while
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(meter.finish(0))
}
