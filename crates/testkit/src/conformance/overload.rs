//! A channel with more to do than its queues hold: nothing is lost, and nothing waits for
//! the load to end.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Config, Event, Handle, OpId};
use socket2::{Socket, Type};

use crate::conformance::Fixture;
use crate::driver::{Driver, GLANCE, WATCHDOG};
use crate::net;
use crate::process::{self, BrokenRing};
use crate::skip::Verdict;

/// Sockets that all have bytes to read at once.
const READERS: usize = 500;
/// Bytes that each of them has: so many completions that the queue, which is sized from
/// [`OPERATIONS_MAX`], could hold a tenth of them.
const READABLE: usize = 16 * BUFFER;
const BUFFER: usize = 256;
const OPERATIONS_MAX: u32 = 512;

/// A stream whose peer reads nothing, and that takes no more.
struct FullPeer {
    handle: Handle,
    /// The channel's socket, to fill it again.
    socket: Socket,
    peer: Socket,
    got: Vec<u8>,
}

impl FullPeer {
    fn new(driver: &mut Driver) -> FullPeer {
        let (socket, peer) = net::unix_pair(Type::STREAM);
        peer.set_nonblocking(true).unwrap();
        let copy = Socket::from(socket.try_clone().unwrap());
        let handle = driver.register(socket, 0).unwrap();
        FullPeer { handle, socket: copy, peer, got: Vec::new() }
    }

    fn fill(&self) -> usize {
        let block = [b'.'; 1 << 15];
        let mut filled = 0;
        loop {
            match self.socket.send_with_flags(&block, libc::MSG_DONTWAIT) {
                Ok(count) => filled += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return filled;
                }
            }
        }
    }

    /// Reads what is there.
    fn read(&mut self) {
        let mut room = [0; 1 << 16];
        while let Ok(count @ 1..) = self.peer.read(&mut room) {
            self.got.extend_from_slice(&room[..count]);
        }
    }
}

pub fn a_full_completion_queue_loses_no_write(fixture: &mut Fixture) -> Verdict {
    let config = fixture.config();
    process::isolated(fixture.name(), || write_while_the_queue_is_full(config));
    Ok(())
}

/// Without deferred work the kernel completes whatever is ready in one call, as it does
/// before Linux 6.13.
pub fn a_full_completion_queue_loses_no_write_of_an_old_kernel(fixture: &mut Fixture) -> Verdict {
    let config = fixture.config();
    process::isolated_without(fixture.name(), "defer_taskrun", || write_while_the_queue_is_full(config));
    Ok(())
}

fn write_while_the_queue_is_full(mut config: Config) {
    const FULL: usize = 60;
    const IDLE: usize = 60;
    const ROUNDS: u8 = 4;
    config.operations_max = OPERATIONS_MAX;
    config.batch_threshold = 64;
    config.buffer_size = BUFFER as u32;
    config.read_buffers = 8192;
    process::limit_descriptors(4096);
    let mut driver = Driver::new(config);
    let mut readers: Vec<Socket> = Vec::new();
    for number in 0..READERS {
        let (socket, peer) = net::unix_pair(Type::STREAM);
        let handle = driver.register(socket, number as u64).unwrap();
        driver.read_stream(handle).unwrap();
        readers.push(peer);
    }
    let mut full: Vec<FullPeer> = (0..FULL).map(|_| FullPeer::new(&mut driver)).collect();
    let (idle, mut idle_peers): (Vec<OwnedFd>, Vec<Socket>) =
        (0..IDLE).map(|_| net::unix_pair(Type::STREAM)).unzip();
    let idle: Vec<Handle> = idle.into_iter().map(|socket| driver.register(socket, 0).unwrap()).collect();
    driver.flush().unwrap();

    let mut read = [0; READERS];
    let mut take = |_: &mut Channel, completion: Completion| {
        let Event::Read { result: Ok(count @ 1..), .. } = completion.event else {
            panic!("only reads surface: {completion:?}")
        };
        read[completion.cookie as usize] += count;
    };
    // The first round has too few buffers in stock to fill the queue.
    for round in 0..ROUNDS {
        for peer in &mut readers {
            peer.write_all(&[round; READABLE]).unwrap();
        }
        let filled: Vec<usize> = full.iter().map(FullPeer::fill).collect();
        // Takes the first completions; the kernel keeps those that found no room.
        let first = driver.next();
        take(&mut driver, first);
        for peer in &mut readers {
            peer.write_all(&[round]).unwrap();
        }
        let answer = net::pattern(4000, round.into());
        for peer in &full {
            driver.write_quiet(peer.handle, answer.clone()).unwrap();
        }
        driver.flush().unwrap();
        // The next batch: these have all the room they need.
        for handle in &idle {
            driver.write_quiet(*handle, vec![round; 5]).unwrap();
        }
        driver.flush().unwrap();
        let due: Vec<usize> = filled.iter().map(|filled| filled + answer.len()).collect();
        let start = Instant::now();
        while full.iter().zip(&due).any(|(peer, due)| peer.got.len() < *due) {
            assert!(start.elapsed() < WATCHDOG, "a full peer did not get all of the answer");
            while let Some(completion) = driver.next_within(Duration::from_millis(1)) {
                take(&mut driver, completion);
            }
            full.iter_mut().for_each(FullPeer::read);
        }
        for (peer, filled) in full.iter_mut().zip(filled) {
            assert!(peer.got[filled..] == answer, "a full peer did not get the answer as it was written");
            peer.got.clear();
        }
        while let Some(completion) = driver.next_within(GLANCE) {
            take(&mut driver, completion);
        }
        for peer in &mut idle_peers {
            assert_eq!(net::read_exactly(peer, 5), [round; 5]);
            peer.set_nonblocking(true).unwrap();
            let more = peer.read(&mut [0; 64]).map_err(|error| error.kind());
            assert_eq!(more, Err(ErrorKind::WouldBlock), "bytes came twice");
            peer.set_nonblocking(false).unwrap();
        }
    }
    assert_eq!(read, [usize::from(ROUNDS) * (READABLE + 1); READERS], "bytes that were read");
}

