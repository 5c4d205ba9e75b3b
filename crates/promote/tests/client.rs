//! The client with monitors that are absent, slow, or not to be trusted.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use promote::client::{DECLINES, DOORBELLS, LOOP_PAGE, LossCause, OLDEST, Options, QUEUES};
use promote::wire::{ClientMessage, MonitorMessage, Token};
use promote::{Answer, Client, Doorbells, OfferError, Reason};
use rustix::fs::OFlags;
use sys::doorbell::{self, Kind};
use sys::mapping::MapError;
use sys::memory_file::{MemoryFile, UnsoundFile};
use sys::packet;

/// A monitor that sends what a test wants.
struct Monitor {
    path: PathBuf,
    listener: OwnedFd,
}

impl Monitor {
    fn new(name: &str) -> Monitor {
        let path = std::env::temp_dir().join(format!("megapipe-client-{}-{name}", std::process::id()));
        let listener = packet::listen(&path, 16).unwrap();
        Monitor { path, listener }
    }

    fn options(&self) -> Options {
        Options {
            socket: Some(self.path.clone()),
            retry: Duration::from_secs(3600),
            ..Options::from_environment("test")
        }
    }

    /// A client that was welcomed and has offered these tokens, and the connection to it.
    fn welcomed(&self, offers: std::ops::RangeInclusive<u64>) -> (Client, OwnedFd) {
        let (mut client, connection) = self.client();
        send(&connection, WELCOME, &[memory(LOOP_PAGE).writable.as_fd()]);
        assert!(matches!(client.receive().unwrap(), Some(Answer::Welcome { .. })));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in offers {
            client.offer(token(number), socket.as_fd()).unwrap();
            assert!(matches!(from_client(&connection), Some(ClientMessage::Offer { .. })));
        }
        (client, connection)
    }

