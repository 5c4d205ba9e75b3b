//! The ends of handles: closed, reset, unregistered, dropped.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use megapipe::{
    AcceptAs, AcceptCount, AcceptError, Event, Handle, Source, SubmitError, UnregisterError, WriteData,
};
use socket2::Type;
use sys::capabilities::Capabilities;
use sys::socket::is_readable;

use crate::conformance::Fixture;
use crate::driver::{Driver, Form};
use crate::net::{self, End};
use crate::process;
use crate::skip::Verdict;
use crate::stack;

pub fn a_closed_handle_stays_silent(fixture: &mut Fixture) -> Verdict {
    // One entry in the table: every handle has the index of the one before.
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| {
            config.handles_max = 4;
            config.lwsockets_max = 64;
            config.operations_max = 64;
        });
        for round in 0..3000u64 {
            let (socket, mut peer) = net::unix_pair(Type::STREAM);
            let handle = loop {
                // The last ones' ends may still be on their way.
                let full = match form {
                    Form::Descriptor => driver.register(socket.try_clone().unwrap(), round).ok(),
                    Form::Lightweight => driver
                        .to_lwsocket(socket.try_clone().unwrap())
                        .ok()
                        .and_then(|socket| driver.register(socket, round).ok()),
                };
                match full {
                    Some(handle) => break handle,
                    None => driver.expect_silence(),
                }
            };
            drop(socket);
            let early = round % 3 == 0;
            let text = round.to_ne_bytes();
            if early {
                peer.write_all(&text).unwrap();
            }
            match round % 4 {
                0 => drop(driver.read_stream(handle).unwrap()),
                1 => drop(driver.read(handle).unwrap()),
                2 => drop(driver.read_into(handle, Vec::with_capacity(64)).unwrap()),
                _ => {
                    driver.read_stream(handle).unwrap();
                    driver.write(handle, vec![1; 64]).unwrap();
                }
            }
            match round % 5 {
                0 => {}
                1 => driver.flush().unwrap(),
                _ => {
                    if !early {
                        driver.flush().unwrap();
                        peer.write_all(&text).unwrap();
                    }
                    let completion = driver.next();
                    assert_eq!((completion.handle, completion.cookie), (handle, round));
                    if let Event::Read { result, data, .. } = completion.event {
                        assert_eq!(result.unwrap(), 8);
                        assert_eq!(data.bytes(), text, "another handle's bytes");
                    }
                    // More is on its way, or done and not handed out.
                    peer.write_all(&text).unwrap();
                }
            }
            driver.close(handle).unwrap();
        }
        driver.expect_silence();
    }
    Ok(())
}

pub fn stale_handles_are_refused(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, _peer) = net::tcp_pair();
        let closed = driver.add(socket, form, 0);
        driver.close(closed).unwrap();
        let (socket, _other) = net::tcp_pair();
        let gone = driver.add(socket, form, 0);
        drop(driver.unregister(gone).unwrap());
        let (socket, _third) = net::tcp_pair();
        let reset = driver.add(socket, form, 0);
        driver.reset(reset).unwrap();
        driver.expect_silence();
        let (_closed_port, address) = net::closed_port();
        for handle in
            [closed, gone, reset, Handle::NONE, Handle::from_bits(0), Handle::from_bits(1 << 40 | 3)]
        {
            let stale = SubmitError::StaleHandle;
            assert_eq!(driver.accept(handle, AcceptCount::Unlimited, AcceptAs::Fd).unwrap_err(), stale);
            assert_eq!(driver.connect(handle, &address).unwrap_err(), stale);
            assert_eq!(driver.read(handle).unwrap_err(), stale);
            assert_eq!(driver.read_stream(handle).unwrap_err(), stale);
            let refused = driver.read_into(handle, vec![0; 9]).unwrap_err();
            assert!(refused.reason == stale && refused.into_data().bytes() == [0; 9]);
            let refused = driver.write(handle, vec![5; 3]).unwrap_err();
            assert!(refused.reason == stale && refused.into_data().len() == 3);
            assert_eq!(driver.disconnect(handle).unwrap_err(), stale);
            assert_eq!(driver.shutdown(handle, Shutdown::Both).unwrap_err(), stale);
            assert!(driver.close(handle).is_err());
            assert!(driver.reset(handle).is_err());
            assert!(driver.unregister(handle).is_err());
            assert!(driver.cookie(handle).is_err());
            assert!(driver.set_cookie(handle, 1).is_err());
            assert!(driver.peer_address(handle).is_err());
        }
        driver.expect_silence();
    });
    Ok(())
}

