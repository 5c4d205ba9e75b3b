//! Takes the steps on a channel, and knows what must come of them.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use megapipe::{AcceptAs, AcceptCount, Completion, Event, Handle, OpId, ReadData, SubmitError, WriteData};
use socket2::{Domain, Socket, Type};
use testkit::conformance::Fixture;
use testkit::driver::{Driver, Form, gather};
use testkit::net;

use crate::connection::{Connection, Segment};
use crate::steps::{ReadKind, SocketKind, Step, WriteKind};
use crate::{BUFFER_SIZE, CONNECTIONS, HANDLES_MAX, OPERATIONS_MAX, PATIENCE, READ_BUFFERS, WRITE_QUEUE_MAX};

pub(crate) struct Model {
    driver: Driver,
    listeners: HashMap<(bool, bool), (Handle, SocketAddr)>,
    connections: Vec<Option<Connection>>,
    /// Closed ones, whose peers have not seen the end yet, and whether all bytes must come.
    leaving: Vec<(Connection, bool)>,
    accepted: VecDeque<megapipe::Source>,
    timers: HashMap<OpId, bool>,
    hoarding: bool,
    hoard: Vec<ReadData>,
    next: u64,
}

impl Model {
    pub(crate) fn new(fixture: &Fixture) -> Model {
        let mut driver = fixture.driver_with(|config| {
            config.handles_max = HANDLES_MAX;
            config.lwsockets_max = HANDLES_MAX;
            config.operations_max = OPERATIONS_MAX;
            config.read_buffers = READ_BUFFERS;
            config.buffer_size = BUFFER_SIZE;
            config.write_queue_max = WRITE_QUEUE_MAX;
            config.batch_threshold = 5;
        });
        let mut listeners = HashMap::new();
        for key in [(false, false), (false, true), (true, false), (true, true)] {
            let (lightweight, tight) = key;
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            if tight {
                // Sends are taken in parts. (A receive buffer as small would bring the
                // kernel's persist timer in, which makes every step last for ever.)
                socket.set_send_buffer_size(1).unwrap();
            }
            socket.bind(&net::v4().into()).unwrap();
            socket.listen(16).unwrap();
            let address = socket.local_addr().unwrap().as_socket().unwrap();
            let handle = driver.register(socket, u64::MAX).unwrap();
            let kind = if lightweight { AcceptAs::LwSocket } else { AcceptAs::Fd };
            driver.accept(handle, AcceptCount::Unlimited, kind).unwrap();
            listeners.insert(key, (handle, address));
        }
        Model {
            driver,
            listeners,
            connections: (0..CONNECTIONS).map(|_| None).collect(),
            leaving: Vec::new(),
            accepted: VecDeque::new(),
            timers: HashMap::new(),
            hoarding: false,
            hoard: Vec::new(),
            next: 1,
        }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match *step {
            Step::Open { place, socket } => self.open(place, socket),
            Step::PeerSends { place, len } => self.peer_sends(place, len),
            Step::PeerReads { place, most } => {
                if let Some(connection) = &mut self.connections[place] {
                    connection.peer_reads(most);
                }
            }
            Step::PeerEnds { place } => {
                if let Some(connection) = &mut self.connections[place]
                    && !connection.broken
                {
                    // A connection that the other end has left already has no writing end.
                    let _ = connection.peer.shutdown(Shutdown::Write);
                    connection.peer_ended = true;
                }
            }
            Step::PeerResets { place } => self.peer_resets(place),
            Step::Read { place, kind } => self.read(place, kind),
            Step::Write { place, len, kind } => self.write(place, len, kind),
            Step::Cancel { pick } => self.cancel(pick),
            Step::Disconnect { place } => {
                if let Some(connection) = &mut self.connections[place]
                    && !connection.disconnected
                {
                    let queued = self.driver.disconnect(connection.handle);
                    connection.refused = wants_room(connection.refused, &queued);
                    if let Ok(op) = allowed(queued) {
                        connection.disconnected = true;
                        connection.writes.push_back(op);
                    }
                }
            }
            Step::Close { place } => self.close(place),
            Step::Reset { place } => {
                if let Some(mut connection) = self.connections[place].take() {
                    self.driver.reset(connection.handle).unwrap();
                    connection.broken = true;
                    self.leaving.push((connection, false));
                }
            }
            Step::Reregister { place } => self.reregister(place),
            Step::Timer { millis } => {
                if let Ok(op) = allowed(self.driver.timer(Duration::from_millis(millis), 0)) {
                    self.timers.insert(op, false);
                }
            }
            Step::Hoard(on) => {
                self.hoarding = on;
                if !on {
                    self.hoard.clear();
                }
            }
            Step::Flush => self.driver.flush().unwrap(),
            Step::Dispatch { most } => {
                for _ in 0..most {
                    let Some(completion) = self.driver.next_within(Duration::ZERO) else { break };
                    self.complete(completion);
                }
            }
        }
    }

