//! Segments that no honest peer sends, calls in any order, bytes that are no packets.
mod common;
#[path = "common/hostile.rs"]
mod hostile;

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

use common::trace::Trace;
use common::{PORT, address};
use hostile::Reached;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn nothing_panics_and_everything_ends(script in prop::collection::vec(any::<u8>(), 0..2_000)) {
        hostile::run(&script);
    }
}

/// What the fuzzer begins with gets where its name says.
#[test]
fn the_seeds_of_the_fuzzer_get_far() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/host_input");
    let mut reached = BTreeMap::new();
    for entry in std::fs::read_dir(seeds).expect("the folder of seeds") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        reached.insert(name, hostile::run(&std::fs::read(&path).expect("a seed")));
    }
    println!("{reached:#?}");
    assert!(reached["read"].read > 0 && reached["connect"].flows > 0 && reached["ask"].asks > 0);
    assert!(reached.values().any(|&Reached { flows, .. }| flows > 3));
}

/// RFC 6056, 3.3.1: the ports of our connections do not follow from each other.
#[test]
fn ports_are_scattered() {
    let mut trace = Trace::new(|_| {});
    let now = trace.now;
    let mut ports = Vec::new();
    for _ in 0..200 {
        let remote = SocketAddr::new(address(1, false), PORT);
        let flow = trace.host.connect(now, None, None, remote).expect("a flow");
        ports.push(trace.host.addresses(flow).expect("a flow").0.port());
    }
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 200);
    assert!(ports.iter().all(|&port| port >= 49_152));
    let neighbours = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 16).count();
    assert!(neighbours < 10, "{neighbours}");
}
