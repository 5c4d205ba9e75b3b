//! A close over a peer that keeps sending: what is read after it, and what the peer sees.

use std::cell::Cell;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Event, Handle, Source};

use crate::conformance::Fixture;
use crate::driver::{Driver, Form, WATCHDOG};
use crate::net::{self, End};
use crate::skip::Verdict;

/// More than the socket buffers of a tight connection and a channel's buffers hold together.
const FLOOD: usize = 16 << 20;

/// What those hold at most.
const IN_FLIGHT_MAX: usize = 1 << 20;

/// Reads that may be pending when the close comes.
const READS: [&str; 4] = ["read", "read_into", "read_stream", "reads queued"];

fn start_reads(driver: &mut Driver, handle: Handle, what: &str) {
    match what {
        "read" => drop(driver.read(handle).unwrap()),
        "read_into" => drop(driver.read_into(handle, Vec::with_capacity(4096)).unwrap()),
        "read_stream" => drop(driver.read_stream(handle).unwrap()),
        _ => {
            driver.read(handle).unwrap();
            driver.read_into(handle, Vec::with_capacity(4096)).unwrap();
            driver.read_stream(handle).unwrap();
        }
    }
}

/// Sends without reading until the connection, which is closed by then, takes nothing for a
/// while or fails; how many bytes it took. An open one with small buffers may stall as long.
fn flood(mut peer: &TcpStream, closed: &AtomicBool) -> usize {
    // Not a time: this thread may wait for a CPU.
    const MOST_VAIN: u32 = 100;
    peer.set_nonblocking(true).unwrap();
    let piece = vec![7; 64 << 10];
    let start = Instant::now();
    let (mut sent, mut vain) = (0, 0);
    while sent < FLOOD && vain < MOST_VAIN && start.elapsed() < WATCHDOG {
        match peer.write(&piece) {
            Ok(count) => {
                sent += count;
                vain = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                vain += u32::from(closed.load(Ordering::Relaxed));
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => break,
        }
    }
    peer.set_nonblocking(false).unwrap();
    sent
}

/// A peer that sends and never reads cannot make a closed handle take its bytes.
pub fn a_draining_close_reads_nothing(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.close_timeout = WATCHDOG);
        for what in READS {
            for flushed in [false, true] {
                let (socket, mut peer) = net::tight_tcp_pair();
                let handle = driver.add(socket, form, 0);
                driver.write_quiet(handle, vec![1; 1 << 20]).unwrap();
                driver.expect_silence();
                start_reads(&mut driver, handle, what);
                if flushed {
                    driver.flush().unwrap();
                }
                driver.close(handle).unwrap();
                let sent = driver.quietly_while(|| flood(&peer, &AtomicBool::new(true)));
                assert!(sent < IN_FLIGHT_MAX, "{what}: {sent} bytes were taken after the close");
                // The writes still go out; then the unread bytes make it a reset.
                let (bytes, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
                assert_eq!(end, End::Reset, "{what}");
                assert!(!bytes.is_empty() && bytes.iter().all(|&byte| byte == 1), "{what}");
            }
        }
        assert_eq!(driver.stats().close_timeouts, 0);
    }
    Ok(())
}

/// The same where the peer is sending already, and never reads at all.
pub fn a_close_under_a_flood_ends_in_time(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.close_timeout = Duration::from_millis(300));
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.write_quiet(handle, vec![1; 1 << 20]).unwrap();
        driver.read_stream(handle).unwrap();
        let (mut read, closed) = (0, AtomicBool::new(false));
        let sent = driver.drive_while(
            || flood(&peer, &closed),
            |channel, completion| {
                let Event::Read { result: Ok(count), .. } = completion.event else {
                    panic!("{completion:?}")
                };
                assert!(!closed.load(Ordering::Relaxed), "a closed handle speaks");
                read += count;
                if read > 100_000 {
                    channel.close(handle).unwrap();
                    closed.store(true, Ordering::Relaxed);
                }
            },
        );
        assert!(closed.into_inner(), "{read} of {sent} bytes were read");
        assert!(sent - read < IN_FLIGHT_MAX, "{sent} bytes were taken, {read} before the close");
        driver.drive_until(|channel| channel.stats().close_timeouts == 1, |_, other| panic!("{other:?}"));
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Reset);
    }
    Ok(())
}

/// What the channel read before an unregister may be lost; of what it did not, every byte is
/// the caller's.
pub fn an_unregister_under_a_flood_takes_nothing_more(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let text = net::pattern(4 << 20, 5);
        driver.read_stream(handle).unwrap();
        let (mut read, mut source) = (0, None);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| (&peer).write_all(&text).unwrap());
            while source.is_none() {
                let Event::Read { result: Ok(count), data, .. } = driver.next().event else { panic!() };
                assert!(data.bytes() == &text[read..read + count]);
                read += count;
                if read > 100_000 {
                    source = Some(driver.unregister(handle).unwrap());
                }
            }
            let fd = match source.take().unwrap() {
                Source::Fd(fd) => fd,
                Source::LwSocket(socket) => driver.to_fd(socket).unwrap(),
            };
            let mut stream = TcpStream::from(fd);
            net::bounded(&stream);
            // The pattern's rest, whatever was lost in between.
            let first = net::read_exactly(&mut stream, 64);
            let place = text[read..].windows(64).position(|window| window == first).expect("of the text");
            assert!(place <= IN_FLIGHT_MAX, "{place} bytes were lost");
            let rest = net::read_exactly(&mut stream, text.len() - read - place - 64);
            assert!(rest == text[read + place + 64..], "bytes are missing in between");
            sending.join().unwrap();
        });
        driver.expect_silence();
    });
    Ok(())
}

/// The way to refuse a peer that is still sending, which a close alone would reset: answer,
/// half-close, read on to the end.
pub fn a_half_close_brings_a_refusal_to_a_peer_that_sends(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for tight in [false, true] {
            let (socket, mut peer) = if tight { net::tight_tcp_pair() } else { net::tcp_pair() };
            let handle = driver.add(socket, form, 0);
            let answer = net::pattern(100_000, 9);
            driver.read_stream(handle).unwrap();
            let (mut read, mut refused, closed) = (0, false, Cell::new(false));
            let mut serve = |channel: &mut Channel, completion: Completion| match completion.event {
                Event::Read { result: Ok(0), .. } => {
                    channel.close(handle).unwrap();
                    closed.set(true);
                }
                Event::Read { result, .. } => {
                    read += result.unwrap();
                    if !std::mem::replace(&mut refused, true) {
                        channel.write_quiet(handle, answer.clone()).unwrap();
                        channel.shutdown(handle, Shutdown::Write).unwrap();
                    }
                }
                Event::Disconnect(result) => result.unwrap(),
                other => panic!("{other:?}"),
            };
            let ended = driver.drive_while(
                || {
                    // All of its request first, then the answer.
                    peer.write_all(&vec![7; 300_000]).unwrap();
                    peer.shutdown(Shutdown::Write).unwrap();
                    net::read_to_end(&mut peer)
                },
                &mut serve,
            );
            driver.drive_until(|_| closed.get(), &mut serve);
            assert!(ended == (answer, End::Finished), "{} bytes, {:?}", ended.0.len(), ended.1);
            assert_eq!(read, 300_000);
        }
    });
    Ok(())
}
