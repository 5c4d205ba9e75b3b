//! A channel with more to do than its queues hold: nothing is lost, and nothing waits for
//! the load to end.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use channel::{Channel, Completion, Config, Event, Handle};
use socket2::{Socket, Type};

use crate::conformance::Fixture;
use crate::driver::{Driver, GLANCE, WATCHDOG};
use crate::net;
use crate::process;
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
