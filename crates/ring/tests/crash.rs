//! Processes share one direction at both endpoints, and are killed at any moment. What is
//! delivered is the stream from its beginning on, without a gap in what was published,
//! and nothing twice.
#![cfg(not(any(ring_loom, miri)))]
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ring::layout::{MIN_SIZE, PAGE, format_region};
use ring::{Acquired, Direction, Lock, PeerRegion, Receiver, Region, Sender, Wait};

/// The role of a process in the test.
const ROLE: &str = "MEGAPIPE_TEST_ROLE";
/// The descriptors it inherited: both regions and the report.
const DESCRIPTORS: &str = "MEGAPIPE_TEST_DESCRIPTORS";
const KILLS: usize = 150;
/// No process outlives its test for long.
const LIFETIME: Duration = Duration::from_secs(30);

/// The byte at a stream offset.
fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Numbers that look random (xorshift64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn memfd(size: usize, head: &[u8]) -> i32 {
    // SAFETY: the kernel reads a live string and live bytes.
    unsafe {
        // Inherited: no MFD_CLOEXEC.
        let descriptor = libc::memfd_create(c"megapipe-test".as_ptr(), 0);
        assert!(descriptor >= 0, "memfd_create: {}", io::Error::last_os_error());
        assert_eq!(libc::ftruncate(descriptor, size as libc::off_t), 0);
        assert_eq!(libc::pwrite(descriptor, head.as_ptr().cast(), head.len(), 0), head.len() as isize);
        descriptor
    }
}

/// Maps it for as long as the process lives.
fn map(descriptor: i32, size: usize, protection: i32) -> NonNull<u8> {
    // SAFETY: a new mapping, placed by the kernel.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, descriptor, 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    NonNull::new(start.cast()).expect("not mapped at 0")
}

fn own(descriptor: i32) -> Region {
    // SAFETY: mapped readable and writable until the process ends.
    unsafe { Region::new(map(descriptor, MIN_SIZE, libc::PROT_READ | libc::PROT_WRITE), MIN_SIZE) }
        .expect("formatted")
}

fn peer(descriptor: i32) -> PeerRegion {
    // SAFETY: mapped readable until the process ends.
    unsafe { PeerRegion::new(map(descriptor, MIN_SIZE, libc::PROT_READ), MIN_SIZE) }.expect("formatted")
}

fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }.unsigned_abs()
}

/// Waits as long as it takes.
struct Patient(Instant);

impl Wait for Patient {
    fn is_alive(&mut self, thread: u32) -> bool {
        Path::new(&format!("/proc/{thread}")).exists()
    }

    fn pause(&mut self, _attempt: u32) -> bool {
        std::thread::yield_now();
        self.0.elapsed() < LIFETIME
    }
}

/// What all processes of the test share.
struct Shared {
    descriptors: [i32; 3],
    start: Instant,
}

impl Shared {
    fn new() -> Shared {
        let head = format_region(MIN_SIZE).expect("a size");
        let descriptors = [memfd(MIN_SIZE, &head), memfd(MIN_SIZE, &head), memfd(PAGE, &[])];
        Shared { descriptors, start: Instant::now() }
    }

    fn inherited() -> Shared {
        let list = std::env::var(DESCRIPTORS).expect("started with it");
        let numbers: Vec<i32> = list.split(',').map(|number| number.parse().expect("a number")).collect();
        Shared { descriptors: numbers.try_into().expect("three"), start: Instant::now() }
    }

