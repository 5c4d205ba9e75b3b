//! What a promotion costs its two channels and the monitor together: system calls, and memory afterwards.

use megapipe::EngineKind;
use testkit::{calls, process, skip};

use crate::support::{Two, own_monitor, pair, usable};

const PROMOTIONS: usize = 64;

/// Promotions before the counted ones: the first ones map pages and allocate shared
/// memory.
const WARM_UP: usize = 8;

/// Promotes one connection after the other.
fn promote(name: &str, engine: EngineKind, count: usize, mut each: impl FnMut(usize)) {
    let folder = own_monitor(name);
    let mut two = Two::new([engine; 2], &folder);
    for (place, sockets) in (0..count).map(|_| pair()).collect::<Vec<_>>().into_iter().enumerate() {
        each(place);
        two.add(sockets);
        two.read_streams();
        two.promoted();
    }
    each(count);
}

/// How often a thread waits depends on when it gets a CPU.
const WAITS: [i64; 6] = [
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_uring_enter,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    #[cfg(not(target_arch = "x86_64"))]
    libc::SYS_restart_syscall,
];

/// Counted on Linux 6.18: 142.4 on io_uring, 150.3 on epoll, of which doorbells take 32
/// and 34, and 2 report to the monitor that its copies are closed. One more on both sides
/// is too many.
fn most_calls(engine: EngineKind) -> f64 {
    if engine == EngineKind::Uring { 143.0 } else { 151.0 }
}

fn takes_few_system_calls(test: &str, engine: EngineKind) {
    if process::role().is_some() {
        return promote("calls", engine, WARM_UP + PROMOTIONS, |place| {
            if [WARM_UP, WARM_UP + PROMOTIONS].contains(&place) {
                calls::mark();
            }
        });
    }
    let engine = usable(engine);
    match calls::between_marks(&mut process::this_test_as(test, "promotes")) {
        Ok(mut calls) => {
            calls.retain(|&call, _| !WAITS.contains(&(call as i64)));
            let each = calls.values().sum::<usize>() as f64 / PROMOTIONS as f64;
            println!("{each:.1} system calls for a promotion on {}", engine.name());
            assert!(each <= most_calls(engine), "{each:.1} system calls for a promotion: {calls:?}");
        }
        Err(skipped) => skip::record(test, &skipped),
    }
}

#[test]
fn a_promotion_takes_few_system_calls_on_io_uring() {
    takes_few_system_calls("costs::a_promotion_takes_few_system_calls_on_io_uring", EngineKind::Uring);
}

#[test]
fn a_promotion_takes_few_system_calls_on_epoll() {
    takes_few_system_calls("costs::a_promotion_takes_few_system_calls_on_epoll", EngineKind::Epoll);
}

/// Of an unused promoted connection: both channels' and the monitor's, without files.
const IDLE_BYTES_MAX: usize = 16 << 10;

#[test]
fn idle_promoted_connections_take_little_memory() {
    const CONNECTIONS: usize = 256;
    process::isolated("costs::idle_promoted_connections_take_little_memory", || {
        let mut resident = [0; 2];
        promote("idle", EngineKind::Epoll, WARM_UP + CONNECTIONS, |place| match place {
            WARM_UP => resident[0] = own_memory(),
            place if place == WARM_UP + CONNECTIONS => resident[1] = own_memory(),
            _ => {}
        });
        let each = resident[1].saturating_sub(resident[0]) / CONNECTIONS;
        println!("{each} bytes for each idle promoted connection");
        assert!((1 << 10..=IDLE_BYTES_MAX).contains(&each), "{each} bytes for each connection");
    });
}

/// Bytes that this process holds, shared ones by their share, without those of files.
fn own_memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let kib = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        rest.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    (kib("Pss_Anon:") + kib("Pss_Shmem:")) << 10
}
