//! Writes: in order, whole, and each with one end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use megapipe::{Config, Event, Handle, OpId, ReadData, StaleHandle, SubmitError, WriteData};
use socket2::Type;

use crate::conformance::Fixture;
use crate::driver::{Driver, Form};
use crate::net::{self, End};
use crate::skip::Verdict;

/// Queues writes of all kinds and sizes; returns their bytes and the operations that
/// will speak.
fn queue_mixture(driver: &mut Driver, handle: Handle) -> (Vec<u8>, Vec<(OpId, usize)>) {
    let sizes = [1, 64, 5000, 3, 100_000, 17, 1 << 20, 2, 4096, 1, 300_000, 64, 64, 64];
    let mut all = Vec::new();
    let mut spoken = Vec::new();
    for (number, size) in sizes.into_iter().enumerate() {
        let text = net::pattern(size, number as u64);
        all.extend_from_slice(&text);
        let data = match number % 4 {
            0 => WriteData::from(text),
            1 => {
                let (head, tail) = text.split_at(size / 3);
                let parts = vec![WriteData::from(head.to_vec()), WriteData::None, tail.to_vec().into()];
                WriteData::from(parts)
            }
            2 => match driver.buffer() {
                Ok(mut buffer) if size <= buffer.remaining() => {
                    assert_eq!(buffer.extend_from_slice(&text), size);
                    WriteData::from(buffer)
                }
                _ => WriteData::Bytes(text.into()),
            },
            _ => WriteData::Bytes(text.into()),
        };
        if number % 3 == 1 {
            driver.write_quiet(handle, data).unwrap();
        } else {
            spoken.push((driver.write(handle, data).unwrap(), size));
        }
    }
    (all, spoken)
}

/// Reads to the end in small pieces, with breaks in which the writer runs full.
fn read_slowly(peer: &mut impl Read) -> (Vec<u8>, End) {
    let mut all = Vec::new();
    let mut piece = [0; 7000];
    for round in 0.. {
        match peer.read(&mut piece[..1 + round * 37 % 7000]) {
            Ok(0) => return (all, End::Finished),
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return (all, End::Reset),
            Err(error) => panic!("after {} bytes: {error}", all.len()),
        }
        if round % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    unreachable!("the loop has no other end")
}

fn goes_out_in_order_and_whole(driver: &mut Driver, handle: Handle, mut peer: impl Read + Send) {
    let (want, spoken) = queue_mixture(driver, handle);
    let len = want.len();
    let (got, seen) = driver.while_peer(|| {
        let mut taken = (&mut peer).take(len as u64);
        read_slowly(&mut taken).0
    });
    let mut seen: std::collections::VecDeque<_> = seen.into();
    for (op, size) in spoken {
        let completion = seen.pop_front().unwrap_or_else(|| driver.next());
        assert_eq!(completion.op, op, "the writes end out of order");
        let Event::Write { result, data } = completion.event else { panic!() };
        assert_eq!(result.unwrap(), size);
        assert_eq!(data.len(), size, "the data comes back");
    }
    assert!(seen.is_empty());
    assert!(got == want, "{} of {len} bytes, or others", got.len());
    driver.expect_silence();
}

pub fn writes_go_out_in_order_and_whole(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        goes_out_in_order_and_whole(&mut driver, handle, peer);
        let (socket, peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        goes_out_in_order_and_whole(&mut driver, handle, peer);
    });
    Ok(())
}

pub fn pipes_and_unix_sockets_take_them_whole_too(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::unix_pair(Type::STREAM);
        net::tighten(&socket);
        let handle = driver.add(socket, form, 0);
        goes_out_in_order_and_whole(&mut driver, handle, peer);
    });
    let mut driver = fixture.driver();
    let (reader, writer) = std::io::pipe().unwrap();
    let handle = driver.register(writer, 0).unwrap();
    goes_out_in_order_and_whole(&mut driver, handle, reader);
    Ok(())
}

