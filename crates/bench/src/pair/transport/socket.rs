//! Stream sockets: TCP with blocking and with spinning calls, and UNIX.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::{End, Side, exactly, spin_until};

/// What is sent and received by calls on a stream.
pub(super) struct Calls<S>(S);

/// A kind of stream.
pub(super) trait Stream: Read + Write + Sized {
    fn pair() -> io::Result<[OwnedFd; 2]>;
    fn of(socket: OwnedFd) -> io::Result<Self>;
}

impl<S: Stream> End for Calls<S> {
    fn pair() -> io::Result<[Vec<OwnedFd>; 2]> {
        Ok(S::pair()?.map(|end| vec![end]))
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socket] = exactly(descriptors)?;
        S::of(socket).map(Self)
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(message)
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(message)
    }
}

impl Stream for TcpStream {
    fn pair() -> io::Result<[OwnedFd; 2]> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let first = TcpStream::connect(listener.local_addr()?)?;
        let own = first.local_addr()?;
        let second = loop {
            let (stream, address) = listener.accept()?;
            if address == own {
                break stream; // and not somebody's who tries ports
            }
        };
        for stream in [&first, &second] {
            stream.set_nodelay(true)?;
        }
        Ok([first.into(), second.into()])
    }

    fn of(socket: OwnedFd) -> io::Result<Self> {
        Ok(socket.into())
    }
}

impl Stream for UnixStream {
    fn pair() -> io::Result<[OwnedFd; 2]> {
        let (first, second) = UnixStream::pair()?;
        Ok([first.into(), second.into()])
    }

    fn of(socket: OwnedFd) -> io::Result<Self> {
        Ok(socket.into())
    }
}

/// TCP with calls that return at once, made again until they succeed.
pub(super) struct Spinning(TcpStream);

impl Stream for Spinning {
    fn pair() -> io::Result<[OwnedFd; 2]> {
        <TcpStream as Stream>::pair()
    }

    fn of(socket: OwnedFd) -> io::Result<Self> {
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }
}

impl Read for Spinning {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        spin_until(|| done(self.0.read(room)))?
    }
}

impl Write for Spinning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        spin_until(|| done(self.0.write(bytes)))?
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// None if the call is to be made again.
fn done(call: io::Result<usize>) -> Option<io::Result<usize>> {
    let again = call.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    (!again).then_some(call)
}
