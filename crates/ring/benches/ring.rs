//! The cost of a ring compared with that of bare memory: round trips with those of two
//! cache lines, large streams with memcpy. Two pinned threads; rings and bare memory
//! alternate. Rounds are short, so that on a busy machine some of them are not disturbed:
//! best and median. `cargo bench -p megapipe-ring`
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::hint::{black_box, spin_loop};
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring::layout::{LOOP_PAGE_SIZE, format_loop_page, format_region};
use ring::{Endpoint, PeerLoop, PeerRegion, Region};

const ROUNDS: usize = 31;
const ROUND_TRIPS: u32 = 10_000;
const MESSAGES: u32 = 50_000;
/// Bytes of a copying round.
const BULK: usize = 16 << 20;
const REGION: usize = 256 * 1024;

fn pin(cpu: usize) {
    // SAFETY: an all-zero set is a valid empty one; CPU_SET bounds its index.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(status, 0, "this needs CPUs 0 and 1");
}

/// Memory that is kept for as long as the program runs.
fn memory(size: usize, head: &[u8]) -> NonNull<u8> {
    let layout = Layout::from_size_align(size, 4096).expect("a power of two");
    // SAFETY: the size is not 0, and `head` is shorter.
    unsafe {
        let start = NonNull::new(alloc_zeroed(layout)).expect("memory");
        start.as_ptr().copy_from_nonoverlapping(head.as_ptr(), head.len());
        start
    }
}

fn endpoints() -> [(Endpoint, PeerLoop); 2] {
    let head = format_region(REGION).expect("a size");
    let regions = [(); 2].map(|()| memory(REGION, &head));
    let mut endpoints = [0, 1].map(|endpoint: usize| {
        let page = memory(LOOP_PAGE_SIZE, &format_loop_page());
        // SAFETY: the memory is never freed.
        unsafe {
            let own = Region::new(regions[endpoint], REGION).expect("formatted");
            let peer = PeerRegion::new(regions[1 - endpoint], REGION).expect("formatted");
            (Endpoint::new(own, peer).expect("new"), PeerLoop::new(page).expect("formatted"))
        }
    });
    endpoints.iter().for_each(|(endpoint, _)| endpoint.receiver.mark_aware());
    endpoints.iter_mut().for_each(|(endpoint, _)| assert!(endpoint.sender.open_ring().expect("new")));
    endpoints
}

/// Runs both on CPUs of their own; returns the time of the second.
fn both(first: impl FnOnce() + Send, second: impl FnOnce() + Send) -> Duration {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            barrier.wait();
            first();
        });
        let second = scope.spawn(|| {
            pin(1);
            barrier.wait();
            let start = Instant::now();
            second();
            start.elapsed()
        });
        second.join().expect("no panic")
    })
}

#[repr(align(128))]
struct Line(AtomicU64);

/// The least that a round trip can cost.
fn bare_round_trips() -> f64 {
    let lines = [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))];
    let wait = |line: &Line, turn: u64| {
        while line.0.load(Ordering::Acquire) != turn {
            spin_loop();
        }
    };
    let time = both(
        || {
            for turn in 1..=u64::from(ROUND_TRIPS) {
                wait(&lines[0], turn);
                lines[1].0.store(turn, Ordering::Release);
            }
        },
        || {
            for turn in 1..=u64::from(ROUND_TRIPS) {
                lines[0].0.store(turn, Ordering::Release);
                wait(&lines[1], turn);
            }
        },
    );
    time.as_nanos() as f64 / f64::from(ROUND_TRIPS)
}

fn send(endpoint: &mut Endpoint, peer_loop: &mut PeerLoop, message: &[u8]) {
    while endpoint.write([message], usize::MAX).expect("honest") == 0 {
        spin_loop();
    }
    assert!(!endpoint.sender.wants_tcp_wake_up(peer_loop));
}

fn receive(endpoint: &mut Endpoint, buffer: &mut [u8]) -> usize {
    loop {
        match endpoint.receiver.read(buffer).expect("honest") {
            0 => spin_loop(),
            count => return count,
        }
    }
}

