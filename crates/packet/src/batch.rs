//! What travels between a stack and a device: packets in one piece of memory.

/// Frames that one batch holds at most.
pub const BATCH_FRAMES: usize = 64;

/// Bytes in front of each frame, for a device's own header: one call moves both.
pub(crate) const HEADROOM: usize = 16;

/// State of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// In the packet. Nobody has verified it.
    #[default]
    Complete,
    /// The device has verified it, or the packet never left this machine.
    Verified,
    /// The field holds the sum of the pseudo-header only, and is completed when the packet is cut
    /// or put on a wire. A received packet like this has not left the machine.
    Partial {
        /// Where the summed bytes begin: the transport header.
        start: u16,
        /// Where the field is, counted from `start`.
        field: u16,
    },
}

/// What is left to do to a packet, or was done by the device that it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Payload bytes of each TCP segment in this packet; 0 when it is one segment.
    pub segment: u16,
}

/// One IP packet.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The packet, from its IP header on.
    pub bytes: &'a [u8],
    /// What is left to do to it.
    pub offload: Offload,
}

/// There is no room for another frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the batch is full")
    }
}

impl std::error::Error for Full {}

#[derive(Clone, Copy)]
struct Entry {
    /// Behind [`HEADROOM`] bytes.
    at: usize,
    len: usize,
    offload: Offload,
}

/// Up to [`BATCH_FRAMES`] packets in one piece of memory, oldest first.
///
/// Small packets lie side by side, so a batch of them touches a few cache lines; a batch of
/// large ones is full earlier. Nothing is allocated after [`Batch::new`].
pub struct Batch {
    memory: Box<[u8]>,
    used: usize,
    entries: Vec<Entry>,
    first: usize,
}

impl Batch {
    /// An empty batch, with memory for packets of this length in all.
    pub fn new(bytes: usize) -> Batch {
        // A frame has headroom, and is rounded up to as much.
        let between = BATCH_FRAMES * 2 * HEADROOM;
        Batch {
            memory: vec![0; bytes + between].into_boxed_slice(),
            used: 0,
            entries: Vec::with_capacity(BATCH_FRAMES),
            first: 0,
        }
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.first = 0;
        self.used = 0;
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.entries.len() - self.first
    }

    /// Whether it has no frame.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frames, oldest first.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        self.entries[self.first..].iter().map(|entry| self.frame_of(entry))
    }

    /// The oldest frame.
    pub fn first(&self) -> Option<Frame<'_>> {
        self.entries.get(self.first).map(|entry| self.frame_of(entry))
    }

    /// The oldest frame behind a header that is written there.
    #[cfg(feature = "tun")]
    pub(crate) fn first_behind<const HEADER: usize>(&mut self, header: [u8; HEADER]) -> Option<&[u8]> {
        const { assert!(HEADER <= HEADROOM) }
        let &Entry { at, len, .. } = self.entries.get(self.first)?;
        self.memory[at - HEADER..at].copy_from_slice(&header);
        Some(&self.memory[at - HEADER..at + len])
    }

    /// Removes the oldest frame, once a device has sent it.
    pub fn remove_first(&mut self) {
        if !self.is_empty() {
            self.first += 1;
        }
        if self.is_empty() {
            self.clear();
        }
    }

    /// Room for a frame of up to `len` bytes, to be filled and then [committed](Batch::commit).
    pub fn room(&mut self, len: usize) -> Result<&mut [u8], Full> {
        self.room_behind::<0>(len)
    }

    /// As [`room`](Batch::room), with the last `HEADER` bytes of the headroom in front.
    pub(crate) fn room_behind<const HEADER: usize>(&mut self, len: usize) -> Result<&mut [u8], Full> {
        const { assert!(HEADER <= HEADROOM) }
        let at = self.used + HEADROOM;
        if self.entries.len() >= BATCH_FRAMES || self.memory.len() < at + len {
            return Err(Full);
        }
        Ok(&mut self.memory[at - HEADER..at + len])
    }

    /// Adds the first `len` bytes of the last [room](Batch::room) as a frame.
    pub fn commit(&mut self, len: usize, offload: Offload) {
        let at = self.used + HEADROOM;
        let len = len.min(self.memory.len().saturating_sub(at));
        self.entries.push(Entry { at, len, offload });
        self.used = (at + len).next_multiple_of(HEADROOM);
    }

    /// Adds a copy of a frame.
    pub fn push(&mut self, frame: Frame<'_>) -> Result<(), Full> {
        self.room(frame.bytes.len())?.copy_from_slice(frame.bytes);
        self.commit(frame.bytes.len(), frame.offload);
        Ok(())
    }

    fn frame_of(&self, entry: &Entry) -> Frame<'_> {
        Frame { bytes: &self.memory[entry.at..entry.at + entry.len], offload: entry.offload }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.frames().map(|frame| (frame.bytes.len(), frame.offload))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_the_bytes_it_was_made_for() {
        for lengths in [&[1500][..], &[65_535], &[1; BATCH_FRAMES], &[17; BATCH_FRAMES]] {
            let mut batch = Batch::new(lengths.iter().sum());
            for &len in lengths {
                batch.push(Frame { bytes: &vec![7; len], offload: Offload::default() }).unwrap();
            }
            assert!(batch.frames().map(|frame| frame.bytes.len()).eq(lengths.iter().copied()));
        }
        let mut batch = Batch::new(usize::from(u16::MAX));
        assert!(
            (0..=BATCH_FRAMES)
                .any(|_| batch.push(Frame { bytes: &[0; 40], offload: Offload::default() }).is_err())
        );
    }
}