    fn open(&mut self, place: usize, socket: SocketKind) {
        if self.connections[place].is_some() {
            return;
        }
        let cookie = self.next;
        self.next += 1;
        let (handle, peer) = match socket {
            SocketKind::Unix(form) => {
                let (ours, peer) = net::unix_pair(Type::STREAM);
                // Ends of earlier connections may still be under way.
                self.wait_for_room();
                (self.driver.add(ours, form, cookie), peer)
            }
            SocketKind::Accepted { lightweight, tight } => {
                let (_, address) = self.listeners[&(lightweight, tight)];
                let peer = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                if tight {
                    peer.set_recv_buffer_size(8192).unwrap();
                }
                peer.connect(&address.into()).unwrap();
                let start = Instant::now();
                while self.accepted.is_empty() {
                    assert!(start.elapsed() < PATIENCE, "the connection is not accepted");
                    if let Some(completion) = self.driver.next_within(Duration::from_millis(2)) {
                        self.complete(completion);
                    }
                    self.peers_of_the_closed_read();
                }
                let source = self.accepted.pop_front().unwrap();
                self.wait_for_room();
                (self.driver.register(source, cookie).unwrap(), peer)
            }
        };
        peer.set_nonblocking(true).unwrap();
        self.connections[place] = Some(Connection {
            handle,
            cookie,
            peer,
            inbound: Vec::new(),
            received: 0,
            outbound: Vec::new(),
            arrived: Vec::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            refused: false,
            peer_ended: false,
            disconnected: false,
            broken: false,
        });
    }

    /// Waits until the ends of closed connections left a free entry: the closed never hold
    /// theirs for ever.
    fn wait_for_room(&mut self) {
        let start = Instant::now();
        loop {
            let (probe, _peer) = net::unix_pair(Type::STREAM);
            if let Ok(socket) = self.driver.to_lwsocket(probe)
                && let Ok(handle) = self.driver.register(socket, 0)
            {
                drop(self.driver.unregister(handle).unwrap());
                return;
            }
            assert!(start.elapsed() < PATIENCE, "closed handles are not freed");
            self.peers_of_the_closed_read();
            if let Some(completion) = self.driver.next_within(Duration::from_millis(1)) {
                self.complete(completion);
            }
        }
    }

    fn peers_of_the_closed_read(&mut self) {
        for (connection, _) in &mut self.leaving {
            connection.peer_reads(usize::MAX);
        }
    }

    fn peer_sends(&mut self, place: usize, len: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        if connection.peer_ended || connection.broken {
            return;
        }
        self.next += 1;
        let bytes = net::pattern(len, self.next);
        match (&connection.peer).write(&bytes) {
            Ok(count) => connection.inbound.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // We disconnected: what it still sends is refused.
            Err(_) if connection.disconnected => connection.peer_ended = true,
            Err(error) => panic!("the peer cannot send: {error}"),
        }
    }

    fn peer_resets(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        let _ = connection.peer.set_linger(Some(Duration::ZERO));
        let (spare, _) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        drop(std::mem::replace(&mut connection.peer, spare));
        connection.broken = true;
        connection.peer_ended = true;
    }

