//! Readiness of descriptors that stay the caller's.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use megapipe::{Event, Handle, OpId, Readiness, Shutdown, SubmitError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::conformance::Fixture;
use crate::driver::{Driver, WATCHDOG};
use crate::net::{self, Scratch};
use crate::skip::Verdict;

const READABLE: Readiness = Readiness::READABLE;
const WRITABLE: Readiness = Readiness::WRITABLE;

/// The next completion is this poll's.
#[track_caller]
fn expect_poll(driver: &mut Driver, op: OpId, cookie: u64) -> std::io::Result<Readiness> {
    let completion = driver.next();
    assert_eq!((completion.op, completion.cookie, completion.handle), (op, cookie, Handle::NONE));
    match completion.event {
        Event::Poll(result) => result,
        other => panic!("no poll: {other:?}"),
    }
}

#[track_caller]
fn expect_cancelled(driver: &mut Driver, op: OpId, cookie: u64) {
    let error = expect_poll(driver, op, cookie).expect_err("it was cancelled");
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}

fn byte_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    (reader, writer)
}

/// A stream whose buffers are full, and its peer.
fn full_stream() -> (UnixStream, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 4096]).is_ok() {}
    (ours, peer)
}

pub fn what_is_ready_completes_at_once(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (reader, writer) = byte_pipe();
    let op = driver.poll(reader.as_fd(), READABLE, 7).unwrap();
    assert_eq!(expect_poll(&mut driver, op, 7).unwrap(), READABLE);
    let op = driver.poll(writer.as_fd(), WRITABLE, 8).unwrap();
    assert_eq!(expect_poll(&mut driver, op, 8).unwrap(), WRITABLE);
    // Only what was asked for.
    let (ours, mut peer) = UnixStream::pair().unwrap();
    peer.write_all(b"x").unwrap();
    for interest in [READABLE, WRITABLE, READABLE | WRITABLE] {
        let op = driver.poll(ours.as_fd(), interest, 9).unwrap();
        assert_eq!(expect_poll(&mut driver, op, 9).unwrap(), interest);
    }
    driver.expect_silence();
    Ok(())
}

pub fn what_becomes_ready_ends_a_wait(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (ours, mut peer) = full_stream();
    let read = driver.poll(reader.as_fd(), READABLE, 1).unwrap();
    let write = driver.poll(ours.as_fd(), WRITABLE, 2).unwrap();
    driver.expect_silence();
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(b"x").unwrap());
        // `None`: nothing but the poll can end it.
        let completion = driver.dispatch(None).unwrap().expect("an endless wait ends with a completion");
        assert_eq!(completion.op, read);
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = vec![0; 1 << 20];
            peer.set_nonblocking(true).unwrap();
            while peer.read(&mut left).is_ok() {}
        });
        assert_eq!(expect_poll(&mut driver, write, 2).unwrap(), WRITABLE);
    });
    driver.expect_silence();
    Ok(())
}

pub fn every_kind_of_descriptor(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let scratch = Scratch::new();
    let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    let (datagrams, sender) = UnixDatagram::pair().unwrap();
    let udp = UdpSocket::bind(net::v4()).unwrap();
    let tcp = TcpListener::bind(net::v4()).unwrap();
    let unix = UnixListener::bind(scratch.join("listener")).unwrap();
    let set = sys::epoll::Set::new().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    set.add(reader.as_fd(), sys::epoll::IN, 0).unwrap();

    let mut connections: Vec<OwnedFd> = Vec::new();
    let files: [BorrowedFd<'_>; 7] = [
        counter.as_fd(),
        timer.as_fd(),
        datagrams.as_fd(),
        udp.as_fd(),
        tcp.as_fd(),
        unix.as_fd(),
        set.as_fd(),
    ];
    let polls: Vec<_> = files.iter().map(|fd| driver.poll(*fd, READABLE, 3).unwrap()).collect();
    driver.expect_silence();
    for (kind, op) in polls.into_iter().enumerate() {
        match kind {
            0 => drop(rustix::io::write(&counter, &1u64.to_ne_bytes()).unwrap()),
            1 => {
                let soon = Timespec { tv_sec: 0, tv_nsec: 1 };
                let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: soon };
                timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).unwrap();
            }
            2 => drop(sender.send(b"x").unwrap()),
            3 => {
                let from = UdpSocket::bind(net::v4()).unwrap();
                from.send_to(b"x", udp.local_addr().unwrap()).unwrap();
            }
            4 => connections.push(net::connect(&tcp).into()),
            5 => connections.push(UnixStream::connect(scratch.join("listener")).unwrap().into()),
            _ => writer.write_all(b"x").unwrap(),
        }
        assert_eq!(expect_poll(&mut driver, op, 3).unwrap(), READABLE, "kind {kind}");
    }
    driver.expect_silence();
    Ok(())
}

