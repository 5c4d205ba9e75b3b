//! What no packet on the wire may do, whatever the two endpoints think.

use std::collections::HashMap;

use packet::View;

use super::watch::Watch;

/// Source and destination, address and port.
type Way = (Vec<u8>, Vec<u8>);

#[derive(Default)]
struct Direction {
    /// Scale that the SYN offered.
    scale: Option<u8>,
    /// One past the highest sequence number that was sent.
    next: u32,
    /// The right edge of the window that was offered last.
    edge: Option<u32>,
    syn: Option<u32>,
    watch: Watch,
}

/// Watches all packets of both sides.
#[derive(Default)]
pub(crate) struct Wire {
    directions: HashMap<Way, Direction>,
    pub(crate) packets: u64,
    /// With it, every packet is printed.
    pub(crate) loud: bool,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const MSS: u8 = 2;
const SCALE: u8 = 3;

fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Wire {
    /// What was seen of the data that goes from one port to another.
    pub(crate) fn watch(&self, from: u16, to: u16) -> Option<&Watch> {
        let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
        let found = self.directions.iter().find(|(way, _)| way.0.ends_with(&from) && way.1.ends_with(&to));
        found.map(|(_, direction)| &direction.watch)
    }

    /// A packet arrives.
    pub(crate) fn arrived(&mut self, now: u64, packet: &[u8]) {
        let Some(view) = View::of(packet).filter(|view| view.tcp_payload(packet).is_some()) else { return };
        let tcp = &packet[view.transport..];
        if tcp[13] & (RST | ACK) != ACK {
            return;
        }
        let ack = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
        let (source, destination) = view.addresses(packet);
        let back = ([destination, &tcp[2..4]].concat(), [source, &tcp[..2]].concat());
        if let Some(direction) = self.directions.get_mut(&back) {
            direction.watch.acknowledged(now, ack);
        }
    }

    /// Checks a packet that one side sends, in segments of `size` bytes unless that is 0.
    pub(crate) fn sent(&mut self, now: u64, packet: &[u8], size: u16) {
        self.packets += 1;
        let Some(view) = View::of(packet) else { return };
        let Some(payload) = view.tcp_payload(packet) else { return };
        let tcp = &packet[view.transport..];
        let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let (seq, ack, flags) = (word(4), word(8), tcp[13]);
        let window = u32::from(u16::from_be_bytes([tcp[14], tcp[15]]));
        let len = (view.end - payload) as u32;
        let (source, destination) = view.addresses(packet);
        let from = [source, &tcp[..2]].concat();
        let to = [destination, &tcp[2..4]].concat();
        if self.loud {
            let (a, b) = (from[from.len() - 2..].to_vec(), to[to.len() - 2..].to_vec());
            println!("{now:>12} {a:?}>{b:?} {flags:02x} seq {seq} len {len} ack {ack} win {window}");
        }
        let options = &tcp[20..payload - view.transport];
        assert!(flags & SYN != 0 || option(options, MSS).is_none(), "{now}: an MSS option without a SYN");
        let (way, back) = ((from.clone(), to.clone()), (to, from));
        if flags & RST != 0 {
            return;
        }
        let other = self.directions.get(&back);
        let (their_scale, their_next, their_edge) =
            other.map_or((None, None, None), |other| (other.scale, Some(other.next), other.edge));
        let direction = self.directions.entry(way).or_default();
        if flags & SYN != 0 {
            if direction.syn != Some(seq) {
                *direction = Direction { syn: Some(seq), next: seq.wrapping_add(1), ..Direction::default() };
                direction.scale = option(options, SCALE);
            }
            // Also the same number may begin a later connection: an old SYN that came late.
            direction.edge = None;
        } else if direction.syn.is_none() {
            return;
        }
        if flags & ACK != 0 {
            let shift =
                if flags & SYN == 0 && their_scale.is_some() { direction.scale.unwrap_or(0) } else { 0 };
            let edge = ack.wrapping_add(window << shift);
            if let Some(earlier) = direction.edge {
                assert!(!before(edge, earlier), "{now}: the right edge falls from {earlier} to {edge}");
            }
            direction.edge = Some(edge);
            if let Some(next) = their_next {
                assert!(!before(next, ack), "{now}: acknowledges {ack}, but only {next} was sent");
            }
        }
        let end = seq.wrapping_add(len);
        if len > 0 {
            let edge = their_edge.expect("data before the peer offered a window");
            assert!(!before(edge, end), "{now}: data up to {end}, beyond the right edge {edge}");
            let size = if size > 0 { u32::from(size) } else { len };
            direction.watch.sent(now, seq, end, direction.next, size.into());
        }
        let next = end.wrapping_add(u32::from(flags & FIN != 0));
        if before(direction.next, next) && flags & SYN == 0 {
            direction.next = next;
        }
    }
}

/// The first byte of an option.
fn option(mut options: &[u8], wanted: u8) -> Option<u8> {
    while let &[kind, ref rest @ ..] = options {
        match kind {
            0 => return None,
            1 => options = rest,
            kind => {
                if kind == wanted {
                    return options.get(2).copied();
                }
                options = options.get(usize::from(options[1])..)?;
            }
        }
    }
    None
}
