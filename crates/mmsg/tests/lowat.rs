//! The low-water mark with a timeout, seen by whoever may wait for a socket.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use megapipe::{Channel, Config, DispatchError, EngineKind, Event as Done, ReadData};
use mmsg::RcvLowat;
use mmsg::lowat::SetError;
use sys::epoll::{self, Event, Set};

const MARK: u32 = 100;
const TIMEOUT: Duration = Duration::from_millis(80);
const FOREVER: Duration = Duration::from_secs(60);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    (listener.accept().unwrap().0, peer)
}

/// Whether epoll reports the socket within the time.
fn is_reported(set: &Set, within: Duration) -> bool {
    set.wait(&mut [Event::NONE; 4], Some(within)).unwrap() > 0
}

/// How long a few bytes wait for their report.
fn reported_after(set: &Set, peer: &mut TcpStream) -> Duration {
    let began = Instant::now();
    peer.write_all(&[1; 10]).unwrap();
    assert!(is_reported(set, FOREVER));
    began.elapsed()
}

fn read(socket: &mut TcpStream) -> usize {
    socket.read(&mut [0; 4096]).unwrap()
}

fn waiting(edges: u32) -> (RcvLowat, TcpStream, TcpStream, Set) {
    let lowat = RcvLowat::in_background().unwrap();
    let (socket, peer) = pair();
    let set = Set::new().unwrap();
    set.add(socket.as_fd(), epoll::IN | edges, 0).unwrap();
    lowat.set(&socket, MARK, TIMEOUT).unwrap();
    (lowat, socket, peer, set)
}

#[test]
fn epoll_hears_of_the_mark_at_once_and_of_less_in_time() {
    for edges in [0, epoll::EDGES] {
        let (lowat, mut socket, mut peer, set) = waiting(edges);
        for _ in 0..3 {
            let waited = reported_after(&set, &mut peer);
            // An eighth of the timeout early, and what the sockets' clocks differ by.
            assert!(waited >= TIMEOUT / 4, "{waited:?}");
            assert_eq!(read(&mut socket), 10);
            assert!(!is_reported(&set, Duration::ZERO));
            assert!(lowat.rearm(&socket));
            // At once, and not by the next look only.
            assert_eq!(sys::message::low_water_mark(socket.as_raw_fd()).unwrap(), MARK as i32);
        }
        let began = Instant::now();
        peer.write_all(&[1; MARK as usize]).unwrap();
        assert!(is_reported(&set, FOREVER));
        assert!(began.elapsed() < FOREVER / 2);
        assert_eq!(read(&mut socket), MARK as usize);
    }
}

#[test]
fn poll_hears_of_it() {
    let (_lowat, mut socket, mut peer, _) = waiting(0);
    let began = Instant::now();
    peer.write_all(&[1; 10]).unwrap();
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, FOREVER.as_millis() as i32) }, 1);
    assert!(began.elapsed() >= TIMEOUT / 4);
    assert_eq!(read(&mut socket), 10);
}

