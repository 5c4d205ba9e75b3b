//! What SocksDirect reports of itself, to be shown beside measurements and never among them.
//!
//! Li, Cui, Wang, Bai, Zhang: *SocksDirect: Datacenter Sockets can be Fast and Compatible*, SIGCOMM
//! 2019; two processes of one host, from the data that the authors published with the figures.
//! Their machine: 2 x Xeon E5-2698 v3, Linux 4.15, each thread on a core of its own.

use super::Scenario;

/// The name in tables.
pub(super) const NAME: &str = "SocksDirect, quoted";

/// Where the figures come from, for a reader of a table.
pub(super) const SOURCE: &str = "\
SocksDirect, quoted: from its paper (SIGCOMM 2019), measured by its authors on their machine (2 x Xeon E5-2698 v3, Linux
4.15), not here; round trips are means; x tcp is to TCP of that machine.
";

/// SocksDirect and the TCP it was compared with, at one size.
pub(super) struct Quoted {
    /// Nanoseconds of a round trip, or bytes per second.
    pub(super) figure: f64,
    /// The same of TCP on that machine.
    pub(super) tcp: f64,
}

/// What is reported for messages of this size; not every size is.
pub(super) fn at(scenario: Scenario, bytes: usize) -> Option<Quoted> {
    let (figures, unit) = match scenario {
        Scenario::Pingpong => (ROUND_TRIPS, 1e3), // microseconds
        Scenario::Stream => (STREAMS, 1e9 / 8.0), // gigabits per second
    };
    let (_, figure, tcp) = figures.iter().find(|(size, ..)| *size == bytes)?;
    Some(Quoted { figure: figure * unit, tcp: tcp * unit })
}

/// Bytes, SocksDirect, TCP; microseconds.
const ROUND_TRIPS: &[(usize, f64, f64)] = &[
    (8, 0.298, 11.63),
    (64, 0.928, 11.66),
    (1024, 1.16, 12.03),
    (4096, 2.54, 13.65),
    (8192, 4.21, 15.73),
    (16_384, 4.28, 19.4),
    (65_536, 5.55, 47.1),
    (1_048_576, 25.3, 321.7),
];

/// Bytes, SocksDirect, TCP; gigabits per second.
const STREAMS: &[(usize, f64, f64)] = &[
    (8, 1.532, 0.0735),
    (64, 4.75, 0.848),
    (1024, 38.3, 9.53),
    (8192, 55.9, 33.4),
    (16_384, 110.0, 36.8),
    (65_536, 343.0, 38.5),
    (1_048_576, 1048.0, 40.0),
];