    fn spawn(&self, role: &str) -> Child {
        let list = self.descriptors.map(|number| number.to_string()).join(",");
        Command::new(std::env::current_exe().expect("a running program has a path"))
            .args(["killed_processes_lose_and_repeat_nothing", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DESCRIPTORS, list)
            .stdout(Stdio::null())
            .spawn()
            .expect("a test program can start itself")
    }

    fn sender(&self) -> (Lock, Sender) {
        let own = own(self.descriptors[0]);
        (Lock::new(own.clone(), Direction::Send), Sender::new(own, peer(self.descriptors[1])))
    }

    fn receiver(&self) -> (Lock, Receiver) {
        let own = own(self.descriptors[1]);
        let receiver = Receiver::new(own.clone(), peer(self.descriptors[0])).expect("an honest endpoint");
        (Lock::new(own, Direction::Receive), receiver)
    }

    /// How far the stream was delivered.
    fn delivered(&self) -> &'static AtomicU64 {
        let page = map(self.descriptors[2], PAGE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: mapped until the process ends, aligned to a page, and used as this alone.
        unsafe { page.cast::<AtomicU64>().as_ref() }
    }

    fn acquire(&self, lock: &Lock) -> Option<Acquired> {
        lock.acquire(thread_id(), &mut Patient(self.start)).ok()
    }

    fn write(&self) {
        let (lock, mut sender) = self.sender();
        let mut dice = Dice(u64::from(thread_id()) | 1);
        while self.acquire(&lock).is_some() && self.start.elapsed() < LIFETIME {
            sender.resume();
            let from = sender.stream();
            let bytes: Vec<u8> = (from..from + 1 + dice.below(500) as u64).map(pattern).collect();
            let (first, second) = bytes.split_at(dice.below(bytes.len()));
            let written = sender.write([first, second], usize::MAX, None).expect("an honest endpoint");
            lock.release(thread_id());
            if written == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn read(&self) {
        let (lock, mut receiver) = self.receiver();
        let delivered = self.delivered();
        let mut dice = Dice(u64::from(thread_id()) | 1);
        let mut buffer = [0; 700];
        while self.acquire(&lock).is_some() && self.start.elapsed() < LIFETIME {
            receiver.resume().expect("an honest endpoint");
            let from = receiver.stream();
            assert!(from >= delivered.load(Ordering::Acquire), "delivered twice");
            let wanted = 1 + dice.below(buffer.len());
            let count = receiver.read(&mut buffer[..wanted]).expect("an honest endpoint");
            assert!((from..).map(pattern).zip(&buffer[..count]).all(|(byte, other)| byte == *other));
            receiver.save();
            delivered.store(receiver.stream(), Ordering::Release);
            lock.release(thread_id());
            if count == 0 {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn killed_processes_lose_and_repeat_nothing() {
    match std::env::var(ROLE).as_deref() {
        Ok("writer") => return Shared::inherited().write(),
        Ok("reader") => return Shared::inherited().read(),
        _ => {}
    }
    let shared = Shared::new();
    let (send_lock, mut sender) = shared.sender();
    let (receive_lock, mut receiver) = shared.receiver();
    receiver.mark_aware();
    assert!(sender.open_ring().expect("new"));

    let roles = ["writer", "reader", "writer", "reader"];
    let mut children = roles.map(|role| shared.spawn(role));
    let mut dice = Dice(0x1234_5678_9abc_def1);
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_micros(dice.below(6000) as u64));
        let victim = dice.below(children.len());
        let ended = children[victim].try_wait().expect("a child can be asked for");
        assert_eq!(ended, None, "a {} ended by itself", roles[victim]);
        kill(&mut children[victim]);
        children[victim] = shared.spawn(roles[victim]);
    }
    for child in &mut children {
        assert_eq!(child.try_wait().expect("a child can be asked for"), None, "one ended by itself");
        kill(child);
    }

    // What is left is whole, whatever the last ones died in.
    shared.acquire(&send_lock).expect("its holders are dead");
    shared.acquire(&receive_lock).expect("its holders are dead");
    sender.resume();
    receiver.resume().expect("an honest endpoint");
    assert!(receiver.stream() >= shared.delivered().load(Ordering::Acquire));
    let from = receiver.stream();
    let mut rest = vec![0; MIN_SIZE];
    let count = receiver.read(&mut rest).expect("an honest endpoint");
    assert!((from..).map(pattern).zip(&rest[..count]).all(|(byte, other)| byte == *other));
    assert_eq!(receiver.stream(), sender.stream());
    assert_ne!(sender.stream(), 0);
}

/// SIGKILL, and its end.
fn kill(child: &mut Child) {
    child.kill().expect("an unreaped child can be signalled");
    child.wait().expect("an unreaped child can be waited for");
}
