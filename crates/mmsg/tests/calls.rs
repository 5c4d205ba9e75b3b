//! What a model does not show: signals, threads, forks, fairness and what is left of errors.

use std::net::{Ipv4Addr, Shutdown, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mmsg::{Backend, Caller, LIMITED, Mmep};
use socket2::Socket;

mod support;

use support::{Kind, Pair, Shape, Vector, arrived};

fn udp() -> (UdpSocket, UdpSocket) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender.connect(socket.local_addr().unwrap()).unwrap();
    (socket, sender)
}

fn eps(pairs: &[(UdpSocket, UdpSocket)], num: i32) -> Vec<Mmep> {
    let entry = |(at, (socket, _)): (usize, &(UdpSocket, UdpSocket))| Mmep {
        sockfd: socket.as_raw_fd(),
        num,
        offset: at as i32 * num,
    };
    pairs.iter().enumerate().map(entry).collect()
}

/// Sends one message on each of 30 sockets and receives them; whether all came.
fn exchange(receive: impl FnOnce(&mut [Mmep], &mut [libc::mmsghdr]) -> usize) -> bool {
    let pairs: Vec<_> = (0..30).map(|_| udp()).collect();
    pairs.iter().for_each(|(_, sender)| assert_eq!(sender.send(b"message").unwrap(), 7));
    pairs.iter().for_each(|(socket, _)| arrived(socket));
    let mut vector = Vector::new(&vec![Shape::plain(64); 30]);
    let mut eps = eps(&pairs, 1);
    receive(&mut eps, &mut vector.messages) == 30
        && eps.iter().all(|ep| ep.num == 1 && vector.got(ep.offset as usize).data == b"message")
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_that_come_meanwhile_change_nothing() {
    // SAFETY: the handler counts and does nothing else; it replaces none.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    // SAFETY: the thread names itself.
    let me = unsafe { libc::pthread_self() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the thread lives as long as the scope.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
            }
        });
        for mut caller in support::callers() {
            for _ in 0..30 {
                // SAFETY: the vector's memory lives.
                assert!(exchange(|eps, msgs| unsafe { caller.recvmmmsg(eps, msgs, LIMITED).unwrap() }));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(SIGNALS.load(Ordering::Relaxed) > 0);
}

#[test]
fn every_thread_has_its_own() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    // SAFETY: the vector's memory lives.
                    assert!(exchange(|eps, msgs| unsafe {
                        mmsg::recvmmmsg(eps, msgs, LIMITED | libc::MSG_TRUNC).unwrap()
                    }));
                }
            });
        }
    });
}

#[test]
fn a_forked_child_gets_a_ring_of_its_own() {
    let mut caller = Caller::with_backend(Backend::Uring);
    // SAFETY: the vector's memory lives.
    assert!(exchange(|eps, msgs| unsafe { caller.recvmmmsg(eps, msgs, LIMITED).unwrap() }));
    let backend = caller.backend();
    let pairs: Vec<_> = (0..20).map(|_| udp()).collect();
    let mut vector = Vector::new(&vec![Shape::plain(64); 20]);
    let mut eps = eps(&pairs, 1);
    pairs.iter().for_each(|(_, sender)| assert_eq!(sender.send(b"child").unwrap(), 5));
    pairs.iter().for_each(|(socket, _)| arrived(socket));
    // SAFETY: the child makes a few calls and ends; it allocates, which the C library allows
    // after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the vector's memory lives in the child, too.
        let received = unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, LIMITED) };
        let good = received == Ok(20) && caller.backend() == backend;
        drop(caller);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // SAFETY: the vector's memory lives.
    assert!(exchange(|eps, msgs| unsafe { caller.recvmmmsg(eps, msgs, LIMITED).unwrap() }));
}

