//! Sockets of every kind with their senders, and message vectors of every shape.
#![allow(dead_code)] // each test program uses a part of it

use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use mmsg::{Backend, Caller, Mmep};
use socket2::{Domain, SockAddr, Socket, Type};

/// Address that nothing is mapped at.
pub(crate) const NOWHERE: usize = 0x10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Udp,
    ConnectedUdp,
    Tcp,
    UnixStream,
    UnixDatagram,
    SeqPacket,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Udp, Kind::ConnectedUdp, Kind::Tcp, Kind::UnixStream, Kind::UnixDatagram, Kind::SeqPacket];

    pub(crate) fn is_inet(self) -> bool {
        matches!(self, Kind::Udp | Kind::ConnectedUdp | Kind::Tcp)
    }

    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Kind::Tcp | Kind::UnixStream)
    }
}

/// A socket to receive from, and those that send to it.
pub(crate) struct Pair {
    pub(crate) kind: Kind,
    pub(crate) socket: Socket,
    /// One; two for a UDP socket that anybody may send to.
    pub(crate) senders: Vec<Socket>,
}

impl Pair {
    pub(crate) fn new(kind: Kind) -> Pair {
        let (socket, senders) = match kind {
            Kind::Udp => {
                let socket = udp();
                let to = socket.local_addr().unwrap();
                let senders = [udp(), udp()];
                senders.iter().for_each(|sender| sender.connect(&to).unwrap());
                (socket, Vec::from(senders))
            }
            Kind::ConnectedUdp => {
                let (socket, sender) = (udp(), udp());
                socket.connect(&sender.local_addr().unwrap()).unwrap();
                sender.connect(&socket.local_addr().unwrap()).unwrap();
                (socket, vec![sender])
            }
            Kind::Tcp => {
                let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                sender.set_nodelay(true).unwrap();
                (listener.accept().unwrap().0.into(), vec![sender.into()])
            }
            Kind::UnixStream => unix(Type::STREAM),
            Kind::UnixDatagram => unix(Type::DGRAM),
            Kind::SeqPacket => unix(Type::SEQPACKET),
        };
        Pair { kind, socket, senders }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Which sender has this address; `None` for another one.
    pub(crate) fn sender_of(&self, address: &[u8]) -> Option<usize> {
        self.senders.iter().position(|sender| {
            let own = sender.local_addr().unwrap();
            // SAFETY: a SockAddr is `len` initialised bytes.
            let own = unsafe { std::slice::from_raw_parts(own.as_ptr().cast::<u8>(), own.len() as usize) };
            own == address
        })
    }
}

/// Waits until a message is there: loopback may deliver it after the call that sent it, where the CPU is busy.
pub(crate) fn arrived(socket: &impl AsRawFd) {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd. A signal may end the wait.
    while unsafe { libc::poll(&raw mut poll, 1, 20_000) } < 0 {}
    assert_eq!(poll.revents, libc::POLLIN, "nothing arrives");
}

pub(crate) fn udp() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    socket
}

/// Has the socket's messages come with the time of their arrival.
pub(crate) fn stamp(socket: &Socket) {
    let on: libc::c_int = 1;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_TIMESTAMP);
    // SAFETY: the kernel reads one integer.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), 4) };
    assert_eq!(set, 0);
}