fn round_trips(size: usize) -> f64 {
    let [(mut first, mut first_loop), (mut second, mut second_loop)] = endpoints();
    let time = both(
        move || {
            let mut buffer = [0; 64];
            for _ in 0..ROUND_TRIPS {
                let count = receive(&mut first, &mut buffer);
                send(&mut first, &mut first_loop, &buffer[..count]);
            }
        },
        move || {
            let mut buffer = [0; 64];
            for _ in 0..ROUND_TRIPS {
                send(&mut second, &mut second_loop, &buffer[..size]);
                assert_eq!(receive(&mut second, &mut buffer), size);
            }
        },
    );
    time.as_nanos() as f64 / f64::from(ROUND_TRIPS)
}

/// Millions of messages a second; a wake-up is considered after each `batch`.
fn stream(size: usize, batch: u32, read_size: usize) -> f64 {
    let [(mut first, first_loop), (mut second, _)] = endpoints();
    let time = both(
        move || {
            let message = vec![7; size];
            for number in 0..MESSAGES {
                let mut rest = message.as_slice();
                while !rest.is_empty() {
                    let count = first.write([rest], usize::MAX).expect("honest");
                    rest = &rest[count..];
                    if count == 0 {
                        spin_loop();
                    }
                }
                if number % batch == 0 {
                    assert!(!first.sender.wants_tcp_wake_up(&first_loop));
                }
            }
        },
        move || {
            let mut buffer = vec![0; read_size];
            let mut left = size * MESSAGES as usize;
            while left > 0 {
                left -= receive(&mut second, &mut buffer);
            }
        },
    );
    f64::from(MESSAGES) / time.as_micros() as f64
}

/// Bytes a nanosecond of writes and reads of `size`, each with its own core.
fn bulk(size: usize) -> f64 {
    let total = BULK;
    let [(mut first, _), (mut second, _)] = endpoints();
    let time = both(
        move || {
            let source = vec![7; size];
            for _ in 0..total / size {
                let mut rest = source.as_slice();
                while !rest.is_empty() {
                    let count = first.write([rest], usize::MAX).expect("honest");
                    rest = &rest[count..];
                    if count == 0 {
                        spin_loop();
                    }
                }
            }
        },
        move || {
            let mut target = vec![0; size];
            let mut left = total;
            while left > 0 {
                left -= receive(&mut second, &mut target);
            }
            black_box(&mut target);
        },
    );
    total as f64 / time.as_nanos() as f64
}

fn memcpy(size: usize) -> f64 {
    let (source, mut target) = (vec![7_u8; size], vec![0_u8; size]);
    let total = BULK;
    pin(1);
    let start = Instant::now();
    for _ in 0..total / size {
        black_box(&mut target).copy_from_slice(black_box(&source));
    }
    total as f64 / start.elapsed().as_nanos() as f64
}

fn main() {
    // `cargo test --benches` only builds what it runs.
    if std::env::args().any(|argument| argument == "--test") || !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let sides: [(&str, &str, &dyn Fn() -> f64); 10] = [
        ("round trip, two cache lines", "ns", &bare_round_trips),
        ("round trip, ring, 8 bytes", "ns", &|| round_trips(8)),
        ("round trip, ring, 64 bytes", "ns", &|| round_trips(64)),
        ("stream, 64 bytes, wake-up check each", "M/s", &|| stream(64, 1, 64)),
        ("stream, 64 bytes, wake-up check per 16", "M/s", &|| stream(64, 16, 64)),
        ("stream, 64 bytes, per 16, reads of 4 KiB", "M/s", &|| stream(64, 16, 4096)),
        ("memcpy, 64 KiB", "GB/s", &|| memcpy(64 << 10)),
        ("ring, 64 KiB", "GB/s", &|| bulk(64 << 10)),
        ("memcpy, 1 MiB", "GB/s", &|| memcpy(1 << 20)),
        ("ring, 1 MiB", "GB/s", &|| bulk(1 << 20)),
    ];
    let mut results = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for (results, (_, _, measure)) in results.iter_mut().zip(&sides) {
            results.push(measure());
        }
    }
    for (mut results, (name, unit, _)) in results.into_iter().zip(&sides) {
        results.sort_by(f64::total_cmp);
        let best = if *unit == "ns" { results[0] } else { results[ROUNDS - 1] };
        println!("{name:42} {best:9.2} {:9.2} {unit}", results[ROUNDS / 2]);
    }
}
