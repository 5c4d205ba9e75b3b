//! The paths, which are what their names say.

use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Tcp;

/// What a path does to packets. Losses and the like befall what the sender sends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Path {
    /// Microseconds there and back.
    pub(super) rtt: u64,
    /// Bytes a second in each direction; 0: no limit.
    pub(super) rate: u64,
    /// Bytes that wait for the rate; further packets are lost.
    pub(super) queue: u64,
    /// Chance of being lost.
    pub(super) loss: f64,
    /// Chance of being late, and by how many microseconds.
    pub(super) late: (f64, u64),
    /// SYNs a second that the sender gets from elsewhere.
    pub(super) flood: u32,
    /// Whether the receiver gets consecutive segments as one frame, as from a network card with GRO.
    pub(super) gro: bool,
    /// Whether ours hands frames of many segments to its device.
    pub(super) gso: bool,
    /// Whether ours has the times for one site.
    pub(super) lan: bool,
}

/// A path, and what else sends over it meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) path: Path,
    pub(super) rival: Option<Tcp>,
}

/// What is measured unless users choose.
pub(super) const ROWS: &[&str] = &[
    "20ms",
    "50ms",
    "100ms",
    "300ms",
    "20ms-200",
    "50ms-200",
    "100ms-200",
    "300ms-200",
    "20ms-200-loss0.1",
    "20ms-200-loss1",
    "20ms-200-late",
    "50ms-200-gro",
    "100us",
    "100us-loss0.1",
    "100us-loss1",
    "100us-plain",
    "100us-plain-loss0.1",
    "100us-plain-loss1",
    "20ms-200-with-cubic",
    "20ms-200-with-reno",
    "20ms-200-with-ours",
    "50ms-200-flood10k",
    "50ms-200-flood25k",
];

impl FromStr for Row {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let hint = "write a round trip and what else there is, such as 20ms-200-loss1; --help has the words";
        Self::named(name).ok_or_else(|| format!("{name:?} is no path: {hint}"))
    }
}

impl Row {
    fn named(name: &str) -> Option<Self> {
        let mut words = name.split('-');
        let rtt = words.next()?;
        let (rtt, lan) = match rtt.strip_suffix("ms") {
            Some(millis) => (millis.parse::<u32>().ok()?.checked_mul(1000)?, false),
            None => (rtt.strip_suffix("us")?.parse().ok()?, true),
        };
        let (mut rate, mut rival) = (if lan { 0 } else { 100 }, None);
        let mut path = Path {
            rtt: rtt.into(),
            rate: 0,
            queue: 0,
            loss: 0.0,
            late: (0.0, 0),
            flood: 0,
            gro: false,
            gso: true,
            lan,
        };
        while let Some(word) = words.next() {
            match word {
                "late" => path.late = (0.02, 3000),
                "gro" => path.gro = true,
                "plain" => path.gso = false,
                "with" => rival = Some(Tcp::from_str(words.next()?, false).ok()?),
                _ => match (word.strip_prefix("loss"), word.strip_prefix("flood")) {
                    (Some(percent), _) => path.loss = percent.parse::<f64>().ok()? / 100.0,
                    (_, Some(thousands)) => {
                        path.flood = 1000 * u32::from(thousands.strip_suffix('k')?.parse::<u16>().ok()?);
                    }
                    _ => rate = word.parse::<u32>().ok()?,
                },
            }
        }
        path.rate = u64::from(rate) * 125_000; // a Mbit/s, in bytes
        // What is on its way in a round trip.
        path.queue = (path.rate.saturating_mul(path.rtt) / 1_000_000).max(100_000);
        Some(Self { name: name.to_owned(), path, rival })
    }
}