pub fn a_disk_file_is_always_ready(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let file = tempfile::tempfile().unwrap();
    for interest in [READABLE, WRITABLE, READABLE | WRITABLE] {
        let op = driver.poll(file.as_fd(), interest, 1).unwrap();
        assert_eq!(expect_poll(&mut driver, op, 1).unwrap(), interest);
    }
    for interest in [Readiness::default(), Readiness::PRIORITY] {
        let op = driver.poll(file.as_fd(), interest, 1).unwrap();
        let error = expect_poll(&mut driver, op, 1).expect_err("it will never be");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
    driver.expect_silence();
    Ok(())
}

pub fn urgent_bytes_are_reported(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    let waits = driver.poll(ours.as_fd(), Readiness::PRIORITY, 1).unwrap();
    driver.expect_silence();
    assert_eq!(rustix::net::send(&peer, b"u", rustix::net::SendFlags::OOB), Ok(1));
    assert_eq!(expect_poll(&mut driver, waits, 1).unwrap(), Readiness::PRIORITY);
    let again = driver.poll(ours.as_fd(), Readiness::PRIORITY | READABLE, 2).unwrap();
    assert_eq!(expect_poll(&mut driver, again, 2).unwrap(), Readiness::PRIORITY);
    Ok(())
}

pub fn nothing_is_reported_twice(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (reader, mut writer) = byte_pipe();
    let op = driver.poll(reader.as_fd(), READABLE, 1).unwrap();
    expect_poll(&mut driver, op, 1).unwrap();
    writer.write_all(b"y").unwrap();
    driver.expect_silence();
    drop(writer);
    driver.expect_silence();
    assert!(driver.cancel(op).is_err(), "it is over");
    Ok(())
}

pub fn levels_and_edges_are_made_of_it(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"xyz").unwrap();
    // Levels: poll again after each byte, of which more are there.
    for byte in *b"xyz" {
        let op = driver.poll(reader.as_fd(), READABLE, 1).unwrap();
        assert_eq!(expect_poll(&mut driver, op, 1).unwrap(), READABLE);
        let mut one = [0];
        reader.read_exact(&mut one).unwrap();
        assert_eq!(one, [byte]);
    }
    // Edges: poll again when all was read. What came between the two is not lost.
    writer.write_all(b"x").unwrap();
    for _ in 0..100 {
        let op = driver.poll(reader.as_fd(), READABLE, 1).unwrap();
        expect_poll(&mut driver, op, 1).unwrap();
        let mut some = [0; 16];
        assert_eq!(reader.read(&mut some).unwrap(), 1);
        writer.write_all(b"x").unwrap();
    }
    driver.expect_silence();
    Ok(())
}

pub fn polls_of_one_descriptor_are_independent(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (ours, mut peer) = full_stream();
    let write = driver.poll(ours.as_fd(), WRITABLE, 1).unwrap();
    let read = driver.poll(ours.as_fd(), READABLE, 2).unwrap();
    let again = driver.poll(ours.as_fd(), READABLE, 3).unwrap();
    driver.expect_silence();
    driver.cancel(again).unwrap();
    expect_cancelled(&mut driver, again, 3);
    peer.write_all(b"x").unwrap();
    assert_eq!(expect_poll(&mut driver, read, 2).unwrap(), READABLE);
    driver.expect_silence();
    peer.set_nonblocking(true).unwrap();
    while peer.read(&mut [0; 4096]).is_ok() {}
    assert_eq!(expect_poll(&mut driver, write, 1).unwrap(), WRITABLE);
    driver.expect_silence();
    Ok(())
}

pub fn a_handles_descriptor_can_be_polled(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (socket, mut peer) = net::tight_tcp_pair();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let own = socket.try_clone().unwrap();
    let handle = driver.register(socket, 1).unwrap();
    let stream = driver.read_stream(handle).unwrap();
    driver.expect_silence();
    while rustix::io::write(&own, &[1; 4096]).is_ok() {}
    let number = driver.control(handle, |fd| Ok(fd.as_raw_fd())).unwrap();
    // SAFETY: the handle keeps it open until the end of the case.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let op = driver.poll(fd, WRITABLE, 2).unwrap();
    driver.expect_silence();
    peer.write_all(b"still read").unwrap();
    assert_eq!(driver.expect_read(stream).0.unwrap(), b"still read");
    peer.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut room = vec![0; 1 << 16];
    let completion = loop {
        assert_ne!(peer.read(&mut room).unwrap(), 0);
        if let Some(completion) = driver.next_within(Duration::from_millis(1)) {
            break completion;
        }
    };
    assert!(completion.op == op && matches!(completion.event, Event::Poll(Ok(WRITABLE))), "{completion:?}");
    drop(own);
    driver.close(handle).unwrap();
    Ok(())
}

