//! Packets from segments.

use packet::{Batch, Checksum, Offload, Protocol};

use super::Store;
use super::ip;
use crate::core::{Emit, Full, Outgoing};

/// Writes segments into a batch, with their bytes.
pub(crate) struct Writer<'a> {
    pub(crate) batch: &'a mut Batch,
    pub(crate) store: &'a mut Store,
    /// Whether the device completes checksums.
    pub(crate) checksum: bool,
    pub(crate) identification: &'a mut u16,
    pub(crate) hops: u8,
}

/// Where the checksum is in a TCP header.
const CHECKSUM: usize = 16;

impl Emit for Writer<'_> {
    fn segment(&mut self, segment: &Outgoing<'_>) -> Result<(), Full> {
        let (source, destination) = segment.tuple.addresses();
        let ip_len = ip::header_len(source);
        let tcp_len = 20 + segment.head.options_len() as usize;
        let data_len = segment.data.len() as usize;
        let room = self.batch.room(ip_len + tcp_len + data_len).map_err(|_| Full)?;
        let len = tcp_len + data_len;
        ip::write(room, source, destination, Protocol::TCP, len, *self.identification, self.hops);
        let pieces = data_len.checked_div(usize::from(segment.size)).unwrap_or(0) + 1;
        *self.identification = self.identification.wrapping_add(pieces as u16);
        let tcp = &mut room[ip_len..];
        segment.head.write(segment.tuple.ports(), tcp);
        if data_len > 0 {
            let stream = &mut self.store.streams[segment.slot as usize].sent;
            self.store.sent.read(stream, segment.data.start, &mut tcp[tcp_len..]);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
        let pseudo = ip::pseudo(source, destination, Protocol::TCP, len);
        let (sum, checksum) = if self.checksum {
            (pseudo.folded(), Checksum::Partial { start: ip_len as u16, field: CHECKSUM as u16 })
        } else {
            (pseudo.with(tcp).finish(), Checksum::Complete)
        };
        tcp[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        self.batch.commit(ip_len + len, Offload { checksum, segment: segment.size });
        Ok(())
    }
}