#[test]
fn a_flooded_socket_starves_nobody() {
    for mut caller in support::callers() {
        let pairs: Vec<_> = (0..20).map(|_| udp()).collect();
        for round in 0..5u8 {
            (0..60).for_each(|_| assert_eq!(pairs[7].1.send(b"flood").unwrap(), 5));
            for (at, (_, sender)) in pairs.iter().enumerate().filter(|&(at, _)| at != 7) {
                sender.send(&[round, at as u8]).unwrap();
            }
            pairs.iter().for_each(|(socket, _)| arrived(socket));
            let mut vector = Vector::new(&vec![Shape::plain(64); 40]);
            let mut eps = eps(&pairs, 2);
            // SAFETY: the vector's memory lives.
            unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, LIMITED) }.unwrap();
            for (at, ep) in eps.iter().enumerate().filter(|&(at, _)| at != 7) {
                assert_eq!((ep.num, vector.got(ep.offset as usize).data), (1, vec![round, at as u8]));
            }
            assert_eq!(eps[7].num, 2);
        }
    }
}

/// An array of which only the descriptors are set.
fn garbage(pairs: &[(UdpSocket, UdpSocket)]) -> Vec<Mmep> {
    let mut word = 1_u32;
    let mut next = || {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word as i32
    };
    pairs.iter().map(|(socket, _)| Mmep { sockfd: socket.as_raw_fd(), num: next(), offset: next() }).collect()
}

fn send(pairs: &[(UdpSocket, UdpSocket)], messages: u8) {
    for (at, (socket, sender)) in pairs.iter().enumerate() {
        (0..messages).for_each(|nth| assert_eq!(sender.send(&[at as u8, nth]).unwrap(), 2));
        arrived(socket);
    }
}

#[test]
fn only_descriptors_are_read_and_an_array_can_be_used_again() {
    for mut caller in support::callers() {
        let pairs: Vec<_> = (0..30).map(|_| udp()).collect();
        let mut eps = garbage(&pairs);
        for messages in [1, 3, 2] {
            send(&pairs, messages);
            let mut vector = Vector::new(&vec![Shape::plain(64); 100]);
            // SAFETY: the vector's memory lives.
            let total = unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, 0) };
            assert_eq!(total, Ok(30 * usize::from(messages)));
            let expected =
                |at| Mmep { offset: at as i32 * i32::from(messages), num: messages.into(), ..eps[at] };
            assert!((0..30).all(|at| eps[at] == expected(at)), "{eps:?}");
            let all = (0..30).flat_map(|at| (0..messages).map(move |nth| vec![at, nth]));
            assert!(all.enumerate().all(|(place, data)| vector.got(place).data == data));
        }
    }
}

#[test]
fn a_full_vector_leaves_the_last_sockets_for_the_next_call() {
    for mut caller in support::callers() {
        let pairs: Vec<_> = (0..10).map(|_| udp()).collect();
        send(&pairs, 3);
        let mut nums = Vec::new();
        for _ in 0..4 {
            let mut vector = Vector::new(&vec![Shape::plain(64); 8]);
            let mut eps = garbage(&pairs);
            // SAFETY: the vector's memory lives.
            unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, 0) }.unwrap();
            nums.push(eps.iter().map(|ep| ep.num).collect::<Vec<_>>());
        }
        let (none, full) = (-libc::EAGAIN, -libc::ENOBUFS);
        assert_eq!(nums[0], [3, 3, 2, full, full, full, full, full, full, full]);
        assert_eq!(nums[1], [none, none, 1, 3, 3, 1, full, full, full, full]);
        assert_eq!(nums[2], [none, none, none, none, none, 2, 3, 3, full, full]);
        assert_eq!(nums[3], [none, none, none, none, none, none, none, none, 3, 3]);
    }
}

