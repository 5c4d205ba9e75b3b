//! Connected byte streams.

use std::io::{IoSlice, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use megapipe::{AcceptAs, AcceptCount, Event, SockAddr};
use socket2::{Domain, MsgHdr, Socket, Type};

use crate::conformance::Fixture;
use crate::driver::{Driver, Form};
use crate::net::{self, End, Scratch};
use crate::skip::Verdict;

pub fn tcp_v4_carries_bytes_both_ways(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|driver, form| carries_bytes(driver, form, net::tcp_pair()));
    Ok(())
}

pub fn tcp_v6_carries_bytes_both_ways(fixture: &mut Fixture) -> Verdict {
    let listener = net::listener_v6()?;
    fixture.for_each_form(|driver, form| carries_bytes(driver, form, net::pair_of(&listener)));
    Ok(())
}

pub fn unix_stream_carries_bytes_both_ways(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|driver, form| carries_bytes(driver, form, net::unix_pair(Type::STREAM)));
    Ok(())
}

fn carries_bytes<P: std::io::Read + Write + Send>(
    mut driver: Driver,
    form: Form,
    (socket, mut peer): (OwnedFd, P),
) {
    let handle = driver.add(socket, form, 7);
    let question = net::pattern(100_000, 1);
    let answer = net::pattern(100_000, 2);
    let mut arrived = Vec::new();
    let read = driver.read_stream(handle).unwrap();
    let write = driver.write(handle, answer.clone()).unwrap();
    let mut written = false;
    let got = {
        let question = &question;
        let want = answer.len();
        driver.drive_while(
            || {
                peer.write_all(question).unwrap();
                net::read_exactly(&mut peer, want)
            },
            |_, completion| {
                assert_eq!((completion.handle, completion.cookie), (handle, 7));
                match completion.event {
                    Event::Read { result, data, more } => {
                        assert_eq!(completion.op, read);
                        assert!(more && result.unwrap() == data.bytes().len());
                        arrived.extend_from_slice(data.bytes());
                    }
                    Event::Write { result, .. } => {
                        assert_eq!(completion.op, write);
                        assert_eq!(result.unwrap(), want);
                        written = true;
                    }
                    other => panic!("{other:?}"),
                }
            },
        )
    };
    while arrived.len() < question.len() || !written {
        match driver.next().event {
            Event::Read { data, .. } => arrived.extend_from_slice(data.bytes()),
            Event::Write { .. } => written = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(got == answer, "the peer got other bytes");
    assert!(arrived == question, "other bytes arrived");
}

/// unix(7): one receive stops between bytes that came with descriptors and those that did not,
/// however much room it has.
pub fn bytes_behind_passed_descriptors_do_not_stay_behind(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for kind in ["read", "read_into", "read_stream"] {
            let (socket, peer) = net::unix_pair(Type::STREAM);
            let handle = driver.add(socket, form, 0);
            let start = |driver: &mut Driver| match kind {
                "read" => driver.read(handle).unwrap(),
                "read_into" => driver.read_into(handle, Vec::with_capacity(100)).unwrap(),
                _ => driver.read_stream(handle).unwrap(),
            };
            let mut op = start(&mut driver);
            driver.expect_silence();
            send_descriptor(&peer, b"first");
            peer.send(b"second").unwrap();
            let mut got = Vec::new();
            while got.len() < 11 {
                let (result, more) = driver.expect_read(op);
                got.extend(result.unwrap());
                if !more {
                    op = start(&mut driver);
                }
            }
            assert_eq!(got, b"firstsecond", "{kind}");
            driver.close(handle).unwrap();
            driver.expect_silence();
        }
    });
    Ok(())
}

/// Sends bytes, and the peer's own descriptor with them.
fn send_descriptor(peer: &Socket, bytes: &[u8]) {
    let descriptor = peer.as_raw_fd().to_ne_bytes();
    // struct cmsghdr, and the descriptor behind it.
    let len = size_of::<usize>() + 2 * size_of::<i32>() + descriptor.len();
    let mut control = len.to_ne_bytes().to_vec();
    control.extend(libc::SOL_SOCKET.to_ne_bytes());
    control.extend(libc::SCM_RIGHTS.to_ne_bytes());
    control.extend(descriptor);
    control.resize(len.next_multiple_of(size_of::<usize>()), 0);
    let pieces = [IoSlice::new(bytes)];
    let message = MsgHdr::new().with_buffers(&pieces).with_control(&control);
    assert_eq!(peer.sendmsg(&message, 0).unwrap(), bytes.len());
}