    fn read(&mut self, place: usize, kind: ReadKind) {
        let Some(connection) = &mut self.connections[place] else { return };
        let (handle, driver) = (connection.handle, &mut self.driver);
        let op = match kind {
            ReadKind::Pooled => driver.read(handle),
            ReadKind::Own(room) => {
                driver.read_into(handle, Vec::with_capacity(room)).map_err(|rejected| rejected.reason)
            }
            ReadKind::Vectored => {
                let rooms = vec![Vec::with_capacity(7), Vec::with_capacity(100)];
                driver.read_vectored(handle, rooms).map_err(|rejected| rejected.reason)
            }
            ReadKind::Stream => driver.read_stream(handle),
        };
        if let Ok(op) = allowed(op) {
            connection.reads.push_back((op, false));
        }
    }

    fn write(&mut self, place: usize, len: usize, kind: WriteKind) {
        let Some(connection) = &mut self.connections[place] else { return };
        // What follows a disconnect fails; the conformance suite has that.
        if connection.disconnected {
            return;
        }
        self.next += 1;
        let mut bytes = net::pattern(len, self.next);
        let (handle, driver) = (connection.handle, &mut self.driver);
        let data = match kind {
            WriteKind::Spoken | WriteKind::Quiet => WriteData::from(bytes.clone()),
            WriteKind::Vectored => {
                let (head, tail) = bytes.split_at(len / 2);
                WriteData::from(vec![WriteData::from(head.to_vec()), WriteData::from(tail.to_vec())])
            }
            WriteKind::Buffer => match driver.buffer() {
                Ok(mut buffer) => {
                    bytes.truncate(buffer.extend_from_slice(&bytes));
                    WriteData::from(buffer)
                }
                Err(_) => return,
            },
        };
        if matches!(kind, WriteKind::Quiet) {
            let written = driver.write_quiet(handle, data).map_err(|rejected| rejected.reason);
            connection.refused = wants_room(connection.refused, &written);
            if allowed(written.map(drop)).is_ok() {
                connection.outbound.push(Segment { op: OpId::NONE, bytes, doubtful: false });
            }
        } else {
            let written = driver.write(handle, data).map_err(|rejected| rejected.reason);
            connection.refused = wants_room(connection.refused, &written);
            if let Ok(op) = allowed(written) {
                connection.outbound.push(Segment { op, bytes, doubtful: false });
                connection.writes.push_back(op);
            }
        }
    }

    fn cancel(&mut self, pick: usize) {
        let mut all: Vec<OpId> = self.timers.keys().copied().collect();
        all.sort_unstable_by_key(|op| op.to_bits());
        for connection in self.connections.iter().flatten() {
            all.extend(connection.reads.iter().map(|(op, _)| *op));
            all.extend(connection.outbound.iter().map(|segment| segment.op).filter(|op| *op != OpId::NONE));
        }
        if all.is_empty() {
            return;
        }
        let op = all[pick % all.len()];
        // It may be done already without being handed out.
        let known = self.driver.cancel(op).is_ok();
        if let Some(cancelled) = self.timers.get_mut(&op) {
            assert!(known, "a timer that has not ended is unknown");
            *cancelled = true;
        }
        for connection in self.connections.iter_mut().flatten() {
            if let Some(read) = connection.reads.iter_mut().find(|(read, _)| *read == op) {
                assert!(known, "a read that has not ended is unknown");
                read.1 = true;
            }
            for segment in connection.outbound.iter_mut().filter(|segment| segment.op == op) {
                assert!(known, "a write that has not ended is unknown");
                segment.doubtful = true;
            }
        }
    }

    fn close(&mut self, place: usize) {
        let Some(connection) = self.connections[place].take() else { return };
        self.driver.close(connection.handle).unwrap();
        // Bytes that nobody read make the kernel reset the connection, and drop what it
        // had not sent (RFC 1122, 4.2.2.13).
        let whole = !connection.broken
            && connection.received == connection.inbound.len()
            && connection.outbound.iter().all(|segment| !segment.doubtful);
        self.leaving.push((connection, whole));
    }

