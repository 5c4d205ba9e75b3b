//! A responder without state: what the device costs before any TCP.
//!
//! Every answer is made of the header that it answers. A SYN is answered by a SYN-ACK, payload by the
//! same payload, a FIN by a FIN, and anything else by nothing. Nothing is remembered, so nothing is
//! sent again; the peers are the kernel's on a link that loses nothing.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;

use megapipe::packet::tun::Tun;
use megapipe::packet::{Batch, Checksum, Device, Offload, Sum, View, pseudo_header};
use rustix::event::{PollFd, PollFlags, poll};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// The sequence number of each SYN-ACK.
const INITIAL: u32 = 0x1000_0000;

const WINDOW: [u8; 2] = 0xffff_u16.to_be_bytes();

/// Answers until the device fails.
pub(super) fn run(mut tun: Tun) -> io::Result<Infallible> {
    let (mut received, mut answers) = (Batch::new(BATCH_BYTES), Batch::new(BATCH_BYTES));
    loop {
        received.clear();
        if tun.receive(&mut received)? == 0 {
            // Interrupted is as good as ready: the device is asked again.
            let _ = poll(&mut [PollFd::new(&tun.as_fd(), PollFlags::IN)], None);
            continue;
        }
        for frame in received.frames() {
            answer(frame.bytes, &mut answers);
        }
        tun.send(&mut answers)?;
    }
}

/// Puts the answer to an IPv4 packet into the batch, if there is one.
fn answer(packet: &[u8], answers: &mut Batch) {
    let Some((view, payload)) = View::of(packet).and_then(|view| Some((view, view.tcp_payload(packet)?)))
    else {
        return;
    };
    let header = &packet[view.transport..payload];
    let data = &packet[payload..view.end];
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (syn, fin) = (header[13] & SYN != 0, header[13] & FIN != 0);
    if view.v6 || header[13] & RST != 0 || !(syn || fin || !data.is_empty()) {
        return;
    }
    let sequence = if syn { INITIAL } else { word(8) };
    let acknowledged = word(4).wrapping_add(data.len() as u32 + u32::from(syn) + u32::from(fin));
    let mut flags = ACK | header[13] & (SYN | FIN);
    if !data.is_empty() {
        flags |= PSH;
    }
    // Options come back as they are, with the peer's time as ours: it never goes back.
    let len = 20 + header.len() + data.len();
    let Ok(room) = answers.room(len) else { return };
    room[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    room[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    let (source, destination) = view.addresses(packet);
    room[12..16].copy_from_slice(destination);
    room[16..20].copy_from_slice(source);
    let sum = Sum::default().with(&room[..20]).finish();
    room[10..12].copy_from_slice(&sum.to_be_bytes());
    let (tcp, echo) = room[20..].split_at_mut(header.len());
    tcp.copy_from_slice(header);
    tcp[0..2].copy_from_slice(&header[2..4]);
    tcp[2..4].copy_from_slice(&header[0..2]);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    tcp[13] = flags;
    tcp[14..16].copy_from_slice(&WINDOW);
    echo_timestamp(tcp);
    let sum = pseudo_header(destination, source, 6, header.len() + data.len()).folded();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    echo.copy_from_slice(data);
    let checksum = Checksum::Partial { start: 20, field: 16 };
    answers.commit(len, Offload { checksum, segment: 0 });
}

/// Copies the peer's time to where it expects it back (RFC 7323, 3.2).
fn echo_timestamp(tcp: &mut [u8]) {
    let mut at = 20;
    while at + 1 < tcp.len() {
        match (tcp[at], tcp[at + 1]) {
            (0, _) => return,
            (1, _) => at += 1,
            (8, 10) if at + 10 <= tcp.len() => return tcp.copy_within(at + 2..at + 6, at + 6),
            (_, len) => at += usize::from(len.max(2)),
        }
    }
}

/// A batch of the largest frames.
const BATCH_BYTES: usize = 256 << 10;
