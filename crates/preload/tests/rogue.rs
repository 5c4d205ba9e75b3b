//! A program beside a monitor that says anything: it goes on over TCP.
//!
//! What is left out is a grant of sound memory to one end alone: whoever grants a connection its
//! memory has its bytes (docs/promotion.md, section 7).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use promote::Reason;
use promote::client::LOOP_PAGE;
use promote::wire::{ClientMessage, MonitorMessage, Token};
use sys::memory_file::MemoryFile;
use sys::packet;
use testkit::process::{Fosterling, preload_library, role, this_test_as};

const NAME: &str = "a_program_outlives_what_a_monitor_says";
/// One that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
const SEEDS: u64 = 48;
const CONNECTIONS: u8 = 12;
const SIZE: u32 = 8192;

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
        let began = Instant::now();
        let status = loop {
            if let Some(status) = victim.child().try_wait().expect("a child") {
                break status;
            }
            assert!(began.elapsed() < LIMIT, "SEED={seed}: the program hangs");
            std::thread::sleep(Duration::from_millis(1));
        };
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
            let welcome = MonitorMessage::Welcome { version: 1, loop_id: 7, segment_size: SIZE };
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
                3,
            ),
        };
        let mut bytes = message.encode().as_bytes().to_vec();
        let spoilt = self.random.below(4) == 0;
        if spoilt {
            self.spoil(&mut bytes);
        }
        let count = if self.random.below(8) == 0 { self.random.below(4) } else { count };
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

fn segment() -> MemoryFile {
    let mut head = *b"MPR1\x01\0\0\0\0\0\0\0";
    head[8..].copy_from_slice(&SIZE.to_le_bytes());
    MemoryFile::create("segment", SIZE.into(), &head).unwrap()
}

fn loop_page() -> MemoryFile {
    MemoryFile::create("loop", LOOP_PAGE as u64, b"MPL1\x01\0\0\0").unwrap()
}