/// What a handle may have pending when it ends.
const PENDING: [&str; 7] =
    ["nothing", "read", "read_into", "read_stream", "reads queued", "a quiet write", "a disconnect"];

fn make_pending(driver: &mut Driver, handle: Handle, what: &str) {
    match what {
        "nothing" => {}
        "read" => drop(driver.read(handle).unwrap()),
        "read_into" => drop(driver.read_into(handle, vec![0; 100]).unwrap()),
        "read_stream" => drop(driver.read_stream(handle).unwrap()),
        "reads queued" => {
            for _ in 0..3 {
                driver.read_into(handle, vec![0; 100]).unwrap();
                driver.read(handle).unwrap();
            }
            driver.read_stream(handle).unwrap();
        }
        "a quiet write" => {
            driver.read_stream(handle).unwrap();
            driver.write_quiet(handle, &b"bye"[..]).unwrap();
        }
        "a disconnect" => {
            driver.read_stream(handle).unwrap();
            driver.disconnect(handle).unwrap();
        }
        other => panic!("{other}"),
    }
}

pub fn close_sends_fin_whatever_is_pending(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for what in PENDING {
            // How far the pending operations got when the close comes.
            for progress in 0..3 {
                let (socket, mut peer) = net::tcp_pair();
                let handle = driver.add(socket, form, 0);
                make_pending(&mut driver, handle, what);
                match progress {
                    0 => {}
                    1 => driver.flush().unwrap(),
                    _ => while driver.next_within(Duration::ZERO).is_some() {},
                }
                driver.close(handle).unwrap();
                let (bytes, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
                assert_eq!(end, End::Finished, "{what}, {progress}");
                assert_eq!(bytes, if what == "a quiet write" { &b"bye"[..] } else { b"" });
            }
        }
    });
    Ok(())
}

pub fn close_of_a_blocked_writer_delivers_first(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for blocked_already in [false, true] {
            let (socket, mut peer) = net::tight_tcp_pair();
            let handle = driver.add(socket, form, 0);
            let text = net::pattern(200_000, 1);
            driver.read_stream(handle).unwrap();
            driver.write(handle, text[..150_000].to_vec()).unwrap();
            driver.write_quiet(handle, text[150_000..].to_vec()).unwrap();
            if blocked_already {
                driver.expect_silence();
            }
            driver.close(handle).unwrap();
            driver.expect_silence();
            assert!(driver.is_closing());
            let (bytes, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
            assert!(bytes == text, "{} of {} bytes, or others", bytes.len(), text.len());
            assert_eq!(end, End::Finished);
            driver.drive_until(|channel| !channel.is_closing(), |_, other| panic!("{other:?}"));
        }
        assert_eq!(driver.stats().close_timeouts, 0);
    });
    Ok(())
}

pub fn close_times_out_on_a_peer_that_does_not_read(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| {
            config.close_timeout = Duration::from_millis(50);
            config.handles_max = 1;
        });
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.write(handle, vec![1; 1 << 20]).unwrap();
        driver.expect_silence();
        assert!(!driver.is_closing());
        driver.close(handle).unwrap();
        assert!(driver.is_closing());
        driver.drive_until(|channel| channel.stats().close_timeouts == 1, |_, other| panic!("{other:?}"));
        assert!(!driver.is_closing());
        let (bytes, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
        assert_eq!(end, End::Reset);
        assert!(bytes.len() < 1 << 20);
        // The entry is free again.
        driver.drive_until(
            |channel| channel.register(net::tcp_pair().0, 0).is_ok(),
            |_, completion| panic!("{completion:?}"),
        );
    }
    Ok(())
}

