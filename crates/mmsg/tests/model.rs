//! Random sets of sockets, messages and calls, on both backends, against a loop of recvmsg(2) or
//! sendmsg(2) (that ends where a part of a message went) on the same sockets of a twin world.

use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

use mmsg::{Backend, Caller, LIMITED, Mmep};
use proptest::collection::vec;
use proptest::prelude::*;
use socket2::Socket;

mod support;

use support::{Fault, Got, Kind, Pair, Shape, Vector};

/// What happens to a world.
#[derive(Clone, Debug)]
enum Step {
    /// Bytes from a sender; the count makes their content.
    Send {
        socket: usize,
        sender: usize,
        len: usize,
    },
    /// The sender of a connection says that no more comes.
    Shutdown {
        socket: usize,
    },
    /// A datagram to a port that is closed by then: ECONNREFUSED is the socket's next result.
    Refuse {
        socket: usize,
    },
    Receive(Call),
}

#[derive(Clone, Debug)]
struct Call {
    entries: Vec<Entry>,
    vlen: usize,
    shapes: Vec<Shape>,
    flags: i32,
}

#[derive(Clone, Debug)]
struct Entry {
    target: Target,
    /// The limit, or whatever was left there.
    num: i32,
    /// Whatever was left there.
    offset: i32,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Socket(usize),
    /// A pipe.
    NoSocket,
    /// A number that is no descriptor.
    Closed,
}

struct World {
    pairs: Vec<Pair>,
    pipe: [RawFd; 2],
    /// What a `Refuse` sends to: bound, and open to itself alone.
    closed: Socket,
    marker: Marker,
    sent: u8,
}

impl World {
    fn new(kinds: &[Kind], stamped: bool) -> World {
        let pairs: Vec<_> = kinds.iter().map(|&kind| Pair::new(kind)).collect();
        if stamped {
            support::stamping();
            pairs.iter().for_each(|pair| support::stamp(&pair.socket));
        }
        let mut pipe = [0; 2];
        // SAFETY: the kernel writes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let closed = support::udp();
        closed.connect(&closed.local_addr().unwrap()).unwrap();
        World { pairs, pipe, closed, marker: Marker::new(), sent: 0 }
    }

    fn fd(&self, target: Target) -> RawFd {
        match target {
            Target::Socket(socket) => self.pairs[socket].fd(),
            Target::NoSocket => self.pipe[0],
            Target::Closed => i32::MAX,
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Send { socket, sender, len } => {
                self.sent = self.sent.wrapping_add(1);
                let pair = &self.pairs[socket];
                let data: Vec<u8> = (0..len).map(|at| self.sent.wrapping_mul(31) ^ at as u8).collect();
                let sender = &pair.senders[sender % pair.senders.len()];
                let before = sys::message::received(pair.fd()).unwrap_or(0);
                // Fails after a shutdown, in both worlds.
                if let Ok(sent) = sender.send_with_flags(&data, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                    match pair.kind {
                        Kind::Udp | Kind::ConnectedUdp => self.marker.follow(),
                        Kind::Tcp => {
                            let received = || sys::message::received(pair.fd()).unwrap() - before;
                            wait_until(|| received() == sent as u64);
                        }
                        Kind::UnixStream | Kind::UnixDatagram | Kind::SeqPacket => {}
                    }
                }
            }
            Step::Shutdown { socket } => {
                let pair = &self.pairs[socket];
                if pair.kind.is_stream() || pair.kind == Kind::SeqPacket {
                    let _ = pair.senders[0].shutdown(std::net::Shutdown::Write);
                    wait_until(|| is_polled(pair.fd(), libc::POLLRDHUP));
                }
            }
            Step::Refuse { socket } => {
                let pair = &self.pairs[socket];
                if pair.kind == Kind::ConnectedUdp {
                    let peer = pair.socket.peer_addr().unwrap();
                    pair.socket.connect(&self.closed.local_addr().unwrap()).unwrap();
                    // The kernel answers a thousand a second and leaves out others (icmp_msgs_per_sec).
                    wait_until(|| {
                        // An error that waits already is told here, in both worlds.
                        let _ = pair.socket.send(b"anybody");
                        // Behind the datagram, and behind the answer to it.
                        self.marker.follow();
                        self.marker.follow();
                        is_polled(pair.fd(), libc::POLLERR)
                    });
                    // Reconnecting keeps the error.
                    pair.socket.connect(&peer).unwrap();
                }
            }
            Step::Receive(_) => unreachable!("receiving is what is compared"),
        }
    }
}

