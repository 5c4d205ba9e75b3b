//! Waking a channel from other threads.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use megapipe::{Event, Handle, OpId};

use crate::conformance::Fixture;
use crate::driver::{Driver, WATCHDOG};
use crate::net;
use crate::skip::Verdict;
use crate::threads::SetAtEnd;

fn expect_wake(driver: &mut Driver) {
    let completion = driver.next();
    assert!(matches!(completion.event, Event::Wake), "{completion:?}");
    assert_eq!((completion.handle, completion.cookie, completion.op), (Handle::NONE, 0, OpId::NONE));
}

pub fn a_wake_ends_a_wait(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let waker = driver.waker();
    for _ in 0..50 {
        std::thread::scope(|scope| {
            let waker = waker.clone();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(1));
                waker.wake();
            });
            expect_wake(&mut driver);
        });
    }
    driver.expect_silence();
    Ok(())
}

pub fn a_wake_before_the_wait_counts(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let waker = driver.waker();
    for _ in 0..50 {
        waker.wake();
        waker.wake();
        expect_wake(&mut driver);
        assert!(driver.next_within(Duration::ZERO).is_none(), "two wakes before a dispatch are one");
    }
    Ok(())
}

pub fn no_wake_of_many_threads_is_lost(fixture: &mut Fixture) -> Verdict {
    const THREADS: u64 = 4;
    const EACH: u64 = 5000;
    let mut driver = fixture.driver();
    let waker = driver.waker();
    let posted = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (waker, posted, seen) = (waker.clone(), &posted, &seen);
            scope.spawn(move || {
                for round in 0..EACH {
                    let mine = posted.fetch_add(1, Ordering::Relaxed) + 1;
                    waker.wake();
                    // Every now and then only our own wake can end the channel's sleep.
                    if round % 50 == 0 {
                        let start = std::time::Instant::now();
                        while seen.load(Ordering::Acquire) < mine && start.elapsed() < WATCHDOG {
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        while seen.load(Ordering::Relaxed) < THREADS * EACH {
            expect_wake(&mut driver);
            // What was posted before a wake is visible after it.
            seen.store(posted.load(Ordering::Relaxed), Ordering::Release);
        }
    });
    // The last ones' wakes may come after what they posted was seen.
    while let Some(completion) = driver.next_within(crate::driver::GLANCE) {
        assert!(matches!(completion.event, Event::Wake));
    }
    Ok(())
}

pub fn wakes_and_io_do_not_starve_each_other(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let waker = driver.waker();
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 1).unwrap();
    driver.read_stream(handle).unwrap();
    let over = AtomicBool::new(false);
    let (mut wakes, mut bytes) = (0, 0);
    std::thread::scope(|scope| {
        let over = &over;
        let _end = SetAtEnd(over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                waker.wake();
                std::thread::yield_now();
            }
        });
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                peer.write_all(b"x").unwrap();
                std::thread::yield_now();
            }
        });
        let watch = std::time::Instant::now();
        while (wakes < 100 || bytes < 100) && watch.elapsed() < WATCHDOG {
            match driver.next_within(WATCHDOG).map(|completion| completion.event) {
                Some(Event::Wake) => wakes += 1,
                Some(Event::Read { result, .. }) => bytes += result.unwrap_or(0),
                _ => {}
            }
        }
    });
    assert!(wakes >= 100 && bytes >= 100, "{wakes} wakes, {bytes} bytes");
    Ok(())
}

pub fn a_waker_outlives_its_channel(fixture: &mut Fixture) -> Verdict {
    let driver = fixture.driver();
    let waker = driver.waker();
    waker.wake();
    drop(driver);
    waker.wake();
    std::thread::spawn(move || waker.wake()).join().unwrap();
    Ok(())
}