    /// Out of the channel and in again, under another handle.
    fn reregister(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        // Pending reads may have taken bytes, and queued writes are dropped.
        let quiet = connection.outbound.iter().any(|segment| segment.op == OpId::NONE);
        if !connection.reads.is_empty() || !connection.writes.is_empty() || quiet || connection.disconnected {
            return;
        }
        let source = self.driver.unregister(connection.handle).unwrap();
        self.next += 1;
        connection.cookie = self.next;
        connection.handle = self.driver.register(source, connection.cookie).unwrap();
        connection.refused = false;
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { handle, cookie, op, event } = completion;
        if let Event::Timer(result) = event {
            let cancelled = self.timers.remove(&op).expect("a timer ends once");
            if let Err(error) = result {
                assert!(cancelled && error.raw_os_error() == Some(libc::ECANCELED));
            }
            return;
        }
        if let Event::Accept { result, more } = event {
            assert!(more && self.listeners.values().any(|(listener, _)| *listener == handle));
            // The table may be full for a moment: the accept goes on by itself.
            if let Ok(accepted) = result {
                self.accepted.push_back(accepted.socket);
            }
            return;
        }
        let hoarding = self.hoarding;
        let connection = self
            .connections
            .iter_mut()
            .flatten()
            .find(|connection| connection.handle == handle)
            .unwrap_or_else(|| panic!("{event:?} surfaced from a handle that is closed or never was"));
        assert_eq!(connection.cookie, cookie);
        match event {
            Event::Read { result, data, more } => {
                let place = connection.reads.iter().position(|(read, _)| *read == op);
                let place = place.expect("a read that has not ended");
                let cancelled = connection.reads[place].1;
                match result {
                    Ok(count) => {
                        let before = connection.reads.iter().take(place);
                        assert!(before.clone().all(|(_, cancelled)| *cancelled), "reads end out of order");
                        let from = connection.received;
                        let want = connection.inbound.get(from..from + count);
                        assert!(want == Some(&gather(&data, count)[..]), "other bytes than were sent");
                        connection.received += count;
                        if count == 0 {
                            let ended = connection.peer_ended || connection.disconnected;
                            assert!(!more, "the read goes on after the end");
                            assert!(
                                ended || connection.broken,
                                "an end of file from nowhere, after {} of {} bytes",
                                connection.received,
                                connection.inbound.len()
                            );
                            let whole = connection.received == connection.inbound.len();
                            assert!(whole || connection.broken || connection.disconnected);
                        }
                    }
                    Err(error) => {
                        assert!(!more);
                        match error.raw_os_error() {
                            Some(libc::ECANCELED) => assert!(cancelled),
                            _ => assert!(connection.broken || connection.disconnected, "{error}"),
                        }
                    }
                }
                if !more {
                    connection.reads.remove(place);
                }
                if hoarding && matches!(data, ReadData::Buffer(_)) {
                    self.hoard.push(data);
                }
            }
            Event::Write { result, data } => {
                let segment = connection.outbound.iter_mut().find(|segment| segment.op == op);
                match result {
                    Ok(count) => {
                        let segment = segment.expect("a write that has not ended");
                        assert_eq!((count, data.len()), (segment.bytes.len(), count));
                        assert_eq!(connection.writes.pop_front(), Some(op), "writes end out of order");
                        segment.op = OpId::NONE;
                        segment.doubtful = false;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {
                        let segment = segment.expect("a write that has not ended");
                        assert!(segment.doubtful);
                        connection.outbound.retain(|segment| segment.op != op);
                        connection.writes.retain(|write| *write != op);
                    }
                    Err(error) => {
                        assert!(connection.broken, "{error}");
                        connection.writes.retain(|write| *write != op);
                        if let Some(segment) = segment {
                            segment.op = OpId::NONE;
                        }
                    }
                }
            }
            Event::Disconnect(result) => {
                assert!(connection.disconnected);
                let place = connection.writes.iter().position(|write| *write == op);
                connection.writes.remove(place.expect("a disconnect that has not ended"));
                assert!(result.is_ok() || connection.broken, "{result:?}");
            }
            Event::Writable => {
                assert!(std::mem::take(&mut connection.refused), "room is told to nobody who asked for it");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Lets everything come to its end, and looks at what is left.
    pub(crate) fn finish(mut self) {
        self.hoarding = false;
        self.hoard.clear();
        for place in 0..CONNECTIONS {
            let Some(connection) = &mut self.connections[place] else { continue };
            // All that is on its way arrives, in both directions.
            let _ = connection.peer.shutdown(Shutdown::Write);
            connection.peer_ended = true;
            let start = Instant::now();
            while let Some(connection) = &mut self.connections[place] {
                connection.peer_reads(usize::MAX);
                let lost_end = connection.broken || connection.disconnected;
                let all_read = connection.received == connection.inbound.len() || lost_end;
                let all_written = connection.writes.is_empty() && !connection.refused;
                if all_read && connection.reads.is_empty() && all_written {
                    break;
                }
                assert!(
                    start.elapsed() < PATIENCE,
                    "stalled: {} of {} bytes read, {} reads and {} writes pending",
                    connection.received,
                    connection.inbound.len(),
                    connection.reads.len(),
                    connection.writes.len()
                );
                if connection.reads.is_empty() && !all_read {
                    self.read(place, ReadKind::Stream);
                }
                if let Some(completion) = self.driver.next_within(Duration::from_millis(1)) {
                    self.complete(completion);
                }
            }
            self.close(place);
        }
        for (handle, _) in std::mem::take(&mut self.listeners).into_values() {
            self.driver.close(handle).unwrap();
        }
        let start = Instant::now();
        for (mut connection, whole) in std::mem::take(&mut self.leaving) {
            while !connection.peer_reads(usize::MAX) {
                assert!(start.elapsed() < PATIENCE, "a peer never saw the end");
                match self.driver.next_within(Duration::from_millis(1)) {
                    Some(Completion { event: Event::Timer(_), op, .. }) => drop(self.timers.remove(&op)),
                    Some(completion) => panic!("{completion:?} surfaced after all was closed"),
                    None => {}
                }
            }
            connection.check_arrived(whole);
        }
        while !self.timers.is_empty() {
            let completion = self.driver.next();
            assert!(self.timers.remove(&completion.op).is_some(), "{completion:?}");
        }
        self.expect_empty_tables();
    }

    /// Every table and pool has all its room again.
    fn expect_empty_tables(&mut self) {
        self.driver.expect_silence();
        let mut kept = Vec::new();
        for cookie in 0..u64::from(HANDLES_MAX) {
            let (socket, peer) = net::unix_pair(Type::STREAM);
            let handle = self.driver.add(socket, Form::Lightweight, cookie);
            kept.push((handle, peer));
        }
        for _ in 0..OPERATIONS_MAX - 1 {
            self.driver.timer(Duration::from_secs(3600), 0).expect("an operation was left behind");
        }
        let (handle, peer) = &kept[0];
        self.driver.read_stream(*handle).expect("an operation was left behind");
        self.driver.flush().unwrap();
        (peer as &Socket).write_all(&vec![1; usize::from(READ_BUFFERS + 1) * BUFFER_SIZE as usize]).unwrap();
        let mut hoard = Vec::new();
        while let Some(completion) = self.driver.next_within(Duration::from_millis(5)) {
            hoard.push(completion);
        }
        assert_eq!(hoard.len(), usize::from(READ_BUFFERS), "buffers were left behind");
    }
}

/// Whether room in the queue of writes will be told, after a call that may have found none.
fn wants_room<T>(wanted: bool, queued: &Result<T, SubmitError>) -> bool {
    match queued {
        Ok(_) => false,
        Err(SubmitError::QueueFull) => true,
        Err(_) => wanted,
    }
}

/// A call may be refused for want of room, and for nothing else.
fn allowed<T>(result: Result<T, SubmitError>) -> Result<T, ()> {
    result.map_err(|reason| {
        assert!(matches!(reason, SubmitError::OperationsFull | SubmitError::QueueFull), "{reason}");
    })
}
