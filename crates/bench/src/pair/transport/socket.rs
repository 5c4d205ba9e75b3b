//! Stream sockets: TCP with blocking and with spinning calls, and UNIX.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::spin::Spin;
use super::{End, Settings, Side, exactly};

/// TCP over loopback, blocking.
pub(super) struct Tcp(TcpStream);

impl End for Tcp {
    fn pair(_: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
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
        Ok([vec![first.into()], vec![second.into()]])
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socket] = exactly(descriptors)?;
        Ok(Self(socket.into()))
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(message)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(message)
    }
}

/// TCP over loopback with calls that return at once, made again until they succeed.
pub(super) struct TcpSpin(TcpStream);

impl End for TcpSpin {
    fn pair(settings: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
        Tcp::pair(settings)
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socket] = exactly(descriptors)?;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        let mut spin = Spin::default();
        while sent < message.len() {
            match self.0.write(&message[sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => spin.turn()?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        let mut received = 0;
        let mut spin = Spin::default();
        while received < message.len() {
            match self.0.read(&mut message[received..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => received += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => spin.turn()?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A UNIX stream socket, blocking.
pub(super) struct Unix(UnixStream);

impl End for Unix {
    fn pair(_: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
        let (first, second) = UnixStream::pair()?;
        Ok([vec![first.into()], vec![second.into()]])
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socket] = exactly(descriptors)?;
        Ok(Self(socket.into()))
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(message)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(message)
    }
}
