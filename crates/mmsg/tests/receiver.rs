//! A receiver with registered sockets, on both backends.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mmsg::Backend;
use mmsg::receiver::{AddError, Batch, CreateError, Event, Options, Receiver, WaitError};

const SECOND: Duration = Duration::from_secs(1);

fn each(options: Options, test: impl Fn(Receiver)) {
    for backend in [Backend::Syscalls, Backend::Uring] {
        let receiver = Receiver::new(&Options { backend, ..options.clone() }).unwrap();
        if receiver.backend() == backend {
            test(receiver);
        } else {
            println!("SKIPPED the receiver on io_uring: none, or one with unsafe direct descriptors");
        }
    }
}

fn udp() -> (UdpSocket, UdpSocket) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender.connect(socket.local_addr().unwrap()).unwrap();
    (socket, sender)
}

/// Waits on where a wait is interrupted, as that of a process that was stopped and resumed is.
fn wait(receiver: &mut Receiver, most: usize, timeout: Option<Duration>) -> Batch<'_> {
    loop {
        match receiver.wait(most, timeout) {
            Err(WaitError::Interrupted) => {}
            batch => {
                std::mem::forget(batch.unwrap());
                return receiver.forgotten();
            }
        }
    }
}

/// All that comes until there is nothing for a moment, by cookie.
fn take_all(receiver: &mut Receiver, most: usize) -> HashMap<u64, Vec<Vec<u8>>> {
    let mut all: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
    loop {
        let batch = wait(receiver, most, Some(Duration::from_millis(50)));
        if batch.is_empty() {
            return all;
        }
        assert!(batch.len() <= most);
        for message in batch.iter() {
            if let Event::Data { data, .. } = message.event {
                all.entry(message.cookie).or_default().push(data.to_vec());
            }
        }
    }
}

#[test]
fn every_datagram_comes_once_and_in_order() {
    each(Options::default(), |mut receiver| {
        let senders: Vec<_> = (0..40)
            .map(|cookie| {
                let (socket, sender) = udp();
                // What waits before the socket is registered comes, too.
                sender.send(&[0]).unwrap();
                receiver.add(socket, cookie).unwrap();
                sender
            })
            .collect();
        let mut got: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
        let mut sent = vec![1u8; senders.len()];
        // Bursts of different depths on different sockets, some of them between two waits.
        for turn in 0..60usize {
            for (at, sender) in senders.iter().enumerate() {
                for _ in 0..[1, 0, 2, 1, 5][(turn + at) % 5] {
                    sender.send(&[sent[at]]).unwrap();
                    sent[at] += 1;
                }
            }
            let batch = wait(&mut receiver, 1 + turn, Some(SECOND));
            for message in batch.iter() {
                if let Event::Data { data, .. } = message.event {
                    got.entry(message.cookie).or_default().push(data.to_vec());
                }
            }
        }
        for (cookie, mut messages) in take_all(&mut receiver, 64) {
            got.entry(cookie).or_default().append(&mut messages);
        }
        for (at, &sent) in sent.iter().enumerate() {
            let expected: Vec<Vec<u8>> = (0..sent).map(|number| vec![number]).collect();
            assert_eq!(got[&(at as u64)], expected, "{:?} {at}", receiver.backend());
        }
    });
}

#[test]
fn datagrams_that_come_meanwhile_are_not_lost() {
    each(Options::default(), |mut receiver| {
        const EACH: u32 = 3000;
        let senders: Vec<_> = (0..8)
            .map(|cookie| {
                let (socket, sender) = udp();
                receiver.add(socket, cookie).unwrap();
                sender
            })
            .collect();
        let taken = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&taken);
        let load = std::thread::spawn(move || {
            let deadline = Instant::now() + 60 * SECOND;
            for number in 0..EACH {
                // No more is under way than the sockets have room for.
                while number > seen.load(Ordering::Acquire) + 50 {
                    assert!(Instant::now() < deadline, "the receiver does not go on");
                    std::thread::yield_now();
                }
                senders.iter().for_each(|sender| assert_eq!(sender.send(&number.to_ne_bytes()).unwrap(), 4));
            }
        });
        let mut next = [0u32; 8];
        while next.iter().any(|&next| next < EACH) {
            let batch = wait(&mut receiver, 7, Some(60 * SECOND));
            assert!(!batch.is_empty(), "{next:?}");
            for message in batch.iter() {
                let Event::Data { data, .. } = message.event else { panic!("{message:?}") };
                let number = u32::from_ne_bytes(data.try_into().unwrap());
                assert_eq!(number, next[message.cookie as usize]);
                next[message.cookie as usize] += 1;
            }
            taken.store(next.iter().copied().min().unwrap_or(0), Ordering::Release);
        }
        load.join().unwrap();
    });
}

