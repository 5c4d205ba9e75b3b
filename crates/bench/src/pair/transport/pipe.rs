//! Two pipes of the kernel's default size, one for each direction.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;

use super::{End, Settings, Side, exactly};

/// What an end reads from and writes to.
pub(super) struct Pipe {
    incoming: PipeReader,
    outgoing: PipeWriter,
}

impl End for Pipe {
    fn pair(_: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
        let (to_first, from_second) = io::pipe()?;
        let (to_second, from_first) = io::pipe()?;
        Ok([vec![to_first.into(), from_first.into()], vec![to_second.into(), from_second.into()]])
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [incoming, outgoing] = exactly(descriptors)?;
        Ok(Self { incoming: incoming.into(), outgoing: outgoing.into() })
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.outgoing.write_all(message)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.incoming.read_exact(message)
    }
}
