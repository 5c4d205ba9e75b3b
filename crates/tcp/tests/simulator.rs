//! Pairs of hosts over faulty links, under virtual time, from seeds.
//!
//! `MEGAPIPE_TCP_FLOWS` sets the number of flows, `MEGAPIPE_TCP_FIRST_SEED` the seed to begin with.
//! `MEGAPIPE_TCP_SEED` runs one world alone and prints its packets.
mod common;
#[path = "simulator/talk.rs"]
mod talk;

use std::env;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use common::{Net, address, config};
use packet::{Capabilities, Faults, Random};
use talk::{End, Manner, Seen, Talk, allowed, byte};
use tcp::{
    Config, Event, Failure, Flow, Initial, Listener, Pattern, Profile, Read, ReadError, Ready, State, Time,
    WriteError,
};

const SERVER: u16 = 7;
/// Virtual time in which every world ends.
const BOUND: Duration = Duration::from_secs(4 * 3600);
/// How long programs may have nothing to do where nothing is lost and nobody pauses: a delayed
/// acknowledgement, and 10 ms.
const LATE: Duration = Duration::from_millis(50);

struct World {
    net: Net,
    random: Random,
    talks: Vec<Talk>,
    listener: Option<Listener>,
    v6: bool,
    /// Without faults, pauses and want of memory.
    calm: bool,
    started: Time,
    /// When a program last had something to do.
    busy_at: Time,
    writes: u64,
    steps: u64,
    seen: Seen,
    /// Pages for received and for sent bytes of each host.
    pages: [(usize, usize); 2],
}

/// A number between 1 and 2^bits, small ones as likely as large ones.
fn log_uniform(random: &mut Random, bits: u64) -> u32 {
    let bits = random.below(bits + 1);
    ((1u64 << bits) + random.below(1 << bits)) as u32
}

fn faults(random: &mut Random) -> Faults {
    let mut some =
        |most: f64| if random.chance(0.4) { most * random.below(1000) as f64 / 1000.0 } else { 0.0 };
    let mut faults = Faults {
        loss: some(0.05),
        duplicate: some(0.05),
        reorder: some(0.1),
        corrupt: some(0.02),
        cut: some(0.2),
        join: some(0.2),
        overlap: some(0.2),
        mark: some(0.1),
        ..Faults::default()
    };
    faults.delay = Duration::from_micros(random.below(60_000) * random.below(2));
    faults.reorder_by = Duration::from_micros(1 + random.below(30_000));
    if random.chance(0.2) {
        faults.rate = 100_000 + random.below(20_000_000);
        faults.queue = 20_000 + random.below(200_000);
    }
    faults
}

impl World {
    fn new(seed: u64, calm: bool) -> World {
        let mut random = Random::new(seed);
        let v6 = random.chance(0.5);
        let mtu = [576, 1280, 1500, 9000][random.below(4) as usize].max(if v6 { 1280 } else { 0 });
        let offloads = random.chance(0.6);
        let capabilities =
            Capabilities { mtu, checksum: offloads, segment: if offloads { 65_535 } else { 0 } };
        let profile = if random.chance(0.7) || calm { Profile::wan() } else { Profile::lan() };
        // Two hours of silence tell nothing new.
        let profile = Profile {
            keep_alive: Duration::from_secs(20),
            keep_alive_interval: Duration::from_secs(5),
            ..profile
        };
        let wraps = random.chance(0.5);
        let starved = random.chance(0.2) && !calm;
        let count = 1 + random.below(6) as usize;
        let configs = [0, 1].map(|side| {
            let mut config: Config = config(side, capabilities);
            config.profile = profile;
            config.limits.receive_pages = 1024;
            config.limits.send_pages = 1024;
            config.limits.receive_buffer =
                [4_096, 30_000, 65_535, 256 << 10, 1 << 20][random.below(5) as usize];
            config.limits.send_buffer = [2_000, 64 << 10, 256 << 10, 1 << 20][random.below(4) as usize];
            config.offers.ecn = u8::from(seed.is_multiple_of(2));
            config.limits.flows = 64;
            config.limits.active = 64;
            config.limits.half_open = 16;
            config.limits.time_wait = 16;
            if starved {
                config.limits.receive_pages = 4 + random.below(40) as usize;
                config.limits.send_pages = 4 + random.below(40) as usize;
                config.limits.active = 1 + random.below(4) as usize;
            }
            if wraps {
                config.initial = Initial::Fixed {
                    sequence: 0u32.wrapping_sub(random.below(65_536) as u32),
                    timestamp: 0u32.wrapping_sub(random.below(5_000) as u32),
                };
            }
            config
        });
        let pages = configs.each_ref().map(|config| (config.limits.receive_pages, config.limits.send_pages));
        let mut net = Net::new(configs, seed);
        for side in 0..2 {
            let faults = if random.chance(0.8) && !calm { faults(&mut random) } else { Faults::default() };
            net.set_faults(side, faults);
        }
        let listener = net.listen();
        let started = net.now;
        let mut world = World {
            net,
            random,
            talks: Vec::new(),
            listener: Some(listener),
            v6,
            calm,
            started,
            busy_at: started,
            writes: 0,
            steps: 0,
            seen: Seen::default(),
            pages,
        };
        for number in 0..count {
            world.begin(number, starved);
        }
        world
    }

