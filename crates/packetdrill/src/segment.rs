//! Segments: as a script writes them, and as bytes.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use packet::Sum;

use crate::Cause;

/// A segment. Its numbers count from each side's SYN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Sorted as in `FLAGS`.
    pub(crate) flags: String,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) window: Option<u16>,
    /// `None`: any.
    pub(crate) options: Option<Vec<TcpOption>>,
    pub(crate) marks: Marks,
}

/// Fields of the IP header. `None`: any, or as usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Time to live, or hop limit.
    pub(crate) hops: Option<u8>,
    /// Type of service, or traffic class.
    pub(crate) class: Option<u8>,
    /// The part of it for congestion notification (RFC 3168, 5), named on its own.
    pub(crate) ecn: Option<u8>,
}

/// Codepoints of congestion notification.
const CODEPOINTS: [(&str, u8); 4] = [("noecn", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];

impl Marks {
    /// Whether these are `seen`, as far as they are named.
    pub(crate) fn are(self, seen: Marks) -> bool {
        self.hops.is_none_or(|hops| Some(hops) == seen.hops)
            && self.class.is_none_or(|class| Some(class) == seen.class)
            && self.ecn.is_none_or(|ecn| Some(ecn) == seen.ecn)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TcpOption {
    Mss(u16),
    Scale(u8),
    SackPermitted,
    Stamps {
        value: u32,
        echo: u32,
    },
    Sack(Vec<(u32, u32)>),
    Nop,
    End,
    /// Not one that a script can name.
    Other(u8),
}

/// Letter and bit of each flag.
pub(crate) const FLAGS: [(char, u8); 7] =
    [('S', 2), ('F', 1), ('R', 4), ('P', 8), ('.', 16), ('E', 64), ('W', 128)];

/// Where each side's numbers begin, in what is on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origins {
    pub(crate) ours: u32,
    pub(crate) theirs: u32,
    /// Our timestamp that a script calls by another number, less that number.
    pub(crate) stamp: u32,
}

fn letters(bits: u8) -> String {
    FLAGS.iter().filter(|(_, bit)| bits & bit != 0).map(|(letter, _)| letter).collect()
}

pub(crate) fn parse_segment(text: &str) -> Result<Segment, Cause> {
    let text = text.trim();
    let unsupported = || Cause::Unsupported(text.to_string());
    let (marks, segment) = match text.strip_prefix('(').and_then(|text| text.split_once(')')) {
        Some((marks, segment)) => (read_marks(marks).ok_or_else(unsupported)?, segment.trim()),
        None => (Marks::default(), text),
    };
    let (marks, segment) = match segment.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((name, segment)) => {
            let codepoint = CODEPOINTS.iter().find(|(known, _)| *known == name.trim());
            (Marks { ecn: Some(codepoint.ok_or_else(unsupported)?.1), ..marks }, segment.trim())
        }
        None => (marks, segment),
    };
    let segment = read_segment(segment).ok_or_else(|| Cause::Syntax(text.to_string()))?;
    Ok(Segment { marks, ..segment })
}

fn read_marks(text: &str) -> Option<Marks> {
    let (name, value) = text.trim().split_once(char::is_whitespace)?;
    let value = number(value.trim())?;
    match name {
        "ttl" | "hlim" => Some(Marks { hops: Some(value), ..Marks::default() }),
        "tos" | "class" => Some(Marks { class: Some(value), ..Marks::default() }),
        _ => None,
    }
}

/// A decimal or hexadecimal number.
pub(crate) fn number(text: &str) -> Option<u8> {
    match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn read_segment(text: &str) -> Option<Segment> {
    let (main, options) = match text.split_once('<') {
        Some((main, options)) => (main, options.trim().strip_suffix('>')?),
        None => (text, ""),
    };
    let mut words = main.split_whitespace();
    let mut bits = 0;
    for letter in words.next()?.chars() {
        bits |= FLAGS.iter().find(|(known, _)| *known == letter)?.1;
    }
    // An exclamation mark: the number is as it is on the wire, which is 0 where it is used.
    let (range, len) = words.next()?.trim_end_matches('!').strip_suffix(')')?.split_once('(')?;
    let len = len.parse::<u32>().ok()?;
    let seq = match range.split(':').next()? {
        // The number of a SYN is where counting begins.
        "..." if bits & 2 != 0 => 0,
        seq => seq.parse().ok()?,
    };
    if let Some((start, end)) = range.split_once(':')
        && start.parse::<u32>().ok()?.wrapping_add(len) != end.parse().ok()?
    {
        return None;
    }
    let (mut ack, mut window) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "ack" => ack = Some(words.next()?.parse().ok()?),
            "win" => window = Some(words.next()?.parse().ok()?),
            _ => return None,
        }
    }
    // Without the flag the number is in the header, and means nothing.
    if ack.is_none() && bits & 16 != 0 {
        return None;
    }
    let options = if options == "..." {
        None
    } else {
        let parts = options.split(',').map(str::trim).filter(|part| !part.is_empty());
        Some(parts.map(read_option).collect::<Option<Vec<_>>>()?)
    };
    Some(Segment { flags: letters(bits), seq, len, ack, window, options, marks: Marks::default() })
}