/// Where a CPU is busy, loopback delivers later: what is sent has to be there in both worlds.
fn wait_until(arrived: impl Fn() -> bool) {
    let began = Instant::now();
    while !arrived() {
        assert!(began.elapsed() < Duration::from_secs(60), "what was sent never came");
        std::thread::yield_now();
    }
}

/// Tells when all datagrams have come that this thread sent: loopback hands over in order what one
/// CPU sends, so the thread stays on one.
struct Marker {
    socket: Socket,
}

impl Marker {
    fn new() -> Marker {
        // SAFETY: zero is a set without CPUs; the kernel reads one live set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
            assert_eq!(libc::sched_setaffinity(0, std::mem::size_of_val(&set), &raw const set), 0);
        }
        let socket = support::udp();
        socket.connect(&socket.local_addr().unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Marker { socket }
    }

    fn follow(&self) {
        self.socket.send(b"marker").unwrap();
        let room = &mut [std::mem::MaybeUninit::uninit(); 8];
        while self.socket.recv(room).map_err(|error| error.kind()) != Ok(6) {}
    }
}

fn is_polled(fd: RawFd, event: i16) -> bool {
    let mut poll = libc::pollfd { fd, events: event, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & event != 0 }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: both are the world's own.
        self.pipe.iter().for_each(|&end| unsafe { assert_eq!(libc::close(end), 0) });
    }
}

impl Call {
    fn eps(&self, world: &World) -> Vec<Mmep> {
        let entries = self.entries.iter();
        entries.map(|&Entry { target, num, offset }| Mmep { sockfd: world.fd(target), num, offset }).collect()
    }

    fn is_limited(&self) -> bool {
        self.flags & LIMITED != 0
    }

    fn vector(&self) -> Vector {
        let shape = |place: usize| self.shapes[place % self.shapes.len()].clone();
        Vector::new(&(0..self.vlen).map(shape).collect::<Vec<_>>())
    }

    fn flags_compared(&self, stamped: bool) -> i32 {
        // Told by recvmsg(2) only, where the caller gives no room for control messages.
        match () {
            () if self.flags & libc::MSG_TRUNC != 0 => !libc::MSG_CTRUNC,
            () if stamped && !self.is_limited() => !(libc::MSG_CTRUNC | libc::MSG_TRUNC),
            () => !0,
        }
    }
}

/// What each entry gave: a count or a negative error number, where its messages begin, and these.
type Results = Vec<(i32, i32, Vec<Got>)>;

/// The calls as a program makes them that has nothing but recvmsg(2).
#[derive(Default)]
struct Model {
    /// Errors that came after messages, by socket: they are told first by the next call.
    late: Vec<(RawFd, i32)>,
}

impl Model {
    /// `results` are what the call gave on the other world. Without limits it decides how many messages a socket gives and
    /// where they lie, side by side in the order of the entries.
    fn receive(&mut self, call: &Call, world: &World, results: &Results) -> Results {
        let mut vector = call.vector();
        let mut used = 0;
        let receive = |(entry, &(num, offset, _)): (&Entry, &(i32, i32, Vec<Got>))| {
            let (start, limit) = match call.is_limited() {
                true => (used, entry.num),
                false => (offset as usize, num.max(1)),
            };
            assert!((used..=call.vlen).contains(&start), "{start} lies behind {used} of {}", call.vlen);
            let room = usize::try_from(limit).unwrap_or(0).min(call.vlen - start);
            used = start + if call.is_limited() { room } else { num.max(0) as usize };
            let (num, got) = match room {
                0 if limit < 1 => (-libc::EINVAL, Vec::new()),
                0 => (-libc::ENOBUFS, Vec::new()),
                _ => self.receive_each(call, entry.target, start..start + room, &mut vector, world),
            };
            (num, start as i32, got)
        };
        call.entries.iter().zip(results).map(receive).collect()
    }