    fn begin(&mut self, number: usize, starved: bool) {
        let calm = self.calm;
        let random = &mut self.random;
        let most = if starved { 17 } else { 21 };
        let mut size = || if random.chance(0.1) { 0 } else { log_uniform(random, most) };
        let mut sizes = [size(), size()];
        let mut manner = Manner::Streams;
        if random.chance(0.2) {
            let rounds = 1 + random.below(20) as u32;
            let mut part = || log_uniform(random, 12);
            let (question, answer) = ([part(), part()], part());
            sizes = [rounds * (question[0] + question[1]), rounds * answer];
            manner = Manner::Questions { question, answer };
        }
        let aborts = random.chance(0.1);
        let mut ends = [0, 1].map(|side| {
            let longest = sizes[0].max(sizes[1]).max(64) / 64;
            End {
                flow: None,
                to_send: sizes[side],
                sent: 0,
                to_receive: sizes[1 - side],
                received: 0,
                chunk: (log_uniform(random, 16).max(longest)) as usize,
                pauses: random.chance(0.3) && !calm,
                write_at: Time::default(),
                read_at: Time::default(),
                abort_after: None,
                may_write: true,
                may_read: true,
                shut: false,
                over: false,
            }
        });
        if aborts {
            let who = random.below(2) as usize;
            ends[who].abort_after = Some(random.below(u64::from(sizes[who]) + 1) as u32);
        }
        let port = 10_000 + number as u16;
        let now = self.net.now;
        let (here, there) = (address(0, self.v6), address(1, self.v6));
        if self.random.chance(0.1) {
            // Simultaneous open.
            let mut open = |side: usize, from: u16, to: u16| {
                let remote = SocketAddr::new(address(1 - side, self.v6), to);
                self.net.host(side).connect(now, None, Some(from), remote).expect("a flow")
            };
            ends[0].flow = Some(open(0, port, port + 1000));
            ends[1].flow = Some(open(1, port + 1000, port));
        } else {
            let remote = SocketAddr::new(there, SERVER);
            ends[0].flow =
                Some(self.net.host(0).connect(now, Some(here), Some(port), remote).expect("a flow"));
        }
        for (side, end) in ends.iter().enumerate() {
            if let Some(flow) = end.flow {
                self.prepare(side, flow, number);
            }
        }
        self.talks.push(Talk { ends, manner, aborts });
    }

    fn prepare(&mut self, side: usize, flow: Flow, number: usize) {
        let no_delay = self.random.chance(0.5);
        let now = self.net.now;
        let host = self.net.host(side);
        host.set_owner(flow, number as u32);
        host.set_keep_alive(now, flow, true);
        host.set_no_delay(now, flow, no_delay);
    }

    /// Hands events to the programs.
    fn events(&mut self) -> bool {
        let mut any = false;
        for side in 0..2 {
            while let Some(event) = self.net.host(side).event() {
                any = true;
                match event {
                    Event::Flow { flow, owner, ready } => {
                        let end = &mut self.talks[owner as usize].ends[side];
                        assert_eq!(end.flow, Some(flow), "an event of somebody else's flow");
                        end.may_write |= ready.has(Ready::WRITABLE) || ready.has(Ready::FAILED);
                        end.may_read |= ready.has(Ready::READABLE)
                            || ready.has(Ready::FAILED)
                            || ready.has(Ready::FLUSHED);
                    }
                    Event::Incoming(listener) => {
                        while let Some(flow) = self.net.host(side).accept(listener) {
                            let (_, remote) = self.net.host(side).addresses(flow).expect("a flow");
                            let number = usize::from(remote.port() - 10_000);
                            assert_eq!(self.talks[number].ends[side].flow, None, "accepted twice");
                            self.talks[number].ends[side].flow = Some(flow);
                            self.prepare(side, flow, number);
                        }
                    }
                    Event::Ask { .. } => panic!("nobody asked to be asked"),
                }
            }
        }
        any
    }

