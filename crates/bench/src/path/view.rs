//! What the records of paths have.

use crate::record::Record;
use crate::view::{Figure, Key, Over, Ratio, View};

const POINT: &[Key] = &[Key { heading: "path", of: |one| one.text("row") }];

const CUBIC: Ratio = Ratio { heading: "x cubic", to: &[&["cubic"]], times: true, range: true };
const RENO: Ratio = Ratio { heading: "x reno", to: &[&["reno"]], times: true, range: false };

/// Seconds from the begin of a connection to the last byte, of each size.
fn millis(one: &Record, field: &str) -> Option<f64> {
    Some(one.number(field)? * 1e3)
}

/// A sender and a receiver on a path. `seconds_SIZE`: from the begin of the connection to the last byte.
/// `again`, `lost`: bytes of payload that were sent again, and that the path lost.
pub static PATH: View = View {
    point: POINT,
    figures: &[
        Figure::new("MB/s", 2, |one| Some(10.0 / one.number("seconds_10m")?))
            .more()
            .over(Over::Range)
            .beside(&[CUBIC, RENO]),
        Figure::new("1 MB ms", 0, |one| millis(one, "seconds_1m")).beside(&[CUBIC]),
        Figure::new("10 KB ms", 1, |one| millis(one, "seconds_10k")).beside(&[CUBIC]),
        Figure::new("again KB", 1, |one| Some(one.number("again")? / 1e3)),
        Figure::new("lost KB", 1, |one| Some(one.number("lost")? / 1e3)),
    ],
    ..View::new(
        "TCP over paths with a round trip: medians; MB/s of 10 MB; x: how many times as fast as Linux on the same path",
        "path",
        "ends",
    )
};

/// A sender beside another one on a bottleneck.
pub static SHARED_PATH: View = View {
    point: POINT,
    figures: &[
        Figure::new("share %", 1, |one| Some(one.number("share")? * 100.0)).over(Over::Range),
        Figure::new("both MB/s", 2, |one| Some(one.number("bytes_per_s")? / 1e6)).more(),
    ],
    ..View::new("A bottleneck that two connections share: what the named one gets", "shared-path", "ends")
};

/// Honest clients of a sender that is flooded with SYNs.
pub static FLOODED_PATH: View = View {
    point: POINT,
    figures: &[Figure::new("served %", 1, |one| Some(one.number("served")? * 100.0)).over(Over::Range)],
    ..View::new("Clients that are served beside a flood of SYNs", "flooded-path", "ends")
};
