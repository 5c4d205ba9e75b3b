//! How long a receiver's wait takes, and what it costs, on both backends.

use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mmsg::Backend;
use mmsg::receiver::{Event, Options, Receiver, WaitError};
use socket2::Socket;

mod support;

use support::{Kind, Pair};

const TIMEOUT: Duration = Duration::from_millis(200);
const FOREVER: Duration = Duration::from_secs(60);

/// Runs a test with a receiver on each backend, in a thread that is given up if it never ends.
fn each(test: fn(Receiver)) {
    for backend in [Backend::Syscalls, Backend::Uring] {
        let (ended, end) = mpsc::channel();
        let run = thread::spawn(move || {
            let receiver = Receiver::new(&Options { backend, ..Options::default() }).unwrap();
            if receiver.backend() == backend {
                test(receiver);
            } else {
                println!("SKIPPED the receiver on io_uring: none, or one with unsafe direct descriptors");
            }
            ended.send(()).unwrap();
        });
        match end.recv_timeout(2 * FOREVER) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{backend:?}: a wait does not end"),
            _ => run.join().unwrap(),
        }
    }
}

/// Events as text, with each its cookie. A wait that is interrupted, as that of a process that was stopped and
/// resumed is, goes on for what is left of its time.
fn wait(receiver: &mut Receiver, timeout: Duration) -> Vec<(u64, String)> {
    let began = Instant::now();
    loop {
        match receiver.wait(16, Some(timeout.saturating_sub(began.elapsed()))) {
            Err(WaitError::Interrupted) => {}
            batch => {
                return batch.unwrap().iter().map(|message| (message.cookie, text(message.event))).collect();
            }
        }
    }
}

fn text(event: Event<'_>) -> String {
    match event {
        Event::Data { data, .. } => String::from_utf8(data.to_vec()).unwrap(),
        Event::End => "end".to_owned(),
        Event::Error(error) => format!("error {}", error.raw_os_error().unwrap()),
    }
}

/// Nothing comes for as long as is waited for, which the kernel does: a wait that does not sleep calls it thousands of
/// times.
fn assert_quiet(receiver: &mut Receiver) {
    let (began, calls) = (Instant::now(), receiver.system_calls());
    assert_eq!(wait(receiver, TIMEOUT), [], "{:?}", receiver.backend());
    let (took, calls) = (began.elapsed(), receiver.system_calls() - calls);
    assert!(took >= TIMEOUT && calls < 50, "{:?}: {took:?}, {calls} calls", receiver.backend());
}

/// Has the socket's errors queued (IP_RECVERR).
fn queue_errors(socket: &Socket) {
    let on: libc::c_int = 1;
    let (level, option) = (libc::IPPROTO_IP, libc::IP_RECVERR);
    // SAFETY: the kernel reads one integer.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), 4) };
    assert_eq!(set, 0);
}

/// Sends to a port that nobody has until the kernel answers, which it does a thousand times a second.
fn be_refused(socket: &Socket, receiver: &mut Receiver, cookie: u64) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < FOREVER, "the kernel never refused");
        // May tell an error of before.
        let _ = socket.send(b"anybody?");
        let told = wait(receiver, TIMEOUT);
        assert!(
            told.iter().all(|told| *told == (cookie, format!("error {}", libc::ECONNREFUSED))),
            "{told:?}"
        );
        if !told.is_empty() {
            return;
        }
    }
}

