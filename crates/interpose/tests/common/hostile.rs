//! Submissions of every kind, in any order, about sockets and sets of this process, beside calls through the library: no
//! crash, no byte of a connection lost or out of place, and completions as the kernel's. Driven by a string of bytes: by the
//! fuzzer, and by a test of random strings.
#![allow(unsafe_code)] // C's calls, and memory that the kernel writes, too

use std::ffi::{c_int, c_long};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use interpose::{Mode, Settings, calls};
use libc::epoll_event;
use monitor::{Access, Listener, Monitor};

// linux/io_uring.h
const READ: u8 = 22;
const WRITE: u8 = 23;
const CONNECT: u8 = 16;
const CLOSE: u8 = 19;
const SEND: u8 = 26;
const RECV: u8 = 27;
const EPOLL_CTL: u8 = 29;
const SHUTDOWN: u8 = 34;
pub(crate) const FORMS: [u32; 6] = [0, 1 << 16, 1 << 10, 1 << 7, 1 << 8 | 1 << 9, 1 << 12 | 1 << 13];
const ENTRIES: u32 = 8;
/// Of one submission: as it is, by a worker of the kernel's, and what orders it.
const FLAGS: [u8; 8] = [0, 0, 0, 1 << 4, 1 << 2, 1 << 1, 1 << 3, 0];
/// Operations that may do anything to what they name, and to nothing else.
const ANY: [u8; 24] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 13, 14, 16, 19, 20, 26, 27, 29, 30, 33, 34, 54, 59, 63];
const PAIRS: usize = 2;
const PIECE: usize = 512;
/// What no connection that works needs.
const PATIENCE_MS: c_int = 5000;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % bound
    }
}

/// Has this process promote at once, with a monitor of its own.
pub(crate) fn prepare() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let place: PathBuf = std::env::temp_dir().join(format!("megapipe-rings-{}", std::process::id()));
        let listener = Listener::bind(&place, Access::User).expect("a monitor listens");
        // SAFETY: before any other thread is there.
        unsafe {
            std::env::set_var("MEGAPIPE_MONITOR", &place);
            // A ring's WRITE sends it; the fuzzer does not ignore it as Rust's programs do.
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        }
        // Ends with the process.
        std::thread::spawn(move || {
            Monitor::new(listener, monitor::Options::default()).and_then(Monitor::run)
        });
        interpose::start(Settings { mode: Mode::Eager, ..Settings::default() });
    });
}

/// Runs one script, from sockets to their end. False: the kernel has no ring of its form.
pub(crate) fn run(script: &[u8]) -> bool {
    let mut script = Script(script);
    let Some(mut world) = World::new(&mut script) else { return false };
    while let Some(step) = script.byte() {
        world.step(step, &mut script);
    }
    world.end();
    true
}

/// The byte at each place of one direction's stream.
fn byte_at(direction: usize, place: u64) -> u8 {
    (place.wrapping_mul(31) ^ (place >> 8).wrapping_mul(7)) as u8 ^ (direction as u8).wrapping_mul(53)
}

/// One end of a connection. Its stream goes to the other end of the pair.
#[derive(Clone, Copy, Default)]
struct End {
    fd: c_int,
    sent: u64,
    /// Of the other end's stream.
    received: u64,
    is_closed: bool,
    has_ended: bool,
    is_in_set: bool,
    /// A submission may have done anything with it, or with its other end.
    is_spoiled: bool,
}

struct World {
    ends: [End; 2 * PAIRS],
    set: c_int,
    ring: Ring,
    /// A submission may have left something in the ring that never completes.
    is_spoiled: bool,
}

/// What was submitted.
#[derive(Clone, Copy)]
enum Asked {
    Nothing,
    Send(usize),
    Receive(usize),
    Control(usize, c_int),
    ShutDown(usize),
    Connect,
    Close(usize),
}

impl World {
    fn new(script: &mut Script<'_>) -> Option<World> {
        let ring = Ring::new(FORMS[script.below(FORMS.len())])?;
        // SAFETY: a call without memory.
        let set = unsafe { calls::epoll_create1(0) };
        let mut ends = [End::default(); 2 * PAIRS];
        for pair in ends.chunks_exact_mut(2) {
            let [client, server] = connected();
            (pair[0].fd, pair[1].fd) = (client, server);
        }
        Some(World { ends, set, ring, is_spoiled: false })
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let end = script.below(self.ends.len());
        match step % 16 {
            0..=3 => self.send(end, 1 + script.below(PIECE)),
            4..=7 => self.receive(end, 1 + script.below(PIECE)),
            8..=12 if !self.is_spoiled => self.batch(script),
            13 => self.wait(),
            14 if !self.is_spoiled => self.controls_by_call(end, 1 + script.below(3) as c_int),
            15 if script.below(4) == 0 => self.spoil(script),
            _ => {}
        }
    }

