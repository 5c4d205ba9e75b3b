//! Message sockets: what is sent as one arrives as one.

use std::io::Read;
use std::net::UdpSocket;

use megapipe::{Event, OpId, ReadData, SockAddr, WriteData};
use socket2::{Socket, Type};

use crate::conformance::Fixture;
use crate::driver::{Driver, Form};
use crate::net;
use crate::skip::{Skipped, Verdict};

fn udp(address: std::net::SocketAddr) -> Result<UdpSocket, Skipped> {
    let socket = UdpSocket::bind(address)
        .map_err(|error| Skipped::because(format!("no UDP on {address}: {error}")))?;
    net::bounded(&socket);
    Ok(socket)
}

/// The next completion is this read's: payload, sender, whether it was cut, whether it
/// goes on.
fn datagram(driver: &mut Driver, op: OpId) -> (Vec<u8>, Option<SockAddr>, bool, bool) {
    let completion = driver.next();
    assert_eq!(completion.op, op);
    let Event::Read { result, data: ReadData::Buffer(buffer), more } = completion.event else {
        panic!("{:?}", completion.event);
    };
    assert_eq!(result.unwrap(), buffer.len());
    (buffer.to_vec(), buffer.sender(), buffer.is_truncated(), more)
}

fn tells_the_senders_address(fixture: &Fixture, address: std::net::SocketAddr) -> Verdict {
    let peers = [udp(address)?, udp(address)?];
    fixture.for_each_form(|mut driver, form| {
        let socket = udp(address).expect("the address was there a moment ago");
        let ours = socket.local_addr().unwrap();
        let handle = driver.add(socket.into(), form, 0);
        for stream in [false, true] {
            let streaming = stream.then(|| driver.read_stream(handle).unwrap());
            for round in 0..10u8 {
                let peer = &peers[usize::from(round % 2)];
                peer.send_to(&[round; 3], ours).unwrap();
                let op = streaming.unwrap_or_else(|| driver.read(handle).unwrap());
                let (bytes, sender, truncated, more) = datagram(&mut driver, op);
                assert_eq!(bytes, [round; 3]);
                let sender = sender.expect("UDP senders have addresses");
                assert_eq!(sender.as_socket(), Some(peer.local_addr().unwrap()));
                assert!(!truncated && more == stream);
                // And back to where it came from.
                let answer = driver.send_to(handle, bytes, &sender).unwrap();
                assert_eq!(driver.expect_write(answer).unwrap(), 3);
                let mut got = [0; 8];
                assert_eq!(peer.recv_from(&mut got).unwrap(), (3, ours));
                assert_eq!(got[..3], [round; 3]);
            }
        }
    });
    Ok(())
}

pub fn udp_tells_the_senders_address(fixture: &mut Fixture) -> Verdict {
    tells_the_senders_address(fixture, net::v4())
}

pub fn udp_v6_tells_the_senders_address(fixture: &mut Fixture) -> Verdict {
    tells_the_senders_address(fixture, net::v6())
}

pub fn connected_udp_keeps_boundaries(fixture: &mut Fixture) -> Verdict {
    let peer = udp(net::v4())?;
    let to_peer: SockAddr = peer.local_addr().unwrap().into();
    fixture.for_each_form(|mut driver, form| {
        let handle = driver.add(udp(net::v4()).unwrap().into(), form, 0);
        let op = driver.connect(handle, &to_peer).unwrap();
        assert_eq!(driver.next().op, op);
        // Queued at once: must not be glued together.
        let writes: Vec<_> =
            (1..=20).map(|len| driver.write(handle, vec![len as u8; len]).unwrap()).collect();
        for (len, write) in (1..=20).zip(writes) {
            assert_eq!(driver.expect_write(write).unwrap(), len);
        }
        driver
            .write_quiet(handle, vec![WriteData::from(&b"two "[..]), WriteData::from(&b"parts"[..])])
            .unwrap();
        driver.flush().unwrap();
        let mut got = [0; 64];
        for len in 1..=20 {
            assert_eq!(peer.recv(&mut got).unwrap(), len);
            assert!(got[..len].iter().all(|&byte| usize::from(byte) == len));
        }
        let count = peer.recv(&mut got).unwrap();
        assert_eq!(&got[..count], b"two parts");
        driver.expect_silence();
    });
    Ok(())
}

