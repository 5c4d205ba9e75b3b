//! What a host takes from the heap: everything when it is made, nothing afterwards.
mod common;

use std::net::SocketAddr;

use common::syn::syn;
use common::{OFFLOADS, PORT, address, config};
use packet::{BATCH_FRAMES, Batch, Frame, Offload, Random};
use tcp::{Host, Limits, Pattern, Read, Time};
use testkit::allocations::{self, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Moves packets between two hosts, without a device, until both are quiet.
fn exchange(hosts: &mut [Host; 2], batch: &mut Batch, now: Time) {
    let mut quiet = 0;
    while quiet < 4 {
        for side in 0..2 {
            batch.clear();
            hosts[side].advance(now);
            hosts[side].output(now, batch);
            quiet = if batch.is_empty() { quiet + 1 } else { 0 };
            hosts[1 - side].input(now, batch.frames());
        }
    }
}

/// One after the other: the heap is counted for the whole process.
#[test]
fn memory() {
    nothing_is_allocated_once_a_host_is_made();
    a_flood_allocates_nothing();
    memory_of_a_connection();
}

/// Connections are opened, carry a megabyte and are closed without an allocation.
fn nothing_is_allocated_once_a_host_is_made() {
    let mut hosts = [0, 1].map(|side| Host::new(config(side, OFFLOADS), [side as u8; 32]));
    let mut batch = Batch::new(1 << 20);
    let pattern = Pattern { address: None, port: Some(PORT) };
    let listener = hosts[1].listen(pattern, 64).expect("a listener");
    let (bytes, mut buffer) = (vec![7; 50_000], vec![0; 50_000]);
    let mut now = Time::from_micros(0);
    let before = allocations::calls();
    for _ in 0..20 {
        let remote = SocketAddr::new(address(1, false), PORT);
        let client = hosts[0].connect(now, None, None, remote).expect("a flow");
        exchange(&mut hosts, &mut batch, now);
        let server = hosts[1].accept(listener).expect("a connection");
        let mut total = 0;
        while total < 1_000_000 {
            hosts[0].write(now, client, &bytes).expect("open");
            exchange(&mut hosts, &mut batch, now);
            while let Ok(Read::Bytes(len)) = hosts[1].read(now, server, &mut buffer) {
                total += len;
            }
            now = now.after(common::trace::ms(50));
        }
        hosts[0].close(now, client);
        hosts[1].close(now, server);
        exchange(&mut hosts, &mut batch, now);
        while hosts[0].event().is_some() || hosts[1].event().is_some() {}
    }
    assert_eq!(allocations::calls() - before, 0);
}

/// SYNs are answered, most of them with cookies, without an allocation.
fn a_flood_allocates_nothing() {
    let mut host = Host::new(config(1, OFFLOADS), [1; 32]);
    host.listen(Pattern { address: None, port: Some(PORT) }, 64).expect("a listener");
    let (mut random, now) = (Random::new(1), Time::from_micros(0));
    let (mut received, mut sent, mut answers) = (Batch::new(1 << 16), Batch::new(1 << 20), 0);
    let before = allocations::calls();
    for _ in 0..100 {
        received.clear();
        for _ in 0..BATCH_FRAMES {
            let frame = Frame { bytes: &syn(&mut random), offload: Offload::default() };
            received.push(frame).expect("room");
        }
        host.input(now, received.frames());
        sent.clear();
        host.output(now, &mut sent);
        answers += sent.len();
    }
    assert_eq!(answers, 100 * BATCH_FRAMES);
    assert_eq!(allocations::calls() - before, 0);
}

/// An idle connection costs its records: less than a tenth of what the kernel's costs (4.0 KB).
fn memory_of_a_connection() {
    let host = |flows: usize| {
        let mut config = config(0, OFFLOADS);
        config.limits = Limits { flows, ..Limits::default() };
        let before = allocations::live_bytes();
        let host = Host::new(config, [0; 32]);
        let bytes = allocations::live_bytes() - before;
        drop(host);
        bytes
    };
    let each = (host(200_000) - host(100_000)) / 100_000;
    println!("{each} bytes for each connection");
    assert!(each <= 400, "{each}");
}