    /// A client, and the connection to it; its hello has been read.
    fn client(&self) -> (Client, OwnedFd) {
        let client = Client::connect(&self.options()).unwrap();
        let connection = packet::accept(self.listener.as_fd()).unwrap();
        assert!(matches!(from_client(&connection), Some(ClientMessage::Hello { version_min: 1, .. })));
        (client, connection)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The client's next message; `None` if there is none.
fn from_client(connection: &OwnedFd) -> Option<ClientMessage> {
    let mut bytes = [0; 256];
    let received = packet::receive(connection.as_fd(), &mut bytes).ok()?;
    Some(ClientMessage::decode(&bytes[..received.len]).unwrap())
}

fn send(connection: &OwnedFd, message: MonitorMessage, descriptors: &[BorrowedFd<'_>]) {
    packet::send(connection.as_fd(), message.encode().as_bytes(), descriptors).unwrap();
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn memory(len: usize) -> MemoryFile {
    MemoryFile::create("test", len as u64, b"").unwrap()
}

const SIZE: u32 = 8192;
const WELCOME: MonitorMessage = MonitorMessage::Welcome { version: 1, loop_id: 3, segment_size: SIZE };

fn grant(number: u64) -> MonitorMessage {
    MonitorMessage::Grant { token: token(number), peer_loop: 4, segment_size: SIZE }
}

#[test]
fn an_absent_monitor_is_tried_again_when_it_is_time() {
    let monitor = Monitor::new("absent");
    let path = monitor.path.clone();
    let options = monitor.options();
    drop(monitor);
    let mut client = Client::connect(&options).unwrap();
    assert!(client.fd().is_none() && client.receive().unwrap().is_none());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(client.offer(token(1), socket.as_fd()), Err(OfferError::NoMonitor)));
    client.withdraw(token(1));
    let listener = packet::listen(&path, 16).unwrap();
    assert!(!client.reconnect_due(Instant::now()).unwrap(), "it is too early");
    let next = client.next_attempt().unwrap();
    assert!(client.reconnect_due(next).unwrap() && client.next_attempt().is_none());
    // A dead one's socket is an absence, too.
    drop((listener, client));
    assert!(Client::connect(&options).unwrap().fd().is_none());
    std::fs::remove_file(&path).unwrap();
    let long = Options { socket: Some("/x".repeat(100).into()), ..options };
    assert!(Client::connect(&long).err().unwrap().to_string().contains("107"));
}

#[test]
fn memory_is_mapped_only_if_it_is_sound() {
    let monitor = Monitor::new("sound");
    let (page, region, small) = (memory(LOOP_PAGE), memory(SIZE as usize), memory(4096));
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, SIZE.into()).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (own, peer, page) = (region.writable.as_fd(), region.read_only.as_fd(), page.writable.as_fd());

    type Expected = fn(&LossCause) -> bool;
    let foreign: Expected =
        |cause| matches!(cause, LossCause::Memory(MapError::Unsound(UnsoundFile::Foreign(_))));
    let unsound: Expected =
        |cause| matches!(cause, LossCause::Memory(MapError::Unsound(UnsoundFile::Unsealed)));
    let size: Expected =
        |cause| matches!(cause, LossCause::Memory(MapError::Unsound(UnsoundFile::Size { .. })));
    let descriptors: Expected = |cause| matches!(cause, LossCause::Descriptors);
    let version: Expected = |cause| matches!(cause, LossCause::Version { .. });
    let odd = |segment_size| MonitorMessage::Grant { token: token(1), peer_loop: 4, segment_size };
    let cases: [(MonitorMessage, Vec<BorrowedFd<'_>>, Expected); 12] = [
        (WELCOME, vec![], descriptors),
        (WELCOME, vec![own], size),
        (WELCOME, vec![page, page], descriptors),
        (MonitorMessage::Welcome { version: 2, loop_id: 3, segment_size: SIZE }, vec![page], version),
        (MonitorMessage::Welcome { version: 1, loop_id: 3, segment_size: 5 }, vec![page], version),
        (grant(1), vec![own, peer], descriptors),
        (grant(1), vec![unsealed.as_fd(), peer, page], unsound),
        (grant(1), vec![own, small.read_only.as_fd(), page], size),
        (grant(1), vec![own, file.as_fd(), page], foreign),
        (grant(1), vec![own, peer, own], size),
        (odd(u32::MAX), vec![own, peer, page], version),
        (MonitorMessage::Refuse { token: Some(token(1)), reason: Reason::Rate }, vec![own], descriptors),
    ];
    for (message, with, expected) in cases {
        let (mut client, connection) = match message {
            MonitorMessage::Welcome { .. } => monitor.client(),
            _ => monitor.welcomed(1..=1),
        };
        send(&connection, message, &with);
        let loss = client.receive().unwrap_err();
        assert!(expected(&loss.cause), "{message:?}: {loss}");
        assert!(client.fd().is_none() && client.receive().unwrap().is_none());
    }
    // A region that this process may not write to is only this connection's loss.
    let (mut client, connection) = monitor.welcomed(7..=7);
    send(&connection, grant(7), &[peer, peer, page]);
    let answer = client.receive().unwrap().unwrap();
    assert!(matches!(answer, Answer::Refused { reason: Reason::NoMemory, .. }), "{answer:?}");
    assert_eq!(from_client(&connection), Some(ClientMessage::Withdraw { token: token(7) }));
}

/// Whatever the monitor sends, a client's loop over its answers ends.
#[test]
fn each_offer_has_one_answer() {
    let monitor = Monitor::new("turn");
    let (page, region) = (memory(LOOP_PAGE), memory(SIZE as usize));
    let memory = [region.writable.as_fd(), region.read_only.as_fd(), page.read_only.as_fd()];
    let refuse = |number, reason| MonitorMessage::Refuse { token: Token::new(number), reason };
    let refusal = refuse(1, Reason::Rate);
    let peer = MonitorMessage::Peer { token: token(1), user: Some(1000) };
    type Sent<'a> = (MonitorMessage, &'a [BorrowedFd<'a>]);
    let page = [page.writable.as_fd()];
    let out_of_turn: &[&[Sent<'_>]] = &[
        &[(WELCOME, &page)],
        &[(grant(2), &memory)],
        &[(refuse(2, Reason::NoPeer), &[])],
        &[(refuse(u64::MAX, Reason::NoPeer), &[])],
        &[(refusal, &[]), (refusal, &[])],
        &[(refusal, &[]), (grant(1), &memory)],
        &[(grant(1), &memory), (grant(1), &memory)],
        &[(grant(1), &memory), (refusal, &[]), (refusal, &[])],
        &[(MonitorMessage::End { next: None }, &[])],
        &[(peer, &[]), (peer, &[]), (peer, &[])],
    ];
    for answers in out_of_turn {
        let (mut client, connection) = monitor.welcomed(1..=1);
        answers.iter().for_each(|(message, with)| send(&connection, *message, with));
        for _ in 1..answers.len() {
            client.receive().unwrap().unwrap();
        }
        let loss = client.receive().unwrap_err();
        assert!(matches!(loss.cause, LossCause::OutOfTurn), "{answers:?}: {loss}");
    }
    let (mut client, connection) = monitor.client();
    send(&connection, refusal, &[]);
    assert!(matches!(client.receive().unwrap_err().cause, LossCause::OutOfTurn), "before the welcome");
    // A grant that could not be sent to the peer is withdrawn.
    let (mut client, connection) = monitor.welcomed(1..=1);
    send(&connection, grant(1), &memory);
    send(&connection, refusal, &[]);
    assert!(matches!(client.receive().unwrap(), Some(Answer::Granted { .. })));
    assert!(matches!(client.receive().unwrap(), Some(Answer::Refused { .. })));
    // An answer crosses a withdrawal, and no further one does.
    let (mut client, connection) = monitor.welcomed(1..=2);
    client.withdraw(token(1));
    client.withdraw(token(1));
    send(&connection, grant(1), &memory);
    send(&connection, refuse(2, Reason::Policy), &[]);
    assert!(matches!(client.receive().unwrap(), Some(Answer::Refused { token, .. }) if token.get() == 2));
    send(&connection, refusal, &[]);
    assert!(matches!(client.receive().unwrap_err().cause, LossCause::OutOfTurn));
}

/// Offers may be sent behind the hello: only a welcome of this version makes them count.
#[test]
fn offers_before_the_welcome_come_back_unless_it_comes() {
    let monitor = Monitor::new("early");
    let (page, region) = (memory(LOOP_PAGE), memory(SIZE as usize));
    let granted = [region.writable.as_fd(), region.read_only.as_fd(), page.read_only.as_fd()];
    let page = [page.writable.as_fd()];
    let refuse = |token, reason| MonitorMessage::Refuse { token, reason };
    let newer = MonitorMessage::Welcome { version: 2, loop_id: 3, segment_size: SIZE };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let early = || {
        let (mut client, connection) = monitor.client();
        for number in 1..=2 {
            client.offer(token(number), socket.as_fd()).unwrap();
        }
        (client, connection)
    };
    type Expected = fn(&LossCause) -> bool;
    let version: Expected = LossCause::is_version;
    let out_of_turn: Expected = |cause| matches!(cause, LossCause::OutOfTurn);
    let ended: Expected = |cause| matches!(cause, LossCause::Ended | LossCause::System(_));
    let cases: [(Option<MonitorMessage>, &[BorrowedFd<'_>], Expected); 6] = [
        (None, &[], ended),
        (Some(refuse(None, Reason::Version)), &[], version),
        (Some(newer), &page, version),
        (Some(grant(1)), &granted, out_of_turn),
        (Some(refuse(Token::new(1), Reason::Policy)), &[], out_of_turn),
        (Some(MonitorMessage::Peer { token: token(1), user: None }), &[], out_of_turn),
    ];
    for (answer, with, expected) in cases {
        let (mut client, connection) = early();
        if let Some(message) = answer {
            send(&connection, message, with);
        }
        drop(connection);
        let mut loss = client.receive().unwrap_err();
        loss.unanswered.sort();
        assert!(expected(&loss.cause), "{answer:?}: {loss}");
        assert_eq!(loss.unanswered, [token(1), token(2)], "{answer:?}");
    }
    let (mut client, connection) = early();
    send(&connection, WELCOME, &page);
    send(&connection, grant(1), &granted);
    assert!(matches!(client.receive().unwrap(), Some(Answer::Welcome { .. })));
    assert!(matches!(client.receive().unwrap(), Some(Answer::Granted { .. })));
}

#[test]
fn one_loop_has_one_page() {
    let monitor = Monitor::new("page");
    let (mut client, connection) = monitor.welcomed(1..=3);
    let (page, other) = (memory(LOOP_PAGE), memory(LOOP_PAGE));
    let region = memory(SIZE as usize);
    let mut loops = Vec::new();
    for (number, page) in [(1, &page), (2, &page), (3, &other)] {
        let descriptors = [region.writable.as_fd(), region.read_only.as_fd(), page.read_only.as_fd()];
        send(&connection, grant(number), &descriptors);
        match client.receive().unwrap() {
            Some(Answer::Granted { peer_loop, .. }) => loops.push(peer_loop),
            other => panic!("{other:?}"),
        }
    }
    assert!(std::sync::Arc::ptr_eq(&loops[0], &loops[1]) && !std::sync::Arc::ptr_eq(&loops[0], &loops[2]));
    assert_eq!(loops[0].id, 4);
}

#[test]
fn a_monitor_that_does_not_read_costs_offers_but_no_withdrawals() {
    let monitor = Monitor::new("slow");
    let (mut client, connection) = monitor.client();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut offered = 0;
    while client.offer(token(offered + 1), socket.as_fd()).is_ok() {
        offered += 1;
        assert!(offered < 100_000, "the socket takes everything");
    }
    for number in 1..=offered {
        client.withdraw(token(number));
    }
    assert!(matches!(client.offer(token(offered + 1), socket.as_fd()), Err(OfferError::Full)));
    // As soon as it reads again it gets all of them, each once and in order.
    let (mut offers, mut withdrawals) = (0, 0);
    while withdrawals < offered {
        match from_client(&connection) {
            Some(ClientMessage::Offer { token }) => {
                offers += 1;
                assert_eq!(token.get(), offers);
            }
            Some(ClientMessage::Withdraw { token }) => {
                withdrawals += 1;
                assert_eq!(token.get(), withdrawals);
            }
            Some(other) => panic!("{other:?}"),
            // Messages that found no room are sent by the next call.
            None => assert!(client.receive().unwrap().is_none()),
        }
    }
    assert_eq!(offers, offered);
}

/// The client soon tries again after a monitor that ends, but not after one that refuses
/// it or has another version.
#[test]
fn a_monitor_that_refuses_clients_is_not_tried_again_soon() {
    let monitor = Monitor::new("away");
    let refusal = MonitorMessage::Refuse { token: None, reason: Reason::Quota };
    let version = MonitorMessage::Welcome { version: 2, loop_id: 3, segment_size: SIZE };
    let cases = [(None, false), (Some(refusal), false), (Some(version), false), (Some(WELCOME), true)];
    for (answer, soon) in cases {
        let (mut client, connection) = monitor.client();
        if let Some(message) = answer {
            let page = memory(LOOP_PAGE);
            let page = [page.writable.as_fd()];
            send(&connection, message, if message == refusal { &[] } else { &page });
        }
        drop(connection);
        while client.receive().is_ok() {}
        let pause = client.next_attempt().unwrap().duration_since(Instant::now());
        assert_eq!(pause < Duration::from_secs(60), soon, "{answer:?}: {pause:?}");
    }
}

#[test]
fn the_last_message_of_a_monitor_is_read() {
    let monitor = Monitor::new("word");
    let (mut client, connection) = monitor.client();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.offer(token(1), socket.as_fd()).unwrap();
    send(&connection, MonitorMessage::Refuse { token: None, reason: Reason::Quota }, &[]);
    // It closes without having read the offer, which the kernel reports as a reset.
    drop(connection);
    let loss = client.receive().unwrap_err();
    assert!(matches!(loss.cause, LossCause::Refused(Reason::Quota)), "{loss}");
    assert!(client.receive().unwrap().is_none());
}

/// A client that accepts doorbells or does not, welcomed with a version, after an offer that
/// is granted with these descriptors behind the first three.
fn granted_with(
    monitor: &Monitor,
    accepts: bool,
    version: u32,
    doorbells: &[BorrowedFd<'_>],
) -> Result<Option<Doorbells>, LossCause> {
    let options = Options { doorbells: accepts, ..monitor.options() };
    let mut client = Client::connect(&options).unwrap();
    let connection = packet::accept(monitor.listener.as_fd()).unwrap();
    let newest = match accepts {
        true if doorbell::may_use_queues() => DECLINES,
        true => DOORBELLS,
        false => OLDEST,
    };
    assert!(matches!(
        from_client(&connection),
        Some(ClientMessage::Hello { version_min: OLDEST, version_max, .. }) if version_max == newest
    ));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.offer(token(1), socket.as_fd()).unwrap();
    let (page, region) = (memory(LOOP_PAGE), memory(SIZE as usize));
    let welcome = MonitorMessage::Welcome { version, loop_id: 3, segment_size: SIZE };
    send(&connection, welcome, &[page.writable.as_fd()]);
    let mut descriptors = vec![region.writable.as_fd(), region.read_only.as_fd(), page.read_only.as_fd()];
    descriptors.extend(doorbells);
    send_any(&connection, grant(1), &descriptors);
    loop {
        match client.receive() {
            Ok(Some(Answer::Welcome { .. })) => {}
            Ok(Some(Answer::Granted { doorbells, .. })) => return Ok(doorbells),
            Ok(other) => panic!("{other:?}"),
            Err(loss) => {
                assert!(client.fd().is_none());
                return Err(loss.cause);
            }
        }
    }
}

/// Sends a message with more descriptors than one of ours has, too.
fn send_any(connection: &OwnedFd, message: MonitorMessage, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(descriptors)));
    let packet = message.encode();
    let runs = [std::io::IoSlice::new(packet.as_bytes())];
    rustix::net::sendmsg(connection, &runs, &mut ancillary, rustix::net::SendFlags::NOSIGNAL).unwrap();
}

/// With every monitor a client gets the version that both have, and no doorbells that it
/// did not ask for.
#[test]
fn doorbells_come_only_where_both_speak_the_version() {
    let monitor = Monitor::new("versions");
    let ([own, _], [peer, far]) =
        (doorbell::create(Kind::Pipe).unwrap(), doorbell::create(Kind::Pipe).unwrap());
    let both = [own.as_fd(), peer.as_fd()];
    assert!(granted_with(&monitor, false, OLDEST, &[]).unwrap().is_none());
    assert!(granted_with(&monitor, true, OLDEST, &[]).unwrap().is_none());
    assert!(granted_with(&monitor, true, DOORBELLS, &[]).unwrap().is_none());
    let doorbells = granted_with(&monitor, true, DOORBELLS, &both).unwrap().expect("they came");
    assert_eq!(rustix::io::write(&doorbells.peer, &[7]), Ok(1));
    let mut bytes = [0; 2];
    assert_eq!((rustix::io::read(&far, &mut bytes), bytes[0]), (Ok(1), 7));
    assert_eq!(rustix::io::write(&own, &[8]), Ok(1));
    assert_eq!((rustix::io::read(&doorbells.own, &mut bytes), bytes[0]), (Ok(1), 8));
    for received in [&doorbells.own, &doorbells.peer] {
        assert!(rustix::io::fcntl_getfd(received).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
    for accepts in [false, true] {
        assert!(
            matches!(granted_with(&monitor, accepts, OLDEST, &both), Err(LossCause::Descriptors)),
            "{accepts}"
        );
    }
    for (accepts, version) in [(false, DOORBELLS), (true, DECLINES + 1), (true, OLDEST - 1)] {
        let loss = granted_with(&monitor, accepts, version, &[]).unwrap_err();
        assert!(matches!(loss, LossCause::Version { version: of, .. } if of == version), "{loss}");
    }
}

/// Message queues come from version 3 on, each by its own side.
#[test]
fn queues_come_only_from_their_version_on() {
    if !doorbell::may_use_queues() {
        println!("SKIPPED queues_come_only_from_their_version_on: there is a seccomp filter");
        return;
    }
    let monitor = Monitor::new("queues");
    let [pipe, _] = doorbell::create(Kind::Pipe).unwrap();
    let ([own, far], [_near, peer]) =
        (doorbell::create(Kind::Queue).unwrap(), doorbell::create(Kind::Queue).unwrap());
    let queues = [own.as_fd(), peer.as_fd()];
    let doorbells = granted_with(&monitor, true, QUEUES, &queues).unwrap().expect("they came");
    assert_eq!(doorbells.kind, Kind::Queue);
    assert!(doorbell::ring(doorbells.peer.as_fd(), Kind::Queue) && doorbell::ring(far.as_fd(), Kind::Queue));
    for (version, wrong) in
        [(DOORBELLS, queues), (QUEUES, [queues[1], queues[0]]), (QUEUES, [pipe.as_fd(), queues[1]])]
    {
        let answer = granted_with(&monitor, true, version, &wrong);
        assert!(matches!(answer, Err(LossCause::Descriptors)), "{version}: {answer:?}");
    }
}

#[test]
fn a_client_leaves_a_monitor_that_sends_invalid_doorbells() {
    let monitor = Monitor::new("doorbells");
    let [own, peer] = doorbell::create(Kind::Pipe).unwrap();
    let (own, peer) = (own.as_fd(), peer.as_fd());
    let flags = |fd: &OwnedFd, flags| rustix::fs::fcntl_setfl(fd, flags).unwrap();
    let [blocking, _peer] = doorbell::create(Kind::Pipe).unwrap();
    flags(&blocking, OFlags::empty());
    let (reader, writer) = std::io::pipe().unwrap();
    let [reader, writer] = [OwnedFd::from(reader), OwnedFd::from(writer)];
    flags(&reader, OFlags::NONBLOCK);
    flags(&writer, OFlags::NONBLOCK);
    let file = memory(4096).writable;
    let (socket, _far) = packet::pair().unwrap();
    for wrong in [&blocking, &reader, &writer, &file, &socket] {
        for doorbells in [[wrong.as_fd(), peer], [own, wrong.as_fd()]] {
            let answer = granted_with(&monitor, true, DOORBELLS, &doorbells);
            assert!(matches!(answer, Err(LossCause::Descriptors)), "{wrong:?}: {answer:?}");
        }
    }
    for count in [1, 3, 4] {
        let answer = granted_with(&monitor, true, DOORBELLS, &[own; 4][..count]);
        assert!(matches!(answer, Err(LossCause::Descriptors)), "{count}: {answer:?}");
    }
    assert!(granted_with(&monitor, true, DOORBELLS, &[own, peer]).unwrap().is_some());
}

/// A filter may refuse what queues need, or kill for it.
#[test]
fn under_a_seccomp_filter_no_queues_are_accepted() {
    let filtered = std::thread::spawn(|| {
        // Allows everything (SECCOMP_RET_ALLOW).
        let mut filter = libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: 0x7fff_0000 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut filter };
        // SAFETY: numbers, and a program of one instruction to read.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        }
        let monitor = Monitor::new("filtered");
        let options = Options { doorbells: true, ..monitor.options() };
        let _client = Client::connect(&options).unwrap();
        let connection = packet::accept(monitor.listener.as_fd()).unwrap();
        let hello = from_client(&connection);
        assert!(matches!(hello, Some(ClientMessage::Hello { version_max: DOORBELLS, .. })), "{hello:?}");
    });
    filtered.join().unwrap();
}
