//! A program beside a monitor that says anything: it goes on over TCP. And beside one that gives sound memory, and with
//! it doorbells of any kind.
//!
//! What is left out is a grant of sound memory to one end alone: whoever grants a connection its
//! memory has its bytes (docs/promotion.md, section 7).

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use promote::Reason;
use promote::client::{DOORBELLS, LOOP_PAGE, QUEUES};
use promote::wire::{ClientMessage, MonitorMessage, Token};
use sys::doorbell::{self, Kind};
use sys::memory_file::MemoryFile;
use sys::packet;
use testkit::process::{Fosterling, preload_library, role, this_test_as, until_ended};

const NAME: &str = "a_program_outlives_what_a_monitor_says";
/// How long one that may hang is waited for.
const HANGS: Duration = Duration::from_secs(2);
const SEEDS: u64 = 48;
const CONNECTIONS: u8 = 12;
const SIZE: u32 = 8192;
/// When doorbells block that were sound.
const LATER: Duration = Duration::from_millis(20);

#[test]
fn a_program_outlives_what_a_monitor_says() {
    if role().is_some() {
        return exchange();
    }
    let library = preload_library();
    let first: u64 = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut said = 0;
    for seed in first..first + SEEDS {
        let rogue = Rogue::start(seed);
        let mut command: Command = this_test_as(NAME, "victim");
        command.env("LD_PRELOAD", library).env("MEGAPIPE_PROMOTE", "eager");
        command.env("MEGAPIPE_MONITOR", &rogue.path).stdout(Stdio::null());
        let mut victim = Fosterling::start(&mut command);
        let status = until_ended(&format!("the end of the program, SEED={seed}"), victim.child());
        assert!(status.success(), "SEED={seed}: {status}");
        said += rogue.said.load(Ordering::Relaxed);
    }
    assert!(said > SEEDS * 2, "only {said} messages were sent");
}

/// What the program does: connections to itself, each byte of which comes back.
fn exchange() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read(&mut byte).unwrap() > 0 {
                stream.write_all(&byte).unwrap();
            }
        }
    });
    for number in 0..CONNECTIONS {
        // A client that has left a monitor looks for it again after 50 ms.
        std::thread::sleep(Duration::from_millis(10));
        let mut stream = TcpStream::connect(address).unwrap();
        for byte in number..number + 24 {
            stream.write_all(&[byte]).unwrap();
            let mut back = [0];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [byte]);
        }
    }
    server.join().unwrap();
}

