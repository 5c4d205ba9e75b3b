//! Addresses, options and conversions.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use megapipe::{AcceptAs, AcceptCount, ControlError, Event, KeepAlive, OpenError, RegisterError, Source};
use socket2::{SockRef, Type};

use crate::conformance::Fixture;
use crate::driver::WATCHDOG;
use crate::net::{self, End};
use crate::skip::Verdict;

pub fn addresses_of_both_ends(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        // With a read pending, as on every real connection.
        driver.read_stream(handle).unwrap();
        driver.flush().unwrap();
        let local = driver.local_address(handle).unwrap();
        let remote = driver.peer_address(handle).unwrap();
        assert_eq!(local.as_socket(), Some(peer.peer_addr().unwrap()));
        assert_eq!(remote.as_socket(), Some(peer.local_addr().unwrap()));
        let (socket, _peer) = net::unix_pair(Type::STREAM);
        let handle = driver.add(socket, form, 0);
        assert!(driver.peer_address(handle).unwrap().is_unix());
    });
    let mut driver = fixture.driver();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let handle = driver.register(pipe, 0).unwrap();
    let Err(ControlError::Io(error)) = driver.local_address(handle) else { panic!("pipes have no address") };
    assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    Ok(())
}

pub fn socket_options_stick(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, _peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        driver.read_stream(handle).unwrap();
        driver.flush().unwrap();
        for on in [true, false] {
            driver.control(handle, |fd| SockRef::from(&fd).set_tcp_nodelay(on)).unwrap();
            driver.control(handle, |fd| SockRef::from(&fd).set_keepalive(on)).unwrap();
            assert_eq!(driver.control(handle, |fd| SockRef::from(&fd).tcp_nodelay()).unwrap(), on);
            assert_eq!(driver.control(handle, |fd| SockRef::from(&fd).keepalive()).unwrap(), on);
        }
        let failed = driver.control(handle, |fd| {
            SockRef::from(&fd)
                .set_broadcast(true)
                .and_then(|()| Err::<(), _>(std::io::Error::from_raw_os_error(libc::EDOM)))
        });
        assert!(matches!(failed, Err(ControlError::Io(error)) if error.raw_os_error() == Some(libc::EDOM)));
    });
    // Accepted sockets have the listener's options.
    for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
        let mut driver = fixture.driver();
        let listener = net::listener();
        SockRef::from(&listener).set_tcp_nodelay(true).unwrap();
        let address = listener.local_addr().unwrap();
        let handle = driver.register(listener, 0).unwrap();
        driver.accept(handle, AcceptCount::Exactly(1), kind).unwrap();
        driver.flush().unwrap();
        let peer = net::connect_to(address);
        let Event::Accept { result: Ok(accepted), .. } = driver.next().event else { panic!() };
        let handle = driver.register(accepted.socket, 0).unwrap();
        assert!(driver.control(handle, |fd| SockRef::from(&fd).tcp_nodelay()).unwrap());
        let remote = driver.peer_address(handle).unwrap();
        assert_eq!(remote.as_socket(), Some(peer.local_addr().unwrap()));
    }
    Ok(())
}

pub fn sockets_are_made_by_address(fixture: &mut Fixture) -> Verdict {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let mut driver = fixture.driver();
        let any = any.parse().unwrap();
        let listener = driver.listen_on(any, 8, 1).unwrap();
        let address = driver.local_address(listener).unwrap().as_socket().unwrap();
        driver.accept(listener, AcceptCount::Exactly(1), AcceptAs::LwSocket).unwrap();
        let client = driver.connect_to(address, 2).unwrap();
        // Written before the connection exists: it waits for it.
        driver.write_quiet(client, b"early".to_vec()).unwrap();
        let mut server = None;
        for _ in 0..2 {
            let completion = driver.next();
            match completion.event {
                Event::Connect(result) => {
                    result.unwrap();
                    assert_eq!((completion.handle, completion.cookie), (client, 2));
                }
                Event::Accept { result, .. } => {
                    assert_eq!(completion.cookie, 1);
                    server = Some(result.unwrap().socket);
                }
                other => panic!("{other:?}"),
            }
        }
        let server = driver.register(server.expect("one connection"), 3).unwrap();
        assert_eq!(driver.read_exactly(server, 5), b"early");
        let far = driver.peer_address(client).unwrap().as_socket().unwrap();
        assert_eq!(far, address);
        // Somebody listens there already.
        let Err(OpenError::Io(error)) = driver.listen_on(address, 8, 4) else { panic!() };
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
    }
    Ok(())
}

pub fn sockets_are_made_within_the_bounds(fixture: &mut Fixture) -> Verdict {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut driver = fixture.driver_with(|config| {
        config.handles_max = 2;
        config.operations_max = 1;
    });
    let listener = driver.listen_on(address, 1, 0).unwrap();
    let to = driver.local_address(listener).unwrap().as_socket().unwrap();
    let timer = driver.timer(WATCHDOG, 0).unwrap();
    // No operation is free: the socket is not left behind, and its handle is free again.
    assert!(matches!(driver.connect_to(to, 0), Err(OpenError::OperationsFull)));
    driver.cancel(timer).unwrap();
    driver.next();
    let _first = driver.connect_to(to, 0).unwrap();
    driver.next();
    assert!(matches!(driver.listen_on(address, 1, 0), Err(OpenError::HandlesFull)));
    Ok(())
}

