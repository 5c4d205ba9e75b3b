//! ICMP errors about segments of ours.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;

use crate::segment::{Marks, Origins, Segment};

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Icmp {
    kind: u8,
    code: u8,
    mtu: u32,
    /// Sequence number of the segment that it quotes.
    seq: u32,
}

/// Kind and code by packetdrill's names, and whether they are IPv6's.
const NAMES: [(&str, &str, bool, u8, u8); 34] = [
    ("unreachable", "net_unreachable", false, 3, 0),
    ("unreachable", "host_unreachable", false, 3, 1),
    ("unreachable", "protocol_unreachable", false, 3, 2),
    ("unreachable", "port_unreachable", false, 3, 3),
    ("unreachable", "frag_needed", false, 3, 4),
    ("unreachable", "source_route_failed", false, 3, 5),
    ("unreachable", "net_unknown", false, 3, 6),
    ("unreachable", "host_unknown", false, 3, 7),
    ("unreachable", "source_host_isolated", false, 3, 8),
    ("unreachable", "net_prohibited", false, 3, 9),
    ("unreachable", "host_prohibited", false, 3, 10),
    ("unreachable", "net_unreachable_for_tos", false, 3, 11),
    ("unreachable", "host_unreachable_for_tos", false, 3, 12),
    ("unreachable", "packet_filtered", false, 3, 13),
    ("unreachable", "precedence_violation", false, 3, 14),
    ("unreachable", "precedence_cutoff", false, 3, 15),
    ("source_quench", "", false, 4, 0),
    ("redirect", "", false, 5, 0),
    ("time_exceeded", "ttl_exceeded_in_transit", false, 11, 0),
    ("time_exceeded", "frag_reass_exceeded", false, 11, 1),
    ("parameter_problem", "code_0", false, 12, 0),
    ("parameter_problem", "code_1", false, 12, 1),
    ("parameter_problem", "code_2", false, 12, 2),
    ("unreachable", "no_route", true, 1, 0),
    ("unreachable", "admin_prohibited", true, 1, 1),
    ("unreachable", "not_neighbour", true, 1, 2),
    ("unreachable", "address_unreachable", true, 1, 3),
    ("unreachable", "port_unreachable", true, 1, 4),
    ("packet_too_big", "", true, 2, 0),
    ("time_exceeded", "exceeded_hop_limit", true, 3, 0),
    ("time_exceeded", "exceeded_frag_time", true, 3, 1),
    ("parameter_problem", "header_field", true, 4, 0),
    ("parameter_problem", "unknown_next_header", true, 4, 1),
    ("parameter_problem", "unknown_option", true, 4, 2),
];

/// Reads `unreachable frag_needed mtu 1234 [1:1001(1000)]`.
pub(crate) fn parse_icmp(text: &str, v6: bool) -> Option<Icmp> {
    let (main, quoted) = text.split_once('[')?;
    let seq = quoted.split_once(':')?.0.trim().parse().ok()?;
    let mut words = main.split_whitespace();
    let group = words.next()?;
    let (name, mtu) = match words.collect::<Vec<_>>()[..] {
        [] => ("", 0),
        [name] => (name, 0),
        ["mtu", mtu] => ("", mtu.parse().ok()?),
        [name, "mtu", mtu] => (name, mtu.parse().ok()?),
        _ => return None,
    };
    let known = NAMES.iter().find(|known| (known.0, known.1, known.2) == (group, name, v6))?;
    Some(Icmp { kind: known.3, code: known.4, mtu, seq })
}

impl Icmp {
    /// A packet from `router` about one that went from `ours` to `theirs`.
    pub(crate) fn build(
        &self,
        router: IpAddr,
        ours: SocketAddr,
        theirs: SocketAddr,
        origins: Origins,
    ) -> Option<Vec<u8>> {
        let segment = Segment {
            flags: "S".into(),
            seq: self.seq,
            len: 0,
            ack: None,
            window: Some(0),
            options: Some(Vec::new()),
            marks: Marks::default(),
        };
        let quoted = segment.build(ours, theirs, Origins { theirs: origins.ours, ..origins })?;
        let rest = self.mtu.to_be_bytes();
        let mut bytes = Vec::new();
        match (router, ours.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64)
                .icmpv4_raw(self.kind, self.code, rest)
                .write(&mut bytes, &quoted),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64)
                .icmpv6_raw(self.kind, self.code, rest)
                .write(&mut bytes, &quoted),
            _ => return None,
        }
        .ok()?;
        Some(bytes)
    }
}