pub fn close_behind_a_finished_disconnect_frees_the_handle(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.handles_max = 2);
        let mut peers = Vec::new();
        let mut handles = Vec::new();
        for cookie in 0..2 {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, cookie);
            driver.disconnect(handle).unwrap();
            handles.push(handle);
            peers.push(peer);
        }
        driver.flush().unwrap();
        for peer in &mut peers {
            assert_eq!(net::read_to_end(peer), (vec![], End::Finished));
        }
        // Both are done; one is handed out, and the other's handle is closed before.
        let first = driver.next();
        assert!(matches!(first.event, Event::Disconnect(Ok(()))));
        driver.close(handles[1 - first.cookie as usize]).unwrap();
        driver.drive_until(
            |channel| channel.register(net::tcp_pair().0, 0).is_ok(),
            |_, completion| panic!("{completion:?}"),
        );
        assert_eq!(driver.stats().close_timeouts, 0);
    }
    Ok(())
}

/// An engine that looks a socket up only when a shutdown begins must not find another one
/// under its number.
pub fn a_shutdown_hits_no_successor(fixture: &mut Fixture) -> Verdict {
    for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
        succeed_each_other(&mut fixture.driver(), kind, || {});
    }
    // Out of descriptors, an engine may have to go other ways.
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        let mut driver = Driver::new(config);
        if driver.engine() == megapipe::EngineKind::Uring {
            // Where the ring keeps no sockets, each connection needs one itself.
            let needed = u64::from(!Capabilities::get().direct_descriptors_safe);
            succeed_each_other(&mut driver, AcceptAs::LwSocket, || process::leave_descriptors(needed));
        }
    });
    Ok(())
}

/// Each connection is shut down and closed, and the next one takes its number.
fn succeed_each_other(driver: &mut Driver, kind: AcceptAs, restrict: impl FnOnce()) {
    let listener = net::listener();
    let mut peers: Vec<_> = (0..100).map(|_| net::connect(&listener)).collect();
    let listening = driver.register(listener, 0).unwrap();
    restrict();
    for (round, peer) in peers.iter_mut().enumerate() {
        driver.accept(listening, AcceptCount::Exactly(1), kind).unwrap();
        let Event::Accept { result, .. } = driver.next().event else { panic!("no connection") };
        let handle = driver.register(result.unwrap().socket, 0).unwrap();
        let op = driver.read(handle).unwrap();
        driver.flush().unwrap();
        peer.write_all(b"alive").expect("nobody has shut it down");
        let (result, _) = driver.expect_read(op);
        assert_eq!(result.unwrap(), b"alive", "round {round}: shut down in another's place");
        if round % 2 == 0 {
            driver.read_stream(handle).unwrap();
        }
        match round % 5 {
            0 | 1 => {
                driver.shutdown(handle, Shutdown::Both).unwrap();
                driver.close(handle).unwrap();
            }
            2 => {
                driver.shutdown(handle, Shutdown::Write).unwrap();
                drop(driver.unregister(handle).unwrap());
            }
            3 => {
                driver.disconnect(handle).unwrap();
                driver.flush().unwrap();
                // Without a descriptor it cannot reset.
                if driver.reset(handle).is_err() {
                    driver.close(handle).unwrap();
                }
            }
            _ => {
                driver.disconnect(handle).unwrap();
                drop(driver.unregister(handle).unwrap());
            }
        }
        driver.flush().unwrap();
    }
    driver.close(listening).unwrap();
    driver.expect_silence();
}

