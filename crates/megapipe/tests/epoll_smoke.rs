//! The epoll engine's own ways: edges, full socket buffers, files without readiness.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use megapipe::{
    AcceptAs, AcceptCount, Accepted, Channel, Completion, Config, EngineKind, Event, Handle, ReadData,
    SockAddr,
};

const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn channel(config: Config) -> Channel {
    Channel::new(Config { engine: Some(EngineKind::Epoll), ..config }).unwrap()
}

fn next(channel: &mut Channel) -> Completion {
    channel.dispatch(SOON).unwrap().expect("a completion is due")
}

fn listen(channel: &mut Channel, kind: AcceptAs) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = channel.register(listener, 1).unwrap();
    channel.accept(handle, AcceptCount::Unlimited, kind).unwrap();
    address
}

/// A connection's two ends: one registered, one plain.
fn connected(channel: &mut Channel) -> (Handle, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (channel.register(server, 7).unwrap(), client)
}

fn pair(channel: &mut Channel) -> (Handle, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    (channel.register(ours, 7).unwrap(), theirs)
}

fn serve_echo(channel: &mut Channel, mut connections: u32) {
    while connections > 0 {
        let completion = next(channel);
        match completion.event {
            Event::Accept { result, more } => {
                assert!(more);
                let Accepted { socket, .. } = result.unwrap();
                let connection = channel.register(socket, 2).unwrap();
                channel.read_stream(connection).unwrap();
            }
            Event::Read { result, data: ReadData::Buffer(buffer), more } => {
                assert!(more && result.unwrap() > 0);
                channel.write_quiet(completion.handle, buffer).unwrap();
            }
            Event::Read { result, more, .. } => {
                assert_eq!((result.unwrap(), more), (0, false));
                channel.close(completion.handle).unwrap();
                connections -= 1;
            }
            other => panic!("{other:?}"),
        }
    }
    channel.flush().unwrap();
}

fn echo_client(address: std::net::SocketAddr, rounds: u32, size: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        for round in 0..rounds {
            let message = vec![round as u8; size];
            stream.write_all(&message).unwrap();
            let mut answer = vec![0; size];
            stream.read_exact(&mut answer).unwrap();
            assert!(message == answer);
        }
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "a close gives a FIN");
    })
}

#[test]
fn three_clients_are_echoed() {
    for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
        let mut channel = channel(Config::default());
        let address = listen(&mut channel, kind);
        let clients: Vec<_> = (0..3).map(|_| echo_client(address, 200, 64)).collect();
        serve_echo(&mut channel, 3);
        clients.into_iter().for_each(|client| client.join().unwrap());
    }
}

#[test]
fn two_buffers_serve_ten_connections() {
    let mut channel = channel(Config { read_buffers: 2, ..Config::default() });
    let address = listen(&mut channel, AcceptAs::LwSocket);
    let clients: Vec<_> = (0..10).map(|_| echo_client(address, 20, 10_000)).collect();
    serve_echo(&mut channel, 10);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_slow_reader_gets_everything_in_order() {
    let mut channel = channel(Config::default());
    for tcp in [true, false] {
        let (handle, mut theirs): (Handle, Box<dyn Read + Send>) = if tcp {
            let (handle, stream) = connected(&mut channel);
            (handle, Box::new(stream))
        } else {
            let (handle, stream) = pair(&mut channel);
            (handle, Box::new(stream))
        };
        let all: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 7) as u8).collect();
        let (front, back) = all.split_at(5 << 20);
        channel.write_quiet(handle, front.to_vec()).unwrap();
        let last = channel.write(handle, back.to_vec()).unwrap();
        channel.flush().unwrap();
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).unwrap();
            got
        });
        let completion = next(&mut channel);
        assert_eq!(completion.op, last);
        assert!(matches!(completion.event, Event::Write { result: Ok(len), .. } if len == back.len()));
        channel.close(handle).unwrap();
        channel.flush().unwrap();
        assert!(reader.join().unwrap() == all);
    }
}