fn read_option(text: &str) -> Option<TcpOption> {
    let words: Vec<&str> = text.split_whitespace().collect();
    Some(match words[..] {
        ["mss", mss] => TcpOption::Mss(mss.parse().ok()?),
        ["wscale", scale] => TcpOption::Scale(scale.parse().ok()?),
        ["sackOK"] => TcpOption::SackPermitted,
        ["nop"] => TcpOption::Nop,
        ["eol"] => TcpOption::End,
        ["TS", "val", value, "ecr", echo] => {
            TcpOption::Stamps { value: value.parse().ok()?, echo: echo.parse().ok()? }
        }
        ["sack", ref blocks @ ..] => {
            let block = |text: &&str| {
                let (start, end) = text.split_once(':')?;
                Some((start.parse().ok()?, end.parse().ok()?))
            };
            TcpOption::Sack(blocks.iter().map(block).collect::<Option<Vec<_>>>()?)
        }
        _ => return None,
    })
}

impl Segment {
    /// A packet of the peer.
    pub(crate) fn build(&self, from: SocketAddr, to: SocketAddr, origins: Origins) -> Option<Vec<u8>> {
        let hops = self.marks.hops.unwrap_or(64);
        let builder = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), hops),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), hops),
            _ => return None,
        };
        let seq = self.seq.wrapping_add(origins.theirs);
        let mut header = TcpHeader::new(from.port(), to.port(), seq, self.window?);
        header.acknowledgment_number = self.ack.map_or(0, |ack| ack.wrapping_add(origins.ours));
        let has = |flag| self.flags.contains(flag);
        (header.syn, header.fin, header.rst, header.psh) = (has('S'), has('F'), has('R'), has('P'));
        (header.ack, header.ece, header.cwr) = (has('.'), has('E'), has('W'));
        let mut raw = Vec::new();
        for option in self.options.iter().flatten() {
            write_option(option, origins, &mut raw);
        }
        let tcp = builder.tcp_header(header).options_raw(&raw).ok()?;
        let payload: Vec<u8> = (0..self.len).map(|at| (seq.wrapping_add(at) % 251) as u8).collect();
        let mut bytes = Vec::new();
        tcp.write(&mut bytes, &payload).ok()?;
        match (from, self.marks.ecn) {
            (_, None) => {}
            (SocketAddr::V4(_), Some(ecn)) => {
                bytes[1] |= ecn;
                bytes[10..12].fill(0);
                let sum = Sum::default().with(&bytes[..20]).finish();
                bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (SocketAddr::V6(_), Some(ecn)) => bytes[1] |= ecn << 4,
        }
        Some(bytes)
    }
}

fn write_option(option: &TcpOption, origins: Origins, raw: &mut Vec<u8>) {
    match option {
        TcpOption::Mss(mss) => {
            raw.extend([2, 4]);
            raw.extend(mss.to_be_bytes());
        }
        TcpOption::Scale(scale) => raw.extend([3, 3, *scale]),
        TcpOption::SackPermitted => raw.extend([4, 2]),
        TcpOption::Stamps { value, echo } => {
            raw.extend([8, 10]);
            raw.extend(value.to_be_bytes());
            raw.extend(echo.wrapping_add(origins.stamp).to_be_bytes());
        }
        TcpOption::Sack(blocks) => {
            raw.extend([5, 2 + 8 * blocks.len() as u8]);
            for edge in blocks.iter().flat_map(|&(start, end)| [start, end]) {
                raw.extend(edge.wrapping_add(origins.ours).to_be_bytes());
            }
        }
        TcpOption::Nop => raw.push(1),
        TcpOption::End | TcpOption::Other(_) => raw.push(0),
    }
}

