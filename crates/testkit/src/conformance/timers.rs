//! Timers.

use std::io::Write;
use std::time::{Duration, Instant};

use megapipe::{Event, Handle};

use crate::conformance::Fixture;
use crate::net;
use crate::skip::Verdict;

pub fn timers_fire_in_order(fixture: &mut Fixture) -> Verdict {
    // Each time counts from its own call: where those took longer than two times are apart, nothing is said.
    const APART: u64 = 5;
    let (mut driver, start) = (0..100)
        .find_map(|_| {
            let mut driver = fixture.driver();
            let start = Instant::now();
            for delay in [6, 2, 4, 1, 3, 0].map(|place| place * APART) {
                driver.timer(Duration::from_millis(delay), delay).unwrap();
            }
            (start.elapsed() < Duration::from_millis(APART)).then_some((driver, start))
        })
        .expect("six timers begin within some milliseconds");
    for delay in [0, 1, 2, 3, 4, 6].map(|place| place * APART) {
        let completion = driver.next();
        assert_eq!((completion.handle, completion.cookie), (Handle::NONE, delay));
        assert!(matches!(completion.event, Event::Timer(Ok(()))));
        assert!(start.elapsed() >= Duration::from_millis(delay), "a timer is early");
    }
    driver.expect_silence();
    Ok(())
}

pub fn a_timer_ends_a_wait(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (socket, _peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    driver.read_stream(handle).unwrap();
    let op = driver.timer(Duration::from_millis(20), 1).unwrap();
    // `None`: nothing but the timer can end it.
    let completion = driver.dispatch(None).unwrap().expect("an endless wait ends with a completion");
    assert_eq!(completion.op, op);
    // A far one does not.
    driver.timer(Duration::MAX, 2).unwrap();
    driver.expect_silence();
    Ok(())
}

pub fn a_cancelled_timer_says_so_once(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    for delay in [Duration::ZERO, Duration::from_secs(3600)] {
        let op = driver.timer(delay, 9).unwrap();
        driver.cancel(op).unwrap();
        driver.cancel(op).unwrap();
        let completion = driver.next();
        assert_eq!((completion.op, completion.cookie), (op, 9));
        let Event::Timer(Err(error)) = completion.event else { panic!("{:?}", completion.event) };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        assert!(driver.cancel(op).is_err());
    }
    let op = driver.timer(Duration::ZERO, 9).unwrap();
    assert_eq!(driver.next().op, op);
    assert!(driver.cancel(op).is_err());
    driver.expect_silence();
    Ok(())
}

pub fn timers_do_not_starve_io(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 1).unwrap();
    driver.read(handle).unwrap();
    peer.write_all(b"x").unwrap();
    // A timer that is always due.
    driver.timer(Duration::ZERO, 0).unwrap();
    for _ in 0..10_000 {
        let completion = driver.next();
        if completion.handle == handle {
            return Ok(());
        }
        driver.timer(Duration::ZERO, 0).unwrap();
    }
    panic!("10,000 timers fired, and the read never ended");
}

pub fn thousands_of_cancelled_timers(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    for _ in 0..20 {
        let ops: Vec<_> = (0..1000).map(|_| driver.timer(Duration::from_secs(60), 0).unwrap()).collect();
        let last = driver.timer(Duration::from_millis(1), 1).unwrap();
        for op in ops {
            driver.cancel(op).unwrap();
        }
        let mut cancelled = 0;
        let mut fired = 0;
        while cancelled + fired < 1001 {
            let completion = driver.next();
            match completion.event {
                Event::Timer(Ok(())) => {
                    assert_eq!(completion.op, last);
                    fired += 1;
                }
                Event::Timer(Err(_)) => cancelled += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((cancelled, fired), (1000, 1));
    }
    driver.expect_silence();
    Ok(())
}

pub fn a_moved_timer_fires_at_its_last_time(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (short, hour) = (Duration::from_millis(20), Duration::from_secs(3600));
    let start = Instant::now();
    let later = driver.timer(Duration::ZERO, 1).unwrap();
    let earlier = driver.timer(hour, 2).unwrap();
    let back_and_forth = driver.timer(hour, 3).unwrap();
    let far = driver.timer(short, 4).unwrap();
    driver.move_timer(later, short * 2).unwrap();
    driver.move_timer(earlier, short).unwrap();
    for after in [Duration::ZERO, hour, short, hour, short * 3] {
        driver.move_timer(back_and_forth, after).unwrap();
    }
    driver.move_timer(far, Duration::MAX).unwrap();
    // In any order: the times count from calls that may be far apart.
    let mut left = vec![(later, 1, short * 2), (earlier, 2, short), (back_and_forth, 3, short * 3)];
    while !left.is_empty() {
        let completion = driver.next();
        let place = left.iter().position(|(op, ..)| *op == completion.op).expect("it fires once");
        let (op, cookie, after) = left.swap_remove(place);
        assert_eq!(completion.cookie, cookie);
        assert!(matches!(completion.event, Event::Timer(Ok(()))), "{:?}", completion.event);
        assert!(start.elapsed() >= after, "a timer is early");
        assert!(driver.move_timer(op, short).is_err(), "it has fired");
    }
    driver.expect_silence();
    driver.cancel(far).unwrap();
    assert!(driver.move_timer(far, short).is_err(), "it is cancelled");
    assert!(matches!(driver.next().event, Event::Timer(Err(_))));
    let (socket, _peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    let read = driver.read(handle).unwrap();
    assert!(driver.move_timer(read, short).is_err(), "it is a read");
    driver.expect_silence();
    Ok(())
}