pub fn the_end_of_a_stream_is_reported_as_asked(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (ours, peer) = full_stream();
    let write = driver.poll(ours.as_fd(), WRITABLE, 1).unwrap();
    let read = driver.poll(ours.as_fd(), READABLE, 2).unwrap();
    let end = driver.poll(ours.as_fd(), Readiness::READ_HANG_UP, 3).unwrap();
    driver.expect_silence();
    peer.shutdown(Shutdown::Write).unwrap();
    for _ in 0..2 {
        let completion = driver.next();
        let Event::Poll(Ok(ready)) = completion.event else { panic!("{completion:?}") };
        let expected = if completion.op == read { READABLE } else { Readiness::READ_HANG_UP };
        assert!(completion.op == read || completion.op == end);
        assert_eq!(ready, expected);
    }
    // A poll for room alone does not complete for it.
    driver.expect_silence();
    drop(peer);
    assert!(expect_poll(&mut driver, write, 1).unwrap().contains(Readiness::HANG_UP));
    // Errors and hang-ups are reported unasked.
    let (reader, writer) = std::io::pipe().unwrap();
    let op = driver.poll(writer.as_fd(), Readiness::default(), 4).unwrap();
    driver.expect_silence();
    drop(reader);
    assert_eq!(expect_poll(&mut driver, op, 4).unwrap(), Readiness::ERROR);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(writer);
    let op = driver.poll(reader.as_fd(), READABLE, 5).unwrap();
    assert_eq!(expect_poll(&mut driver, op, 5).unwrap(), Readiness::HANG_UP);
    Ok(())
}

pub fn a_cancelled_poll_says_so_once(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (reader, mut writer) = std::io::pipe().unwrap();
    for flushed in [false, true] {
        let op = driver.poll(reader.as_fd(), READABLE, 1).unwrap();
        if flushed {
            driver.expect_silence();
        }
        driver.cancel(op).unwrap();
        let _ = driver.cancel(op);
        expect_cancelled(&mut driver, op, 1);
        assert!(driver.cancel(op).is_err());
    }
    writer.write_all(b"x").unwrap();
    driver.expect_silence();
    Ok(())
}

pub fn a_cancelled_poll_lets_go_of_its_file(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let (ours, mut peer) = UnixStream::pair().unwrap();
    peer.set_read_timeout(Some(WATCHDOG)).unwrap();
    let op = driver.poll(ours.as_fd(), READABLE, 1).unwrap();
    driver.expect_silence();
    driver.cancel(op).unwrap();
    driver.flush().unwrap();
    drop(ours);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    expect_cancelled(&mut driver, op, 1);
    driver.expect_silence();
    Ok(())
}

