//! Cancelling one operation, wherever it stands.

use std::io::Write;

use megapipe::{Event, OpId};
use socket2::{Domain, Socket, Type};

use crate::conformance::Fixture;
use crate::driver::Driver;
use crate::net::{self, End};
use crate::skip::Verdict;

fn expect_cancelled_read(driver: &mut Driver, op: OpId) {
    let (result, more) = driver.expect_read(op);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert!(!more);
}

pub fn a_pending_read(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        for flushed in [false, true] {
            for own in [false, true] {
                let op = if own {
                    driver.read_into(handle, vec![0; 16]).unwrap()
                } else {
                    driver.read(handle).unwrap()
                };
                if flushed {
                    driver.flush().unwrap();
                }
                driver.cancel(op).unwrap();
                // Asking twice is asking once.
                driver.cancel(op).unwrap();
                expect_cancelled_read(&mut driver, op);
                assert!(driver.cancel(op).is_err());
                // It took nothing.
                peer.write_all(b"all of it").unwrap();
                assert_eq!(driver.read_exactly(handle, 9), b"all of it");
            }
        }
        driver.expect_silence();
    });
    Ok(())
}

pub fn a_queued_read(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let first = driver.read_into(handle, Vec::with_capacity(4)).unwrap();
        let middle = driver.read_into(handle, Vec::with_capacity(4)).unwrap();
        let last = driver.read_into(handle, Vec::with_capacity(4)).unwrap();
        driver.flush().unwrap();
        driver.cancel(middle).unwrap();
        expect_cancelled_read(&mut driver, middle);
        peer.write_all(b"aaaabbbb").unwrap();
        assert_eq!(driver.expect_read(first).0.unwrap(), b"aaaa");
        assert_eq!(driver.expect_read(last).0.unwrap(), b"bbbb");
        driver.expect_silence();
    });
    Ok(())
}

pub fn a_read_that_is_done(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let (socket, mut other_peer) = net::tcp_pair();
        let other = driver.add(socket, form, 1);
        for stream in [false, true] {
            peer.write_all(b"data").unwrap();
            other_peer.write_all(b"x").unwrap();
            let ops = [
                driver.read(other).unwrap(),
                if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap(),
            ];
            // Both are done after one turn; one is handed out, the other is cancelled.
            let first = driver.next();
            let (done, waiting) = if first.op == ops[0] { (ops[0], ops[1]) } else { (ops[1], ops[0]) };
            assert_eq!(first.op, done);
            driver.cancel(waiting).unwrap();
            if stream && done == ops[1] {
                driver.cancel(ops[1]).unwrap();
            }
            // What came before the cancel is not lost.
            let mut bytes = 0;
            let mut ends = 0;
            while ends < if stream && done == ops[1] { 2 } else { 1 } {
                let completion = driver.next();
                let Event::Read { result, more, .. } = completion.event else { panic!() };
                match result {
                    Ok(count) => bytes += count,
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
                }
                ends += u32::from(!more);
            }
            driver.expect_silence();
            if done == ops[0] && bytes == 0 {
                // The cancel came first after all: then the bytes are still in the socket.
                assert_eq!(driver.read_exactly(handle, 4), b"data");
            }
            assert!(ops.iter().all(|&op| driver.cancel(op).is_err()));
        }
    });
    Ok(())
}

pub fn a_queued_read_behind_one_that_is_done(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|_, form| {
        let mut driver = fixture.driver_with(|config| config.handles_max = 2);
        let (socket, mut other_peer) = net::tcp_pair();
        let other = driver.add(socket, form, 1);
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        peer.write_all(b"aaaa").unwrap();
        other_peer.write_all(b"x").unwrap();
        let mark = driver.read(other).unwrap();
        let first = driver.read_into(handle, Vec::with_capacity(4)).unwrap();
        let second = driver.read_into(handle, Vec::with_capacity(4)).unwrap();
        let third = driver.read_into(handle, Vec::with_capacity(4)).unwrap();
        let completion = driver.next();
        if completion.op == mark {
            // The first read is done and not handed out: its end would start the second.
            driver.cancel(second).unwrap();
            assert_eq!(driver.expect_read(first).0.unwrap(), b"aaaa");
        } else {
            assert_eq!(completion.op, first);
            driver.cancel(second).unwrap();
            driver.expect_read(mark).0.unwrap();
        }
        expect_cancelled_read(&mut driver, second);
        peer.write_all(b"cccc").unwrap();
        assert_eq!(driver.expect_read(third).0.unwrap(), b"cccc");
        driver.close(handle).unwrap();
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished);
        driver.drive_until(
            |channel| channel.register(net::tcp_pair().0, 0).is_ok(),
            |_, completion| panic!("{completion:?}"),
        );
    });
    Ok(())
}

