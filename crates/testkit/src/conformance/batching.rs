//! When requests go to the kernel, and how many completions come back at once.

use std::io::{Read, Write};
use std::time::Duration;

use megapipe::{EngineKind, Event, LatencyBound};
use socket2::Type;

use crate::conformance::Fixture;
use crate::driver::WATCHDOG;
use crate::net;
use crate::skip::Verdict;

/// What the peer has got by now.
fn arrived(peer: &mut std::net::TcpStream) -> usize {
    peer.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    let got = match peer.read(&mut bytes) {
        Ok(count) => count,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    };
    peer.set_nonblocking(false).unwrap();
    got
}

pub fn the_threshold_sends_the_batch(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.batch_threshold = 4);
    let pairs: Vec<_> = (0..4).map(|_| net::tcp_pair()).collect();
    let mut peers = Vec::new();
    let mut handles = Vec::new();
    for (socket, peer) in pairs {
        handles.push(driver.register(socket, 0).unwrap());
        peers.push(peer);
    }
    for round in 0..3 {
        let before = driver.stats();
        for handle in &handles[..3] {
            driver.write_quiet(*handle, vec![round; 8]).unwrap();
        }
        assert_eq!(driver.stats().turns, before.turns, "the batch is not full");
        assert_eq!(driver.stats().system_calls, before.system_calls);
        assert_eq!(arrived(&mut peers[0]), 0);
        driver.write_quiet(handles[3], vec![round; 8]).unwrap();
        assert_eq!(driver.stats().turns, before.turns + 1, "the batch is full");
        assert!(driver.stats().system_calls > before.system_calls);
        for peer in &mut peers {
            assert_eq!(net::read_exactly(peer, 8), [round; 8]);
        }
    }
    driver.expect_silence();
    Ok(())
}

pub fn what_is_ready_costs_no_call(fixture: &mut Fixture) -> Verdict {
    const HANDLES: usize = 300;
    let mut driver = fixture.driver_with(|config| config.read_buffers = 1024);
    let mut peers = Vec::new();
    for _ in 0..HANDLES {
        let (socket, peer) = net::tcp_pair();
        let handle = driver.register(socket, 0).unwrap();
        driver.read_stream(handle).unwrap();
        peers.push(peer);
    }
    driver.flush().unwrap();
    assert!(driver.next_ready().unwrap().is_none());
    let timer = driver.timer(Duration::ZERO, 5).unwrap();
    peers.iter_mut().for_each(|peer| peer.write_all(b"x").unwrap());
    let (mut read, mut timers, mut dispatches) = (0, 0, 0);
    while read < HANDLES || timers == 0 {
        let mut next = Some(driver.next());
        let before = driver.stats();
        dispatches += 1;
        while let Some(completion) = next {
            match completion.event {
                Event::Read { result: Ok(1), .. } => read += 1,
                Event::Timer(Ok(())) if completion.op == timer => timers += 1,
                other => panic!("{other:?}"),
            }
            next = driver.next_ready().unwrap();
        }
        assert_eq!(driver.stats().system_calls, before.system_calls);
        assert_eq!(driver.stats().turns, before.turns);
    }
    assert!((read, timers) == (HANDLES, 1) && dispatches < HANDLES, "{dispatches} dispatches");
    Ok(())
}

pub fn flush_sends_the_batch(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    driver.flush().unwrap();
    let before = driver.stats();
    driver.flush().unwrap();
    assert_eq!(driver.stats(), before, "there is nothing to flush");
    for _ in 0..10 {
        driver.write_quiet(handle, &b"piece"[..]).unwrap();
    }
    assert_eq!(driver.stats(), before);
    assert_eq!(arrived(&mut peer), 0);
    driver.flush().unwrap();
    assert_eq!(driver.stats().turns, before.turns + 1);
    // Ten writes on one handle are one send; epoll asks in a call of its own what is done.
    let calls = driver.stats().system_calls - before.system_calls;
    assert!(calls <= if fixture.engine() == EngineKind::Uring { 1 } else { 2 }, "{calls} system calls");
    assert_eq!(net::read_exactly(&mut peer, 50).len(), 50);
    Ok(())
}

