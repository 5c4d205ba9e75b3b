//! The shortest way through a channel, on whichever engine is here.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use testkit::conformance::available;
use testkit::process::PATIENCE;
use testkit::skip;

use megapipe::{AcceptAs, AcceptCount, Channel, Config, EngineKind, Event, LatencyBound, ReadData};

/// False, and the test counts as skipped, where this engine cannot be had.
fn is_available(engine: EngineKind, test: &str) -> bool {
    available(engine).inspect_err(|skipped| skip::record(test, skipped)).is_ok()
}

fn echo(engine: EngineKind, lw: AcceptAs) {
    let mut channel = Channel::new(Config { engine: Some(engine), ..Config::default() }).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listening = channel.register(listener, 1).unwrap();
    channel.accept(listening, AcceptCount::Unlimited, lw).unwrap();
    let clients: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                for round in 0..200u32 {
                    let message = round.to_ne_bytes();
                    stream.write_all(&message).unwrap();
                    let mut answer = [0; 4];
                    stream.read_exact(&mut answer).unwrap();
                    assert_eq!(message, answer);
                }
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).unwrap();
                assert_eq!(rest, b"bye");
            })
        })
        .collect();
    let mut ended = 0;
    while ended < 3 {
        let completion = channel.dispatch(Some(Duration::from_secs(10))).unwrap().expect("something happens");
        match completion.event {
            Event::Accept { result, more } => {
                assert!(more);
                let connection = channel.register(result.unwrap().socket, 2).unwrap();
                channel.read_stream(connection).unwrap();
            }
            Event::Read { result, data: ReadData::Buffer(buffer), .. } if result.as_ref().unwrap() > &0 => {
                channel.write_quiet(completion.handle, buffer).unwrap();
            }
            Event::Read { result, .. } => {
                assert_eq!(result.unwrap(), 0);
                channel.write(completion.handle, &b"bye"[..]).unwrap();
                channel.close(completion.handle).unwrap();
                ended += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    channel.flush().unwrap();
    while channel.dispatch(Some(Duration::from_millis(20))).unwrap().is_some() {}
    for client in clients {
        client.join().unwrap();
    }
    println!("{:?}", channel.stats());
}

#[test]
fn uring_lw() {
    if is_available(EngineKind::Uring, "uring_lw") {
        echo(EngineKind::Uring, AcceptAs::LwSocket);
    }
}

#[test]
fn uring_fd() {
    if is_available(EngineKind::Uring, "uring_fd") {
        echo(EngineKind::Uring, AcceptAs::Fd);
    }
}

/// No clock reaches so far. In a thread each: a ring that has gone may interrupt the one that had it.
#[test]
fn settings_may_be_as_long_as_can_be_said() {
    for engine in [EngineKind::Uring, EngineKind::Epoll] {
        if is_available(engine, "settings_may_be_as_long_as_can_be_said") {
            std::thread::spawn(move || as_long_as_can_be_said(engine)).join().unwrap();
        }
    }
}

fn as_long_as_can_be_said(engine: EngineKind) {
    let bound = LatencyBound { completions: 2, delay: Duration::MAX };
    let config = Config {
        engine: Some(engine),
        close_timeout: Duration::MAX,
        latency_bound: Some(bound),
        ..Config::default()
    };
    let mut channel = Channel::new(config).unwrap();
    let (one, mut other) = UnixStream::pair().unwrap();
    let handle = channel.register(one, 1).unwrap();
    channel.write(handle, &b"bye"[..]).unwrap();
    assert!(channel.dispatch(Some(PATIENCE)).unwrap().is_some());
    channel.read_stream(handle).unwrap();
    other.write_all(b"hello").unwrap();
    assert!(channel.dispatch(Some(PATIENCE)).unwrap().is_some());
    channel.write_quiet(handle, &b"!"[..]).unwrap();
    channel.close(handle).unwrap();
    while channel.dispatch(Some(Duration::from_millis(20))).unwrap().is_some() {}
    let mut all = Vec::new();
    other.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"bye!");
}
