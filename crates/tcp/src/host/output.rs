//! Packets from segments.

use packet::{Batch, Checksum, Offload, Protocol};

use super::Store;
use super::ip;
use crate::config::Marking;
use crate::core::tuple::Tuple;
use crate::core::wire::Plain;
use crate::core::{Emit, Full, Outgoing};

/// Writes segments into a batch, with their bytes.
pub(crate) struct Writer<'a> {
    pub(crate) batch: &'a mut Batch,
    pub(crate) store: &'a mut Store,
    /// Whether the device completes checksums.
    pub(crate) checksum: bool,
    pub(crate) hops: u8,
}

/// Where the checksum is in a TCP header.
const CHECKSUM: usize = 16;

impl Emit for Writer<'_> {
    #[inline]
    fn acknowledgement(&mut self, tuple: &Tuple, head: &Plain, marking: Marking) -> Result<(), Full> {
        self.frame(tuple, marking, head.len(), 0, |_, tcp| head.write(tuple.ports(), tcp))
    }

    fn segment(&mut self, segment: &Outgoing<'_>) -> Result<(), Full> {
        let Outgoing { tuple, slot, head, data, size, marking } = *segment;
        let len = 20 + head.options_len() as usize;
        self.frame(tuple, marking, len + data.len() as usize, size, |store, tcp| {
            head.write(tuple.ports(), tcp);
            if !data.is_empty() {
                store.sent.read(&mut store.streams[slot as usize].sent, data.start, &mut tcp[len..]);
            }
        })
    }
}

impl Writer<'_> {
    /// Adds a packet with a TCP segment of this length, which is `fill`ed in but for its checksum, and
    /// of which each piece has `size` bytes of payload.
    #[inline]
    fn frame(
        &mut self,
        tuple: &Tuple,
        marking: Marking,
        len: usize,
        size: u16,
        fill: impl FnOnce(&mut Store, &mut [u8]),
    ) -> Result<(), Full> {
        let (source, destination) = tuple.addresses();
        let ip_len = ip::header_len(source);
        let room = self.batch.room(ip_len + len).map_err(|_| Full)?;
        let (header, tcp) = room.split_at_mut(ip_len);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
        //# TCP implementations SHOULD pass the current Differentiated Services field value without change to
        //# the IP layer, when it sends segments on the connection (SHLD-22).
        let marks = (marking.traffic_class, marking.hop_limit.unwrap_or(self.hops));
        ip::write(header, source, destination, Protocol::TCP, len, marks);
        fill(self.store, tcp);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
        let pseudo = ip::pseudo(source, destination, Protocol::TCP, len);
        let (sum, checksum) = if self.checksum {
            (pseudo.folded(), Checksum::Partial { start: ip_len as u16, field: CHECKSUM as u16 })
        } else {
            (pseudo.with(tcp).finish(), Checksum::Complete)
        };
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        self.batch.commit(ip_len + len, Offload { checksum, segment: size });
        Ok(())
    }
}