#[test]
fn a_close_waits_for_its_writes() {
    let mut channel = channel(Config::default());
    let (handle, mut client) = connected(&mut channel);
    let all = vec![3u8; 16 << 20];
    channel.write_quiet(handle, all.clone()).unwrap();
    channel.close(handle).unwrap();
    channel.flush().unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        got
    });
    while !reader.is_finished() {
        assert!(channel.dispatch(Some(Duration::from_millis(5))).unwrap().is_none());
    }
    assert!(reader.join().unwrap() == all);
}

#[test]
fn datagrams_come_with_their_sender() {
    let mut channel = channel(Config::default());
    let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = ours.local_addr().unwrap();
    let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
    theirs.set_read_timeout(SOON).unwrap();
    let handle = channel.register(ours, 1).unwrap();
    channel.read_stream(handle).unwrap();
    channel.flush().unwrap();
    for message in [&b"one"[..], b"", b"three", &[9; 4000]] {
        theirs.send_to(message, address).unwrap();
        let Completion { event: Event::Read { result, data: ReadData::Buffer(buffer), more }, .. } =
            next(&mut channel)
        else {
            panic!("a datagram is due");
        };
        let kept = message.len().min(4096 - 144);
        assert_eq!((result.unwrap(), more, &buffer[..]), (kept, true, &message[..kept]));
        assert_eq!(buffer.is_truncated(), kept < message.len());
        let sender = buffer.sender().unwrap();
        assert_eq!(sender.as_socket(), Some(theirs.local_addr().unwrap()));
        channel.send_to(handle, buffer, &sender).unwrap();
        assert!(matches!(next(&mut channel).event, Event::Write { result: Ok(len), .. } if len == kept));
        let mut answer = [0; 4096];
        let (len, from) = theirs.recv_from(&mut answer).unwrap();
        assert_eq!((&answer[..len], from), (&message[..kept], address));
    }
}

#[test]
fn the_end_of_a_message_socket_is_told_once() {
    let mut channel = channel(Config::default());
    let (ours, theirs) =
        socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).unwrap();
    let handle = channel.register(OwnedFd::from(ours), 1).unwrap();
    channel.read_stream(handle).unwrap();
    theirs.send(b"last").unwrap();
    drop(theirs);
    let first = next(&mut channel);
    assert!(matches!(first.event, Event::Read { result: Ok(4), more: true, .. }), "{first:?}");
    let end = next(&mut channel);
    assert!(matches!(end.event, Event::Read { result: Ok(0), more: false, .. }), "{end:?}");
    assert!(channel.dispatch(Some(Duration::from_millis(20))).unwrap().is_none());
}

#[test]
fn messages_wait_for_room_at_their_receiver() {
    // More than net.unix.max_dgram_qlen, less than the write queue's bound.
    const MESSAGES: u32 = 500;
    let mut channel = channel(Config { write_queue_max: 1024, ..Config::default() });
    let path = std::env::temp_dir().join(format!("megapipe-epoll-room-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let receiver = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let to = SockAddr::unix(&path).unwrap();
    let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let handle = channel.register(OwnedFd::from(sender), 1).unwrap();
    for number in 0..MESSAGES {
        channel.send_to(handle, number.to_ne_bytes().to_vec(), &to).unwrap();
    }
    channel.flush().unwrap();
    let reader = thread::spawn(move || {
        for number in 0..MESSAGES {
            let mut message = [0; 8];
            assert_eq!(receiver.recv(&mut message).unwrap(), 4);
            assert_eq!(message[..4], number.to_ne_bytes());
        }
    });
    for _ in 0..MESSAGES {
        assert!(matches!(next(&mut channel).event, Event::Write { result: Ok(4), .. }));
    }
    reader.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn urgent_data_does_not_end_the_reading() {
    let mut channel = channel(Config::default());
    let (handle, client) = connected(&mut channel);
    channel.read_stream(handle).unwrap();
    channel.flush().unwrap();
    let client = socket2::Socket::from(client);
    // Reads stop at the mark (tcp(7)) though more has come.
    client.send(b"before").unwrap();
    client.send_out_of_band(b"!").unwrap();
    client.send(b"after").unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"after") {
        let Event::Read { data, more: true, .. } = next(&mut channel).event else { panic!("only bytes") };
        got.extend_from_slice(data.bytes());
    }
    assert!(got.starts_with(b"before"));
}

#[test]
fn a_busy_connection_starves_nobody() {
    let mut channel = channel(Config { read_buffers: 64, buffer_size: 256, ..Config::default() });
    let (busy, mut flood) = pair(&mut channel);
    channel.read_stream(busy).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flooding = thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && flood.write_all(&[1; 4096]).is_ok() {}
        }
    });
    for _ in 0..100 {
        assert_eq!(next(&mut channel).handle, busy);
    }
    let (quiet, mut other) = pair(&mut channel);
    channel.read_stream(quiet).unwrap();
    channel.flush().unwrap();
    other.write_all(b"me").unwrap();
    let mut before = 0;
    while next(&mut channel).handle != quiet {
        before += 1;
        assert!(before < 10_000, "the busy connection has it all");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    channel.close(busy).unwrap();
    channel.flush().unwrap();
    flooding.join().unwrap();
}

