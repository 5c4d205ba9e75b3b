//! Connections that move to shared memory, with a real monitor, on both engines.

mod closing;
mod costs;
mod doorbells;
mod kills;
mod limits;
mod load;
mod monitors;
mod overload;
mod peers;
mod quotas;
mod reads;
mod support;
mod wake_ups;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Config, DispatchError, EngineKind, Event, Handle, Promotion, ReadData};
use monitor::{Access, Listener, Monitor, Options};
use testkit::process;

/// A monitor of this process's own, on a thread that ends with the process.
fn start_monitor() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("megapipe-promotion-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let policy = folder.join("policy.toml");
    std::fs::write(&policy, "same_user = true\n").unwrap();
    let socket = folder.join("monitor.sock");
    let listener = Listener::bind(&socket, Access::Everybody).unwrap();
    let options = Options { policy: Some(policy), ..Options::default() };
    std::thread::spawn(move || Monitor::new(listener, options).unwrap().run());
    process::set_variable("MEGAPIPE_MONITOR", socket.to_str().unwrap());
    folder
}

fn config(engine: EngineKind) -> Config {
    Config { engine: Some(support::usable(engine)), promotion: Promotion::Eager, ..Config::default() }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Two channels on one thread, each with one endpoint.
struct Two {
    channels: [Channel; 2],
    handles: [Handle; 2],
    got: [Vec<u8>; 2],
    ended: [bool; 2],
}

impl Two {
    fn new(engines: [EngineKind; 2]) -> Two {
        Two::with(engines, |_| {})
    }

    fn with(engines: [EngineKind; 2], prepare: impl Fn(&TcpStream)) -> Two {
        let (a, b) = pair();
        prepare(&a);
        let mut channels = engines.map(|engine| Channel::new(config(engine)).unwrap());
        let handles = [channels[0].register(a, 0).unwrap(), channels[1].register(b, 0).unwrap()];
        for (channel, handle) in channels.iter_mut().zip(handles) {
            channel.read_stream(handle).unwrap();
        }
        Two { channels, handles, got: [Vec::new(), Vec::new()], ended: [false; 2] }
    }

    fn step(&mut self, side: usize, wait: Duration) {
        let completion = match self.channels[side].dispatch(Some(wait)) {
            // The end of a ring that this thread had before interrupts calls without a signal.
            Err(DispatchError::Interrupted) => None,
            outcome => outcome.unwrap(),
        };
        if let Some(Completion { event, .. }) = completion {
            match event {
                Event::Read { result: Ok(0), .. } => self.ended[side] = true,
                Event::Read { result: Ok(count), data: ReadData::Buffer(data), .. } => {
                    assert_eq!(count, data.len());
                    self.got[side].extend_from_slice(&data);
                }
                Event::Write { result, .. } => drop(result.unwrap()),
                other => panic!("{other:?}"),
            }
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&Two) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: {:?} {:?}",
                self.channels[0].stats(),
                self.channels[1].stats()
            );
            self.step(0, Duration::from_micros(200));
            self.step(1, Duration::from_micros(200));
        }
    }

    fn promote(&mut self) {
        self.until("promotion", |two| two.channels.iter().all(|channel| channel.stats().promoted == 1));
    }
}

fn engines() -> [[EngineKind; 2]; 3] {
    use EngineKind::{Epoll, Uring};
    [[Uring, Uring], [Epoll, Epoll], [Uring, Epoll]]
}

#[test]
fn bytes_move_to_the_ring_and_back() {
    process::isolated("bytes_move_to_the_ring_and_back", || {
        let folder = start_monitor();
        for pair in engines() {
            let mut two = Two::new(pair);
            // Bytes of TCP are under way while the path changes.
            two.channels[0].write_quiet(two.handles[0], b"first ".to_vec()).unwrap();
            two.channels[0].flush().unwrap();
            two.promote();
            let mut sent = [b"first ".to_vec(), Vec::new()];
            for round in 0..200u32 {
                let side = (round % 2) as usize;
                let message = vec![round as u8; 1 + (round as usize * 37) % 5000];
                sent[side].extend_from_slice(&message);
                let handle = two.handles[side];
                two.channels[side].write_quiet(handle, message).unwrap();
                let want = sent[side].len();
                two.until("message", move |two| two.got[1 - side].len() >= want);
            }
            assert!(two.got[1] == sent[0] && two.got[0] == sent[1], "other bytes");
            assert!(two.channels[0].stats().ring_writes >= 99, "{:?}", two.channels[0].stats());
            // Much more than the ring accepts: the kernel's back-pressure, every byte in
            // order.
            let big: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
            sent[0].extend_from_slice(&big);
            for piece in big.chunks(100_000) {
                let handle = two.handles[0];
                two.channels[0].write_quiet(handle, piece.to_vec()).unwrap();
            }
            let want = sent[0].len();
            two.until("spilled bytes", move |two| two.got[1].len() >= want);
            assert!(two.got[1] == sent[0], "other bytes after a spill");
            assert!(two.channels[0].stats().spills > 0);
            // And the end of the stream.
            let handle = two.handles[0];
            two.channels[0].write_quiet(handle, b"last".to_vec()).unwrap();
            two.channels[0].close(handle).unwrap();
            two.until("the end", |two| two.ended[1]);
            assert!(two.got[1].ends_with(b"last"));
        }
        std::fs::remove_dir_all(folder).unwrap();
    });
}

#[test]
fn a_small_send_buffer_stays_with_the_kernel() {
    process::isolated("a_small_send_buffer_stays_with_the_kernel", || {
        let folder = start_monitor();
        for pair in engines() {
            let mut two = Two::with(pair, |stream| {
                socket2::SockRef::from(stream).set_send_buffer_size(4096).unwrap();
            });
            two.until("a refusal", |two| two.channels[0].stats().promotions_refused == 1);
            for round in 0..20u8 {
                for side in 0..2 {
                    let handle = two.handles[side];
                    two.channels[side].write_quiet(handle, vec![round; 1000]).unwrap();
                }
            }
            two.until("all bytes", |two| two.got.iter().all(|got| got.len() == 20_000));
            assert_eq!(two.channels[0].stats().promoted, 0);
        }
        std::fs::remove_dir_all(folder).unwrap();
    });
}

#[test]
fn a_peer_without_megapipe_stays_on_tcp() {
    process::isolated("a_peer_without_megapipe_stays_on_tcp", || {
        let folder = start_monitor();
        for engine in [EngineKind::Uring, EngineKind::Epoll] {
            let mut channel = Channel::new(config(engine)).unwrap();
            let (a, mut b) = pair();
            let handle = channel.register(a, 0).unwrap();
            channel.read_stream(handle).unwrap();
            for round in 0..50u8 {
                b.write_all(&[round; 100]).unwrap();
                let mut got = 0;
                while got < 100 {
                    let completion = match channel.dispatch(Some(PATIENCE)) {
                        // The end of the ring before this channel.
                        Err(DispatchError::Interrupted) => continue,
                        outcome => outcome.unwrap().expect("an answer"),
                    };
                    let Event::Read { result: Ok(count @ 1..), data, .. } = completion.event else {
                        panic!()
                    };
                    got += count;
                    let ReadData::Buffer(data) = data else { panic!() };
                    channel.write_quiet(handle, data).unwrap();
                }
                channel.flush().unwrap();
                let mut echo = [0; 100];
                b.read_exact(&mut echo).unwrap();
                assert_eq!(echo, [round; 100]);
            }
            assert_eq!(channel.stats().promoted, 0);
        }
        std::fs::remove_dir_all(folder).unwrap();
    });
}