pub fn what_cannot_be_polled_is_an_error(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver_with(|config| config.operations_max = 4);
    let (reader, _writer) = std::io::pipe().unwrap();
    // No descriptor, and none that could be one.
    for number in [1 << 29, i32::MAX] {
        // SAFETY: the number is borrowed for the call, which is to find that nothing has it.
        let op = driver.poll(unsafe { BorrowedFd::borrow_raw(number) }, READABLE, 1).unwrap();
        let error = expect_poll(&mut driver, op, 1).expect_err("there is no such descriptor");
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
    let polls: Vec<_> = (0..4).map(|_| driver.poll(reader.as_fd(), READABLE, 1).unwrap()).collect();
    assert_eq!(driver.poll(reader.as_fd(), READABLE, 1), Err(SubmitError::OperationsFull));
    for op in polls {
        driver.cancel(op).unwrap();
        expect_cancelled(&mut driver, op, 1);
    }
    let op = driver.poll(reader.as_fd(), READABLE, 1).unwrap();
    driver.cancel(op).unwrap();
    Ok(())
}

pub fn a_number_used_again_is_polled_anew(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let mut pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
    let mut number = rustix::io::dup(&pairs[0].0).unwrap();
    for round in 0..4 {
        let op = driver.poll(number.as_fd(), READABLE, 1).unwrap();
        driver.expect_silence();
        driver.cancel(op).unwrap();
        expect_cancelled(&mut driver, op, 1);
        // The file lives on under another number, which keeps it in an epoll set.
        let (before, now) = (round % 2, (round + 1) % 2);
        rustix::io::dup2(&pairs[now].0, &mut number).unwrap();
        let op = driver.poll(number.as_fd(), READABLE, 2).unwrap();
        pairs[before].1.write_all(b"x").unwrap();
        driver.expect_silence();
        pairs[now].1.write_all(b"x").unwrap();
        assert_eq!(expect_poll(&mut driver, op, 2).unwrap(), READABLE);
        for (ours, _) in &mut pairs {
            ours.read_exact(&mut [0]).unwrap();
        }
    }
    driver.expect_silence();
    Ok(())
}

pub fn hundreds_of_polls_end_with_their_channel(fixture: &mut Fixture) -> Verdict {
    let mut driver = fixture.driver();
    let pipes: Vec<_> = (0..200).map(|_| std::io::pipe().unwrap()).collect();
    for (reader, _) in &pipes {
        driver.poll(reader.as_fd(), READABLE, 0).unwrap();
    }
    driver.expect_silence();
    let mut writers = Vec::new();
    for (reader, writer) in pipes {
        drop(reader);
        writers.push(writer);
    }
    let start = std::time::Instant::now();
    drop(driver);
    assert!(start.elapsed() < WATCHDOG / 2);
    // Nothing holds the readers any more.
    for mut writer in writers {
        assert_eq!(writer.write(b"x").expect_err("nobody reads").kind(), ErrorKind::BrokenPipe);
    }
    Ok(())
}

/// Polls, cancels, reads and writes at random, and compares with poll(2).
pub fn random_polls_agree_with_poll(fixture: &mut Fixture) -> Verdict {
    for seed in 1..=8 {
        random_polls(&mut fixture.driver(), seed);
    }
    Ok(())
}

fn random_polls(driver: &mut Driver, seed: u64) {
    const PAIRS: usize = 8;
    let mut random = seed;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % limit
    };
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| UnixStream::pair().unwrap()).collect();
    for (ours, peer) in &pairs {
        ours.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
    }
    let mut pending: Vec<(OpId, usize, Readiness)> = Vec::new();
    let mut cancelled: Vec<OpId> = Vec::new();
    for step in 0..2000 {
        let at = below(PAIRS);
        let (ours, peer) = &mut pairs[at];
        match below(8) {
            0 | 1 => {
                let interest = [READABLE, WRITABLE, READABLE | WRITABLE, Readiness::READ_HANG_UP][below(4)];
                pending.push((driver.poll(ours.as_fd(), interest, at as u64).unwrap(), at, interest));
            }
            2 if !pending.is_empty() => {
                let (op, ..) = pending.swap_remove(below(pending.len()));
                driver.cancel(op).unwrap();
                cancelled.push(op);
            }
            3 => drop(peer.write(&[0; 100])),
            4 => while matches!(ours.read(&mut [0; 4096]), Ok(1..)) {},
            5 => while ours.write(&[0; 4096]).is_ok() {},
            6 if step > 1000 => peer.shutdown(Shutdown::Write).unwrap(),
            _ => while peer.read(&mut [0; 4096]).is_ok() {},
        }
        // Nothing else changes until all has surfaced.
        while let Some(completion) = driver.next_within(Duration::ZERO) {
            let Event::Poll(result) = completion.event else { panic!("seed {seed}: {completion:?}") };
            if let Some(place) = cancelled.iter().position(|&op| op == completion.op) {
                cancelled.swap_remove(place);
                continue;
            }
            let place = pending.iter().position(|&(op, ..)| op == completion.op).expect("it is pending");
            let (_, at, interest) = pending.swap_remove(place);
            assert_eq!(completion.cookie, at as u64);
            assert_eq!(result.unwrap(), now(&pairs[at].0, interest), "seed {seed}, step {step}");
        }
        for &(_, at, interest) in &pending {
            assert_eq!(now(&pairs[at].0, interest), Readiness::default(), "seed {seed}, step {step}");
        }
    }
}

/// What poll(2) says.
fn now(file: &UnixStream, interest: Readiness) -> Readiness {
    let mut polled = [PollFd::new(file, PollFlags::from_bits_retain(interest.bits()))];
    let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&nothing)).unwrap();
    Readiness::from_bits(polled[0].revents().bits())
}