/// A packet of the stack, as another project's parser has it: source, destination, segment with
/// numbers as they are on the wire. An error says what is wrong with it.
pub(crate) fn read_packet(bytes: &[u8]) -> Result<(SocketAddr, SocketAddr, Segment), String> {
    let sliced = SlicedPacket::from_ip(bytes).map_err(|error| error.to_string())?;
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { return Err("no TCP segment".into()) };
    let (from, to, sum, hops, class): (IpAddr, IpAddr, _, _, _) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            let (hops, class) = (ip.header().ttl(), bytes[1]);
            (from.into(), to.into(), tcp.calc_checksum_ipv4(from, to), hops, class)
        }
        Some(NetSlice::Ipv6(ip)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            let (hops, class) = (ip.header().hop_limit(), ip.header().traffic_class());
            (from.into(), to.into(), tcp.calc_checksum_ipv6(from, to), hops, class)
        }
        _ => return Err("no IP packet".into()),
    };
    if sum != Ok(tcp.checksum()) {
        return Err("a wrong checksum".into());
    }
    let set = [tcp.syn(), tcp.fin(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.ece(), tcp.cwr()];
    let flags = FLAGS.iter().zip(set).filter(|(_, set)| *set).map(|((letter, _), _)| letter).collect();
    let segment = Segment {
        flags,
        seq: tcp.sequence_number(),
        len: tcp.payload().len() as u32,
        ack: tcp.ack().then(|| tcp.acknowledgment_number()),
        window: Some(tcp.window_size()),
        options: Some(read_options(tcp.options()).ok_or("broken options")?),
        marks: Marks { hops: Some(hops), class: Some(class), ecn: Some(class & 3) },
    };
    Ok((SocketAddr::new(from, tcp.source_port()), SocketAddr::new(to, tcp.destination_port()), segment))
}

fn read_options(mut raw: &[u8]) -> Option<Vec<TcpOption>> {
    let mut options = Vec::new();
    let word = |bytes: &[u8], at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk::<4>()?));
    while let &[kind, ref rest @ ..] = raw {
        if kind < 2 {
            options.push(if kind == 0 { TcpOption::End } else { TcpOption::Nop });
            raw = rest;
            continue;
        }
        let len = usize::from(*rest.first()?);
        let body = raw.get(2..len)?;
        raw = &raw[len..];
        options.push(match (kind, body) {
            (2, &[high, low]) => TcpOption::Mss(u16::from_be_bytes([high, low])),
            (3, &[scale]) => TcpOption::Scale(scale),
            (4, []) => TcpOption::SackPermitted,
            (5, body) => {
                let block = |block: &[u8]| Some((word(block, 0)?, word(block, 4)?));
                TcpOption::Sack(body.chunks(8).map(block).collect::<Option<Vec<_>>>()?)
            }
            (8, body) if body.len() == 8 => TcpOption::Stamps { value: word(body, 0)?, echo: word(body, 4)? },
            _ => TcpOption::Other(kind),
        });
    }
    Some(options)
}

impl Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(hops) = self.marks.hops {
            write!(f, "(ttl {hops}) ")?;
        }
        if let Some(class) = self.marks.class {
            write!(f, "(tos {class:#x}) ")?;
        }
        if let Some((name, _)) = CODEPOINTS.iter().find(|(_, codepoint)| Some(*codepoint) == self.marks.ecn) {
            write!(f, "[{name}] ")?;
        }
        let end = self.seq.wrapping_add(self.len);
        write!(f, "{} {}:{end}({})", self.flags, self.seq, self.len)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        let Some(options) = &self.options else { return f.write_str(" <...>") };
        let options: Vec<String> = options.iter().map(TcpOption::to_string).collect();
        if options.is_empty() { Ok(()) } else { write!(f, " <{}>", options.join(",")) }
    }
}

impl Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpOption::Mss(mss) => write!(f, "mss {mss}"),
            TcpOption::Scale(scale) => write!(f, "wscale {scale}"),
            TcpOption::SackPermitted => f.write_str("sackOK"),
            TcpOption::Stamps { value, echo } => write!(f, "TS val {value} ecr {echo}"),
            TcpOption::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(start, end)| write!(f, " {start}:{end}"))
            }
            TcpOption::Nop => f.write_str("nop"),
            TcpOption::End => f.write_str("eol"),
            TcpOption::Other(kind) => write!(f, "option {kind}"),
        }
    }
}