    fn send(&mut self, number: usize, count: usize) {
        let end = &mut self.ends[number];
        if end.is_closed {
            return;
        }
        let mut piece = [0; PIECE];
        (0..count).for_each(|at| piece[at] = byte_at(number, end.sent + at as u64));
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: so many bytes lie there.
        let sent = unsafe { calls::send(end.fd, piece.as_ptr().cast(), count, flags) };
        end.sent += u64::try_from(sent).unwrap_or(0);
        assert!(sent <= 0 || !end.has_ended || end.is_spoiled, "sent behind the end");
    }

    fn receive(&mut self, number: usize, count: usize) {
        let mut piece = [0; PIECE];
        let end = &self.ends[number];
        if end.is_closed {
            return;
        }
        // SAFETY: so much room is there.
        let got = unsafe { calls::recv(end.fd, piece.as_mut_ptr().cast(), count, libc::MSG_DONTWAIT) };
        self.has_received(number, &piece[..usize::try_from(got).unwrap_or(0)]);
    }

    fn has_received(&mut self, number: usize, bytes: &[u8]) {
        let other = self.ends[number ^ 1];
        let end = &mut self.ends[number];
        for byte in bytes {
            assert!(
                end.is_spoiled || *byte == byte_at(number ^ 1, end.received),
                "wrong at {}",
                end.received
            );
            end.received += 1;
        }
        assert!(end.is_spoiled || end.received <= other.sent, "more than was sent");
    }

    /// Some submissions in one call, each about another end, and what comes of them.
    fn batch(&mut self, script: &mut Script<'_>) {
        let mut asked = [Asked::Nothing; ENTRIES as usize];
        let count = 1 + script.below(4);
        let mut is_used = [false; 2 * PAIRS];
        for (data, asked) in asked.iter_mut().take(count).enumerate() {
            let number = script.below(self.ends.len());
            let end = self.ends[number];
            let flags = FLAGS[script.below(FLAGS.len())];
            let mut entry = Submission { flags, data: data as u64, fd: -1, ..Submission::default() };
            // Later ones of the same end would not know what comes of this one.
            if !(std::mem::replace(&mut is_used[number], true) || end.is_closed) {
                *asked = self.ask(script, number, &mut entry);
            }
            self.ring.queue(entry);
        }
        // Also more than there are.
        let more = if script.below(8) == 0 { 3 } else { 0 };
        let mut left = count as u32;
        let mut results = [0; ENTRIES as usize];
        let mut submitted = self.ring.submit(left + more, 0);
        for _ in 0..PATIENCE_MS {
            while let Some((data, result)) = self.ring.completed() {
                results[data as usize] = result;
                left -= 1;
            }
            if left == 0 {
                // A read may complete before the write whose bytes it has.
                let is_send = |data: &usize| matches!(asked[*data], Asked::Send(_));
                let (sends, others): (Vec<usize>, Vec<usize>) = (0..count).partition(is_send);
                sends.into_iter().chain(others).for_each(|data| self.came(asked[data], data, results[data]));
                return;
            }
            if submitted < count as u32 {
                // It ends at one that is refused, and goes on behind it.
                submitted += self.ring.submit(count as u32 - submitted, 0);
            } else {
                self.ring.wait();
            }
        }
        panic!("{left} submissions do not complete");
    }