/// Where queues are short for long, a call receives one message of each socket and nothing is looked for behind it; what
/// that leaves is found a few calls later.
#[test]
fn short_queues_take_few_system_calls_and_long_ones_are_found() {
    let mut caller = Caller::with_backend(Backend::Uring);
    if caller.backend() == Backend::Syscalls {
        println!(
            "SKIPPED short_queues_take_few_system_calls_and_long_ones_are_found: there is no io_uring here"
        );
        return;
    }
    for (sockets, flags) in [(30, libc::MSG_TRUNC), (8, libc::MSG_TRUNC), (30, 0), (8, 0)] {
        let pairs: Vec<_> = (0..sockets).map(|_| udp()).collect();
        let mut vector = Vector::new(&vec![Shape::plain(64); 100]);
        let mut eps = garbage(&pairs);
        let mut receive = |caller: &mut Caller| {
            // SAFETY: the vector's memory lives.
            unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, flags) }.unwrap()
        };
        let mut before = 0;
        for round in 0..200 {
            before = if round == 100 { caller.system_calls() } else { before };
            send(&pairs, 1);
            assert_eq!(receive(&mut caller), sockets);
        }
        let calls = caller.system_calls() - before;
        assert!((100..=104).contains(&calls), "{calls} calls for {sockets} sockets 100 times");
        send(&pairs, 100);
        let received: Vec<_> = (0..40).map(|_| receive(&mut caller)).collect();
        assert!(received[..2] == [sockets; 2] && received.contains(&100), "{received:?}");
    }
}

/// A message is cut off, fits exactly, fits with room to spare, or is not there: of each the length and MSG_TRUNC, in one
/// system call.
#[test]
fn what_was_cut_off_is_reported_whatever_the_flags() {
    let mut caller = Caller::with_backend(Backend::Uring);
    for kind in Kind::ALL {
        let pairs: Vec<_> = (0..40).map(|_| Pair::new(kind)).collect();
        support::shorten(&mut caller, &pairs[0].socket, &pairs[0].senders[0]);
        for (at, pair) in pairs.iter().enumerate().filter(|(at, _)| at % 4 < 3) {
            assert_eq!(pair.senders[0].send(&b"12345678"[..6 + at % 4]).unwrap(), 6 + at % 4);
            arrived(&pair.socket);
        }
        let before = caller.system_calls();
        let mut vector = Vector::new(&vec![Shape::plain(7); 40]);
        let mut eps: Vec<_> =
            pairs.iter().map(|pair| Mmep { sockfd: pair.fd(), num: -1, offset: -1 }).collect();
        // SAFETY: the vector's memory lives.
        assert_eq!(unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, 0) }, Ok(30));
        assert!(caller.backend() == Backend::Syscalls || caller.system_calls() == before + 1);
        let truncated = if kind.is_stream() { 0 } else { libc::MSG_TRUNC };
        for (at, ep) in eps.iter().enumerate() {
            let expected = [(1, 6, 0), (1, 7, 0), (1, 7, truncated), (-libc::EAGAIN, 0, 0)][at % 4];
            let got = vector.got(at);
            assert_eq!((ep.num, got.len, got.flags), expected, "{kind:?}");
            assert_eq!(got.data, b"1234567"[..got.len]);
        }
    }
}

/// Messages of which control data is left out have MSG_CTRUNC, which a short receive would not report.
#[test]
fn sockets_whose_messages_have_flags_keep_them() {
    for mut caller in support::callers() {
        support::stamping();
        let pairs: Vec<_> = (0..30).map(|_| Pair::new(Kind::Udp)).collect();
        pairs.iter().for_each(|pair| support::stamp(&pair.socket));
        for round in 0..100 {
            pairs.iter().for_each(|pair| assert_eq!(pair.senders[0].send(b"1234567").unwrap(), 7));
            pairs.iter().for_each(|pair| arrived(&pair.socket));
            let mut vector = Vector::new(&vec![Shape::plain(7); 40]);
            let mut eps: Vec<_> =
                pairs.iter().map(|pair| Mmep { sockfd: pair.fd(), num: 0, offset: 0 }).collect();
            // SAFETY: the vector's memory lives.
            assert_eq!(unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, 0) }, Ok(30));
            assert!((0..30).all(|at| vector.got(at).flags == libc::MSG_CTRUNC), "{round}");
        }
    }
}