    /// Lets each program do what it can. Returns whether any did something.
    fn programs(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.talks.len() {
            for side in 0..2 {
                any |= self.write(number, side);
                any |= self.read(number, side);
            }
        }
        any
    }

    fn pause(&mut self, side: usize, number: usize) -> Time {
        let now = self.net.now;
        if self.talks[number].ends[side].pauses && self.random.chance(0.3) {
            now.after(Duration::from_micros(log_uniform(&mut self.random, 19).into()))
        } else {
            now
        }
    }

    fn write(&mut self, number: usize, side: usize) -> bool {
        let now = self.net.now;
        let talk = &mut self.talks[number];
        let end = &mut talk.ends[side];
        let Some(flow) = end.flow else { return false };
        if end.over || end.shut || !end.may_write || end.write_at > now {
            return false;
        }
        if end.abort_after.is_some_and(|bytes| end.sent >= bytes) {
            end.over = true;
            self.net.host(side).abort(now, flow);
            return true;
        }
        if end.sent == end.to_send {
            end.shut = true;
            self.seen.half_closed += usize::from(end.received < end.to_receive);
            self.net.host(side).shutdown(now, flow);
            return true;
        }
        let len = allowed(talk.manner, side, end).min(end.chunk as u32) as usize;
        if len == 0 {
            return false;
        }
        let end = &mut self.talks[number].ends[side];
        let bytes: Vec<u8> = (0..len as u32).map(|i| byte(number, side, end.sent + i)).collect();
        match self.net.sides[side].host.write(now, flow, &bytes) {
            Ok(written) => {
                end.sent += written as u32;
                end.may_write = written == len;
                self.writes += 1;
                let at = self.pause(side, number);
                self.talks[number].ends[side].write_at = at;
                written > 0
            }
            Err(WriteError::Failed(failure)) => {
                self.failed(number, side, failure);
                true
            }
            Err(WriteError::Ended) => panic!("{number}: nobody has ended it"),
        }
    }

    fn read(&mut self, number: usize, side: usize) -> bool {
        let now = self.net.now;
        let end = &mut self.talks[number].ends[side];
        let Some(flow) = end.flow else { return false };
        if end.over || !end.may_read || end.read_at > now {
            return false;
        }
        let mut buffer = vec![0; end.chunk];
        match self.net.sides[side].host.read(now, flow, &mut buffer) {
            Ok(Read::Bytes(len)) => {
                for (i, &got) in buffer[..len].iter().enumerate() {
                    let at = end.received + i as u32;
                    assert_eq!(got, byte(number, 1 - side, at), "{number}: wrong byte at {at}");
                }
                end.received += len as u32;
                let at = self.pause(side, number);
                self.talks[number].ends[side].read_at = at;
            }
            Ok(Read::Empty) => end.may_read = false,
            Ok(Read::End) => {
                assert_eq!(end.received, end.to_receive, "{number}: the end came early");
                if end.shut {
                    end.over = true;
                    self.net.host(side).close(now, flow);
                } else {
                    end.may_read = false;
                    // Reads on once it has ended its own stream.
                    end.may_read = end.sent == end.to_send;
                    return false;
                }
            }
            Err(ReadError::Failed(failure)) => self.failed(number, side, failure),
            Err(ReadError::Closed) => panic!("{number}: nobody has closed it"),
        }
        true
    }

    fn failed(&mut self, number: usize, side: usize, failure: Failure) {
        let now = self.net.now;
        let talk = &mut self.talks[number];
        let expected = talk.aborts && matches!(failure, Failure::Reset | Failure::Refused);
        assert!(expected, "{number}: {failure} on side {side}");
        talk.ends[side].over = true;
        let flow = talk.ends[side].flow.expect("a flow");
        self.net.host(side).close(now, flow);
    }