pub fn a_turn_is_at_most_one_system_call(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let mut peers = Vec::new();
    for cookie in 0..64 {
        let (socket, peer) = net::tcp_pair();
        let handle = driver.register(socket, cookie).unwrap();
        driver.read_stream(handle).unwrap();
        peers.push(peer);
    }
    driver.flush().unwrap();
    let before = driver.stats();
    const ROUNDS: u64 = 20;
    for _ in 0..ROUNDS {
        for peer in &mut peers {
            peer.write_all(b"question").unwrap();
        }
        let mut answered = 0;
        while answered < 64 {
            let completion = driver.next();
            let Event::Read { data: megapipe::ReadData::Buffer(buffer), .. } = completion.event else {
                panic!()
            };
            driver.write_quiet(completion.handle, buffer).unwrap();
            answered += 1;
        }
        driver.flush().unwrap();
        for peer in &mut peers {
            assert_eq!(net::read_exactly(peer, 8), b"question");
        }
    }
    let after = driver.stats();
    let calls = after.system_calls - before.system_calls;
    let turns = after.turns - before.turns;
    assert!(after.completions - before.completions == 64 * ROUNDS);
    let transactions = 64 * ROUNDS;
    match fixture.engine() {
        EngineKind::Uring => {
            assert!(calls <= turns, "{calls} system calls in {turns} turns");
            assert!(calls * 100 <= transactions * 15, "{calls} system calls for {transactions} transactions");
        }
        // A receive that shows whether more is there, a send, and the waits.
        EngineKind::Epoll => assert!(calls <= 3 * transactions, "{calls} calls, {transactions} transactions"),
    }
    Ok(())
}

pub fn a_latency_bound_gathers_completions(fixture: &mut Fixture) -> Verdict {
    // Without the count the wait would last longer than the watchdog allows.
    let bound = LatencyBound { completions: 4, delay: 2 * WATCHDOG };
    let mut driver = fixture.driver_with(|config| config.latency_bound = Some(bound));
    let mut peers = Vec::new();
    for cookie in 0..4 {
        let (socket, peer) = net::tcp_pair();
        let handle = driver.register(socket, cookie).unwrap();
        driver.read(handle).unwrap();
        peers.push(peer);
    }
    driver.flush().unwrap();
    for peer in &mut peers {
        peer.write_all(b"x").unwrap();
    }
    for _ in 0..4 {
        let completion = driver.dispatch(None).unwrap().expect("an endless wait ends with a completion");
        assert!(matches!(completion.event, Event::Read { result: Ok(1), .. }));
    }
    Ok(())
}

pub fn a_latency_bound_ends_with_its_delay(fixture: &mut Fixture) -> Verdict {
    let bound = LatencyBound { completions: 1000, delay: Duration::from_millis(10) };
    let mut driver = fixture.driver_with(|config| config.latency_bound = Some(bound));
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    let waker = driver.waker();
    for _ in 0..5 {
        driver.read(handle).unwrap();
        driver.flush().unwrap();
        peer.write_all(b"x").unwrap();
        let completion = driver.next();
        assert!(matches!(completion.event, Event::Read { result: Ok(1), .. }));
        waker.wake();
        assert!(matches!(driver.next().event, Event::Wake));
        driver.timer(Duration::from_millis(1), 0).unwrap();
        assert!(matches!(driver.next().event, Event::Timer(Ok(()))));
    }
    driver.expect_silence();
    Ok(())
}

pub fn a_zero_timeout_returns(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    assert!(driver.next_within(Duration::ZERO).is_none());
    // Loopback TCP may still be under way when a send returns.
    let (socket, mut peer) = net::unix_pair(Type::STREAM);
    let handle = driver.register(socket, 0).unwrap();
    driver.read(handle).unwrap();
    assert!(driver.next_within(Duration::ZERO).is_none());
    peer.write_all(b"x").unwrap();
    // It hands out what is there, without a wait.
    assert!(driver.next_within(Duration::ZERO).is_some());
    assert!(driver.dispatch(Some(Duration::from_nanos(1))).unwrap().is_none());
    Ok(())
}