pub fn connect_reaches_a_listener(fixture: &mut Fixture) -> Verdict {
    let scratch = Scratch::new();
    let v4 = net::listener();
    let mut targets: Vec<(Domain, SockAddr, OwnedFd)> = Vec::new();
    targets.push((Domain::IPV4, v4.local_addr().unwrap().into(), v4.into()));
    if let Ok(v6) = net::listener_v6() {
        targets.push((Domain::IPV6, v6.local_addr().unwrap().into(), v6.into()));
    }
    let path = scratch.join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    targets.push((Domain::UNIX, SockAddr::unix(&path).unwrap(), unix.into()));
    for (domain, address, listener) in &targets {
        fixture.for_each_form(|mut driver, form| {
            let handle = driver.add(Socket::new(*domain, Type::STREAM, None).unwrap().into(), form, 1);
            let op = driver.connect(handle, address).unwrap();
            let completion = driver.next();
            assert_eq!((completion.op, completion.cookie), (op, 1));
            assert!(matches!(completion.event, Event::Connect(Ok(()))), "{:?}", completion.event);
            let (accepted, _) = Socket::from(listener.try_clone().unwrap()).accept().unwrap();
            net::bounded(&accepted);
            let write = driver.write(handle, &b"hello"[..]).unwrap();
            assert_eq!(driver.expect_write(write).unwrap(), 5);
            assert_eq!(net::read_exactly(&mut &accepted, 5), b"hello");
        });
    }
    Ok(())
}

pub fn connect_to_nobody_is_refused(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let handle = driver.add(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap().into(), form, 0);
        let (_closed, address) = net::closed_port();
        let op = driver.connect(handle, &address).unwrap();
        let completion = driver.next();
        assert_eq!(completion.op, op);
        let Event::Connect(Err(error)) = completion.event else { panic!("{:?}", completion.event) };
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    });
    Ok(())
}

pub fn every_kind_of_read_gets_its_bytes(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        for (round, late) in [false, true].into_iter().enumerate() {
            let text = net::pattern(10, round as u64);
            let send = |peer: &mut std::net::TcpStream| peer.write_all(&text).unwrap();

            let start = |driver: &mut Driver, peer: &mut _, f: &dyn Fn(&mut Driver) -> megapipe::OpId| {
                if !late {
                    send(peer);
                }
                let op = f(driver);
                if late {
                    driver.flush().unwrap();
                    send(peer);
                }
                driver.expect_read(op)
            };
            let (result, more) = start(&mut driver, &mut peer, &|driver| driver.read(handle).unwrap());
            assert!(result.unwrap() == text && !more);
            let (result, more) = start(&mut driver, &mut peer, &|driver| {
                driver.read_into(handle, Vec::with_capacity(100)).unwrap()
            });
            assert!(result.unwrap() == text && !more);
            let (result, more) = start(&mut driver, &mut peer, &|driver| {
                let rooms = vec![Vec::with_capacity(3), Vec::with_capacity(4), Vec::with_capacity(50)];
                driver.read_vectored(handle, rooms).unwrap()
            });
            assert!(result.unwrap() == text && !more);
        }
        // The vector's present content is room, too.
        peer.write_all(b"xyz").unwrap();
        let op = driver.read_into(handle, vec![0; 64]).unwrap();
        assert_eq!(driver.expect_read(op).0.unwrap(), b"xyz");
    });
    Ok(())
}

pub fn queued_reads_take_the_bytes_in_their_order(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let text = net::pattern(4000, 3);
        let reads: Vec<_> =
            (0..40).map(|_| driver.read_into(handle, Vec::with_capacity(100)).unwrap()).collect();
        let stream = driver.read_stream(handle).unwrap();
        driver.flush().unwrap();
        peer.write_all(&text).unwrap();
        peer.write_all(&text).unwrap();
        let mut got = Vec::new();
        for read in reads {
            got.extend(driver.expect_read(read).0.unwrap());
        }
        while got.len() < 2 * text.len() {
            let (result, more) = driver.expect_read(stream);
            assert!(more);
            got.extend(result.unwrap());
        }
        assert!(got == [&text[..], &text[..]].concat(), "bytes went to the wrong read");
    });
    Ok(())
}

pub fn end_of_stream_ends_the_reading(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let op = driver.read_stream(handle).unwrap();
        peer.write_all(b"last").unwrap();
        drop(peer);
        let (result, more) = driver.expect_read(op);
        assert!(result.unwrap() == b"last" && more);
        let (result, more) = driver.expect_read(op);
        assert!(result.unwrap().is_empty() && !more);
        driver.expect_silence();
        // The end stays the end, for each kind of read.
        let op = driver.read(handle).unwrap();
        assert!(driver.expect_read(op).0.unwrap().is_empty());
        let op = driver.read_into(handle, Vec::with_capacity(8)).unwrap();
        assert!(driver.expect_read(op).0.unwrap().is_empty());
    });
    Ok(())
}

