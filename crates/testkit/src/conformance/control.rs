//! Addresses, options and conversions.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;

use channel::{AcceptAs, AcceptCount, ControlError, Event, RegisterError, Source};
use socket2::{SockRef, Type};

use crate::conformance::Fixture;
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