/// Numbers that look random (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A monitor that keeps to no rule, until it is dropped.
struct Rogue {
    path: PathBuf,
    said: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rogue {
    fn start(seed: u64) -> Rogue {
        let path = std::env::temp_dir().join(format!("megapipe-rogue-{}-{seed}", std::process::id()));
        let listener = packet::listen(&path, 16).unwrap();
        let (said, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut talk = Talk {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            said: said.clone(),
            offers: VecDeque::new(),
        };
        let ended = ends.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                match packet::accept(listener.as_fd()) {
                    Ok(client) => talk.with(&client, &ended),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Rogue { path, said, ends, thread: Some(thread) }
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Talk {
    random: Random,
    said: Arc<AtomicU64>,
    /// Tokens that were offered, the last ones.
    offers: VecDeque<u64>,
}

impl Talk {
    /// Talks until the client has had enough, or so many messages were sent.
    fn with(&mut self, client: &OwnedFd, ended: &AtomicBool) {
        self.offers.clear();
        let mut left = 1 + self.random.below(40);
        if self.random.below(8) > 0 {
            // Mostly it gets as far as offers and their answers.
            let page = loop_page();
            let version = 1 + self.random.below(2) as u32;
            let welcome = MonitorMessage::Welcome { version, loop_id: 7, segment_size: SIZE };
            let _ = packet::send(client.as_fd(), welcome.encode().as_bytes(), &[page.writable.as_fd()]);
        }
        while left > 0 && !ended.load(Ordering::Relaxed) {
            let mut bytes = [0; 256];
            match packet::receive(client.as_fd(), &mut bytes) {
                Ok(received) if received.len == 0 => return,
                Ok(received) => {
                    if let Ok(ClientMessage::Offer { token }) = ClientMessage::decode(&bytes[..received.len])
                    {
                        self.offers.push_back(token.get());
                    }
                }
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                // Before the first offer there is little to be wrong about.
                Err(_) if self.offers.is_empty() && self.random.below(64) > 0 => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(_) => {
                    left -= 1;
                    self.say(client);
                }
            }
        }
    }

    fn say(&mut self, client: &OwnedFd) {
        let token = self.token();
        let reason = Reason::OF_MONITOR[self.random.below(Reason::OF_MONITOR.len())];
        let some = if self.random.below(16) > 0 { Token::new(token) } else { None };
        let (message, count) = match self.random.below(9) {
            8 => (
                MonitorMessage::Peer {
                    token: Token::new(token).unwrap_or(const { Token::new(1).unwrap() }),
                    user: Some(self.random.next() as u32),
                },
                0,
            ),
            0 => (MonitorMessage::Welcome { version: 1, loop_id: 7, segment_size: SIZE }, 1),
            1 => (MonitorMessage::End { next: None }, 0),
            2..5 => (MonitorMessage::Refuse { token: some, reason }, 0),
            _ => (
                MonitorMessage::Grant {
                    token: Token::new(token).unwrap_or(const { Token::new(1).unwrap() }),
                    peer_loop: self.random.next() as u32,
                    segment_size: SIZE,
                },
                3 + 2 * self.random.below(2),
            ),
        };
        let mut bytes = message.encode().as_bytes().to_vec();
        let spoilt = self.random.below(4) == 0;
        if spoilt {
            self.spoil(&mut bytes);
        }
        let count = if self.random.below(8) == 0 { self.random.below(7) } else { count };
        let descriptors = self.descriptors(count);
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if packet::send(client.as_fd(), &bytes, &descriptors).is_ok() {
            self.said.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One that was offered, or nearly so.
    fn token(&mut self) -> u64 {
        let known = match self.offers.len() {
            0 => 0x1_0000_0000,
            many => self.offers[self.random.below(many)],
        };
        match self.random.below(8) {
            0 => known & !0xffff_ffff | self.random.next() & 0xffff_ffff,
            1 => known | 0xffff_ffff,
            2 => known ^ 1 << self.random.below(64),
            3 => self.random.next(),
            _ => known,
        }
    }

    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        match self.random.below(4) {
            0 => bytes.truncate(self.random.below(bytes.len()).max(1)),
            1 => bytes.extend((0..1 + self.random.below(300)).map(|place| place as u8)),
            2 => bytes[0] = self.random.below(14) as u8,
            _ => {
                let place = self.random.below(bytes.len());
                bytes[place] ^= 1 << self.random.below(8);
            }
        }
    }

    /// So many, of which one at least is not what it should be.
    fn descriptors(&mut self, count: usize) -> Vec<OwnedFd> {
        let broken = self.random.below(count.max(1));
        let mut descriptor = |place: usize| -> OwnedFd {
            let sound = place != broken && self.random.below(2) == 0;
            match (sound, place, self.random.below(8)) {
                (true, 0, _) => segment().writable,
                (true, 1, _) => segment().read_only,
                (true, 3.., _) => one_doorbell(),
                (true, ..) => loop_page().read_only,
                (_, _, 0) => File::open("/dev/null").unwrap().into(),
                (_, _, 1) => UdpSocket::bind("127.0.0.1:0").unwrap().into(),
                (_, _, 2) => File::open("/proc/self/exe").unwrap().into(),
                (_, _, 3) => MemoryFile::create("small", 4096, b"MPR1").unwrap().writable,
                (_, _, 4) => MemoryFile::create("empty", 0, b"").unwrap().writable,
                (_, _, 5) => {
                    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
                    let file = rustix::fs::memfd_create("unsealed", flags).unwrap();
                    rustix::fs::ftruncate(&file, SIZE.into()).unwrap();
                    file
                }
                // Zeroed: of the right size, and no segment.
                _ => MemoryFile::create("zeroed", SIZE.into(), b"").unwrap().writable,
            }
        };
        (0..count).map(&mut descriptor).collect()
    }
}

/// What a monitor gives with sound memory, to both ends of each connection.
#[derive(Clone, Copy, Debug)]
enum Given {
    Sound,
    None,
    /// One description for both ends.
    Shared,
    /// One end's for each other.
    Swapped,
    /// The monitor keeps them, and lets them block and fills them afterwards.
    BlockLater,
    OneAlone,
    Files,
    /// The two sides of a pipe.
    Sides,
    Block,
    ThreeDoorbells,
    Queues,
    /// With the flags of the side that the monitor keeps, which block, and full.
    QueuesBlockLater,
    /// By the sides of the peer.
    QueuesSwapped,
    /// One of each.
    Mixed,
}

impl Given {
    const ALL: [Given; 14] = [
        Given::Sound,
        Given::None,
        Given::Shared,
        Given::Swapped,
        Given::BlockLater,
        Given::OneAlone,
        Given::Files,
        Given::Sides,
        Given::Block,
        Given::ThreeDoorbells,
        Given::Queues,
        Given::QueuesBlockLater,
        Given::QueuesSwapped,
        Given::Mixed,
    ];

    /// Whether connections with them are promoted.
    fn are_taken(self) -> bool {
        matches!(
            self,
            Given::Sound
                | Given::None
                | Given::Shared
                | Given::Swapped
                | Given::BlockLater
                | Given::Queues
                | Given::QueuesBlockLater
        )
    }

    /// Whether a connection with them may hang: its monitor is trusted with that.
    fn may_hang(self) -> bool {
        matches!(self, Given::Swapped | Given::BlockLater)
    }

    fn blocks_later(self) -> bool {
        matches!(self, Given::BlockLater | Given::QueuesBlockLater)
    }

    fn kind(self) -> Kind {
        match self {
            Given::Queues | Given::QueuesBlockLater | Given::QueuesSwapped | Given::Mixed => Kind::Queue,
            _ => Kind::Pipe,
        }
    }

    /// For the two ends of a connection.
    fn make(self) -> [Vec<OwnedFd>; 2] {
        let [[own, other_peer], [other, peer]] = [0, 1].map(|_| doorbell::create(self.kind()).unwrap());
        let null = || OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        match self {
            Given::None => [vec![], vec![]],
            Given::Sound | Given::BlockLater | Given::Queues | Given::QueuesBlockLater => {
                [vec![own, peer], vec![other, other_peer]]
            }
            Given::Mixed => [vec![own, one_doorbell()], vec![one_doorbell(), other_peer]],
            Given::Shared => {
                let [one, two] = [&own, &other].map(|bell| bell.try_clone().unwrap());
                [vec![own, two], vec![other, one]]
            }
            Given::Swapped | Given::QueuesSwapped => [vec![peer, own], vec![other, other_peer]],
            Given::OneAlone => [vec![own], vec![other]],
            Given::Files => {
                let files = || (0..2).map(|_| set_nonblocking(null().into(), true)).collect();
                [files(), files()]
            }
            Given::Sides => {
                let sides = || {
                    let (reader, writer) = std::io::pipe().unwrap();
                    vec![set_nonblocking(reader.into(), true), set_nonblocking(writer.into(), true)]
                };
                [sides(), sides()]
            }
            Given::Block => {
                [vec![set_nonblocking(own, false), peer], vec![other, set_nonblocking(other_peer, false)]]
            }
            Given::ThreeDoorbells => {
                let more = || doorbell::create(Kind::Pipe).unwrap();
                let ([one, _], [two, _]) = (more(), more());
                [vec![own, peer, one], vec![other, other_peer, two]]
            }
        }
    }
}

fn set_nonblocking(fd: OwnedFd, on: bool) -> OwnedFd {
    sys::file::set_nonblocking(fd.as_fd(), on).unwrap();
    fd
}

/// A monitor that grants all connections that one client has with itself, with these doorbells, for as long as it likes.
fn grants(listener: &OwnedFd, given: Given, ended: &AtomicBool) {
    let mut waiting: Vec<(u64, TcpStream)> = Vec::new();
    let (mut kept, mut open) = (Vec::new(), Vec::new());
    let mut client = None;
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(100));
        for (_, bell) in kept.extract_if(.., |(since, _): &mut (Instant, OwnedFd)| since.elapsed() > LATER) {
            while doorbell::ring(bell.as_fd(), given.kind()) {}
            open.push(set_nonblocking(bell, false));
        }
        if let Ok(new) = packet::accept(listener.as_fd()) {
            let page = loop_page();
            let version = if doorbell::may_use_queues() { QUEUES } else { DOORBELLS };
            let welcome = MonitorMessage::Welcome { version, loop_id: 7, segment_size: SIZE };
            packet::send(new.as_fd(), welcome.encode().as_bytes(), &[page.writable.as_fd()]).unwrap();
            waiting.clear();
            client = Some((new, page));
        }
        let Some((client, page)) = &client else { continue };
        let mut bytes = [0; 256];
        let Ok(mut received) = packet::receive(client.as_fd(), &mut bytes) else { continue };
        let Ok(ClientMessage::Offer { token }) = ClientMessage::decode(&bytes[..received.len]) else {
            continue;
        };
        let end = TcpStream::from(received.descriptors[0].take().unwrap());
        let is_mate = |(_, other): &(u64, TcpStream)| {
            other.local_addr().ok() == end.peer_addr().ok() && other.peer_addr().ok() == end.local_addr().ok()
        };
        let Some(place) = waiting.iter().position(is_mate) else {
            waiting.push((token.get(), end));
            continue;
        };
        let (segments, of_both) = ([segment(), segment()], given.make());
        for (own, token) in [waiting.swap_remove(place).0, token.get()].into_iter().enumerate() {
            let message =
                MonitorMessage::Grant { token: Token::new(token).unwrap(), peer_loop: 7, segment_size: SIZE };
            let memory =
                [&segments[own].writable, &segments[1 - own].read_only, &page.read_only].map(AsFd::as_fd);
            let mut descriptors = memory.to_vec();
            descriptors.extend(of_both[own].iter().map(AsFd::as_fd));
            // It may have left.
            let _ = packet::send(client.as_fd(), message.encode().as_bytes(), &descriptors);
        }
        if given.blocks_later() {
            kept.extend(of_both.into_iter().flatten().map(|bell| (Instant::now(), bell)));
        }
    }
}

#[test]
fn a_program_outlives_what_doorbells_a_monitor_gives() {
    const NAME: &str = "a_program_outlives_what_doorbells_a_monitor_gives";
    if role().is_some() {
        return converse();
    }
    let room = tempfile::tempdir().unwrap();
    // Under a seccomp filter no program accepts queues.
    let are_tried = |given: &Given| given.kind() == Kind::Pipe || doorbell::may_use_queues();
    for given in Given::ALL.into_iter().filter(are_tried) {
        let [path, log] = ["monitor", "log"].map(|kind| room.path().join(format!("{given:?}.{kind}")));
        let listener = packet::listen(&path, 16).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let ends = ended.clone();
        let monitor = std::thread::spawn(move || grants(&listener, given, &ends));
        let mut command: Command = this_test_as(NAME, "victim");
        command.env("LD_PRELOAD", preload_library()).env("MEGAPIPE_PROMOTE", "eager");
        command.env("MEGAPIPE_SPIN", "0").env("MEGAPIPE_STATS", "1").env("MEGAPIPE_LOG", &log);
        command.env("MEGAPIPE_MONITOR", &path).stdout(Stdio::null());
        let mut victim = Fosterling::start(&mut command);
        let what = format!("the end of the program, {given:?}");
        let status = if given.may_hang() {
            let began = Instant::now();
            loop {
                match victim.child().try_wait().expect("a child") {
                    None if began.elapsed() < HANGS => std::thread::sleep(Duration::from_millis(1)),
                    status => break status,
                }
            }
        } else {
            Some(until_ended(&what, victim.child()))
        };
        ended.store(true, Ordering::Relaxed);
        monitor.join().unwrap();
        let Some(status) = status else {
            victim.kill();
            continue;
        };
        assert!(status.success(), "{given:?}: {status}");
        let log = std::fs::read_to_string(&log).unwrap();
        let is_promoted = !log.contains(" 0 promoted");
        // Those that block later may do so before they are looked at.
        assert!(is_promoted == given.are_taken() || given.may_hang(), "{given:?}: {log}");
    }
}

/// What the program does there: a connection to itself whose ends sleep for each other, until it is promoted and beyond.
fn converse() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    let server = std::thread::spawn(move || {
        let mut byte = [0];
        while server.read(&mut byte).unwrap() > 0 {
            std::thread::sleep(Duration::from_micros(300));
            server.write_all(&byte).unwrap();
        }
    });
    for byte in (0..=255).cycle().take(300) {
        stream.write_all(&[byte]).unwrap();
        let mut back = [0];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, [byte]);
    }
    drop(stream);
    server.join().unwrap();
}

fn one_doorbell() -> OwnedFd {
    let [doorbell, _] = doorbell::create(Kind::Pipe).unwrap();
    doorbell
}

fn segment() -> MemoryFile {
    let mut head = *b"MPR1\x01\0\0\0\0\0\0\0";
    head[8..].copy_from_slice(&SIZE.to_le_bytes());
    MemoryFile::create("segment", SIZE.into(), &head).unwrap()
}

fn loop_page() -> MemoryFile {
    MemoryFile::create("loop", LOOP_PAGE as u64, b"MPL1\x01\0\0\0").unwrap()
}
