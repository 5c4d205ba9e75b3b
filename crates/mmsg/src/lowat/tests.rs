//! Looks at a socket by a clock that the test moves.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::*;

const MARK: i32 = 100;
const TIMEOUT: Duration = Duration::from_millis(80);

/// A socket, its peer, and a clock that the test moves.
struct Watched {
    stream: TcpStream,
    peer: TcpStream,
    socket: Socket,
    now: Instant,
}

impl Watched {
    fn new() -> Watched {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nodelay(true).unwrap();
        let stream = listener.accept().unwrap().0;
        // A blocking receive waits for the mark.
        stream.set_nonblocking(true).unwrap();
        let (fd, now) = (stream.as_raw_fd(), Instant::now());
        message::set_low_water_mark(fd, MARK).unwrap();
        let socket = Socket {
            registration: 1,
            cookie: message::cookie(fd).unwrap(),
            mark: MARK,
            timeout: TIMEOUT,
            next: now,
            lowered: false,
            patience: PERIOD_LEAST,
            looks: VecDeque::from([Look { at: now, received: 0 }]),
        };
        Watched { stream, peer, socket, now }
    }

    /// Sends, and waits until the bytes are there.
    fn send(&mut self, count: usize) {
        let fd = self.stream.as_raw_fd();
        let unread = message::unread(fd).unwrap() as usize + count;
        self.peer.write_all(&vec![1; count]).unwrap();
        let began = Instant::now();
        while (message::unread(fd).unwrap() as usize) < unread {
            assert!(began.elapsed() < Duration::from_secs(20), "bytes do not come");
        }
    }

    fn read(&mut self) -> usize {
        self.stream.read(&mut [0; 4096]).unwrap()
    }

    /// Moves the clock to the next look, looks, and returns whether the mark is low.
    fn look(&mut self) -> bool {
        self.now = self.socket.next;
        self.socket.next = self.socket.look(self.stream.as_raw_fd(), self.now, Duration::ZERO).unwrap();
        let mark = message::low_water_mark(self.stream.as_raw_fd()).unwrap();
        assert_eq!(mark, if self.socket.lowered { 1 } else { MARK });
        self.socket.lowered
    }

    /// How long it looks until the mark is low; before each look but the first so many bytes come.
    fn until_low(&mut self, more: usize) -> Duration {
        let began = self.now;
        while !self.look() {
            assert!(self.now < began + 2 * TIMEOUT, "never low");
            if more > 0 {
                self.send(more);
            }
        }
        self.now - began
    }
}

/// Bytes that keep coming do not put off the report of the first of them; those that were read
/// do not hasten that of later ones.
#[test]
fn the_first_unread_byte_counts() {
    let in_time = TIMEOUT - TOGETHER..=TIMEOUT;
    let mut watched = Watched::new();
    assert!(!watched.look());
    watched.send(1);
    let waited = watched.until_low(1);
    assert!(in_time.contains(&waited), "{waited:?}");

    assert!(watched.read() > 1);
    assert!(!watched.look());
    for _ in 0..LOOKS - 2 {
        watched.send(10);
        assert!(!watched.look());
    }
    assert_eq!(watched.read(), 10 * (LOOKS as usize - 2));
    watched.send(10);
    let waited = watched.until_low(0);
    assert!(in_time.contains(&waited), "{waited:?}");

    // A part that is read leaves what came after it.
    assert_eq!(watched.read(), 10);
    assert!(!watched.look());
    watched.send(10);
    assert!(!watched.look());
    let came = watched.now;
    watched.send(10);
    assert!(!watched.look());
    watched.stream.read_exact(&mut [0; 10]).unwrap();
    while !watched.look() {}
    let waited = watched.now - came;
    assert!(in_time.contains(&waited), "{waited:?}");
}