#[test]
fn pipes_are_read_and_filled() {
    let mut channel = channel(Config::default());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let handle = channel.register(OwnedFd::from(reader), 1).unwrap();
    let op = channel.read(handle).unwrap();
    assert!(channel.dispatch(Some(Duration::from_millis(1))).unwrap().is_none());
    writer.write_all(b"through").unwrap();
    let completion = next(&mut channel);
    assert_eq!(completion.op, op);
    assert!(matches!(&completion.event, Event::Read { data, .. } if data.bytes() == b"through"));
    drop(writer);
    channel.read_into(handle, Vec::with_capacity(10)).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Read { result: Ok(0), .. }));

    let (mut reader, writer) = std::io::pipe().unwrap();
    let handle = channel.register(OwnedFd::from(writer), 1).unwrap();
    let all: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 5) as u8).collect();
    channel.write(handle, all.clone()).unwrap();
    channel.flush().unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        got
    });
    assert!(matches!(next(&mut channel).event, Event::Write { result: Ok(len), .. } if len == all.len()));
    channel.close(handle).unwrap();
    channel.flush().unwrap();
    assert!(reader.join().unwrap() == all);
}

#[test]
fn disk_files_have_offsets_and_an_end() {
    let mut channel = channel(Config::default());
    let path = std::env::temp_dir().join(format!("megapipe-epoll-smoke-{}", std::process::id()));
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let handle = channel.register(OwnedFd::from(file), 1).unwrap();
    let content: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    channel.write(handle, content.clone()).unwrap();
    channel.write_at(handle, b"head".to_vec(), 0).unwrap();
    for _ in 0..2 {
        assert!(matches!(next(&mut channel).event, Event::Write { result: Ok(_), .. }));
    }
    channel.read_at(handle, Vec::with_capacity(6), 0).unwrap();
    assert!(
        matches!(next(&mut channel).event, Event::Read { data: ReadData::Vec(got), .. } if got == b"head\x04\x05")
    );
    channel
        .control(handle, |fd| {
            use std::io::Seek;
            std::fs::File::from(fd.try_clone_to_owned()?).seek(std::io::SeekFrom::Start(4))
        })
        .unwrap();
    channel.read_stream(handle).unwrap();
    let mut got = Vec::new();
    loop {
        let Event::Read { result, data, more } = next(&mut channel).event else { panic!("only reads") };
        got.extend_from_slice(data.bytes());
        assert_eq!(more, result.unwrap() > 0);
        if !more {
            break;
        }
    }
    assert!(got == content[4..]);
}