pub fn an_empty_datagram_is_a_datagram(fixture: &mut Fixture) -> Verdict {
    let peer = udp(net::v4())?;
    for form in Form::ALL {
        // The sender of an empty datagram needs a buffer of the pool that is really free.
        let mut driver = fixture.driver_with(|config| config.read_buffers = 2048);
        let socket = udp(net::v4()).unwrap();
        let ours = socket.local_addr().unwrap();
        let handle = driver.add(socket.into(), form, 0);
        peer.send_to(&[], ours).unwrap();
        let op = driver.read(handle).unwrap();
        let (bytes, sender, ..) = datagram(&mut driver, op);
        assert!(bytes.is_empty());
        let sender = sender.unwrap();
        peer.send_to(&[], ours).unwrap();
        let op = driver.read_into(handle, Vec::with_capacity(8)).unwrap();
        assert!(driver.expect_read(op).0.unwrap().is_empty());
        // Not the end of a stream.
        let op = driver.read_stream(handle).unwrap();
        for text in [&b""[..], b"more", b"", b"and more"] {
            peer.send_to(text, ours).unwrap();
            let (bytes, _, _, more) = datagram(&mut driver, op);
            assert!(bytes == text && more);
        }
        let write = driver.send_to(handle, WriteData::None, &sender).unwrap();
        assert_eq!(driver.expect_write(write).unwrap(), 0);
        assert_eq!(peer.recv(&mut [0; 8]).unwrap(), 0);
    }
    Ok(())
}

pub fn a_long_datagram_is_truncated_and_says_so(fixture: &mut Fixture) -> Verdict {
    let peer = udp(net::v4())?;
    for form in Form::ALL {
        let mut driver = fixture.driver_with(|config| config.buffer_size = 512);
        let socket = udp(net::v4()).unwrap();
        let ours = socket.local_addr().unwrap();
        let handle = driver.add(socket.into(), form, 0);
        let text = net::pattern(1000, 4);
        for stream in [false, true] {
            peer.send_to(&text, ours).unwrap();
            peer.send_to(&text[..50], ours).unwrap();
            let mut op = if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap();
            let (bytes, sender, truncated, _) = datagram(&mut driver, op);
            assert!(truncated && sender.is_some());
            assert!(!bytes.is_empty() && bytes.len() < 512 && bytes == text[..bytes.len()]);
            if !stream {
                op = driver.read(handle).unwrap();
            }
            let (bytes, _, truncated, _) = datagram(&mut driver, op);
            assert!(bytes == text[..50] && !truncated);
        }
    }
    Ok(())
}