    fn ask(&mut self, script: &mut Script<'_>, number: usize, entry: &mut Submission) -> Asked {
        let end = self.ends[number];
        let count = 1 + script.below(PIECE) as u32;
        let piece = self.ring.piece(entry.data as usize);
        entry.fd = end.fd;
        match script.below(16) {
            kind @ 0..=2 if !end.has_ended => {
                (0..count as usize).for_each(|at| piece[at] = byte_at(number, end.sent + at as u64));
                let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32;
                (entry.operation, entry.more) = if kind == 0 { (WRITE, 0) } else { (SEND, flags) };
                (entry.address, entry.length) = (piece.as_ptr() as u64, count);
                if kind == 0 {
                    entry.offset = u64::MAX;
                }
                Asked::Send(number)
            }
            kind @ 3..=5 => {
                // One that finds nothing would wait.
                let has_bytes = self.ends[number ^ 1].sent > end.received;
                let reads = kind == 3 && has_bytes;
                (entry.operation, entry.more) =
                    if reads { (READ, 0) } else { (RECV, libc::MSG_DONTWAIT as u32) };
                (entry.address, entry.length) = (piece.as_ptr() as u64, count);
                if reads {
                    entry.offset = u64::MAX;
                }
                Asked::Receive(number)
            }
            6..=11 => {
                let operation = 1 + script.below(3) as c_int;
                let event = epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
                // SAFETY: the piece is larger, and of bytes.
                unsafe { piece.as_mut_ptr().cast::<epoll_event>().write_unaligned(event) };
                (entry.operation, entry.fd, entry.offset) = (EPOLL_CTL, self.set, end.fd as u64);
                (entry.address, entry.length) = (piece.as_ptr() as u64, operation as u32);
                Asked::Control(number, operation)
            }
            12 => {
                (entry.operation, entry.length) = (SHUTDOWN, libc::SHUT_WR as u32);
                Asked::ShutDown(number)
            }
            13 => {
                let address = libc::sockaddr_in { sin_family: libc::AF_INET as u16, ..loopback() };
                // SAFETY: the piece is larger, and of bytes.
                unsafe { piece.as_mut_ptr().cast::<libc::sockaddr_in>().write_unaligned(address) };
                (entry.operation, entry.address) = (CONNECT, piece.as_ptr() as u64);
                entry.offset = size_of::<libc::sockaddr_in>() as u64;
                Asked::Connect
            }
            14 if script.below(4) == 0 => {
                entry.operation = CLOSE;
                Asked::Close(number)
            }
            _ => Asked::Nothing,
        }
    }

    /// A submission is complete.
    fn came(&mut self, asked: Asked, data: usize, result: c_int) {
        if result == -libc::ECANCELED {
            // Of a chain that has broken.
            return;
        }
        match asked {
            Asked::Nothing => {}
            Asked::Send(number) => self.ends[number].sent += u64::try_from(result).unwrap_or(0),
            Asked::Receive(number) => {
                let piece = *self.ring.piece(data);
                self.has_received(number, &piece[..usize::try_from(result).unwrap_or(0)]);
            }
            Asked::Control(number, operation) => self.has_controlled(number, operation, result),
            Asked::ShutDown(number) => {
                assert!(result == 0 || result == -libc::ENOTCONN, "shutdown: {result}");
                self.ends[number].has_ended |= result == 0;
            }
            Asked::Connect => {
                assert!(
                    [-libc::EISCONN, -libc::ECONNABORTED, -libc::EADDRNOTAVAIL, -libc::ECONNREFUSED]
                        .contains(&result),
                    "connect: {result}"
                );
            }
            Asked::Close(number) => {
                assert_eq!(result, 0, "close");
                self.has_closed(number);
            }
        }
    }

    fn has_closed(&mut self, number: usize) {
        // Over unread bytes it is a reset.
        let has_unread = self.ends[number ^ 1].sent > self.ends[number].received;
        let end = &mut self.ends[number];
        (end.is_closed, end.is_in_set) = (true, false);
        self.ends[number ^ 1].is_spoiled |= has_unread;
    }

    fn controls_by_call(&mut self, number: usize, operation: c_int) {
        let end = self.ends[number];
        if end.is_closed {
            return;
        }
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        // SAFETY: the event lies there.
        let status = unsafe { calls::epoll_ctl(self.set, operation, end.fd, &raw mut event) };
        self.has_controlled(number, operation, if status == 0 { 0 } else { -errno() });
    }

    fn has_controlled(&mut self, number: usize, operation: c_int, result: c_int) {
        let end = &mut self.ends[number];
        let expected = match (operation, end.is_in_set) {
            (libc::EPOLL_CTL_ADD, true) => -libc::EEXIST,
            (libc::EPOLL_CTL_ADD, false) | (_, true) => 0,
            (_, false) => -libc::ENOENT,
        };
        assert!(result == expected || end.is_spoiled, "control {operation}: {result}, not {expected}");
        if result == 0 {
            end.is_in_set = operation != libc::EPOLL_CTL_DEL;
        }
    }

    /// What has bytes is reported.
    fn wait(&mut self) {
        let has_bytes = |number: usize| {
            let end = self.ends[number];
            end.is_in_set && !end.is_spoiled && self.ends[number ^ 1].sent > end.received
        };
        let expected = (0..self.ends.len()).any(has_bytes);
        let mut events = [epoll_event { events: 0, u64: 0 }; 2 * PAIRS];
        let limit = if expected { PATIENCE_MS } else { 0 };
        // SAFETY: so many events have room.
        let count =
            again(|| unsafe { calls::epoll_wait(self.set, events.as_mut_ptr(), 2 * PAIRS as c_int, limit) });
        assert!(!expected || count > 0 || self.is_spoiled, "a wait ended with {count}");
    }