/// Returns when the kernel stamps what arrives: it begins some time after the first socket asks for
/// it, and TCP has no time for what came before. From then on one socket asks as long as this
/// process lives.
pub(crate) fn stamping() {
    static ASKS: OnceLock<Pair> = OnceLock::new();
    ASKS.get_or_init(|| {
        let pair = Pair::new(Kind::Tcp);
        stamp(&pair.socket);
        let shape = Shape { control: 64, ..Shape::plain(1) };
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing is stamped");
            assert_eq!(pair.senders[0].send(b"x").unwrap(), 1);
            let mut vector = Vector::new(std::slice::from_ref(&shape));
            // SAFETY: the header and all it points to live.
            let received = unsafe { libc::recvmsg(pair.fd(), &raw mut vector.messages[0].msg_hdr, 0) };
            if received == 1 && !vector.got(0).control.is_empty() {
                return pair;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

fn unix(kind: Type) -> (Socket, Vec<Socket>) {
    let (one, other) = Socket::pair(Domain::UNIX, kind, None).unwrap();
    (one, vec![other])
}

/// How one message of a vector is made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Room in each piece.
    pub(crate) pieces: Vec<usize>,
    pub(crate) wants_name: bool,
    pub(crate) control: usize,
    pub(crate) fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A piece is not mapped.
    Piece,
    /// There is no vector of pieces.
    Vector,
    /// The name is not mapped.
    Name,
    /// More pieces than there may be (EMSGSIZE).
    TooManyPieces,
    /// A piece of more than half of the address space (EINVAL).
    TooLong,
}

impl Shape {
    pub(crate) fn plain(room: usize) -> Shape {
        Shape { pieces: vec![room], wants_name: false, control: 0, fault: Fault::None }
    }
}

/// Memory for messages to be received.
pub(crate) struct Vector {
    shapes: Vec<Shape>,
    rooms: Vec<Vec<u8>>,
    _pieces: Vec<Vec<libc::iovec>>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Vec<u64>>,
    pub(crate) messages: Vec<libc::mmsghdr>,
}

/// What a message came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) len: usize,
    pub(crate) flags: i32,
    pub(crate) data: Vec<u8>,
    pub(crate) name: Vec<u8>,
    /// Levels and types of control messages.
    pub(crate) control: Vec<(i32, i32)>,
}

impl Vector {
    pub(crate) fn new(shapes: &[Shape]) -> Vector {
        let mut rooms: Vec<_> =
            shapes.iter().map(|shape| vec![0xee; shape.pieces.iter().sum::<usize>()]).collect();
        // SAFETY: zero is a value of a socket address, and of a header.
        let mut names = vec![unsafe { mem::zeroed::<libc::sockaddr_storage>() }; shapes.len()];
        let mut controls: Vec<_> = shapes.iter().map(|shape| vec![0; shape.control / 8]).collect();
        let mut pieces = Vec::new();
        let mut messages = Vec::new();
        for (at, shape) in shapes.iter().enumerate() {
            let mut rest: &mut [u8] = &mut rooms[at];
            let mut own = Vec::new();
            for &len in &shape.pieces {
                let (piece, others) = rest.split_at_mut(len);
                own.push(libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: len });
                rest = others;
            }
            // SAFETY: as above.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            let message = &mut header.msg_hdr;
            if shape.wants_name {
                message.msg_name = (&raw mut names[at]).cast();
                message.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as u32;
            }
            if shape.control > 0 {
                message.msg_control = controls[at].as_mut_ptr().cast();
                message.msg_controllen = shape.control as _;
            }
            match shape.fault {
                Fault::Piece => own[0] = libc::iovec { iov_base: NOWHERE as *mut _, iov_len: 100 },
                Fault::TooLong => own[0].iov_len = usize::MAX,
                Fault::Name => {
                    (message.msg_name, message.msg_namelen) = (NOWHERE as *mut _, 128);
                }
                Fault::None | Fault::Vector | Fault::TooManyPieces => {}
            }
            message.msg_iov = own.as_mut_ptr();
            message.msg_iovlen = own.len() as _;
            match shape.fault {
                Fault::Vector => message.msg_iov = ptr::null_mut(),
                Fault::TooManyPieces => message.msg_iovlen = 5000,
                _ => {}
            }
            pieces.push(own);
            messages.push(header);
        }
        Vector { shapes: shapes.to_vec(), rooms, _pieces: pieces, names, controls, messages }
    }

    pub(crate) fn got(&self, place: usize) -> Got {
        let message = &self.messages[place];
        let header = &message.msg_hdr;
        let len = message.msg_len as usize;
        let data = self.rooms[place][..len.min(self.rooms[place].len())].to_vec();
        let name_len = if self.shapes[place].wants_name { header.msg_namelen as usize } else { 0 };
        // SAFETY: the storage is plain bytes, and no name is longer.
        let name = unsafe {
            std::slice::from_raw_parts((&raw const self.names[place]).cast::<u8>(), name_len.min(128))
        };
        let mut control = Vec::new();
        // SAFETY: the kernel wrote `msg_controllen` bytes of control messages, which live in
        // `controls`, aligned.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(header);
            while !at.is_null() && !self.controls[place].is_empty() {
                control.push(((*at).cmsg_level, (*at).cmsg_type));
                at = libc::CMSG_NXTHDR(header, at);
            }
        }
        Got { len, flags: header.msg_flags, data, name: name.to_vec(), control }
    }
}

/// A caller on each backend that works here.
pub(crate) fn callers() -> Vec<Caller> {
    let mut callers = vec![Caller::with_backend(Backend::Syscalls)];
    let mut uring = Caller::with_backend(Backend::Uring);
    if uring.backend() == Backend::Uring {
        callers.push(uring);
    } else {
        println!("SKIPPED the calls on io_uring: there is none here");
    }
    callers
}

/// Shows the caller short queues, one message at a time: from then on its calls receive one message of each socket.
pub(crate) fn shorten(caller: &mut Caller, socket: &impl AsRawFd, sender: &Socket) {
    for _ in 0..9 {
        assert_eq!(sender.send(b"one").unwrap(), 3);
        arrived(socket);
        let mut vector = Vector::new(&vec![Shape::plain(8); 4]);
        let mut eps = [Mmep { sockfd: socket.as_raw_fd(), num: 0, offset: 0 }];
        // SAFETY: the vector's memory lives.
        assert_eq!(unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, 0) }, Ok(1));
    }
}