    fn receive_each(
        &mut self,
        call: &Call,
        target: Target,
        places: Range<usize>,
        vector: &mut Vector,
        world: &World,
    ) -> (i32, Vec<Got>) {
        let fd = world.fd(target);
        if let Some(late) = self.late.iter().position(|late| late.0 == fd) {
            return (-self.late.remove(late).1, Vec::new());
        }
        let is_stream = matches!(target, Target::Socket(socket) if world.pairs[socket].kind.is_stream());
        let mut got = Vec::new();
        for place in places {
            let header = &raw mut vector.messages[place].msg_hdr;
            let flags = call.flags & !LIMITED | libc::MSG_DONTWAIT;
            // SAFETY: the vector's headers and what they point to live; faults in them are
            // the kernel's to find.
            let received = unsafe { libc::recvmsg(fd, header, flags) };
            if received < 0 {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
                if got.is_empty() {
                    return (-errno, got);
                }
                if errno != libc::EAGAIN {
                    self.late.push((fd, errno));
                }
                break;
            }
            vector.messages[place].msg_len = received as u32;
            got.push(vector.got(place));
            // The end, of which one is enough.
            if received == 0 && is_stream {
                break;
            }
        }
        (got.len() as i32, got)
    }
}

fn receive(caller: &mut Caller, call: &Call, world: &World) -> Results {
    let mut eps = call.eps(world);
    let mut vector = call.vector();
    // SAFETY: the vector's memory is this test's own, or nobody's.
    let total = unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, call.flags) }.unwrap();
    assert_eq!(total as i32, eps.iter().map(|ep| ep.num.max(0)).sum::<i32>());
    let got = |ep: &Mmep| {
        let places = ep.offset..ep.offset + ep.num.max(0);
        places.map(|place| vector.got(place as usize)).collect()
    };
    eps.iter().map(|ep| (ep.num, ep.offset, got(ep))).collect()
}

/// A message and which sender it is of.
type Sent = (Got, Option<usize>);

/// Without what no two worlds share: ports become senders.
fn comparable(results: Results, call: &Call, world: &World, stamped: bool) -> Vec<(i32, i32, Vec<Sent>)> {
    let entries = call.entries.iter().zip(results);
    entries
        .map(|(entry, (num, offset, messages))| {
            let messages = messages.into_iter().map(|mut got| {
                let sender = match entry.target {
                    Target::Socket(socket) => world.pairs[socket].sender_of(&got.name),
                    _ => None,
                };
                if sender.is_some() {
                    got.name.clear();
                }
                got.flags &= call.flags_compared(stamped);
                (got, sender)
            });
            (num, offset, messages.collect())
        })
        .collect()
}

fn run(kinds: &[Kind], stamped: bool, warm: bool, steps: &[Step]) {
    for mut caller in support::callers() {
        if warm {
            let Pair { socket, senders, .. } = Pair::new(Kind::UnixDatagram);
            support::shorten(&mut caller, &socket, &senders[0]);
        }
        let (mut world, mut twin) = (World::new(kinds, stamped), World::new(kinds, stamped));
        let mut model = Model::default();
        for step in steps {
            if let Step::Receive(call) = step {
                let got = receive(&mut caller, call, &world);
                let expected = comparable(model.receive(call, &twin, &got), call, &twin, stamped);
                let got = comparable(got, call, &world, stamped);
                assert_eq!(got, expected, "{:?} {call:?}", caller.backend());
            } else {
                world.apply(step);
                twin.apply(step);
            }
        }
    }
}

/// More than a call serves without a submission.
const SOCKETS: usize = 24;

/// What is wrong with messages. Where two things are wrong at once, which of them is told is not
/// said, so a socket that has an error meets no message that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    None,
    /// Found when a datagram is copied, which is lost by that; or in the message that comes next.
    Copying,
    /// Found in the header, which leaves the socket alone; one message a call.
    Headers,
}

fn world_and_steps() -> impl Strategy<Value = (Vec<Kind>, Vec<Step>)> {
    let faults = prop_oneof![3 => Just(Faults::None), 1 => Just(Faults::Copying), 1 => Just(Faults::Headers)];
    faults.prop_flat_map(|faults| (kinds(faults), vec(step(faults), 1..100)))
}

fn step(faults: Faults) -> impl Strategy<Value = Step> {
    let refusals = u32::from(faults == Faults::None);
    prop_oneof![
        30 => (0..SOCKETS, 0..2usize, len()).prop_map(|(socket, sender, len)| Step::Send { socket, sender, len }),
        1 => (0..SOCKETS).prop_map(|socket| Step::Shutdown { socket }),
        refusals => (0..SOCKETS).prop_map(|socket| Step::Refuse { socket }),
        4 => call(faults).prop_map(Step::Receive),
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..200usize, Just(64), Just(3000)]
}