    /// What has to hold between any two steps.
    fn invariants(&mut self) {
        for side in 0..2 {
            let host = &self.net.sides[side].host;
            assert!(host.pages_match(), "store and engine are apart");
            let flows: Vec<Flow> = host.live_flows().collect();
            for flow in flows {
                let Some(info) = host.info(flow) else { continue };
                self.seen.opened_by_both += usize::from(info.state == State::SynReceived);
                self.seen.closed_by_both += usize::from(info.state == State::Closing);
                self.seen.closed_windows += usize::from(info.unsent > 0 && info.peer_edge == info.sent_to);
                // An overtaken window update takes a part of the window back, for a while.
                let inside =
                    !self.calm || !info.state.is_synchronized() || !info.peer_edge.before(info.sent_to);
                assert!(inside, "beyond the peer's window: {info:?}");
                assert!(
                    !info.owes || info.is_scheduled && host.deadline().is_some() || host.has_output(),
                    "something is owed, and nothing will happen: {info:?}"
                );
            }
        }
        let time = self.net.now.since(self.started);
        assert!(time < BOUND, "no end after {time:?}: {:?}", self.stuck());
        let idle = self.net.now.since(self.busy_at);
        let late = self.calm && !self.is_over() && idle > LATE;
        assert!(!late, "nothing for {idle:?}, without a loss: {:?}", self.stuck());
        self.steps += 1;
        let seconds = time.as_secs();
        let work = 100 * (self.writes + self.net.wire.packets) + 1_000 * (10 + seconds);
        assert!(self.steps < work, "{} steps in {time:?}: {:?}", self.steps, self.stuck());
        let bytes: u64 = self.talks.iter().flat_map(|talk| &talk.ends).map(|end| u64::from(end.sent)).sum();
        let most = 20 * (self.writes + bytes / 216) + 2_000 * self.talks.len() as u64;
        assert!(self.net.wire.packets < most, "a storm: {} packets for {bytes} bytes", self.net.wire.packets);
    }

    /// What it has had.
    fn seen(&self) -> Seen {
        let questions = |talk: &&Talk| matches!(talk.manner, Manner::Questions { .. });
        Seen {
            flows: self.talks.len(),
            questions: self.talks.iter().filter(questions).count(),
            aborts: self.talks.iter().filter(|talk| talk.aborts).count(),
            ..self.seen
        }
    }

    fn stuck(&self) -> Vec<String> {
        let mut stuck = Vec::new();
        for (number, talk) in self.talks.iter().enumerate() {
            for (side, end) in talk.ends.iter().enumerate().filter(|(_, end)| !end.over) {
                let info = end.flow.and_then(|flow| self.net.sides[side].host.info(flow));
                stuck.push(format!(
                    "talk {number} side {side}: sent {} of {}, received {} of {}, may_write {} may_read {} {info:?}",
                    end.sent, end.to_send, end.received, end.to_receive, end.may_write, end.may_read
                ));
            }
        }
        stuck
    }

    fn is_over(&self) -> bool {
        // An end that never got a flow: the other has reset it before.
        self.talks.iter().all(|talk| {
            let never = talk.aborts && talk.ends.iter().any(|end| end.over);
            talk.ends.iter().all(|end| end.over || never && end.flow.is_none())
        })
    }

    fn run(&mut self) {
        loop {
            loop {
                self.net.exchange();
                if !(self.events() | self.programs()) {
                    break;
                }
                self.busy_at = self.net.now;
            }
            self.invariants();
            if self.is_over() {
                break;
            }
            let now = self.net.now;
            let waits = self.talks.iter().flat_map(|talk| &talk.ends).filter(|end| !end.over);
            let next = waits
                .flat_map(|end| [end.write_at, end.read_at])
                .filter(|&at| at > now)
                .chain(self.net.next())
                .min();
            let Some(next) = next else { panic!("nothing will ever happen: {:?}", self.stuck()) };
            self.net.now = next.max(now.after(Duration::from_micros(1)));
        }
        self.finish();
    }