pub fn vectored_writes_of_many_parts(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.write_queue_max = 1024);
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        // More parts than one system call takes (IOV_MAX is 1024).
        let text = net::pattern(60_000, 3);
        let parts: Vec<_> = text.chunks(20).map(|part| WriteData::from(part.to_vec())).collect();
        assert_eq!(parts.len(), 3000);
        let op = driver.write(handle, parts).unwrap();
        for part in text.chunks(100) {
            driver.write_quiet(handle, part.to_vec()).unwrap();
        }
        let (got, seen) = driver.while_peer(|| net::read_exactly(&mut peer, 2 * text.len()));
        let completion = seen.into_iter().next().unwrap_or_else(|| driver.next());
        assert_eq!(completion.op, op);
        assert!(matches!(completion.event, Event::Write { result: Ok(60_000), .. }));
        assert!(got == [&text[..], &text[..]].concat());
    }
    Ok(())
}

pub fn disconnect_comes_after_queued_writes(fixture: &mut Fixture) -> Verdict {
    comes_after_queued_writes(fixture, Shutdown::Both)
}

pub fn a_half_close_comes_after_queued_writes(fixture: &mut Fixture) -> Verdict {
    comes_after_queued_writes(fixture, Shutdown::Write)
}

fn comes_after_queued_writes(fixture: &mut Fixture, how: Shutdown) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for tight in [false, true] {
            let (socket, mut peer) = if tight { net::tight_tcp_pair() } else { net::tcp_pair() };
            let handle = driver.add(socket, form, 0);
            let (want, spoken) = queue_mixture(&mut driver, handle);
            let disconnect = match how {
                Shutdown::Both => driver.disconnect(handle).unwrap(),
                _ => driver.shutdown(handle, how).unwrap(),
            };
            let late = driver.write(handle, &b"late"[..]).unwrap();
            let ((got, end), mut seen) = driver.while_peer(|| read_slowly(&mut peer));
            assert!(got == want, "{} of {} bytes, or others", got.len(), want.len());
            assert_eq!(end, End::Finished);
            while seen.len() < spoken.len() + 2 {
                seen.push(driver.next());
            }
            let order: Vec<_> = seen.iter().map(|completion| completion.op).collect();
            let mut expected: Vec<_> = spoken.iter().map(|(op, _)| *op).collect();
            expected.extend([disconnect, late]);
            assert_eq!(order, expected);
            assert!(matches!(seen[spoken.len()].event, Event::Disconnect(Ok(()))));
            let Event::Write { result: Err(error), .. } = &seen[spoken.len() + 1].event else { panic!() };
            assert!(matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{error}");
            // The handle is still there.
            if how == Shutdown::Write {
                peer.write_all(b"answer").unwrap();
                assert_eq!(driver.read_exactly(handle, 6), b"answer");
            } else {
                let read = driver.read(handle).unwrap();
                assert!(driver.expect_read(read).0.unwrap().is_empty());
            }
            driver.close(handle).unwrap();
        }
    });
    Ok(())
}

pub fn writes_fail_once_each_when_the_peer_resets(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        let first = driver.write(handle, vec![1; 1 << 20]).unwrap();
        driver.write_quiet(handle, vec![2; 10]).unwrap();
        let last = driver.write(handle, vec![3; 10]).unwrap();
        driver.expect_silence();
        net::reset_on_drop(&peer);
        drop(peer);
        for (op, len) in [(Some(first), 1 << 20), (None, 10), (Some(last), 10)] {
            let completion = driver.next();
            assert!(op.is_none_or(|op| completion.op == op));
            let Event::Write { result: Err(error), data } = completion.event else { panic!() };
            assert!(matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{error}");
            assert_eq!(data.len(), len);
        }
        driver.expect_silence();
        let op = driver.write(handle, vec![4; 10]).unwrap();
        assert_eq!(driver.expect_write(op).unwrap_err().raw_os_error(), Some(libc::EPIPE));
    });
    Ok(())
}