/// A program that does not say when it has read has the mark again soon.
#[test]
fn the_mark_comes_back_by_itself() {
    let (_lowat, mut socket, mut peer, set) = waiting(0);
    peer.write_all(&[1; 10]).unwrap();
    assert!(is_reported(&set, FOREVER));
    assert_eq!(read(&mut socket), 10);
    let began = Instant::now();
    while sys::message::low_water_mark(socket.as_raw_fd()).unwrap() != MARK as i32 {
        assert!(began.elapsed() < FOREVER);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Also where the thread looks at this and other sockets all the time.
#[test]
fn the_mark_is_back_when_rearm_returns() {
    let lowat = RcvLowat::in_background().unwrap();
    let mut pairs: Vec<_> = (0..100).map(|_| pair()).collect();
    for (socket, peer) in &mut pairs {
        socket.set_nonblocking(true).unwrap();
        lowat.set(&*socket, MARK, Duration::from_millis(1)).unwrap();
        // Looked at twice as long as an empty one.
        peer.write_all(&[1]).unwrap();
    }
    let (mut socket, mut peer) = pairs.pop().unwrap();
    let mark = |socket: &TcpStream| sys::message::low_water_mark(socket.as_raw_fd()).unwrap();
    for round in 0..2000 {
        peer.write_all(&[1; 10]).unwrap();
        let began = Instant::now();
        // Half of the time it goes down first; then the thread looks at others just now.
        while round % 2 == 0 && mark(&socket) != 1 {
            assert!(began.elapsed() < FOREVER);
        }
        let mut left = if round == 0 { 11 } else { 10 };
        while left > 0 {
            assert!(began.elapsed() < FOREVER);
            left -= socket.read(&mut [0; 64]).unwrap_or(0);
        }
        assert!(lowat.rearm(&socket));
        assert_eq!(mark(&socket), MARK as i32, "{round}");
    }
}

#[test]
fn the_end_is_reported_at_once() {
    let (lowat, mut socket, mut peer, set) = waiting(epoll::EDGES);
    lowat.set(&socket, MARK, FOREVER).unwrap();
    peer.write_all(&[1; 10]).unwrap();
    drop(peer);
    let began = Instant::now();
    assert!(is_reported(&set, FOREVER));
    assert!(began.elapsed() < FOREVER / 2, "{:?}", began.elapsed());
    assert_eq!((read(&mut socket), read(&mut socket)), (10, 0));
}

/// A program that reads frames sets the mark to what the next one lacks.
#[test]
fn a_mark_that_is_set_again_keeps_the_age_of_what_waits() {
    for pause in [TIMEOUT / 10, Duration::ZERO] {
        let (lowat, mut socket, mut peer, set) = waiting(0);
        let began = Instant::now();
        peer.write_all(&[1; 10]).unwrap();
        let mut mark = MARK;
        while !is_reported(&set, pause) {
            assert!(began.elapsed() < FOREVER / 4, "never reported");
            mark = MARK + (mark + 1) % MARK;
            lowat.set(&socket, mark, TIMEOUT).unwrap();
        }
        assert!(began.elapsed() >= TIMEOUT / 4, "{:?}", began.elapsed());

        // What was read is not waited for any more.
        assert_eq!(read(&mut socket), 10);
        lowat.set(&socket, MARK, TIMEOUT).unwrap();
        assert!(!is_reported(&set, Duration::ZERO));
        std::thread::sleep(TIMEOUT);
        let waited = reported_after(&set, &mut peer);
        assert!(waited >= TIMEOUT / 4, "{waited:?}");

        // Another socket at the same number is new.
        let (other, mut other_peer) = pair();
        // SAFETY: both descriptors are this test's own.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), socket.as_raw_fd()) }, socket.as_raw_fd());
        drop(other);
        let set = Set::new().unwrap();
        let began = Instant::now();
        lowat.set(&socket, MARK, TIMEOUT).unwrap();
        set.add(socket.as_fd(), epoll::IN, 0).unwrap();
        other_peer.write_all(&[1; 10]).unwrap();
        assert!(is_reported(&set, FOREVER));
        assert!(began.elapsed() >= TIMEOUT / 4, "{:?}", began.elapsed());
        assert_eq!(lowat.len(), 1);
    }
}

#[test]
fn a_channel_hears_of_it() {
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        let Ok(mut channel) = Channel::new(Config { engine: Some(engine), ..Config::default() }) else {
            println!("SKIPPED a_channel_hears_of_it: no {engine:?} engine here");
            continue;
        };
        let lowat = RcvLowat::in_background().unwrap();
        let (socket, mut peer) = pair();
        lowat.set(&socket, MARK, TIMEOUT).unwrap();
        let handle = channel.register(OwnedFd::from(socket), 0).unwrap();
        channel.read_stream(handle).unwrap();
        // The read has to wait already: one that begins takes what is there.
        assert!(!matches!(channel.dispatch(Some(Duration::ZERO)), Ok(Some(_))));
        let began = Instant::now();
        peer.write_all(&[1; 10]).unwrap();
        let mut got = 0;
        while got == 0 {
            assert!(began.elapsed() < FOREVER);
            let completion = match channel.dispatch(Some(FOREVER)) {
                Err(DispatchError::Interrupted) | Ok(None) => continue, // stopped and resumed, say
                dispatched => dispatched.unwrap().unwrap(),
            };
            if let Done::Read { data: ReadData::Buffer(data), .. } = completion.event {
                got = data.len();
            }
        }
        assert_eq!(got, 10);
        assert!(began.elapsed() >= TIMEOUT / 4, "{engine:?} {:?}", began.elapsed());
    }
}

/// Without a thread: the loop's own epoll has the timer, too.
#[test]
fn a_loop_can_run_it_itself() {
    let lowat = RcvLowat::new().unwrap();
    let set = Set::new().unwrap();
    set.add(lowat.timer().unwrap(), epoll::IN, u64::MAX).unwrap();
    let mut pairs: Vec<_> = (0..100).map(|_| pair()).collect();
    // Setting a mark is a look, too: bytes may be taken to have come since then.
    let began = Instant::now();
    for (at, (socket, _)) in pairs.iter().enumerate() {
        set.add(socket.as_fd(), epoll::IN, at as u64).unwrap();
        lowat.set(socket, MARK, TIMEOUT).unwrap();
    }
    assert_eq!(lowat.len(), 100);
    pairs.iter_mut().for_each(|(_, peer)| peer.write_all(&[1; 10]).unwrap());
    let mut reported = [false; 100];
    let mut events = [Event::NONE; 64];
    while reported.iter().any(|&reported| !reported) {
        assert!(began.elapsed() < FOREVER);
        let count = set.wait(&mut events, Some(FOREVER)).unwrap();
        for event in &events[..count] {
            if event.data() == u64::MAX {
                lowat.expire().unwrap();
                continue;
            }
            let at = event.data() as usize;
            assert!(began.elapsed() >= TIMEOUT / 4);
            assert_eq!(read(&mut pairs[at].0), 10);
            reported[at] = true;
        }
    }
}

/// However short the timeouts are and however many sockets have one.
#[test]
fn doing_what_is_due_ends() {
    let lowat = RcvLowat::new().unwrap();
    let mut pairs: Vec<_> = (0..200).map(|_| pair()).collect();
    for (socket, peer) in &mut pairs {
        lowat.set(&*socket, MARK, Duration::from_nanos(1)).unwrap();
        peer.write_all(&[1]).unwrap();
    }
    let began = Instant::now();
    while pairs.iter().any(|(socket, _)| sys::message::low_water_mark(socket.as_raw_fd()).unwrap() != 1) {
        assert!(began.elapsed() < FOREVER);
        lowat.expire().unwrap();
    }
    lowat.set(&pairs[0].0, MARK, Duration::MAX).unwrap();
    lowat.expire().unwrap();
    assert!(lowat.rearm(&pairs[0].0));
}

/// Whatever the thread was about at the fork.
#[test]
fn a_forked_child_cannot_use_it_and_does_not_wait() {
    let lowat = RcvLowat::in_background().unwrap();
    let pairs: Vec<_> = (0..30).map(|_| pair()).collect();
    for (socket, _) in &pairs {
        lowat.set(socket, MARK, Duration::from_millis(1)).unwrap();
    }
    let socket = &pairs[0].0;
    for _ in 0..20 {
        // SAFETY: the child only makes calls that take no lock of another thread, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that waits for ever is ended.
            unsafe { libc::alarm(20) };
            let refused = matches!(lowat.set(socket, MARK, TIMEOUT), Err(SetError::Forked))
                && !lowat.rearm(socket)
                && !lowat.clear(socket)
                && lowat.expire().is_err()
                && lowat.is_empty();
            drop(lowat);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    assert_eq!(sys::message::low_water_mark(socket.as_raw_fd()).unwrap(), MARK as i32);
    assert_eq!(lowat.len(), 30);
}

#[test]
fn what_cannot_have_a_mark_is_refused() {
    let lowat = RcvLowat::new().unwrap();
    let (socket, _peer) = pair();
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (unix, _other) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(lowat.set(&udp, MARK, TIMEOUT), Err(SetError::NotTcp)));
    assert!(matches!(lowat.set(&unix, MARK, TIMEOUT), Err(SetError::NotTcp)));
    assert!(matches!(lowat.set(&listener, MARK, TIMEOUT), Err(SetError::NotTcp)));
    assert_eq!(sys::message::low_water_mark(listener.as_raw_fd()).unwrap(), 1);
    assert!(matches!(lowat.set(&file, MARK, TIMEOUT), Err(SetError::Io(_))));
    assert!(matches!(lowat.set_raw(-1, MARK, TIMEOUT), Err(SetError::Io(_))));
    assert!(matches!(lowat.set(&socket, 0, TIMEOUT), Err(SetError::Argument)));
    assert!(matches!(lowat.set(&socket, u32::MAX, TIMEOUT), Err(SetError::Argument)));
    assert!(matches!(lowat.set(&socket, MARK, Duration::ZERO), Err(SetError::Argument)));
    assert!(lowat.is_empty() && !lowat.clear(&socket));
}

#[test]
fn a_mark_ends_with_its_socket_and_with_its_owner() {
    let mark = |socket: &TcpStream| sys::message::low_water_mark(socket.as_raw_fd()).unwrap();
    let lowat = RcvLowat::in_background().unwrap();
    let (one, _peer) = pair();
    let (other, _other_peer) = pair();
    let (third, _third_peer) = pair();
    for socket in [&one, &other, &third] {
        lowat.set(socket, MARK, TIMEOUT).unwrap();
        assert_eq!(mark(socket), MARK as i32);
    }
    assert!(lowat.clear(&one) && !lowat.clear(&one));
    assert_eq!(mark(&one), 1);
    drop(other);
    let began = Instant::now();
    while lowat.len() > 1 {
        assert!(began.elapsed() < FOREVER);
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(lowat);
    assert_eq!(mark(&third), 1);
}

/// The program gives a socket's number to another one just when the mark is moved. A seccomp listener
/// stops the thread in setsockopt(2), after every check that it makes.
#[test]
fn a_number_that_becomes_another_socket_s_keeps_that_one_s_mark() {
    const NAME: &str = "a_number_that_becomes_another_socket_s_keeps_that_one_s_mark";
    const THEIRS: i32 = 77;
    // A filter holds for the thread that asks for it and for those that it makes.
    let made = std::thread::spawn(|| {
        let listener = stopped_at_marks()?;
        Ok::<_, std::io::Error>((listener, RcvLowat::in_background()?))
    });
    let (listener, lowat) = match made.join().unwrap() {
        Ok(made) => made,
        Err(error) => return println!("SKIPPED {NAME}: no seccomp listener: {error}"),
    };
    let (socket, mut peer) = pair();
    let (other, _other_peer) = pair();
    sys::message::set_low_water_mark(other.as_raw_fd(), THEIRS).unwrap();
    lowat.set(&socket, MARK, TIMEOUT).unwrap();
    peer.write_all(&[1; 10]).unwrap();

    // SAFETY: zeroes are a value of the struct, and the kernel wants them.
    let mut stop: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one live struct.
    let got =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut stop) };
    assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call takes no memory; the number stays owned by `socket`.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), socket.as_raw_fd()) }, socket.as_raw_fd());
    let go_on = libc::seccomp_notif_resp {
        id: stop.id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // SAFETY: the kernel reads one live struct.
    let sent =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw const go_on) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    // Without a listener nothing stops any more; the thread ends when it has done what it was at.
    drop(listener);
    drop(lowat);
    assert_eq!(sys::message::low_water_mark(other.as_raw_fd()).unwrap(), THEIRS);
}

/// Makes each setsockopt(2) of SO_RCVLOWAT on this thread wait for an answer of the listener's owner.
fn stopped_at_marks() -> std::io::Result<OwnedFd> {
    const OPTION: u32 = std::mem::offset_of!(libc::seccomp_data, args) as u32 + 2 * 8;
    let (load, equals) =
        ((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, (libc::BPF_JMP | libc::BPF_JEQ) as u16);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(load, 0, 0, std::mem::offset_of!(libc::seccomp_data, nr) as u32),
        step(equals, 0, 3, libc::SYS_setsockopt as u32),
        step(load, 0, 0, OPTION),
        step(equals, 0, 1, libc::SO_RCVLOWAT as u32),
        step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the call takes no memory.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel reads the live program.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if listener < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}