    /// Everything ends by itself, and everything is given back.
    fn finish(&mut self) {
        if let Some(listener) = self.listener.take() {
            let now = self.net.now;
            self.net.host(1).unlisten(now, listener);
        }
        let until = self.net.now.after(Duration::from_secs(3600));
        self.net.exchange();
        while let Some(next) = self.net.next() {
            assert!(next < until, "not quiet after an hour");
            self.net.now = self.net.now.max(next);
            self.net.exchange();
            self.events();
            self.invariants();
        }
        for side in 0..2 {
            let host = &mut self.net.sides[side].host;
            assert_eq!(host.live_flows().count(), 0);
            assert_eq!(host.free_pages(), self.pages[side], "pages of nobody");
        }
    }
}

/// How many flows to simulate.
fn flows(default: usize) -> usize {
    env::var("MEGAPIPE_TCP_FLOWS").map_or(default, |flows| flows.parse().expect("a number"))
}

#[test]
fn every_flow_ends_with_the_right_bytes() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.2
    //# This field may be sent in the initial connection request (i.e., in segments with the SYN control bit
    //# set) and MUST NOT be sent in other segments (MUST- 65).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
    //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left (SHLD-14).
    if let Ok(seed) = env::var("MEGAPIPE_TCP_SEED") {
        let mut world = World::new(seed.parse().expect("a number"), false);
        world.net.wire.loud = true;
        return world.run();
    }
    let seen = worlds(flows(1_000), false);
    let Seen { opened_by_both, closed_by_both, half_closed, closed_windows, questions, aborts, .. } = seen;
    let all = [opened_by_both, closed_by_both, half_closed, closed_windows, questions, aborts];
    assert!(seen.flows < 1_000 || all.iter().all(|&count| count > 0), "{seen:?}");
}

/// Where nothing is lost, nobody waits for a timer but that of a delayed acknowledgement.
#[test]
fn nothing_is_late_without_loss() {
    worlds(flows(300), true);
}

/// Connections beyond the records of outstanding data have a segment on its way each: while the path is
/// cut they repeat it as others do, and all of it arrives once the path is there.
#[test]
fn few_records_stop_nobody() {
    const FLOWS: usize = 1_000;
    const RECORDS: usize = 4;
    let configs = [0, 1].map(|side| {
        let mut config = config(side, common::PLAIN);
        config.limits.flows = FLOWS;
        config.limits.active = RECORDS;
        config
    });
    let mut net = Net::new(configs, 1);
    let pattern = Pattern { address: None, port: Some(SERVER) };
    let listener = net.host(1).listen(pattern, FLOWS).expect("a listener");
    let now = net.now;
    let remote = SocketAddr::new(address(1, false), SERVER);
    let mut connect = |_| net.host(0).connect(now, None, None, remote).expect("a flow");
    let clients: Vec<Flow> = (0..FLOWS).map(&mut connect).collect();
    net.run(Duration::from_secs(1));
    let mut servers = Vec::new();
    while let Some(server) = net.host(1).accept(listener) {
        servers.push(server);
    }
    net.set_faults(0, Faults { loss: 1.0, ..Faults::default() });
    for &client in &clients {
        net.run(Duration::from_micros(100));
        let now = net.now;
        assert_eq!(net.host(0).write(now, client, &[7; 5_000]), Ok(5_000));
    }
    let before = net.wire.packets;
    net.run(Duration::from_secs(10));
    // Timeouts double from 200 ms on.
    let packets = net.wire.packets - before;
    assert!(packets <= 7 * FLOWS as u64, "{packets} packets");

    net.set_faults(0, Faults::default());
    net.run(Duration::from_secs(20));
    for server in servers {
        assert_eq!(net.read_all(1, server).0.len(), 5_000);
    }
}

/// Runs worlds until they have had so many flows.
fn worlds(flows: usize, calm: bool) -> Seen {
    let mut all = Seen::default();
    let mut failed = Vec::new();
    let first = env::var("MEGAPIPE_TCP_FIRST_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut printed = 0;
    for seed in first.. {
        if all.flows >= flows || failed.len() >= 5 {
            break;
        }
        if all.flows >= printed + 10_000 {
            printed = all.flows;
            println!("{printed} flows, from seed {first} to {seed}");
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(seed, calm);
            world.run();
            world.seen()
        }));
        match outcome {
            Ok(seen) => all.add(seen),
            Err(_) => {
                eprintln!("seed {seed}, after {} flows", all.flows);
                failed.push(seed);
            }
        }
    }
    println!("{all:?}, from seed {first}");
    assert!(failed.is_empty(), "seeds {failed:?}");
    all
}