#[test]
fn always_ready_devices_need_no_readiness() {
    let mut channel = channel(Config::default());
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let handle = channel.register(OwnedFd::from(zero), 1).unwrap();
    channel.read_into(handle, Vec::with_capacity(8)).unwrap();
    assert!(
        matches!(next(&mut channel).event, Event::Read { data: ReadData::Vec(got), .. } if got == [0; 8])
    );
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let handle = channel.register(OwnedFd::from(null), 1).unwrap();
    channel.write(handle, vec![1; 100]).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Write { result: Ok(100), .. }));
}

#[test]
fn connects_end_either_way() {
    let mut channel = channel(Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = SockAddr::from(listener.local_addr().unwrap());
    let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let handle = channel.register(OwnedFd::from(socket()), 1).unwrap();
    channel.connect(handle, &address).unwrap();
    channel.write_quiet(handle, b"early".to_vec()).unwrap();
    let completion = next(&mut channel);
    assert!(matches!(completion.event, Event::Connect(Ok(()))), "{completion:?}");
    let (mut server, _) = listener.accept().unwrap();
    channel.close(handle).unwrap();
    channel.flush().unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"early");

    drop(listener);
    let handle = channel.register(OwnedFd::from(socket()), 1).unwrap();
    channel.connect(handle, &address).unwrap();
    let Event::Connect(Err(error)) = next(&mut channel).event else { panic!("nobody listens") };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn accepts_say_whether_more_wait() {
    let mut channel = channel(Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..6).map(|_| TcpStream::connect(address).unwrap()).collect();
    let handle = channel.register(listener, 1).unwrap();
    channel.accept(handle, AcceptCount::Exactly(1), AcceptAs::Fd).unwrap();
    channel.accept(handle, AcceptCount::Exactly(2), AcceptAs::LwSocket).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let Event::Accept { result, more } = next(&mut channel).event else { panic!("only accepts") };
        seen.push((result.unwrap().pending, more));
    }
    assert_eq!(seen, [(true, false), (true, true), (true, false)]);
    let op = channel.accept(handle, AcceptCount::Unlimited, AcceptAs::Fd).unwrap();
    for left in [2, 1, 0] {
        let Event::Accept { result, more } = next(&mut channel).event else { panic!("only accepts") };
        assert_eq!((result.unwrap().pending, more), (left > 0, true));
    }
    assert!(channel.dispatch(Some(Duration::from_millis(1))).unwrap().is_none());
    channel.cancel(op).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Accept { result: Err(_), more: false }));
    drop(clients);

    let (connection, _client) = connected(&mut channel);
    channel.accept(connection, AcceptCount::Unlimited, AcceptAs::Fd).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Accept { result: Err(_), more: false }));
}

#[test]
fn cancels_timers_and_wakers() {
    let mut channel = channel(Config::default());
    let (handle, mut client) = connected(&mut channel);
    let read = channel.read_stream(handle).unwrap();
    channel.flush().unwrap();
    channel.cancel(read).unwrap();
    let completion = next(&mut channel);
    assert_eq!(completion.op, read);
    assert!(matches!(completion.event, Event::Read { result: Err(_), more: false, .. }));

    channel.timer(Duration::from_micros(300), 42).unwrap();
    let completion = next(&mut channel);
    assert!(completion.cookie == 42 && matches!(completion.event, Event::Timer(Ok(()))));

    let waker = channel.waker();
    let other = thread::spawn(move || waker.wake());
    assert!(matches!(next(&mut channel).event, Event::Wake));
    other.join().unwrap();

    // What is unregistered is the caller's again, and may come back.
    channel.read(handle).unwrap();
    channel.flush().unwrap();
    let source = channel.unregister(handle).unwrap();
    client.write_all(b"later").unwrap();
    assert!(channel.dispatch(Some(Duration::from_millis(5))).unwrap().is_none());
    let again = channel.register(source, 8).unwrap();
    channel.read(again).unwrap();
    let completion = next(&mut channel);
    assert_eq!(completion.cookie, 8);
    assert!(matches!(&completion.event, Event::Read { data, .. } if data.bytes() == b"later"));
    channel.reset(again).unwrap();
    channel.flush().unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}