pub fn a_datagram_that_is_too_long_fails_alone(fixture: &mut Fixture) -> Verdict {
    let peer = udp(net::v4())?;
    let to_peer: SockAddr = peer.local_addr().unwrap().into();
    fixture.for_each_form(|mut driver, form| {
        let handle = driver.add(udp(net::v4()).unwrap().into(), form, 0);
        let ops = [
            driver.send_to(handle, &b"before"[..], &to_peer).unwrap(),
            driver.send_to(handle, vec![0; 70_000], &to_peer).unwrap(),
            driver.send_to(handle, &b"after"[..], &to_peer).unwrap(),
        ];
        assert_eq!(driver.expect_write(ops[0]).unwrap(), 6);
        assert_eq!(driver.expect_write(ops[1]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(driver.expect_write(ops[2]).unwrap(), 5);
        let mut got = [0; 64];
        assert_eq!(peer.recv(&mut got).unwrap(), 6);
        assert_eq!(peer.recv(&mut got).unwrap(), 5);
        assert_eq!(&got[..5], b"after");
    });
    Ok(())
}

fn keeps_boundaries(fixture: &Fixture, kind: Type) {
    fixture.for_each_form(|mut driver, form| {
        let (socket, peer) = net::unix_pair(kind);
        let handle = driver.add(socket, form, 0);
        let op = driver.read_stream(handle).unwrap();
        for len in 1..=30u8 {
            peer.send(&vec![len; usize::from(len)]).unwrap();
        }
        for len in 1..=30u8 {
            let (bytes, _, truncated, more) = datagram(&mut driver, op);
            assert!(bytes == vec![len; usize::from(len)] && !truncated && more);
        }
        for len in 1..=30u8 {
            driver.write_quiet(handle, vec![len; usize::from(len)]).unwrap();
        }
        driver.flush().unwrap();
        let got = driver.quietly_while(|| {
            let mut piece = [0; 64];
            (1..=30).map(|_| std::io::Read::read(&mut &peer, &mut piece).unwrap()).collect::<Vec<_>>()
        });
        assert!(got.into_iter().eq(1..=30));
    });
}

pub fn unix_datagrams_keep_boundaries(fixture: &mut Fixture) -> Verdict {
    keeps_boundaries(fixture, Type::DGRAM);
    Ok(())
}

/// A receiver that does not read takes some ten messages (net.unix.max_dgram_qlen): the others
/// wait for it, and none is lost.
pub fn messages_wait_for_a_full_receiver(fixture: &mut Fixture) -> Verdict {
    for kind in [Type::DGRAM, Type::SEQPACKET] {
        fixture.for_each_form(|mut driver, form| {
            let (socket, peer) = net::unix_pair(kind);
            net::tighten(&socket);
            let handle = driver.add(socket, form, 0);
            let message = |number: u8| vec![number; 500];
            for number in 0..40 {
                driver.write_quiet(handle, message(number)).unwrap();
            }
            driver.expect_silence();
            driver.quietly_while(|| {
                for number in 0..40 {
                    let mut room = [0; 1000];
                    let count = (&peer).read(&mut room).unwrap();
                    assert_eq!(room[..count], message(number), "{kind:?}");
                }
            });
        });
    }
    Ok(())
}

pub fn seqpacket_keeps_boundaries(fixture: &mut Fixture) -> Verdict {
    keeps_boundaries(fixture, Type::SEQPACKET);
    Ok(())
}

pub fn the_end_of_seqpacket_ends_the_reading(fixture: &mut Fixture) -> Verdict {
    fixture.for_each_form(|mut driver, form| {
        for stream in [false, true] {
            let (socket, peer) = net::unix_pair(Type::SEQPACKET);
            let handle = driver.add(socket, form, 0);
            let op = if stream { driver.read_stream(handle) } else { driver.read(handle) }.unwrap();
            drop::<Socket>(peer);
            let (result, more) = driver.expect_read(op);
            assert!(result.unwrap().is_empty());
            assert!(!more, "the read goes on after the end");
            driver.expect_silence();
        }
    });
    Ok(())
}

pub fn reads_into_own_memory_keep_boundaries(fixture: &mut Fixture) -> Verdict {
    let peer = udp(net::v4())?;
    fixture.for_each_form(|mut driver, form| {
        let socket = udp(net::v4()).unwrap();
        let ours = socket.local_addr().unwrap();
        let handle = driver.add(socket.into(), form, 0);
        peer.send_to(b"first", ours).unwrap();
        peer.send_to(b"second", ours).unwrap();
        let op = driver.read_into(handle, Vec::with_capacity(100)).unwrap();
        assert_eq!(driver.expect_read(op).0.unwrap(), b"first");
        let op = driver.read_vectored(handle, vec![Vec::with_capacity(2), Vec::with_capacity(50)]).unwrap();
        assert_eq!(driver.expect_read(op).0.unwrap(), b"second");
    });
    Ok(())
}
