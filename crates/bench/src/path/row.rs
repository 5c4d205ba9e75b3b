//! The paths.

use serde::{Deserialize, Serialize};

use super::Tcp;
use crate::names::names;

/// What a path does to packets. Losses and the like befall what the sender sends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Microseconds there and back.
    pub rtt: u64,
    /// Bytes a second in each direction; 0: no limit.
    pub rate: u64,
    /// Bytes that wait for the rate; further packets are lost.
    pub queue: u64,
    /// Chance of being lost.
    pub loss: f64,
    /// Chance of being late, and by how many microseconds.
    pub late: (f64, u64),
    /// SYNs a second that the sender gets from elsewhere.
    pub flood: u32,
    /// Whether the receiver gets consecutive segments as one frame, as from a network card with GRO.
    pub gro: bool,
    /// Whether ours hands frames of many segments to its device.
    pub gso: bool,
    /// Whether ours has the times for one site.
    pub lan: bool,
}

names! {
    /// A path: its round trip, 100 Mbit/s unless another rate is named, and what it does to packets.
    Row {
        /// 20 ms.
        Ms20 = "20ms",
        /// 50 ms.
        Ms50 = "50ms",
        /// 100 ms.
        Ms100 = "100ms",
        /// 300 ms.
        Ms300 = "300ms",
        /// 20 ms, 200 Mbit/s.
        Ms20Fast = "20ms-200",
        /// 50 ms, 200 Mbit/s.
        Ms50Fast = "50ms-200",
        /// 100 ms, 200 Mbit/s.
        Ms100Fast = "100ms-200",
        /// 300 ms, 200 Mbit/s.
        Ms300Fast = "300ms-200",
        /// 0.1 % are lost.
        LossSome = "20ms-200-loss0.1",
        /// 1 % are lost.
        LossMore = "20ms-200-loss1",
        /// 2 % are late by 3 ms.
        Late = "20ms-200-late",
        /// Segments are joined.
        Joined = "50ms-200-gro",
        /// 100 us, as fast as this machine is.
        Lan = "100us",
        /// The same, 0.1 % lost.
        LanLossSome = "100us-loss0.1",
        /// The same, 1 % lost.
        LanLossMore = "100us-loss1",
        /// As `100us`; ours hands single segments to its device.
        LanPlain = "100us-plain",
        /// The same, 0.1 % lost.
        LanPlainLossSome = "100us-plain-loss0.1",
        /// The same, 1 % lost.
        LanPlainLossMore = "100us-plain-loss1",
        /// A bottleneck shared with Linux' CUBIC.
        ShareCubic = "20ms-200-with-cubic",
        /// The same with Linux' Reno.
        ShareReno = "20ms-200-with-reno",
        /// The same with ours.
        ShareOurs = "20ms-200-with-ours",
        /// 50 ms, 200 Mbit/s, and 10,000 SYNs a second to a sender of ours.
        FloodSome = "50ms-200-flood10k",
        /// The same with 25,000.
        FloodMore = "50ms-200-flood25k",
    }
}

/// 100 Mbit/s, in bytes a second.
const RATE: u64 = 12_500_000;

impl Row {
    /// What else sends over the path meanwhile.
    pub(super) fn rival(self) -> Option<Tcp> {
        match self {
            Row::ShareCubic => Some(Tcp::Cubic),
            Row::ShareReno => Some(Tcp::Reno),
            Row::ShareOurs => Some(Tcp::Ours),
            _ => None,
        }
    }

    pub(super) fn path(self) -> Path {
        let long = |millis: u64, rate: u64| Path {
            rtt: millis * 1000,
            rate,
            // What is on its way in a round trip.
            queue: (rate * millis / 1000).max(100_000),
            loss: 0.0,
            late: (0.0, 0),
            flood: 0,
            gro: false,
            gso: true,
            lan: false,
        };
        let short = Path { rtt: 100, rate: 0, queue: 0, lan: true, ..long(1, RATE) };
        let fast = long(20, 2 * RATE);
        match self {
            Row::Ms20 => long(20, RATE),
            Row::Ms50 => long(50, RATE),
            Row::Ms100 => long(100, RATE),
            Row::Ms300 => long(300, RATE),
            Row::Ms20Fast | Row::ShareCubic | Row::ShareReno | Row::ShareOurs => fast,
            Row::Ms50Fast => long(50, 2 * RATE),
            Row::Ms100Fast => long(100, 2 * RATE),
            Row::Ms300Fast => long(300, 2 * RATE),
            Row::LossSome => Path { loss: 0.001, ..fast },
            Row::LossMore => Path { loss: 0.01, ..fast },
            Row::Late => Path { late: (0.02, 3000), ..fast },
            Row::Joined => Path { gro: true, ..long(50, 2 * RATE) },
            Row::FloodSome => Path { flood: 10_000, ..long(50, 2 * RATE) },
            Row::FloodMore => Path { flood: 25_000, ..long(50, 2 * RATE) },
            Row::Lan => short,
            Row::LanLossSome => Path { loss: 0.001, ..short },
            Row::LanLossMore => Path { loss: 0.01, ..short },
            Row::LanPlain => Path { gso: false, ..short },
            Row::LanPlainLossSome => Path { gso: false, loss: 0.001, ..short },
            Row::LanPlainLossMore => Path { gso: false, loss: 0.01, ..short },
        }
    }
}