pub fn typed_options_and_information(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        for on in [true, false] {
            driver.set_nodelay(handle, on).unwrap();
            assert_eq!(driver.control(handle, |fd| SockRef::from(&fd).tcp_nodelay()).unwrap(), on);
        }
        let second = Duration::from_secs(1);
        let probes = KeepAlive { idle: 30 * second, interval: 5 * second, probes: 4 };
        driver.set_keepalive(handle, Some(probes)).unwrap();
        driver
            .control(handle, |fd| {
                let socket = SockRef::from(&fd);
                assert!(socket.keepalive()?);
                assert_eq!(socket.tcp_keepalive_time()?, probes.idle);
                assert_eq!(socket.tcp_keepalive_interval()?, probes.interval);
                assert_eq!(socket.tcp_keepalive_retries()?, probes.probes);
                Ok(())
            })
            .unwrap();
        let timeout = Duration::from_millis(1_500);
        for timeout in [Some(timeout), None] {
            driver.set_user_timeout(handle, timeout).unwrap();
            let set = driver.control(handle, |fd| SockRef::from(&fd).tcp_user_timeout()).unwrap();
            assert_eq!(set.filter(|set| !set.is_zero()), timeout);
        }
        driver.set_keepalive(handle, None).unwrap();
        assert!(!driver.control(handle, |fd| SockRef::from(&fd).keepalive()).unwrap());
        let never = KeepAlive { probes: 0, ..probes };
        assert!(matches!(driver.set_keepalive(handle, Some(never)), Err(ControlError::Io(_))));

        driver.write_quiet(handle, vec![7; 1000]).unwrap();
        driver.flush().unwrap();
        net::read_exactly(&mut peer, 1000);
        peer.write_all(&[1; 10]).unwrap();
        driver.read_exactly(handle, 10);
        let info = driver.socket_info(handle).unwrap();
        assert_eq!((info.bytes_sent, info.bytes_received), (1000, 10));
        assert!(info.segment_size > 0 && info.congestion_window >= info.segment_size.into(), "{info:?}");
    });
    let mut driver = fixture.driver();
    let (socket, _peer) = net::unix_pair(Type::STREAM);
    let handle = driver.register(socket, 0).unwrap();
    let Err(ControlError::Io(error)) = driver.socket_info(handle) else { panic!("not TCP") };
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    Ok(())
}

pub fn a_user_timeout_ends_a_peer_that_does_not_read(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, _peer) = net::tcp_pair();
        let handle = driver.add(socket, form, 0);
        for wrong in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3_000_000)] {
            let refused = driver.set_user_timeout(handle, Some(wrong));
            let einval = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
            assert!(matches!(&refused, Err(ControlError::Io(error)) if einval(error)), "{refused:?}");
        }
        driver.set_user_timeout(handle, Some(Duration::from_millis(500))).unwrap();
        // More than both sides have room for.
        driver.write(handle, vec![7; 64 << 20]).unwrap();
        let Event::Write { result, .. } = driver.next().event else { panic!("no write") };
        assert_eq!(result.expect_err("nobody reads").kind(), io::ErrorKind::TimedOut);
    });
    Ok(())
}

pub fn lwsocket_to_descriptor_and_back(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.lwsockets_max = 1);
    let (socket, mut peer) = net::tcp_pair();
    let mut fd = socket;
    for round in 0..100u8 {
        let socket = driver.to_lwsocket(fd).unwrap();
        let handle = driver.register(socket, 0).unwrap();
        peer.write_all(&[round; 4]).unwrap();
        assert_eq!(driver.read_exactly(handle, 4), [round; 4]);
        let Source::LwSocket(socket) = driver.unregister(handle).unwrap() else { panic!() };
        fd = driver.to_fd(socket).unwrap();
        let mut stream = TcpStream::from(fd.try_clone().unwrap());
        stream.write_all(&[round; 2]).unwrap();
        assert_eq!(net::read_exactly(&mut peer, 2), [round; 2]);
    }
    // The table had one place all the time.
    let socket = driver.to_lwsocket(fd).unwrap();
    let (second, _other_peer) = net::tcp_pair();
    assert!(matches!(driver.to_lwsocket(second), Err(ControlError::TableFull)));
    drop(socket);
    assert_eq!(driver.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished);
    // Only sockets can be.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let Err(ControlError::Io(error)) = driver.to_lwsocket(pipe.into()) else { panic!() };
    assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    Ok(())
}

pub fn a_foreign_lwsocket_is_refused(fixture: &mut Fixture) -> Verdict {
    let mut owner = fixture.driver();
    let mut other = fixture.driver();
    let (socket, _peer) = net::tcp_pair();
    let socket = owner.to_lwsocket(socket).unwrap();
    assert!(matches!(other.register(socket, 0), Err(RegisterError::ForeignLwSocket)));
    let (socket, mut peer) = net::tcp_pair();
    let socket = owner.to_lwsocket(socket).unwrap();
    assert!(matches!(other.to_fd(socket), Err(ControlError::ForeignLwSocket)));
    // Both were closed, where they belong.
    assert_eq!(owner.quietly_while(|| net::read_to_end(&mut peer)).1, End::Finished);
    Ok(())
}

pub fn cookies_come_back(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.add(socket, form, u64::MAX);
        assert_eq!(driver.cookie(handle).unwrap(), u64::MAX);
        driver.read(handle).unwrap();
        driver.flush().unwrap();
        peer.write_all(b"x").unwrap();
        driver.set_cookie(handle, 5).unwrap();
        let completion = driver.next();
        assert_eq!((completion.handle, completion.cookie), (handle, 5));
        let fd = driver.control(handle, |fd| fd.as_fd().try_clone_to_owned()).unwrap();
        assert_eq!(TcpStream::from(fd).peer_addr().unwrap(), peer.local_addr().unwrap());
    });
    Ok(())
}
