//! A connection as the standard library's `Read` and `Write`.

use std::io;

use super::{Host, Read, ReadError, WriteError};
use crate::control::Control;
use crate::event::{Failure, Flow};
use crate::time::Time;

/// A connection that is read and written as a file is: see [`Host::stream`].
pub struct Stream<'host, C: Control, W> {
    host: &'host mut Host<C>,
    flow: Flow,
    now: Time,
    wait: W,
}

impl<C: Control> Host<C> {
    /// A connection as [`io::Read`] and [`io::Write`], for calls from `now` on. `wait` is called where there is
    /// nothing to read or no room to write: it moves packets, sleeps if none moved, and returns the time. Its
    /// errors are those of the call.
    ///
    /// With `packet::pump::Pump::wait` calls block; with an error of kind
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) they do not. What is written leaves in the program's next turn,
    /// or with a `flush`, which waits until everything that may be sent was sent.
    ///
    /// ```no_run
    /// use std::io::{Read, Write};
    ///
    /// use tcp::packet::{Device, TunNetwork, pump::Pump};
    /// use tcp::{Config, Host};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let network: TunNetwork = "tun:mp0,10.78.0.2/24".parse()?;
    ///     let mut pump = Pump::new(network.open()?);
    ///     let config = Config::new(network.networks().to_vec(), pump.device().capabilities());
    ///     // A real program takes the seed from getrandom(2).
    ///     let mut host = Host::new(config, [1; 32]);
    ///     let flow = host.connect(pump.now(), None, None, "10.78.0.1:80".parse()?)?;
    ///     let mut stream = host.stream(pump.now(), flow, |host| pump.wait(host, &[], &[]));
    ///     stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    ///     let mut page = String::new();
    ///     stream.read_to_string(&mut page)?;
    ///     Ok(())
    /// }
    /// ```
    pub fn stream<W>(&mut self, now: Time, flow: Flow, wait: W) -> Stream<'_, C, W>
    where
        W: FnMut(&mut Host<C>) -> io::Result<Time>,
    {
        Stream { host: self, flow, now, wait }
    }
}

impl<C: Control, W: FnMut(&mut Host<C>) -> io::Result<Time>> Stream<'_, C, W> {
    fn wait(&mut self) -> io::Result<()> {
        self.now = (self.wait)(self.host)?;
        Ok(())
    }
}

impl<C: Control, W: FnMut(&mut Host<C>) -> io::Result<Time>> io::Read for Stream<'_, C, W> {
    /// Returns 0 at the end of the stream, or for an empty buffer.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !out.is_empty() {
            match self.host.read(self.now, self.flow, out)? {
                Read::Bytes(len) => return Ok(len),
                Read::End => return Ok(0),
                Read::Empty => self.wait()?,
            }
        }
        Ok(0)
    }
}

impl<C: Control, W: FnMut(&mut Host<C>) -> io::Result<Time>> io::Write for Stream<'_, C, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.host.write(self.now, self.flow, bytes)? {
                0 if !bytes.is_empty() => self.wait()?,
                written => return Ok(written),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.host.has_output() {
            self.wait()?;
        }
        Ok(())
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        let kind = match failure {
            Failure::Refused => io::ErrorKind::ConnectionRefused,
            Failure::Reset => io::ErrorKind::ConnectionReset,
            Failure::TimedOut => io::ErrorKind::TimedOut,
            Failure::Unreachable => io::ErrorKind::HostUnreachable,
        };
        io::Error::new(kind, failure)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> io::Error {
        match error {
            ReadError::Closed => io::Error::new(io::ErrorKind::NotConnected, error),
            ReadError::Failed(failure) => failure.into(),
        }
    }
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> io::Error {
        match error {
            WriteError::Ended => io::Error::new(io::ErrorKind::BrokenPipe, error),
            WriteError::Failed(failure) => failure.into(),
        }
    }
}