pub fn a_refused_batch_loses_nothing(fixture: &mut Fixture) -> Verdict {
    const HANDLES: usize = 400;
    const CLOSED: usize = 100;
    let mut config = fixture.config();
    config.batch_threshold = 64;
    process::isolated(fixture.name(), || {
        let mut driver = Driver::new(config);
        let (mut handles, mut peers) = (Vec::new(), Vec::new());
        for number in 0..HANDLES {
            let (socket, peer) = net::unix_pair(Type::STREAM);
            handles.push(driver.register(socket, number as u64).unwrap());
            peers.push(peer);
        }
        driver.flush().unwrap();
        let Some(ring) = BrokenRing::new() else {
            println!("SKIPPED {}: the ring's descriptor is not registered", fixture.name());
            return;
        };
        // More than the ring takes.
        for handle in &handles {
            driver.write_quiet(*handle, &b"quiet "[..]).unwrap();
        }
        assert!(driver.flush().is_err(), "a batch went through a broken ring");
        let mut writes: Vec<OpId> =
            handles.iter().map(|handle| driver.write(*handle, &b"write"[..]).unwrap()).collect();
        for handle in &handles[..CLOSED] {
            driver.close(*handle).unwrap();
        }
        assert!(driver.dispatch(Some(Duration::ZERO)).is_err());
        ring.mend();
        driver.flush().unwrap();
        writes.drain(..CLOSED);
        for _ in 0..writes.len() {
            let completion = driver.next();
            assert!(matches!(completion.event, Event::Write { result: Ok(5), .. }), "{completion:?}");
            assert!(writes.contains(&completion.op));
        }
        driver.expect_silence();
        for (number, peer) in peers.iter_mut().enumerate() {
            assert_eq!(net::read_exactly(peer, 11), b"quiet write");
            if number < CLOSED {
                assert_eq!(peer.read(&mut [0]).unwrap(), 0, "no end of the stream");
            }
        }
    });
    Ok(())
}

/// Connections whose clients ask again as soon as they are answered, so that a channel
/// that flushes after each answer always has something to hand out.
struct Load {
    driver: Driver,
    clients: Vec<Socket>,
    /// Completions of reads so far.
    served: usize,
}

impl Load {
    const CLIENTS: usize = 32;
    /// Completions within which the channel sees to everything else: twice of what it
    /// promises.
    const SOON: usize = 512;

    fn new(mut driver: Driver) -> Load {
        let mut clients = Vec::new();
        for number in 0..Load::CLIENTS {
            let (socket, client) = net::unix_pair(Type::STREAM);
            let handle = driver.register(socket, number as u64).unwrap();
            driver.read_stream(handle).unwrap();
            clients.push(client);
        }
        driver.flush().unwrap();
        clients.iter_mut().for_each(|client| client.write_all(b"?").unwrap());
        let mut load = Load { driver, clients, served: 0 };
        (0..Load::SOON).for_each(|_| assert!(load.serve().is_none()));
        load
    }