#[test]
fn a_flooded_socket_takes_no_more_than_its_turn() {
    each(Options::default(), |mut receiver| {
        let (socket, flood) = udp();
        receiver.add(socket, 0).unwrap();
        let others: Vec<_> = (1..10)
            .map(|cookie| {
                let (socket, sender) = udp();
                receiver.add(socket, cookie).unwrap();
                sender
            })
            .collect();
        (0..100).for_each(|_| assert_eq!(flood.send(b"flood").unwrap(), 5));
        for round in 0..3 {
            others.iter().for_each(|sender| assert_eq!(sender.send(&[round; 2]).unwrap(), 2));
            // Loopback may still be delivering.
            std::thread::sleep(Duration::from_millis(20));
            let batch = wait(&mut receiver, 10, Some(SECOND));
            let mut cookies: Vec<_> = batch.iter().map(|message| message.cookie).collect();
            cookies.sort();
            assert_eq!(cookies, (0..10).collect::<Vec<_>>());
        }
    });
}

/// Also where more sockets have something than the kernel reports at once.
#[test]
fn every_socket_has_one_before_one_has_a_second() {
    each(Options::default(), |mut receiver| {
        const SOCKETS: u64 = 400;
        let senders: Vec<_> = (0..SOCKETS)
            .map(|cookie| {
                let (socket, sender) = udp();
                receiver.add(socket, cookie).unwrap();
                sender
            })
            .collect();
        for _ in 0..3 {
            for number in 0..3 {
                senders.iter().for_each(|sender| assert_eq!(sender.send(&[number]).unwrap(), 1));
            }
            // Loopback may still be delivering to a socket that is registered.
            std::thread::sleep(Duration::from_millis(20));
            let batch = wait(&mut receiver, SOCKETS as usize + 100, Some(SECOND));
            let taken = batch.len();
            let mut cookies: Vec<_> =
                batch.iter().take(SOCKETS as usize).map(|message| message.cookie).collect();
            cookies.sort();
            assert_eq!(cookies, (0..SOCKETS).collect::<Vec<_>>());
            drop(batch);
            let rest: usize = take_all(&mut receiver, 1000).values().map(Vec::len).sum();
            assert_eq!(taken + rest, 3 * SOCKETS as usize);
        }
    });
}

#[test]
fn a_pool_that_runs_dry_loses_nothing_and_is_fair() {
    each(Options { buffers: 4, ..Options::default() }, |mut receiver| {
        let senders: Vec<_> = (0..6)
            .map(|cookie| {
                let (socket, sender) = udp();
                receiver.add(socket, cookie).unwrap();
                sender
            })
            .collect();
        for number in 0..5u8 {
            senders.iter().for_each(|sender| assert_eq!(sender.send(&[number]).unwrap(), 1));
        }
        let mut kept = Vec::new();
        while kept.len() < 4 {
            let mut batch = wait(&mut receiver, 64, Some(SECOND));
            assert!(batch.len() <= 4 - kept.len());
            (0..batch.len()).for_each(|at| kept.push(batch.keep(at).unwrap()));
        }
        assert!(kept.iter().all(|data| data[..] == [0]));
        assert!(matches!(receiver.wait(64, Some(SECOND)), Err(WaitError::NoBuffers)));
        kept.pop();
        // With one buffer the sockets take turns.
        let mut order = Vec::new();
        for _ in 0..12 {
            let batch = wait(&mut receiver, 64, Some(SECOND));
            order.extend(batch.iter().map(|message| message.cookie));
        }
        assert_eq!(order.len(), 12);
        for turn in order.chunks(6).take(1) {
            let mut cookies = turn.to_vec();
            cookies.sort();
            cookies.dedup();
            assert!(cookies.len() >= 4, "{order:?}");
        }
        drop(kept);
        let rest: usize = take_all(&mut receiver, 64).values().map(Vec::len).sum();
        assert_eq!(rest, 30 - 4 - 12);
    });
}