pub fn close_of_a_paused_accept_frees_everything(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| {
        config.lwsockets_max = 2;
        config.operations_max = 2;
        config.handles_max = 8;
    });
    for _ in 0..5 {
        let listener = net::listener();
        let peers: Vec<_> = (0..4).map(|_| net::connect(&listener)).collect();
        let handle = driver.register(listener, 0).unwrap();
        driver.accept(handle, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
        let mut connections = Vec::new();
        loop {
            let Event::Accept { result, more } = driver.next().event else { panic!() };
            assert!(more);
            match result {
                Ok(accepted) => connections.push(accepted.socket),
                Err(AcceptError::TableFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(connections.len(), 2);
        driver.close(handle).unwrap();
        driver.expect_silence();
        drop(connections);
        driver.expect_silence();
        // What is registered in its place has nothing to do with the accept.
        let (socket, mut peer) = net::tcp_pair();
        let next = driver.register(socket, 1).unwrap();
        let op = driver.read(next).unwrap();
        driver.expect_silence();
        peer.write_all(b"mine").unwrap();
        assert_eq!(driver.expect_read(op).0.unwrap(), b"mine");
        driver.close(next).unwrap();
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished);
        drop(peers);
    }
    Ok(())
}

pub fn reset_sends_rst_whatever_is_pending(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for what in PENDING.into_iter().filter(|what| *what != "a disconnect") {
            for flushed in [false, true] {
                let (socket, mut peer) = net::tcp_pair();
                let handle = driver.add(socket, form, 0);
                make_pending(&mut driver, handle, what);
                if flushed {
                    driver.flush().unwrap();
                }
                driver.reset(handle).unwrap();
                let (_, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
                assert_eq!(end, End::Reset, "{what}");
            }
        }
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.write(handle, vec![1; 1 << 20]).unwrap();
        driver.expect_silence();
        driver.reset(handle).unwrap();
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Reset, "a blocked write");
    });
    Ok(())
}

pub fn unregister_gives_a_silent_file_back(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for what in ["nothing", "read", "read_into", "read_stream", "reads queued"] {
            for flushed in [false, true] {
                let (socket, mut peer) = net::tcp_pair();
                let handle = driver.add(socket, form, 0);
                make_pending(&mut driver, handle, what);
                if flushed {
                    driver.flush().unwrap();
                }
                let source = driver.unregister(handle).unwrap();
                assert_eq!(matches!(source, Source::Fd(_)), form == Form::Descriptor);
                peer.write_all(b"later").unwrap();
                driver.expect_silence();
                // It works in the same channel again,
                let handle = driver.register(source, 5).unwrap();
                assert_eq!(driver.read_exactly(handle, 5), b"later", "{what}");
                let op = driver.write(handle, &b"answer"[..]).unwrap();
                assert_eq!(driver.expect_write(op).unwrap(), 6);
                assert_eq!(net::read_exactly(&mut peer, 6), b"answer");
                // without one,
                let source = driver.unregister(handle).unwrap();
                let fd = match source {
                    Source::Fd(fd) => fd,
                    Source::LwSocket(socket) => driver.to_fd(socket).unwrap(),
                };
                let mut stream = TcpStream::from(fd);
                net::bounded(&stream);
                peer.write_all(b"alone").unwrap();
                assert_eq!(net::read_exactly(&mut stream, 5), b"alone");
                // and in another.
                let mut second = fixture.driver();
                let handle = second.register(stream, 6).unwrap();
                peer.write_all(b"other").unwrap();
                assert_eq!(second.read_exactly(handle, 5), b"other");
                driver.expect_silence();
            }
        }
    });
    Ok(())
}

