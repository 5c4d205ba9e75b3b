//! The interpreter is graded before it grades: the scripts that our stack passes are run on the
//! kernel's own sockets, over TUN devices in namespaces of a user without privileges. Where Linux
//! differs, the script has `#ifdef Linux` and the reason.
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{panic, thread};

use common::scripts;
use packetdrill::{Cause, Dialect, Error, Script, alterations, run_on_kernel};
use testkit::netns;

const BOUND: Duration = Duration::from_secs(300);
/// A script that takes longer is left to virtual time.
const LONGEST: Duration = Duration::from_secs(20);
/// They sleep most of the time.
const THREADS: usize = 16;
/// A script fails if it fails so often: the machine may have been busy with something else.
const ATTEMPTS: usize = 5;

fn attempt(script: &Script) -> Result<(), Error> {
    run_on_kernel(script).unwrap_or_else(|error| panic!("{error}"))
}

/// Does something with each, several at the same time. Returns what came of them, in order.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let worker = || {
            let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            numbers.map_while(|at| Some((at, work(items.get(at)?)))).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.flat_map(|done| done.unwrap_or_else(|cause| panic::resume_unwind(cause))).collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Those that the kernel is asked to pass.
fn quick() -> Vec<(String, Script)> {
    let (quick, slow): (Vec<_>, Vec<_>) =
        scripts(Dialect::Linux).into_iter().partition(|(_, script)| script.duration() <= LONGEST);
    let slow: Vec<String> = slow.into_iter().map(|(name, _)| name).collect();
    assert_eq!(slow, ["keep-alive.pkt", "time-wait-ends.pkt"], "too slow for a machine's clock");
    quick
}

/// The scripts pass, and with one expected packet altered none does. One test: what runs beside it
/// makes packets late.
#[test]
fn the_kernel_passes_scripts_and_fails_altered_ones() {
    if !netns::enter("the_kernel_passes_scripts_and_fails_altered_ones", BOUND) {
        return;
    }
    let scripts = quick();
    let outcomes = each(&scripts, |(_, script)| attempt(script));
    for ((name, script), outcome) in scripts.iter().zip(outcomes) {
        let mut tries = std::iter::once(outcome).chain((1..ATTEMPTS).map(|_| attempt(script)));
        let failed = tries.all(|outcome| outcome.inspect_err(|error| println!("{error}")).is_err());
        assert!(!failed, "{name}: {ATTEMPTS} times");
    }
    let alterations = |(_, script): &(String, Script)| alterations(script);
    let altered: Vec<(String, Script)> = scripts.iter().flat_map(alterations).collect();
    let outcomes = each(&altered, |(_, script)| attempt(script));
    let changes = altered.iter().map(|(change, _)| change).zip(outcomes);
    let passed: Vec<&String> = changes
        .filter_map(|(change, outcome)| match outcome {
            Ok(()) => Some(change),
            Err(error) => {
                assert!(matches!(error.cause, Cause::Differs { .. }), "{error}");
                None
            }
        })
        .collect();
    println!("{} scripts passed on the kernel, {} altered ones failed", scripts.len(), altered.len());
    assert!(passed.is_empty(), "{passed:#?}");
}