#[test]
fn entries_of_one_socket_go_on_where_the_one_before_ended() {
    for mut caller in support::callers() {
        // Of a kind whose messages are there when they have been sent.
        let Pair { socket, senders, .. } = Pair::new(Kind::UnixDatagram);
        (0..5u8).for_each(|number| assert_eq!(senders[0].send(&[number]).unwrap(), 1));
        let mut vector = Vector::new(&vec![Shape::plain(8); 7]);
        let fd = socket.as_raw_fd();
        let mut eps = [2, 1, 4].map(|num| Mmep { sockfd: fd, num, offset: 0 });
        // SAFETY: the vector's memory lives.
        assert_eq!(unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, LIMITED) }, Ok(5));
        assert_eq!(eps.map(|ep| (ep.num, ep.offset)), [(2, 0), (1, 2), (2, 3)]);
        let order = [0, 1, 2, 3, 4].map(|place| vector.got(place).data[0]);
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}

/// 25 times fewer system calls with 30 sockets ready.
#[test]
fn many_sockets_take_few_system_calls() {
    let mut caller = Caller::with_backend(Backend::Uring);
    if caller.backend() == Backend::Syscalls {
        println!("SKIPPED many_sockets_take_few_system_calls: there is no io_uring here");
        return;
    }
    let before = caller.system_calls();
    for _ in 0..10 {
        // SAFETY: the vector's memory lives.
        assert!(exchange(|eps, msgs| unsafe { caller.recvmmmsg(eps, msgs, LIMITED).unwrap() }));
    }
    let calls = caller.system_calls() - before;
    assert!(calls * 25 <= 300, "{calls}");
}

#[test]
fn a_call_never_waits() {
    for mut caller in support::callers() {
        let pairs: Vec<_> = (0..30).map(|_| udp()).collect();
        let mut vector = Vector::new(&vec![Shape::plain(8); 60]);
        let mut eps = eps(&pairs, 2);
        let began = Instant::now();
        let flags = LIMITED | libc::MSG_WAITALL;
        // SAFETY: the vector's memory lives.
        assert_eq!(unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, flags) }, Ok(0));
        assert!(eps.iter().all(|ep| ep.num == -libc::EAGAIN));
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

/// The other end of a stream resets it behind its data, which a loop of recvmsg(2) gives first; behind its end, too, if
/// it has `ended` before.
fn reset(kind: Kind, data: &[u8], ended: bool) -> Socket {
    let Pair { socket, mut senders, .. } = Pair::new(kind);
    let peer = senders.pop().unwrap();
    match kind {
        Kind::Tcp => peer.set_linger(Some(Duration::ZERO)).unwrap(),
        // What it did not read makes it an error.
        _ => assert_eq!(socket.send(b"unread").unwrap(), 6),
    }
    assert_eq!(peer.send(data).unwrap(), data.len());
    if ended {
        peer.shutdown(Shutdown::Write).unwrap();
    }
    drop(peer);
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one live pollfd.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 20_000) }, 1);
    assert_ne!(poll.revents & libc::POLLERR, 0);
    socket
}

/// What calls for `num` messages of two bytes tell of each stream, until each has told its end.
fn told(caller: &mut Caller, streams: &[Socket], num: usize) -> Vec<Vec<String>> {
    let mut told = vec![Vec::new(); streams.len()];
    for _ in 0..10 {
        let mut vector = Vector::new(&vec![Shape::plain(2); streams.len() * num]);
        let entry = |(at, stream): (usize, &Socket)| Mmep {
            sockfd: stream.as_raw_fd(),
            num: num as i32,
            offset: (at * num) as i32,
        };
        let mut eps: Vec<_> = streams.iter().enumerate().map(entry).collect();
        // SAFETY: the vector's memory lives.
        unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, LIMITED) }.unwrap();
        for (ep, told) in eps.iter().zip(&mut told) {
            if ep.num < 0 {
                told.push(ep.num.to_string());
            }
            for place in 0..ep.num.max(0) {
                let got = vector.got((ep.offset + place) as usize);
                told.push(String::from_utf8(got.data).unwrap());
            }
        }
    }
    told
}