pub fn unregister_drops_no_write(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        // Queued, and more of them than one turn of an engine sends.
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.write_quiet(handle, &b"HTTP/1.1 101 "[..]).unwrap();
        let parts: Vec<_> = (0..300).map(|_| WriteData::from(&b"."[..])).collect();
        driver.write(handle, parts).unwrap();
        let source = driver.unregister(handle).unwrap();
        let handle = driver.register(source, 0).unwrap();
        driver.write_quiet(handle, &b"Switching"[..]).unwrap();
        driver.close(handle).unwrap();
        let (bytes, end) = driver.quietly_while(|| net::read_to_end(&mut peer));
        assert!(bytes.starts_with(b"HTTP/1.1 101 ....") && bytes.ends_with(b"....Switching"));
        assert_eq!((bytes.len(), end), (13 + 300 + 9, End::Finished));
        // The kernel has no room: the handle stays.
        let (socket, mut peer) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        let text = net::pattern(1 << 20, 3);
        let op = driver.write(handle, text.clone()).unwrap();
        for _ in 0..2 {
            assert_eq!(driver.unregister(handle).unwrap_err(), UnregisterError::WritesQueued);
            driver.expect_silence();
        }
        let (bytes, seen) = driver.while_peer(|| net::read_exactly(&mut peer, text.len()));
        assert!(bytes == text);
        let completion = seen.into_iter().next().unwrap_or_else(|| driver.next());
        assert_eq!(completion.op, op);
        drop(driver.unregister(handle).unwrap());
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)), (vec![], End::Finished));
    });
    // Of messages, a turn sends one.
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::unix_pair(Type::DGRAM);
        let handle = driver.add(socket, form, 0);
        for number in 0..8u8 {
            driver.write_quiet(handle, vec![number]).unwrap();
        }
        drop(driver.unregister(handle).unwrap());
        for number in 0..8u8 {
            let mut byte = [0];
            (&peer).read_exact(&mut byte).unwrap();
            assert_eq!(byte, [number]);
        }
    });
    Ok(())
}

pub fn a_dropped_lwsocket_is_closed(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.lwsockets_max = 2);
    for _ in 0..20 {
        let (socket, mut peer) = net::tcp_pair();
        let socket = driver.to_lwsocket(socket).unwrap();
        drop(socket);
        assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)), (vec![], End::Finished));
    }
    // Dropped after its channel, too.
    let (socket, mut peer) = net::tcp_pair();
    let socket = driver.to_lwsocket(socket).unwrap();
    drop(driver);
    drop(socket);
    assert_eq!(net::read_to_end(&mut peer), (vec![], End::Finished));
    Ok(())
}

pub fn dropping_the_channel_closes_everything(fixture: &mut Fixture) -> Verdict {
    for form in Form::ALL {
        let mut driver = fixture.driver();
        let listener = net::listener();
        let address = listener.local_addr().unwrap();
        let accepting = driver.register(listener, 0).unwrap();
        driver.accept(accepting, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
        let mut peers: Vec<TcpStream> = Vec::new();
        for what in PENDING {
            let (socket, peer) = net::tcp_pair();
            let handle = driver.add(socket, form, 0);
            make_pending(&mut driver, handle, what);
            peers.push(peer);
        }
        let (socket, mut blocked) = net::tight_tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.write(handle, vec![1; 1 << 20]).unwrap();
        driver.flush().unwrap();
        // A completion that holds a buffer may outlive its channel.
        peers[1].write_all(b"kept").unwrap();
        let kept = loop {
            if let Event::Read { data, result: Ok(4), .. } = driver.next().event {
                break data;
            }
        };
        drop(driver);
        assert_eq!(kept.bytes(), b"kept");
        for peer in &mut peers {
            // RST where unread bytes were left behind; FIN elsewhere.
            net::read_to_end(peer);
        }
        assert!(net::read_to_end(&mut blocked).0.len() < 1 << 20);
        process::until("a free port", || TcpStream::connect(address).err());
    }
    Ok(())
}

pub fn dropping_the_channel_closes_what_was_not_handed_out(fixture: &mut Fixture) -> Verdict {
    for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
        let mut driver = fixture.driver();
        let listener = net::listener();
        let handle = driver.register(listener.try_clone().unwrap(), 0).unwrap();
        let mut peer = net::connect(&listener);
        // A stack's connections come to no socket of the kernel's.
        if !stack::is_on() {
            process::until("a connection", || is_readable(listener.as_fd()).unwrap().then_some(()));
        }
        driver.accept(handle, AcceptCount::Unlimited, kind).unwrap();
        driver.flush().unwrap();
        drop(driver);
        assert!(net::read_to_end(&mut peer).0.is_empty());
    }
    Ok(())
}