pub fn a_reset_peer_fails_the_read(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for stream in [false, true] {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, 0);
            let op = if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap();
            driver.flush().unwrap();
            net::reset_on_drop(&peer);
            drop(peer);
            let (result, more) = driver.expect_read(op);
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
            assert!(!more);
            driver.close(handle).unwrap();
        }
        driver.expect_silence();
    });
    Ok(())
}

pub fn half_close_leaves_the_other_direction(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        // Ours first.
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let op = driver.shutdown(handle, Shutdown::Write).unwrap();
        let completion = driver.next();
        assert_eq!(completion.op, op);
        assert!(matches!(completion.event, Event::Disconnect(Ok(()))));
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)), (vec![], End::Finished));
        peer.write_all(b"still here").unwrap();
        assert_eq!(driver.read_exactly(handle, 10), b"still here");
        // Theirs first.
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        peer.shutdown(Shutdown::Write).unwrap();
        let op = driver.read(handle).unwrap();
        assert!(driver.expect_read(op).0.unwrap().is_empty());
        let op = driver.write(handle, &b"answer"[..]).unwrap();
        assert_eq!(driver.expect_write(op).unwrap(), 6);
        driver.close(handle).unwrap();
        let (bytes, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
        assert_eq!((&bytes[..], end), (&b"answer"[..], End::Finished));
    });
    Ok(())
}

pub fn shutdown_of_reading_ends_the_read(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for stream in [false, true] {
            let (socket, _peer) = net::tcp_pair();
            let handle = driver.add(socket, form, 0);
            let read = if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap();
            driver.flush().unwrap();
            let shutdown = driver.shutdown(handle, Shutdown::Read).unwrap();
            let mut ended = 0;
            for _ in 0..2 {
                let completion = driver.next();
                match completion.event {
                    Event::Read { result, more, .. } => {
                        assert_eq!(completion.op, read);
                        assert!(result.unwrap() == 0 && !more);
                        ended += 1;
                    }
                    Event::Disconnect(result) => {
                        assert_eq!(completion.op, shutdown);
                        result.unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(ended, 1);
        }
    });
    Ok(())
}

pub fn shutdown_of_both_ends_both(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        let op = driver.shutdown(handle, Shutdown::Both).unwrap();
        assert_eq!(driver.next().op, op);
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished);
        let op = driver.write(handle, &b"too late"[..]).unwrap();
        assert_eq!(driver.expect_write(op).unwrap_err().raw_os_error(), Some(libc::EPIPE));
        let op = driver.shutdown(handle, Shutdown::Both).unwrap();
        assert_eq!(driver.next().op, op);
    });
    Ok(())
}

pub fn everything_works_in_one_loop(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let scratch = Scratch::new();
    let text = net::pattern(3000, 9);

    let listener: TcpListener = net::listener();
    let address = listener.local_addr().unwrap();
    let accepting = driver.register(listener, 1).unwrap();
    driver.accept(accepting, AcceptCount::Exactly(1), AcceptAs::LwSocket).unwrap();
    let (tcp, mut tcp_peer) = net::tcp_pair();
    let (unix, mut unix_peer) = net::unix_pair(Type::STREAM);
    let (packets, packets_peer) = net::unix_pair(Type::DGRAM);
    let (pipe, mut pipe_end) = std::io::pipe().unwrap();
    let path = scratch.join("file");
    std::fs::write(&path, &text).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let handles = [
        driver.register(tcp, 2).unwrap(),
        driver.add(unix, Form::Lightweight, 3),
        driver.register(packets, 4).unwrap(),
        driver.register(pipe, 5).unwrap(),
        driver.register(file, 6).unwrap(),
    ];
    for handle in handles {
        driver.read_into(handle, Vec::with_capacity(text.len())).unwrap();
    }
    driver.timer(std::time::Duration::from_millis(1), 7).unwrap();
    driver.flush().unwrap();
    let _connecting = net::connect_to(address);
    tcp_peer.write_all(&text).unwrap();
    unix_peer.write_all(&text).unwrap();
    packets_peer.send(&text).unwrap();
    pipe_end.write_all(&text).unwrap();
    let mut seen = Vec::new();
    for _ in 0..7 {
        let completion = driver.next();
        match completion.event {
            Event::Read { result, data, .. } => {
                let count = result.unwrap();
                assert!(data.bytes() == &text[..count] && count > 0);
            }
            Event::Accept { result, more } => {
                result.unwrap();
                assert!(!more);
            }
            Event::Timer(result) => result.unwrap(),
            other => panic!("{other:?}"),
        }
        seen.push(completion.cookie);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7]);
    driver.expect_silence();
    Ok(())
}