#[test]
fn the_data_of_a_stream_comes_before_its_error() {
    let error = (-libc::ECONNRESET).to_string();
    for mut caller in support::callers() {
        for (kind, sockets) in
            [(Kind::Tcp, 1), (Kind::Tcp, 20), (Kind::UnixStream, 1), (Kind::UnixStream, 20)]
        {
            for num in [1, 2, 3, 5] {
                let streams: Vec<_> = (0..sockets).map(|_| reset(kind, b"1234567", false)).collect();
                for told in told(&mut caller, &streams, num) {
                    assert_eq!(told[..6], ["12", "34", "56", "7", &error, ""], "{kind:?} {sockets} {num}");
                }
            }
        }
    }
}

/// recvmsg(2) gives the end for ever, recvmmsg(2) an error once.
#[test]
fn behind_the_end_of_a_stream_there_is_no_error() {
    for mut caller in support::callers() {
        for sockets in [1, 20] {
            for num in [1, 2, 3, 5] {
                let streams: Vec<_> = (0..sockets).map(|_| reset(Kind::Tcp, b"1234567", true)).collect();
                for told in told(&mut caller, &streams, num) {
                    assert_eq!(told[..4], ["12", "34", "56", "7"], "{sockets} {num}");
                    assert!(
                        told.len() > 6 && told[4..].iter().all(String::is_empty),
                        "{told:?} {sockets} {num}"
                    );
                }
            }
        }
    }
}

/// The end of a stream takes one place, so that the sockets behind it have the others.
#[test]
fn the_end_of_a_stream_comes_once_in_a_call() {
    for mut caller in support::callers() {
        for kind in [Kind::Tcp, Kind::UnixStream] {
            let Pair { socket, senders, .. } = Pair::new(kind);
            let other = Pair::new(Kind::UnixDatagram);
            assert_eq!(senders[0].send(b"data").unwrap(), 4);
            arrived(&socket);
            senders[0].shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            for flags in [0, LIMITED, 0] {
                assert_eq!(other.senders[0].send(b"message").unwrap(), 7);
                let mut vector = Vector::new(&vec![Shape::plain(3); 40]);
                let mut eps =
                    [socket.as_raw_fd(), other.fd()].map(|sockfd| Mmep { sockfd, num: 20, offset: 0 });
                // SAFETY: the vector's memory lives.
                unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, flags) }.unwrap();
                received.extend((0..eps[0].num).map(|place| vector.got(place as usize).data));
                assert_eq!(eps[1].num, 1, "{kind:?} {flags}");
                // Sent and acknowledged behind the data, but not necessarily there when that was received.
                let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
                // SAFETY: one live pollfd.
                assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 20_000) }, 1);
            }
            assert!(received.starts_with(&[b"dat".to_vec(), b"a".to_vec()]), "{received:?}");
            assert!((2..=3).contains(&received[2..].len()) && received[2..].iter().all(Vec::is_empty));
        }
    }
}

/// A header without a vector of pieces is an error of its socket, and nothing is lost.
#[test]
fn a_vector_that_is_not_there_is_an_error_of_its_socket() {
    for mut caller in support::callers() {
        for (sockets, flags) in [(2, LIMITED), (30, LIMITED), (30, LIMITED | libc::MSG_TRUNC), (30, 0)] {
            let pairs: Vec<_> = (0..sockets).map(|_| udp()).collect();
            send(&pairs, 1);
            let mut vector = Vector::new(&vec![Shape::plain(64); sockets]);
            vector.messages[1].msg_hdr.msg_iov = std::ptr::null_mut();
            let mut entries = eps(&pairs, 1);
            // SAFETY: the vector's memory lives, but for a vector of pieces that is null.
            unsafe { caller.recvmmmsg(&mut entries, &mut vector.messages, flags) }.unwrap();
            assert_eq!((entries[0].num, entries[1].num), (1, -libc::EFAULT), "{sockets} {flags}");
            let mut vector = Vector::new(&[Shape::plain(64)]);
            entries[1].num = 1;
            // SAFETY: the vector's memory lives.
            assert_eq!(unsafe { caller.recvmmmsg(&mut entries[1..2], &mut vector.messages, flags) }, Ok(1));
            assert_eq!(vector.got(0).data, [1, 0]);
        }
    }
}