pub fn twenty_thousand_connections_leave_nothing_behind(fixture: &mut Fixture) -> Verdict {
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
            let mut driver = Driver::new(megapipe::Config {
                handles_max: 40,
                lwsockets_max: 40,
                operations_max: 200,
                read_buffers: 16,
                write_buffers: 16,
                ..config.clone()
            });
            churn(&mut driver, kind, 100);
            let before = process::open_descriptors();
            churn(&mut driver, kind, 10_000);
            assert_eq!(process::open_descriptors(), before, "descriptors are left behind");
        }
    });
    Ok(())
}

/// Connections that come, speak and go, in every manner of going.
fn churn(driver: &mut Driver, kind: AcceptAs, count: u32) {
    let listener = net::listener();
    let address = listener.local_addr().unwrap();
    let accepting = driver.register(listener, 0).unwrap();
    driver.accept(accepting, AcceptCount::Unlimited, kind).unwrap();
    let mut served = 0;
    let client = move || {
        for round in 0..count {
            let mut peer = net::connect_to(address);
            let sent = round % 5 != 4;
            if sent {
                peer.write_all(&round.to_ne_bytes()).unwrap();
            }
            if round % 5 < 2 {
                assert_eq!(net::read_exactly(&mut peer, 4), round.to_ne_bytes());
            }
            if round % 5 == 1 {
                assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "a FIN follows the answer");
            }
            // Ports in TIME_WAIT would run out.
            net::reset_on_drop(&peer);
        }
    };
    let mut live = 0;
    let mut step = |channel: &mut megapipe::Channel, completion: megapipe::Completion| match completion.event
    {
        Event::Accept { result: Ok(accepted), .. } => {
            served += 1;
            let handle = channel.register(accepted.socket, u64::from(served)).unwrap();
            channel.read_stream(handle).unwrap();
            live += 1;
        }
        Event::Accept { result: Err(AcceptError::TableFull), more } => assert!(more),
        Event::Read { result: Ok(count), data, .. } if count > 0 => {
            let round = u32::from_ne_bytes(data.bytes().try_into().unwrap());
            let answer = megapipe::WriteData::from(match data {
                megapipe::ReadData::Buffer(buffer) => buffer,
                other => panic!("{other:?}"),
            });
            match round % 5 {
                0 => channel.write_quiet(completion.handle, answer).unwrap(),
                1 => {
                    channel.write_quiet(completion.handle, answer).unwrap();
                    channel.close(completion.handle).unwrap();
                    live -= 1;
                }
                2 => {
                    channel.reset(completion.handle).unwrap();
                    live -= 1;
                }
                _ => {
                    let source = channel.unregister(completion.handle).unwrap();
                    drop::<Source>(source);
                    live -= 1;
                }
            }
        }
        Event::Read { .. } => {
            channel.close(completion.handle).unwrap();
            live -= 1;
        }
        Event::Write { .. } => {}
        other => panic!("{other:?}"),
    };
    driver.drive_while(client, &mut step);
    // The last ones' ends.
    let mut quiet = 0;
    while quiet < 3 {
        match driver.next_within(Duration::from_millis(10)) {
            Some(completion) => step(driver, completion),
            None => quiet += 1,
        }
    }
    assert_eq!((served, live), (count, 0));
    driver.close(accepting).unwrap();
    driver.expect_silence();
}