pub fn a_read_stream(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let mut got = Vec::new();
        let mut sent = Vec::new();
        for round in 0..50u32 {
            let op = driver.read_stream(handle).unwrap();
            driver.flush().unwrap();
            let text = net::pattern(100, u64::from(round));
            sent.extend_from_slice(&text);
            peer.write_all(&text).unwrap();
            if round % 2 == 0 {
                let (result, _) = driver.expect_read(op);
                got.extend(result.unwrap());
            }
            driver.cancel(op).unwrap();
            loop {
                let (result, more) = driver.expect_read(op);
                match result {
                    Ok(bytes) => got.extend(bytes),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
                }
                if !more {
                    break;
                }
            }
        }
        let left = sent.len() - got.len();
        got.extend(driver.read_exactly(handle, left));
        assert!(got == sent, "a cancelled read lost bytes");
        driver.expect_silence();
    });
    Ok(())
}

pub fn a_connect(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        // A listener whose queue is full lets connects wait.
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&net::v4().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let _first = net::connect_to(address.as_socket().unwrap());
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let handle = driver.add(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap().into(), form, 0);
            waiting.push((handle, driver.connect(handle, &address).unwrap()));
        }
        while let Some(completion) = driver.next_within(crate::driver::GLANCE) {
            waiting.retain(|(_, op)| *op != completion.op);
        }
        assert!(!waiting.is_empty(), "the queue is longer than asked for");
        for (handle, op) in waiting {
            driver.cancel(op).unwrap();
            let completion = driver.next();
            assert_eq!(completion.op, op);
            let Event::Connect(Err(error)) = completion.event else { panic!("{:?}", completion.event) };
            assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
            driver.close(handle).unwrap();
        }
        driver.expect_silence();
    });
    Ok(())
}

pub fn a_queued_write(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for flushed in [false, true] {
            let (socket, mut peer) = net::tight_tcp_pair();
            let handle = driver.add(socket, form, 0);
            let text = net::pattern(300_000, 1);
            let head = driver.write(handle, text.clone()).unwrap();
            driver.expect_silence();
            let middle = driver.write(handle, vec![0xEE; 1000]).unwrap();
            let other = driver.write(handle, vec![0xEE; 1000]).unwrap();
            let tail = driver.write(handle, &b"tail"[..]).unwrap();
            if flushed {
                driver.flush().unwrap();
            }
            for op in [middle, other] {
                driver.cancel(op).unwrap();
            }
            // The kernel took part of the first: it goes on whole, cancelled or not.
            driver.cancel(head).unwrap();
            let (got, mut seen) = driver.while_peer(|| net::read_exactly(&mut peer, text.len() + 4));
            assert!(got[..text.len()] == text[..], "the stream is torn");
            assert_eq!(&got[text.len()..], b"tail");
            while seen.len() < 4 {
                seen.push(driver.next());
            }
            driver.expect_silence();
            for completion in seen {
                let Event::Write { result, data } = completion.event else { panic!() };
                if completion.op == head {
                    assert_eq!(result.unwrap(), text.len());
                } else if completion.op == tail {
                    assert_eq!(result.unwrap(), 4);
                } else {
                    assert!([middle, other].contains(&completion.op));
                    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
                    assert_eq!(data.len(), 1000);
                }
            }
            driver.close(handle).unwrap();
        }
        // Not in the kernel's hands yet.
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let op = driver.write(handle, &b"never"[..]).unwrap();
        driver.cancel(op).unwrap();
        assert_eq!(driver.expect_write(op).unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        driver.write_quiet(handle, &b"only this"[..]).unwrap();
        driver.close(handle).unwrap();
        let (bytes, _) = driver.quietly_while(|| net::read_to_end(&mut peer));
        assert_eq!(bytes, b"only this");
    });
    Ok(())
}

pub fn a_queued_disconnect(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        let head = driver.write(handle, vec![1; 300_000]).unwrap();
        driver.expect_silence();
        let disconnect = driver.disconnect(handle).unwrap();
        let tail = driver.write(handle, vec![2; 10]).unwrap();
        driver.cancel(disconnect).unwrap();
        let completion = driver.next();
        assert_eq!(completion.op, disconnect);
        let Event::Disconnect(Err(error)) = completion.event else { panic!("{:?}", completion.event) };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        let (_, mut seen) = driver.while_peer(|| net::read_exactly(&mut peer, 300_010));
        while seen.len() < 2 {
            seen.push(driver.next());
        }
        assert!(seen[0].op == head && seen[1].op == tail);
    });
    Ok(())
}

pub fn what_is_over_cannot_be_cancelled(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (socket, mut peer) = net::tcp_pair();
    let handle = driver.register(socket, 0).unwrap();
    assert!(driver.cancel(OpId::NONE).is_err());
    assert!(driver.cancel(OpId::from_bits(0)).is_err());
    peer.write_all(b"x").unwrap();
    let op = driver.read(handle).unwrap();
    driver.expect_read(op).0.unwrap();
    assert!(driver.cancel(op).is_err());
    let op = driver.write(handle, &b"y"[..]).unwrap();
    driver.expect_write(op).unwrap();
    assert!(driver.cancel(op).is_err());
    let op = driver.read(handle).unwrap();
    driver.close(handle).unwrap();
    driver.expect_silence();
    assert!(driver.cancel(op).is_err());
    Ok(())
}