#[test]
fn streams_come_whole_and_tell_their_end() {
    each(Options { buffer_size: 100, ..Options::default() }, |mut receiver| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        receiver.add(listener.accept().unwrap().0, 7).unwrap();
        let sent: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
        sender.write_all(&sent).unwrap();
        drop(sender);
        let mut got = Vec::new();
        let mut ended = false;
        while !ended {
            let batch = wait(&mut receiver, 16, Some(10 * SECOND));
            assert!(!batch.is_empty(), "{} bytes", got.len());
            for message in batch.iter() {
                match message.event {
                    Event::Data { data, .. } => got.extend_from_slice(data),
                    Event::End => ended = true,
                    Event::Error(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(got, sent);
        assert!(wait(&mut receiver, 16, Some(Duration::from_millis(20))).is_empty());
    });
}

/// An empty one is no end, in a queue, alone, or behind the peer's end; that is told once.
#[test]
fn empty_messages_of_a_connection_are_messages() {
    each(Options::default(), |mut receiver| {
        let pair = || socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).unwrap();
        let senders: Vec<_> = (0..4)
            .map(|cookie| {
                let (socket, sender) = pair();
                receiver.add(socket, cookie).unwrap();
                sender
            })
            .collect();
        let sent: [&[u8]; 8] = [b"one", b"", b"two", b"", b"", b"three", b"four", b"five"];
        for sender in &senders {
            sent.iter().for_each(|data| assert_eq!(sender.send(data).unwrap(), data.len()));
        }
        for expected in
            [sent.map(<[u8]>::to_vec).to_vec(), vec![Vec::new()], vec![b"".to_vec(), b"x".to_vec()]]
        {
            if expected.len() < sent.len() {
                for sender in &senders {
                    expected.iter().for_each(|data| assert_eq!(sender.send(data).unwrap(), data.len()));
                }
            }
            let mut got = take_all(&mut receiver, 16);
            for cookie in 0..4 {
                assert_eq!(got.remove(&cookie).unwrap(), expected);
            }
        }
        for sender in senders {
            sender.send(b"").unwrap();
            sender.send(b"last").unwrap();
        }
        let (mut data, mut ends) = (0, 0);
        loop {
            let batch = wait(&mut receiver, 64, Some(SECOND / 20));
            if batch.is_empty() {
                break;
            }
            for message in batch.iter() {
                match message.event {
                    Event::Data { .. } => data += 1,
                    Event::End => ends += 1,
                    Event::Error(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!((data, ends), (8, 4));
    });
}

#[test]
fn lengths_addresses_and_errors_are_told() {
    each(Options { buffer_size: 8, addresses: true, ..Options::default() }, |mut receiver| {
        let (socket, sender) = udp();
        let id = receiver.add(socket, 1).unwrap();
        sender.send(b"longer than the buffer").unwrap();
        sender.send(b"").unwrap();
        let mut told = Vec::new();
        while told.len() < 2 {
            for message in wait(&mut receiver, 4, Some(SECOND)).iter() {
                assert_eq!(message.socket, id);
                let Event::Data { data, len, from, segment: None } = message.event else {
                    panic!("{message:?}")
                };
                assert_eq!(from.unwrap().as_socket(), Some(sender.local_addr().unwrap()));
                told.push((data.to_vec(), len));
            }
        }
        assert_eq!(told, [(b"longer t".to_vec(), 22), (vec![], 0)]);

        let connected = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        connected.connect(nobody).unwrap();
        connected.send(b"anybody?").unwrap();
        receiver.add(connected, 2).unwrap();
        let batch = wait(&mut receiver, 4, Some(SECOND));
        let message = batch.iter().next().unwrap();
        assert!(
            matches!(message.event, Event::Error(error) if error.raw_os_error() == Some(libc::ECONNREFUSED))
        );
    });
}

/// A socket that is not connected hangs up and fails for ever: it says so twice, and is heard of when it is connected.
#[test]
fn an_error_that_stays_is_told_twice() {
    each(Options::default(), |mut receiver| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let id = receiver.add(socket, 1).unwrap();
        let mut errors = Vec::new();
        loop {
            let batch = wait(&mut receiver, 4, Some(Duration::from_millis(50)));
            if batch.is_empty() {
                break;
            }
            errors.extend(batch.iter().map(|message| match message.event {
                Event::Error(error) => error.raw_os_error().unwrap(),
                event => panic!("{event:?}"),
            }));
            assert!(errors.len() < 10, "told for ever");
        }
        assert_eq!(errors, [libc::ENOTCONN; 2]);

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().into();
        socket2::SockRef::from(&receiver.socket(id).unwrap()).connect(&address).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        for _ in 0..3 {
            peer.write_all(b"hello").unwrap();
            assert_eq!(take_all(&mut receiver, 4)[&1].concat(), b"hello");
        }
        drop(peer);
        let batch = wait(&mut receiver, 4, Some(SECOND));
        assert!(matches!(batch.iter().next().unwrap().event, Event::End));
    });
}

#[test]
fn trains_of_datagrams_come_as_one() {
    each(Options { buffer_size: 1 << 16, gro: true, ..Options::default() }, |mut receiver| {
        let (socket, sender) = udp();
        receiver.add(socket, 1).unwrap();
        let size: libc::c_int = 100;
        // SAFETY: the kernel reads one integer.
        let set = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&sender),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                4,
            )
        };
        assert_eq!(set, 0);
        sender.send(&[5; 950]).unwrap();
        let batch = wait(&mut receiver, 4, Some(SECOND));
        let message = batch.iter().next().unwrap();
        let Event::Data { data, len: 950, segment: Some(100), .. } = message.event else {
            panic!("{message:?}")
        };
        assert_eq!(data, [5; 950]);
    });
}

#[test]
fn a_removed_socket_is_as_before_and_its_name_is_stale() {
    each(Options { sockets: 2, ..Options::default() }, |mut receiver| {
        let (socket, sender) = udp();
        let id = receiver.add(socket, 1).unwrap();
        let (one, other) = UnixDatagram::pair().unwrap();
        receiver.add(one, 2).unwrap();
        assert!(matches!(receiver.add(udp().0, 3), Err(AddError::Full)));
        sender.send(b"kept").unwrap();
        assert!(receiver.socket(id).is_some());
        let socket = UdpSocket::from(receiver.remove(id).unwrap());
        assert!(receiver.remove(id).is_none() && receiver.socket(id).is_none());
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);

        // Its place goes to another, which has nothing of it.
        sender.send(b"too late").unwrap();
        let (next, next_sender) = udp();
        let next = receiver.add(next, 3).unwrap();
        assert_ne!(next, id);
        other.send(b"2").unwrap();
        next_sender.send(b"3").unwrap();
        let all = take_all(&mut receiver, 8);
        assert_eq!((all.len(), &all[&2], &all[&3]), (2, &vec![b"2".to_vec()], &vec![b"3".to_vec()]));
    });
}

#[test]
fn what_cannot_be_is_refused() {
    for (options, setting) in [
        (Options { buffers: 0, ..Options::default() }, "buffers"),
        (Options { buffer_size: usize::MAX, ..Options::default() }, "buffer_size"),
        (Options { sockets: 0, ..Options::default() }, "sockets"),
    ] {
        let Err(CreateError::Setting(name, _)) = Receiver::new(&options) else { panic!("{options:?}") };
        assert_eq!(name, setting);
    }
    each(Options::default(), |mut receiver| {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let Err(AddError::Io(error)) = receiver.add(file, 0) else { panic!("a file is no socket") };
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
        assert!(wait(&mut receiver, 8, Some(Duration::ZERO)).is_empty());
    });
}

#[test]
fn a_forked_child_cannot_use_it_and_spoils_nothing() {
    each(Options::default(), |mut receiver| {
        let (socket, sender) = udp();
        let id = receiver.add(socket, 1).unwrap();
        // SAFETY: the child only makes calls that take no lock of another thread, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = matches!(receiver.wait(1, None), Err(WaitError::Forked));
            let refused = refused && receiver.remove(id).is_some();
            drop(receiver);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        sender.send(b"parent").unwrap();
        assert_eq!(take_all(&mut receiver, 8)[&1], [b"parent".to_vec()]);
    });
}