    /// Hands out one completion: answers it, or returns it if it is no read's.
    fn serve(&mut self) -> Option<Completion> {
        let completion = self.driver.next();
        let Event::Read { result, .. } = &completion.event else { return Some(completion) };
        assert_eq!(*result.as_ref().unwrap(), 1);
        self.driver.write_quiet(completion.handle, &b"!"[..]).unwrap();
        self.driver.flush().unwrap();
        let client = &mut self.clients[completion.cookie as usize];
        assert_eq!(net::read_exactly(client, 1), b"!");
        client.write_all(b"?").unwrap();
        self.served += 1;
        None
    }

    /// Serves until `done`, which has to come soon.
    fn until(&mut self, what: &str, mut done: impl FnMut(&Driver, Option<Completion>) -> bool) {
        let before = self.served;
        loop {
            let other = self.serve();
            if done(&self.driver, other) {
                return;
            }
            assert!(self.served - before <= Load::SOON, "{what} did not come in {} reads", Load::SOON);
        }
    }
}

pub fn timers_come_under_load(fixture: &mut Fixture) -> Verdict {
    let mut load = Load::new(fixture.driver());
    // Some more than are handed out in a row.
    let mut left = 100;
    for _ in 0..left {
        load.driver.timer(Duration::ZERO, 7).unwrap();
    }
    while left > 0 {
        load.until("a timer", |_, completion| {
            matches!(completion, Some(Completion { cookie: 7, event: Event::Timer(Ok(())), .. }))
        });
        left -= 1;
    }
    assert!(load.served <= 5 * Load::SOON, "{} reads before the last timer", load.served);
    Ok(())
}

pub fn wakes_come_under_load(fixture: &mut Fixture) -> Verdict {
    let mut load = Load::new(fixture.driver());
    let waker = load.driver.waker();
    for _ in 0..3 {
        waker.wake();
        load.until("a wake", |_, completion| {
            matches!(completion, Some(Completion { event: Event::Wake, .. }))
        });
    }
    Ok(())
}

pub fn a_cancelled_timer_comes_under_load(fixture: &mut Fixture) -> Verdict {
    let mut load = Load::new(fixture.driver());
    let timer = load.driver.timer(WATCHDOG, 7).unwrap();
    load.driver.cancel(timer).unwrap();
    load.until("a cancelled timer", |_, completion| completion.is_some_and(|other| other.op == timer));
    Ok(())
}

pub fn close_deadlines_are_met_under_load(fixture: &mut Fixture) -> Verdict {
    let mut load = Load::new(fixture.driver_with(|config| config.close_timeout = Duration::from_millis(1)));
    let (socket, peer) = net::tight_tcp_pair();
    let handle = load.driver.register(socket, 0).unwrap();
    load.driver.write_quiet(handle, vec![1; 300_000]).unwrap();
    load.driver.close(handle).unwrap();
    load.driver.flush().unwrap();
    std::thread::sleep(Duration::from_millis(2));
    load.until("the end of a close", |driver, _| driver.stats().close_timeouts == 1);
    drop(peer);
    Ok(())
}

pub fn dropped_lwsockets_are_closed_under_load(fixture: &mut Fixture) -> Verdict {
    let mut load = Load::new(fixture.driver());
    let (socket, mut peer) = net::tcp_pair();
    drop(load.driver.to_lwsocket(socket).unwrap());
    peer.set_nonblocking(true).unwrap();
    load.until("the end of a dropped socket", |_, _| matches!(peer.read(&mut [0]), Ok(0)));
    Ok(())
}

/// Timers that are always due keep no completion of another handle back.
pub fn timers_without_end_starve_no_reads(fixture: &mut Fixture) -> Verdict {
    let mut load = Load::new(fixture.driver());
    let (before, mut timers) = (load.served, 0);
    for _ in 0..100 {
        load.driver.timer(Duration::ZERO, 7).unwrap();
    }
    while load.served - before < 10 * Load::SOON {
        if let Some(Completion { event: Event::Timer(_), .. }) = load.serve() {
            timers += 1;
            load.driver.timer(Duration::ZERO, 7).unwrap();
            load.driver.flush().unwrap();
        }
        assert!(timers <= 2 * (load.served - before) + Load::SOON, "{timers} timers");
    }
    assert!(timers > 0);
    Ok(())
}