#[test]
fn an_error_queue_keeps_nobody_from_waiting() {
    each(|mut receiver| {
        let Pair { socket, .. } = Pair::new(Kind::ConnectedUdp);
        let other = Pair::new(Kind::Udp);
        queue_errors(&socket);
        let own = socket.local_addr().unwrap();
        // Of an address that nobody else uses, who would be given a port that is free for a while.
        let peer = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        peer.bind(&SocketAddr::from(([127, 18, 0, 7], 0)).into()).unwrap();
        let address = peer.local_addr().unwrap();
        drop(peer);
        socket.connect(&address).unwrap();
        let to = socket.try_clone().unwrap();
        receiver.add(socket, 1).unwrap();
        receiver.add(other.socket, 2).unwrap();
        be_refused(&to, &mut receiver, 1);
        (0..2).for_each(|_| assert_quiet(&mut receiver));

        // Others are heard of, and later errors and messages of the same socket.
        other.senders[0].send(b"other").unwrap();
        assert_eq!(wait(&mut receiver, FOREVER), [(2, "other".to_owned())]);
        be_refused(&to, &mut receiver, 1);
        let peer = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        peer.bind(&address).unwrap();
        peer.connect(&own).unwrap();
        for _ in 0..3 {
            assert_eq!(peer.send(b"again").unwrap(), 5);
            let mut told = wait(&mut receiver, FOREVER);
            // A refusal that came late.
            told.retain(|(_, text)| !text.starts_with("error"));
            if told.is_empty() {
                told = wait(&mut receiver, FOREVER);
            }
            assert_eq!(told, [(1, "again".to_owned())]);
        }
        assert_quiet(&mut receiver);
        assert_interrupted(&mut receiver);
    });
}

/// A datagram socket that was shut down is readable for ever, and has nothing.
#[test]
fn an_end_without_a_message_keeps_nobody_from_waiting() {
    each(|mut receiver| {
        let Pair { socket, senders, .. } = Pair::new(Kind::ConnectedUdp);
        socket.shutdown(Shutdown::Read).unwrap();
        receiver.add(socket, 1).unwrap();
        wait(&mut receiver, TIMEOUT);
        assert_quiet(&mut receiver);
        senders[0].send(b"more").unwrap();
        assert_eq!(wait(&mut receiver, FOREVER), [(1, "more".to_owned())]);
        assert_quiet(&mut receiver);
    });
}

/// Of a socket that was removed, or that has ended, the kernel still has something to report.
#[test]
fn what_is_over_shortens_no_wait() {
    each(|mut receiver| {
        let other = Pair::new(Kind::Udp);
        receiver.add(other.socket, 0).unwrap();
        for kind in Kind::ALL {
            let Pair { socket, senders, .. } = Pair::new(kind);
            let idle = receiver.add(socket, 1).unwrap();
            assert_eq!(wait(&mut receiver, Duration::from_millis(1)), []);
            let socket = receiver.remove(idle).unwrap();
            assert_quiet(&mut receiver);
            receiver.add(socket, 2).unwrap();
            senders[0].send(b"last").unwrap();
            assert_eq!(wait(&mut receiver, FOREVER), [(2, "last".to_owned())]);
            drop(senders);
            if kind.is_stream() || kind == Kind::SeqPacket {
                assert_eq!(wait(&mut receiver, FOREVER), [(2, "end".to_owned())]);
            }
            (0..2).for_each(|_| assert_quiet(&mut receiver));
        }
    });
}

/// No clock reaches so far.
#[test]
fn a_wait_may_be_as_long_as_can_be_said() {
    each(|mut receiver| {
        let Pair { socket, senders, .. } = Pair::new(Kind::Udp);
        receiver.add(socket, 1).unwrap();
        for timeout in [Duration::MAX, Duration::from_secs(i64::MAX as u64), Duration::from_nanos(u64::MAX)] {
            senders[0].send(b"some").unwrap();
            assert_eq!(wait(&mut receiver, timeout), [(1, "some".to_owned())]);
            // Nothing is there at first.
            let sender = senders[0].try_clone().unwrap();
            let later = thread::spawn(move || {
                thread::sleep(TIMEOUT / 4);
                assert_eq!(sender.send(b"later").unwrap(), 5);
            });
            assert_eq!(wait(&mut receiver, timeout), [(1, "later".to_owned())]);
            later.join().unwrap();
        }
    });
}

/// A signal ends the wait.
fn assert_interrupted(receiver: &mut Receiver) {
    extern "C" fn handle(_: libc::c_int) {}
    // SAFETY: zero is an action without flags; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    // SAFETY: it has no argument.
    let waiting = unsafe { libc::pthread_self() };
    let (ended, end) = mpsc::channel();
    let signals = thread::spawn(move || {
        while end.recv_timeout(TIMEOUT / 10) == Err(mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: the thread lives until this one has ended.
            assert_eq!(unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) }, 0);
        }
    });
    assert!(matches!(receiver.wait(16, None), Err(WaitError::Interrupted)));
    ended.send(()).unwrap();
    signals.join().unwrap();
}