fn call(faults: Faults) -> impl Strategy<Value = Call> {
    let limit = match faults {
        Faults::Headers => Just(1).boxed(),
        _ => prop_oneof![12 => 1..4i32, 2 => Just(20), 1 => Just(0), 1 => any::<i32>()].boxed(),
    };
    let entry =
        (target(), limit, any::<i32>()).prop_map(|(target, num, offset)| Entry { target, num, offset });
    // Where messages have faults the model has to know how many are asked for.
    let limited = prop_oneof![Just(true), Just(faults != Faults::None)];
    (vec(entry, 1..60), 0..200usize, flags(), vec(shape(faults), 1..6), limited).prop_map(
        |(entries, vlen, flags, shapes, limited)| {
            let flags = if limited { flags | LIMITED } else { flags };
            Call { entries, vlen, shapes, flags }
        },
    )
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        20 => (0..SOCKETS).prop_map(Target::Socket),
        1 => Just(Target::NoSocket),
        1 => Just(Target::Closed),
    ]
}

fn flags() -> impl Strategy<Value = i32> {
    prop_oneof![
        4 => Just(0),
        2 => Just(libc::MSG_PEEK),
        1 => Just(libc::MSG_WAITALL),
        4 => Just(libc::MSG_TRUNC),
        1 => Just(libc::MSG_TRUNC | libc::MSG_PEEK),
    ]
}

fn shape(faults: Faults) -> impl Strategy<Value = Shape> {
    let possible = match faults {
        Faults::None => vec![],
        Faults::Copying => vec![Fault::Piece, Fault::Name],
        Faults::Headers => vec![Fault::Vector, Fault::TooManyPieces, Fault::TooLong],
    };
    let fault = prop::sample::select([vec![Fault::None; 8], possible].concat());
    let pieces = prop_oneof![3 => Just(vec![2048]), 1 => vec(1..100usize, 1..4), 1 => Just(vec![64])];
    let control = prop_oneof![3 => Just(0usize), 1 => Just(64), 1 => Just(8)];
    (pieces, any::<bool>(), control, fault).prop_map(|(pieces, wants_name, control, fault)| Shape {
        pieces,
        wants_name,
        control,
        fault,
    })
}

fn kinds(faults: Faults) -> impl Strategy<Value = Vec<Kind>> {
    let possible = match faults {
        // A stream gives its data before the error that recvmmsg(2) leaves in the socket.
        Faults::Copying => vec![Kind::Udp, Kind::ConnectedUdp, Kind::UnixDatagram],
        Faults::None | Faults::Headers => Kind::ALL.to_vec(),
    };
    vec(prop::sample::select(possible), SOCKETS)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn receiving_is_a_loop_of_recvmsg(
        (kinds, steps) in world_and_steps(),
        stamped in any::<bool>(),
        warm in any::<bool>(),
    ) {
        run(&kinds, stamped, warm, &steps);
    }

    #[test]
    fn sending_is_a_loop_of_sendmsg(
        kinds in kinds(Faults::None),
        lens in vec(len(), 1..12),
        bad in prop::option::of(0..12usize),
        calls in vec(vec((target(), 0..12usize, 0..5usize), 1..60), 1..6),
    ) {
        send(&kinds, &lens, bad, &calls);
    }
}