    /// One of any kind, about an end, the set, the ring or nothing.
    fn spoil(&mut self, script: &mut Script<'_>) {
        let number = script.below(self.ends.len() + 3);
        for end in self.ends.iter_mut().skip(number & !1).take(2) {
            end.is_spoiled = true;
        }
        let fd = match number.checked_sub(self.ends.len()) {
            None if self.ends[number].is_closed => -1,
            None => self.ends[number].fd,
            Some(0) => self.set,
            Some(1) => self.ring.fd,
            Some(_) => -1,
        };
        let operation = ANY[script.below(ANY.len())];
        if operation == CLOSE && fd == self.set {
            return;
        }
        if operation == CLOSE && number < self.ends.len() {
            self.has_closed(number);
        }
        self.is_spoiled = true;
        let mut word = || u64::from(script.byte().unwrap_or(0));
        let piece = self.ring.piece(7).as_ptr() as u64;
        let entry = Submission {
            operation,
            // Of a registered file, there are none; and one that posts no completion.
            flags: word() as u8 & !(1 << 5),
            priority: if word() % 4 == 0 { word() as u16 } else { 0 },
            fd,
            offset: [0, 1, u64::MAX, fd as u64][word() as usize % 4],
            address: [0, piece, 1, u64::MAX][word() as usize % 4],
            length: [0, 1, 2, 3][word() as usize % 4],
            more: if word() % 4 == 0 { word() as u32 } else { 0 },
            data: 7,
            rest: if word() % 4 == 0 { word() as u32 } else { 0 },
            other_fd: if word() % 4 == 0 { -1 } else { 0 },
        };
        let entry = match operation {
            // The descriptor would stay open for good if it came to nothing.
            CLOSE => Submission { operation, flags: entry.flags & 1 << 2, fd, ..Submission::default() },
            _ => entry,
        };
        self.ring.queue(entry);
        let submitted = self.ring.submit(1 + word() as u32 % 3, 0);
        if submitted == 0 {
            // It stays in the queue.
            self.ring.submit(1, 0);
        }
        while self.ring.completed().is_some() {}
    }

    /// All that was sent is there.
    fn end(mut self) {
        for number in 0..self.ends.len() {
            loop {
                let (end, other) = (self.ends[number], self.ends[number ^ 1]);
                if end.is_closed || end.is_spoiled || end.received == other.sent {
                    break;
                }
                let mut one = libc::pollfd { fd: end.fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one descriptor.
                let is_ready = again(|| unsafe { calls::poll(&raw mut one, 1, PATIENCE_MS) }) == 1;
                self.receive(number, PIECE);
                let comes = is_ready && self.ends[number].received > end.received;
                assert!(comes, "{} of {} bytes", end.received, other.sent);
            }
        }
        // SAFETY: calls without memory.
        unsafe {
            self.ends.iter().filter(|end| !end.is_closed).for_each(|end| {
                calls::close(end.fd);
            });
            calls::close(self.set);
        }
    }
}

/// Waits on where a signal came, as the fuzzer's timer sends them.
fn again(mut wait: impl FnMut() -> c_int) -> c_int {
    loop {
        match wait() {
            -1 if errno() == libc::EINTR => {}
            count => return count,
        }
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn loopback() -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(std::net::Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    }
}

/// Both ends of a new connection.
fn connected() -> [c_int; 2] {
    let mut at = loopback();
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let address = (&raw mut at).cast::<libc::sockaddr>();
    // SAFETY: an address and its length.
    let ends = unsafe {
        let listener = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert_eq!(libc::bind(listener, address, length), 0);
        assert_eq!(calls::listen(listener, 1), 0);
        assert_eq!(libc::getsockname(listener, address, &raw mut length), 0);
        let client = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert_eq!(calls::connect(client, address, length), 0);
        let server = calls::accept(listener, null_mut(), null_mut());
        assert_eq!(calls::close(listener), 0);
        [client, server]
    };
    assert!(ends.iter().all(|end| *end >= 0));
    ends
}

/// `struct io_uring_sqe`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Submission {
    operation: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    offset: u64,
    address: u64,
    length: u32,
    more: u32,
    data: u64,
    rest: u32,
    other_fd: c_int,
}

/// A ring, entered as libuv does it, and room for what its submissions move, which outlives both.
struct Ring {
    fd: c_int,
    words: *mut u8,
    length: usize,
    entries: *mut u8,
    stride: usize,
    params: [u32; 30],
    pieces: &'static mut [[u8; PIECE]; ENTRIES as usize],
}

// Words of `struct io_uring_params`.
const SUBMISSIONS: usize = 10;
const COMPLETIONS: usize = 20;

impl Ring {
    fn new(flags: u32) -> Option<Ring> {
        let mut params = [0u32; 30];
        params[2] = flags;
        let setup = c_long::from(ENTRIES);
        // SAFETY: so large is the structure.
        let fd = unsafe {
            calls::syscall(libc::SYS_io_uring_setup, setup, params.as_mut_ptr() as c_long, 0, 0, 0, 0)
        };
        if fd < 0 {
            return None;
        }
        let fd = fd as c_int;
        let stride = if flags & 1 << 10 == 0 { 64 } else { 128 };
        let length =
            (params[SUBMISSIONS + 6] + 4 * params[0]).max(params[COMPLETIONS + 5] + 16 * params[1]) as usize;
        let map = |offset: i64, length: usize| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping.
            let memory = unsafe { libc::mmap(null_mut(), length, protection, libc::MAP_SHARED, fd, offset) };
            assert_ne!(memory, libc::MAP_FAILED);
            memory.cast::<u8>()
        };
        let (words, entries) = (map(0, length), map(0x1000_0000, ENTRIES as usize * stride));
        Some(Ring { fd, words, length, entries, stride, params, pieces: pieces() })
    }

