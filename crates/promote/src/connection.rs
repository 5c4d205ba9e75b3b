//! One end of a promoted connection: which bytes go where, and which come next.
//!
//! It does no I/O. Its owner tells what the kernel took, gave and reported, and does what
//! it is told: send the rest to the kernel, drop a bell, ring one, report the end.

use std::io;

use ring::{Corrupt, End, Front, Lane, PeerLoop, PeerSegment, Ready, Segment};

/// How the kernel connection ended in the direction that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelEnd {
    /// FIN: all that was sent is here, in one lane or the other.
    Finished,
    /// An errno, such as ECONNRESET.
    Failed(i32),
}

/// What the reader gets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many bytes of the ring, more than 0.
    Ring(usize),
    /// Bytes that came through the kernel, if there are any.
    Kernel,
    /// Nothing is here.
    Nothing,
    /// The stream is at its end.
    End(KernelEnd),
}

/// One end of a promoted connection.
#[derive(Debug)]
pub struct Connection {
    end: End,
    kernel_end: Option<KernelEnd>,
    /// The ring was full, and a TCP part follows that the peer has not come to yet.
    spilled: bool,
    /// Stays on TCP from here on.
    demoted: bool,
}

impl Connection {
    /// The end that owns `own`, at a time when the kernel has taken `written` bytes of what
    /// this end ever sent, and has given `consumed` of what it ever received, and nothing
    /// lies in between. From here on the peer may use its ring.
    ///
    /// # Errors
    ///
    /// The other end's segment is nonsense already.
    pub fn new(own: Segment, peer: PeerSegment, written: u64, consumed: u64) -> Result<Connection, Corrupt> {
        let mut end = End::new(own, peer)?;
        end.sender.sent_over_tcp(written);
        end.receiver.took_tcp(consumed);
        end.receiver.mark_aware();
        Ok(Connection { end, kernel_end: None, spilled: false, demoted: false })
    }

    /// Sends what goes into the ring; returns how many bytes that were. The rest, if any,
    /// is the kernel's: the caller hands it over next, in order, and says with
    /// [`Self::kernel_took`] what became of it. `kernel_idle`: nothing of this direction
    /// waits for the kernel any more.
    ///
    /// # Errors
    ///
    /// The other end broke the rules: the connection is over, as after a reset.
    #[inline]
    pub fn send<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        total: usize,
        kernel_idle: bool,
    ) -> Result<usize, Corrupt> {
        if self.end.sender.lane() == Lane::Tcp && !self.enter_ring(kernel_idle)? {
            return Ok(0);
        }
        let sent = self.end.write(slices, total)?;
        if sent < total {
            self.leave_ring()?;
        }
        Ok(sent)
    }

    #[cold]
    fn enter_ring(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        if !kernel_idle || self.demoted || (self.spilled && !self.end.sender.drained()?) {
            return Ok(false);
        }
        let entered = self.end.sender.open_ring()?;
        self.spilled &= !entered;
        Ok(entered)
    }

    /// The ring is full: what follows goes to the kernel, whose back-pressure then is the
    /// connection's.
    #[cold]
    fn leave_ring(&mut self) -> Result<(), Corrupt> {
        // A peer that passes no parts while it takes bytes keeps to no rules.
        if !self.end.sender.open_tcp()? {
            return Err(Corrupt::PartsTaken);
        }
        self.spilled = true;
        Ok(())
    }

    /// From here on everything goes to the kernel.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn demote(&mut self) -> Result<(), Corrupt> {
        self.demoted = true;
        if self.end.sender.lane() == Lane::Ring { self.leave_ring() } else { Ok(()) }
    }

    /// Whether the next byte sent goes into the ring.
    #[inline]
    pub fn sends_to_ring(&self) -> bool {
        self.end.sender.lane() == Lane::Ring
    }

    /// The kernel took so many bytes that [`Self::send`] had left to it.
    pub fn kernel_took(&mut self, count: usize) {
        self.end.sender.sent_over_tcp(count as u64);
    }

    /// Whether the receiver wants a bell for what was sent. If so the caller has the kernel
    /// send one byte, without waiting, and says [`Self::rang`].
    #[inline]
    pub fn wants_bell(&mut self, peer_loop: &mut PeerLoop) -> bool {
        self.end.sender.wants_bell(peer_loop)
    }

    /// A bell is on its way (`bell_is_sent` tells whether the kernel had room for it).
    pub fn rang(&mut self, peer_loop: &mut PeerLoop, taken: bool) {
        self.end.sender.rang(peer_loop, taken);
    }

    /// What the first of `unread` bytes are that the kernel gave and that were neither
    /// dropped nor delivered yet.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn front(&mut self, unread: usize) -> Result<Front, Corrupt> {
        self.end.receiver.tcp(unread as u64)
    }

    /// So many of them were dropped as bells, or delivered.
    pub fn took_from_kernel(&mut self, count: usize) {
        self.end.receiver.took_tcp(count as u64);
    }

    /// The kernel has no more to give.
    pub fn kernel_ended(&mut self, end: KernelEnd) {
        self.kernel_end.get_or_insert(end);
    }

    /// What to deliver next; `unread` as for [`Self::front`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn next(&mut self, unread: usize) -> Result<Next, Corrupt> {
        match self.end.receiver.look()? {
            Ready::Ring(count) => Ok(Next::Ring(count)),
            Ready::Tcp { .. } if unread > 0 => Ok(Next::Kernel),
            Ready::Tcp { .. } | Ready::Nothing => Ok(self.kernel_end.map_or(Next::Nothing, Next::End)),
        }
    }

    /// Copies bytes of the ring.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn read_ring(&mut self, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.receiver.read(buffer)
    }

    /// This end waits for bells from here on. True: something is here already, and no bell
    /// will come for it.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn arm(&mut self) -> Result<bool, Corrupt> {
        self.end.receiver.arm()
    }

    /// This end looks by itself while its loop is awake.
    pub fn disarm(&mut self) {
        self.end.receiver.disarm();
    }

    /// Whether anything new is here, for the last look before a loop sleeps.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn look_again(&mut self) -> Result<bool, Corrupt> {
        Ok(matches!(self.end.receiver.look_again()?, Ready::Ring(_)))
    }

    /// Whether a close now has to be a reset: bytes of the ring were never read.
    pub fn has_unread(&mut self) -> bool {
        self.end.receiver.unread().unwrap_or(true)
    }

    /// What the reader is told of a peer that broke the rules.
    pub fn broken() -> io::Error {
        io::Error::from_raw_os_error(libc::ECONNRESET)
    }
}