/// Entries are a target, an offset and a number; both may be too large.
fn send(kinds: &[Kind], lens: &[usize], bad: Option<usize>, calls: &[Vec<(Target, usize, usize)>]) {
    for mut caller in support::callers() {
        let (world, twin) = (World::new(kinds, false), World::new(kinds, false));
        for world in [&world, &twin] {
            // Little room, so that some sends find none; when TCP has room again is not for a model
            // to say, so that gets enough.
            for pair in &world.pairs {
                let room = if pair.kind == Kind::Tcp { 1 << 20 } else { 1 };
                pair.socket.set_send_buffer_size(room).unwrap();
                pair.senders.iter().for_each(|peer| peer.set_recv_buffer_size(200_000).unwrap());
            }
        }
        let data: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, &len)| vec![at as u8 + 1; len]).collect();
        for call in calls {
            let expected: Vec<_> = call.iter().map(|entry| send_each(&twin, entry, &data, bad)).collect();
            let mut pieces: Vec<_> = data.iter().map(|data| piece(data)).collect();
            if let Some(piece) = bad.and_then(|bad| pieces.get_mut(bad)) {
                piece.iov_base = ptr::without_provenance_mut(support::NOWHERE);
                piece.iov_len = 10;
            }
            let mut messages: Vec<libc::mmsghdr> = pieces.iter_mut().map(header).collect();
            let mut eps: Vec<_> = call
                .iter()
                .map(|&(target, offset, num)| Mmep {
                    sockfd: world.fd(target),
                    num: num as i32,
                    offset: offset as i32,
                })
                .collect();
            // SAFETY: headers, pieces and data live; the bad one is the kernel's to find.
            let total = unsafe { caller.sendmmmsg(&mut eps, &mut messages, 0) }.unwrap();
            let nums: Vec<_> = eps.iter().map(|ep| ep.num).collect();
            assert_eq!(nums, expected, "{:?} {call:?}", caller.backend());
            assert_eq!(total as i32, nums.iter().map(|num| num.max(&0)).sum::<i32>());
        }
        for world in [&world, &twin] {
            world.marker.follow();
            let streams = world.pairs.iter().filter(|pair| pair.kind.is_stream());
            streams.for_each(|pair| pair.socket.shutdown(std::net::Shutdown::Write).unwrap());
        }
        for (pair, twin) in world.pairs.iter().zip(&twin.pairs) {
            assert_eq!(
                drain(&pair.senders[0], pair.kind),
                drain(&twin.senders[0], pair.kind),
                "{:?}",
                pair.kind
            );
        }
    }
}

fn send_each(world: &World, entry: &(Target, usize, usize), data: &[Vec<u8>], bad: Option<usize>) -> i32 {
    let &(target, offset, num) = entry;
    if offset + num > data.len() {
        return -libc::EINVAL;
    }
    let mut sent = 0;
    for (at, data) in data.iter().enumerate().skip(offset).take(num) {
        let mut piece = piece(data);
        if bad == Some(at) {
            piece = libc::iovec { iov_base: ptr::without_provenance_mut(support::NOWHERE), iov_len: 10 };
        }
        let message = header(&mut piece).msg_hdr;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header and its piece live; the bad one is the kernel's to find.
        let went = unsafe { libc::sendmsg(world.fd(target), &raw const message, flags) };
        if went < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
            return if sent == 0 { -errno } else { sent };
        }
        sent += 1;
        if went < data.len() as isize {
            break;
        }
    }
    sent
}

fn piece(data: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }
}

fn header(piece: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: zero is a value of a header.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (piece, 1);
    header
}

/// What waits; the bytes of a stream to its end, in one piece.
fn drain(socket: &Socket, kind: Kind) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let flags = if kind.is_stream() { 0 } else { libc::MSG_DONTWAIT };
    loop {
        let mut room = vec![0u8; 1 << 16];
        // SAFETY: the room is live and as long as said.
        let len = unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags) };
        if len < 0 || len == 0 && kind.is_stream() {
            break;
        }
        room.truncate(len as usize);
        messages.push(room);
    }
    if kind.is_stream() { vec![messages.concat()] } else { messages }
}

/// The least of what the model is to agree on, on the backend that has both ways.
#[test]
fn a_call_serves_every_kind_of_socket() {
    let mut caller = Caller::with_backend(Backend::Uring);
    let kinds = Kind::ALL.iter().cycle().take(SOCKETS);
    let pairs: Vec<_> = kinds.map(|&kind| Pair::new(kind)).collect();
    pairs.iter().for_each(|pair| assert_eq!(pair.senders[0].send(b"hello").unwrap(), 5));
    pairs.iter().for_each(|pair| support::arrived(&pair.socket));
    let mut vector = Vector::new(&vec![Shape::plain(16); 2 * SOCKETS]);
    let mut eps: Vec<_> = pairs.iter().map(|pair| Mmep { sockfd: pair.fd(), num: 2, offset: 0 }).collect();
    // SAFETY: the vector's memory lives.
    let total = unsafe { caller.recvmmmsg(&mut eps, &mut vector.messages, LIMITED) }.unwrap();
    assert_eq!(total, SOCKETS);
    assert!(caller.backend() == Backend::Syscalls || caller.system_calls() <= 3);
    for ep in eps {
        assert_eq!((ep.num, vector.got(ep.offset as usize).data), (1, b"hello".to_vec()));
    }
}