    fn piece(&mut self, number: usize) -> &mut [u8; PIECE] {
        &mut self.pieces[number]
    }

    fn word(&self, place: usize) -> &AtomicU32 {
        // SAFETY: an offset that the kernel gave, in the mapping.
        unsafe { AtomicU32::from_ptr(self.words.add(self.params[place] as usize).cast()) }
    }

    fn queue(&mut self, entry: Submission) {
        let tail = self.word(SUBMISSIONS + 1);
        let place = tail.load(Ordering::Relaxed) % ENTRIES;
        // SAFETY: places of the queue, which the kernel has done with.
        unsafe {
            let at = self.entries.add(place as usize * self.stride);
            at.write_bytes(0, self.stride);
            at.cast::<Submission>().write(entry);
            if self.params[2] & 1 << 16 == 0 {
                let array = self.words.add(self.params[SUBMISSIONS + 6] as usize).cast::<u32>();
                array.add(place as usize).write(place);
            }
        }
        tail.fetch_add(1, Ordering::Release);
    }

    fn submit(&self, count: u32, wanted: u32) -> u32 {
        let (fd, count, wanted) = (c_long::from(self.fd), c_long::from(count), c_long::from(wanted));
        // SAFETY: no signal mask is passed.
        let status = unsafe { calls::syscall(libc::SYS_io_uring_enter, fd, count, wanted, 1, 0, 0) };
        u32::try_from(status).unwrap_or(0)
    }

    /// A millisecond, or until one completes.
    fn wait(&self) {
        let mut one = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&raw mut one, 1, 1) };
        self.submit(0, 0);
    }

    fn completed(&self) -> Option<(u64, c_int)> {
        let (head, tail) = (self.word(COMPLETIONS), self.word(COMPLETIONS + 1));
        let place = head.load(Ordering::Relaxed);
        if place == tail.load(Ordering::Acquire) {
            return None;
        }
        let at = self.params[COMPLETIONS + 5] as usize + 16 * (place % self.params[1]) as usize;
        // SAFETY: a completion that the kernel has written.
        let (data, result) = unsafe {
            let at = self.words.add(at);
            (at.cast::<u64>().read(), at.add(8).cast::<c_int>().read())
        };
        head.store(place.wrapping_add(1), Ordering::Release);
        Some((data, result))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mappings any more.
        unsafe {
            calls::close(self.fd);
            libc::munmap(self.words.cast(), self.length);
            libc::munmap(self.entries.cast(), ENTRIES as usize * self.stride);
        }
    }
}

/// Room that is never given back: what a ring has not completed may be written to after its end, in the last piece. One script
/// runs at a time.
fn pieces() -> &'static mut [[u8; PIECE]; ENTRIES as usize] {
    static PIECES: AtomicPtr<[[u8; PIECE]; ENTRIES as usize]> = AtomicPtr::new(null_mut());
    if PIECES.load(Ordering::Relaxed).is_null() {
        PIECES.store(Box::leak(Box::new([[0; PIECE]; ENTRIES as usize])), Ordering::Relaxed);
    }
    // SAFETY: it was leaked, and the world before is gone.
    unsafe { &mut *PIECES.load(Ordering::Relaxed) }
}