pub fn a_quiet_write_speaks_only_when_it_fails(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.write_quiet(handle, &b"fine"[..]).unwrap();
        driver.expect_silence();
        assert_eq!(net::read_exactly(&mut peer, 4), b"fine");
        let op = driver.shutdown(handle, std::net::Shutdown::Write).unwrap();
        assert_eq!(driver.next().op, op);
        driver.write_quiet(handle, &b"broken"[..]).unwrap();
        let Event::Write { result, data } = driver.next().event else { panic!() };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert_eq!(data.len(), 6);
    });
    Ok(())
}

pub fn what_the_kernel_has_not_taken_is_counted(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        assert_eq!(driver.writes_queued(handle), Ok(0));
        driver.write_quiet(handle, &b"first"[..]).unwrap();
        assert_eq!(driver.writes_queued(handle), Ok(1));
        driver.flush().unwrap();
        assert_eq!(driver.writes_queued(handle), Ok(0));
        let large = net::pattern(1 << 20, 1);
        driver.write_quiet(handle, large.clone()).unwrap();
        driver.write_quiet(handle, &b"last"[..]).unwrap();
        driver.flush().unwrap();
        assert_eq!(driver.writes_queued(handle), Ok(2), "the peer does not read");
        let all = driver.quietly_while(|| net::read_exactly(&mut peer, 5 + large.len() + 4));
        assert!(all[5..].starts_with(&large) && all.ends_with(b"last"));
        driver.drive_until(|channel| channel.writes_queued(handle) == Ok(0), |_, _| {});
        driver.close(handle).unwrap();
        assert_eq!(driver.writes_queued(handle), Err(StaleHandle));
    });
    Ok(())
}

pub fn wrong_writes_are_refused(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver();
        let (socket, _peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let invalid = SubmitError::InvalidArgument;
        assert_eq!(driver.write(handle, Vec::<u8>::new()).unwrap_err().reason, invalid);
        assert_eq!(driver.write(handle, Vec::<WriteData>::new()).unwrap_err().reason, invalid);
        assert_eq!(driver.write_quiet(handle, WriteData::None).unwrap_err().reason, invalid);
        assert_eq!(driver.read_into(handle, Vec::new()).unwrap_err().reason, invalid);
        assert_eq!(driver.read_vectored(handle, Vec::new()).unwrap_err().reason, invalid);
        let rooms = (0..1025).map(|_| Vec::with_capacity(1)).collect();
        assert_eq!(driver.read_vectored(handle, rooms).unwrap_err().reason, invalid);
        let refused = driver.write_at(handle, vec![1], 0).unwrap_err();
        assert_eq!(refused.reason, SubmitError::Unsupported);
        driver.expect_silence();
    }
    Ok(())
}

pub fn the_simplest_echo_resets_nobody_who_reads(fixture: &mut Fixture) -> Verdict {
    const BYTES: usize = 1_000_000;
    for form in Form::ALL {
        // What a program has that sets nothing.
        let mut driver = Driver::new(Config { engine: Some(fixture.engine()), ..Config::default() });
        for seed in 0..20 {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, 0);
            driver.read_stream(handle).unwrap();
            let sent = net::pattern(BYTES, seed);
            let client = || {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        (&peer).write_all(&sent).unwrap();
                        peer.shutdown(Shutdown::Write).unwrap();
                    });
                    net::read_to_end(&mut &peer)
                })
            };
            let (received, end) = driver.drive_while(client, |channel, completion| match completion.event {
                Event::Read { data: ReadData::Buffer(data), .. } => {
                    if channel.write_quiet(completion.handle, data).is_err() {
                        channel.reset(completion.handle).unwrap();
                    }
                }
                Event::Read { .. } => channel.close(completion.handle).unwrap(),
                other => panic!("{other:?}"),
            });
            assert_eq!((received.len(), end), (BYTES, End::Finished), "connection {seed}");
            assert!(received == sent);
        }
    }
    Ok(())
}
