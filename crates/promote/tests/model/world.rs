//! Two endpoints, the kernel connection between them, and their monitor: what each may do
//! next, and what holds after it. The driver of an endpoint does what a channel does,
//! call by call.

mod steps;

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use promote::{KernelEnd, Machine};
use ring::{LoopPage, PeerLoop};

use crate::kernel::{Flag, Queue, Run, Way};
use crate::memory::{Memory, Words};
use crate::search::Digest;

/// How far a search goes, and what happens in it.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes of the writes of each endpoint, in their order.
    pub(crate) writes: [&'static [usize]; 2],
    /// Bytes that a read consumes at most: each of them.
    pub(crate) reads: &'static [usize],
    /// Bytes that the kernel accepts before its receiver reads.
    pub(crate) kernel_room: usize,
    /// Both have their memory from the beginning, and there is no monitor.
    pub(crate) promoted: bool,
    /// Accepted bytes arrive later.
    pub(crate) delays: bool,
    /// Reads from the kernel that leave something there.
    pub(crate) short_fetches: bool,
    pub(crate) sleeps: &'static [Sleep],
    /// How each endpoint may end.
    pub(crate) endings: [&'static [Act]; 2],
}

/// How a reader waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sleep {
    Awake,
    /// Its loop has published that it sleeps, and has not polled since.
    Dozing,
    Hot,
    Cold,
}

/// An error made on purpose, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    WakeUpOmitted,
    WakeUpCheckedBeforeWrite,
    WakeUpNotCounted,
    WakeUpAsData,
    WakeUpBehindSpill,
    WakeUpsUnreadAtClose,
    DiscardedWakeUpsNotCounted,
    RecordBehindBytes,
    KernelBytesNotCounted,
    AwareAtGrant,
    GrantTwice,
    AdoptOverFetched,
    HotWithoutPoll,
    ColdWithoutPoll,
    WakeStaysAsleep,
    FinBeforeBytes,
    EndBeforeRing,
    ResetBeforeRing,
    CloseForgetsRing,
    RingAfterFin,
    RingWhileQueued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// Offers the connection to the monitor.
    Offer,
    /// Reads the monitor's next reply.
    Receive,
    /// Maps granted memory.
    Adopt,
    Write,
    /// Checks whether the written bytes need a wake-up.
    CheckWakeUp,
    /// Queues what the ring had no room for, for the kernel.
    Spill,
    /// The queued wake-up goes to the kernel, which has room for it or not.
    SendWakeUp,
    KernelAccepts,
    /// What was sent next arrives at the peer.
    Deliver,
    /// Reads everything that the kernel has.
    Fetch,
    /// Reads the first run of it.
    FetchFirst,
    /// Consumes at most this many bytes.
    Consume(usize),
    SleepCold,
    SleepHot,
    /// The last poll before a sleep.
    Poll,
    /// Wakes for reasons of its own.
    WakeUp,
    Shutdown,
    Close,
    /// A closed endpoint releases its socket: it has sent all, or could not in time.
    Release,
    Kill,
    /// The monitor grants to both; the grant goes to this endpoint first.
    Grant,
    /// The monitor can send the grant to this endpoint alone, and withdraws it.
    GrantOne,
    Refuse,
    MonitorDies,
}

impl Act {
    /// Happens at last, whatever the program wants.
    fn is_progress(self) -> bool {
        use Act::*;
        matches!(
            self,
            CheckWakeUp | Spill | SendWakeUp | KernelAccepts | Deliver | Fetch | Consume(_) | Poll | Release
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Plain,
    Offered,
    Granted,
    Adopted,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Nothing,
    Grant,
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Open,
    /// Closed, with bytes that the kernel has not accepted.
    Closing,
    Gone,
    Killed,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Endpoint {
    stage: Stage,
    replies: [Reply; 2],
    /// Writes begun.
    writes: usize,
    /// Bytes of the last one that are neither in the ring nor queued.
    rest: usize,
    check_due: bool,
    wake_up: bool,
    waiting: Queue,
    failed: bool,
    fetched: Queue,
    /// Stream bytes: written by its program, accepted by a path, read by its program.
    sent: u64,
    accepted: u64,
    got: u64,
    sleep: Sleep,
    /// The last read found nothing.
    idle: bool,
    masked: bool,
    shut: bool,
    life: Life,
    /// Before the connection was promoted.
    kernel_end: Option<KernelEnd>,
    reported: Option<KernelEnd>,
    /// Bytes in its ring: where their ring counts begin, and which they are.
    ring_start: u64,
    ring: Queue,
}

const NEW: Endpoint = Endpoint {
    stage: Stage::Plain,
    replies: [Reply::Nothing; 2],
    writes: 0,
    rest: 0,
    check_due: false,
    wake_up: false,
    waiting: EMPTY,
    failed: false,
    fetched: EMPTY,
    sent: 0,
    accepted: 0,
    got: 0,
    sleep: Sleep::Awake,
    idle: false,
    masked: false,
    shut: false,
    life: Life::Open,
    kernel_end: None,
    reported: None,
    ring_start: 0,
    ring: EMPTY,
};
const EMPTY: Queue = Queue::EMPTY;

/// What happened on some path, for the counts of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Event {
    Promoted,
    AloneAware,
    WroteRing,
    RingFull,
    Returned,
    WakeUpAccepted,
    WakeUpWithoutRoom,
    LateWakeUpDropped,
    WakeUpAfterClose,
    SleptCold,
    SleptHot,
    StayedAwake,
    ResetAtClose,
    EndFinished,
    EndReset,
    /// A reset that TCP would not have sent: a wake-up arrived at a socket that was
    /// closed or killed.
    ResetByWakeUp,
    /// And with it the last bytes of the endpoint that had gone were lost.
    LostToWakeUp,
    /// An endpoint was killed with unread wake-ups and no unread bytes: RST where TCP
    /// would have sent FIN.
    KilledOverWakeUps,
    /// Or with bytes unread in the ring alone: FIN where TCP would have sent RST.
    KilledOverRing,
}

#[derive(Clone)]
pub(crate) struct World {
    bounds: &'static Bounds,
    mutation: Mutation,
    memory: Memory,
    words: Words,
    machines: [Option<Machine>; 2],
    pages: [LoopPage; 2],
    peers: [PeerLoop; 2],
    endpoints: [Endpoint; 2],
    /// By sender.
    ways: [Way; 2],
    /// Whether wake-ups alone made it send RST.
    reset_by_wake_up: [bool; 2],
    /// The offers that the monitor has, while it lives.
    monitor: Option<[bool; 2]>,
    pub(crate) events: u32,
}

/// What each endpoint sends: any slice of it shows where it comes from.
static STREAMS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let byte = |side: u64, offset: u64| ((offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ side << 40) >> 32;
    [0, 1].map(|side| (0..1 << 16).map(|offset| byte(side, offset) as u8).collect())
});

fn stream(side: usize, run: Run) -> &'static [u8] {
    &STREAMS[side][run.start as usize..][..run.len as usize]
}

type Verdict = Result<(), String>;

fn must(holds: bool, what: &str) -> Verdict {
    if holds { Ok(()) } else { Err(what.into()) }
}

fn corrupt(error: ring::Corrupt) -> String {
    format!("refused as corrupt: {error}")
}

impl World {
    pub(crate) fn new(bounds: &'static Bounds, mutation: Mutation) -> World {
        let memory = Memory::new();
        let [(page_0, peer_0), (page_1, peer_1)] = [0, 1].map(|side| memory.pages(side));
        let mut world = World {
            bounds,
            mutation,
            memory,
            words: memory.words(),
            machines: [None, None],
            pages: [page_0, page_1],
            peers: [peer_0, peer_1],
            endpoints: [NEW; 2],
            ways: [Way::default(); 2],
            reset_by_wake_up: [false; 2],
            monitor: (!bounds.promoted).then_some([false; 2]),
            events: 0,
        };
        if bounds.promoted {
            for side in [0, 1] {
                world.endpoints[side].stage = Stage::Granted;
            }
            [0, 1].into_iter().for_each(|side| world.adopt(side).unwrap());
        }
        world.words = memory.words();
        world
    }

    /// Restores the memory of this state.
    pub(crate) fn put_back(&self) {
        self.memory.put_back(&self.words);
        for side in [0, 1] {
            let mut count = self.endpoints[side].ring_start;
            for run in self.endpoints[side].ring.runs() {
                self.memory.put(side, count, stream(side, *run));
                count += u64::from(run.len);
            }
        }
    }

    pub(crate) fn events(&self, count: impl FnMut(Event)) {
        use Event::*;
        let all = [
            Promoted,
            AloneAware,
            WroteRing,
            RingFull,
            Returned,
            WakeUpAccepted,
            WakeUpWithoutRoom,
            LateWakeUpDropped,
            WakeUpAfterClose,
            SleptCold,
            SleptHot,
            StayedAwake,
            ResetAtClose,
            EndFinished,
            EndReset,
            ResetByWakeUp,
            LostToWakeUp,
            KilledOverWakeUps,
            KilledOverRing,
        ];
        all.into_iter().filter(|event| self.events & 1 << *event as u32 != 0).for_each(count);
    }

    fn note(&mut self, event: Event) {
        self.events |= 1 << event as u32;
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// Names the state: equal for two exactly if the same can follow, but for hash
    /// collisions.
    pub(crate) fn name(&self) -> u64 {
        let one = self.name_from(0);
        let bounds = self.bounds;
        if bounds.writes[0] == bounds.writes[1] && bounds.endings[0] == bounds.endings[1] {
            // The endpoints may change places.
            one.min(self.name_from(1))
        } else {
            one
        }
    }

    fn name_from(&self, first: usize) -> u64 {
        let mut digest = Digest::default();
        for side in [first, 1 - first] {
            self.endpoints[side].hash(&mut digest);
            self.ways[side].hash(&mut digest);
            self.reset_by_wake_up[side].hash(&mut digest);
            self.machines[side].hash(&mut digest);
            self.peers[side].is_woken(0).hash(&mut digest);
            self.words.hash_side(side, &mut digest);
            self.monitor.map(|offers| offers[side]).hash(&mut digest);
        }
        digest.finish()
    }

    /// Everything that may happen next.
    pub(crate) fn acts(&self) -> Vec<(usize, Act)> {
        use Act::*;
        let mut acts = Vec::with_capacity(24);
        let bounds = self.bounds;
        let rest = [
            Offer,
            Receive,
            Adopt,
            Write,
            CheckWakeUp,
            Spill,
            SendWakeUp,
            KernelAccepts,
            Deliver,
            Fetch,
            FetchFirst,
            SleepCold,
            SleepHot,
            Poll,
            WakeUp,
            Release,
            Grant,
            GrantOne,
            Refuse,
        ];
        for side in [0, 1] {
            let takes = bounds.reads.iter().map(|count| Consume(*count));
            let all = rest.into_iter().chain(takes).chain(bounds.endings[side].iter().copied());
            acts.extend(all.filter(|act| self.can(side, *act)).map(|act| (side, act)));
        }
        if self.can(0, MonitorDies) {
            acts.push((0, MonitorDies));
        }
        acts
    }

    fn is_reset(&self, side: usize) -> bool {
        self.ways[1 - side].reset == Flag::Arrived
    }

    fn has_ended(&self, side: usize) -> bool {
        match &self.machines[side] {
            Some(machine) => machine.kernel_has_ended(),
            None => self.endpoints[side].kernel_end.is_some(),
        }
    }

    /// Whether the kernel reports the connection as established to this endpoint.
    fn is_established(&self, side: usize) -> bool {
        self.endpoints[side].life == Life::Open
            && !self.endpoints[side].shut
            && !self.ways[1 - side].has_end()
    }

    fn can(&self, side: usize, act: Act) -> bool {
        let (endpoint, out, input) = (&self.endpoints[side], &self.ways[side], &self.ways[1 - side]);
        let open = endpoint.life == Life::Open;
        // Its program is between two calls.
        let free = open && !endpoint.check_due && endpoint.rest == 0 && endpoint.sleep != Sleep::Dozing;
        let awake = free && endpoint.sleep == Sleep::Awake;
        match act {
            // What the kernel and the monitor do.
            Act::KernelAccepts => {
                !endpoint.waiting.is_empty() && (self.is_reset(side) || out.room(self.bounds.kernel_room) > 0)
            }
            Act::SendWakeUp => endpoint.wake_up,
            Act::Deliver => out.is_moving(),
            Act::Release => {
                let late = out.room(self.bounds.kernel_room) == 0;
                endpoint.life == Life::Closing && (endpoint.waiting.is_empty() || late)
            }
            Act::Grant | Act::GrantOne => {
                let both = self.is_established(0) && self.is_established(1);
                let first = act == Act::GrantOne || side == 0;
                self.monitor == Some([true; 2]) && both && first
            }
            Act::Refuse => self.monitor.is_some_and(|offers| offers[side]),
            Act::MonitorDies => self.monitor.is_some(),
            Act::Kill => matches!(endpoint.life, Life::Open | Life::Closing),
            _ if !open => false,
            // Acts of the endpoint: first of all those that it has begun.
            Act::CheckWakeUp => endpoint.check_due,
            Act::Spill => !endpoint.check_due && endpoint.rest > 0,
            Act::Poll => endpoint.sleep == Sleep::Dozing,
            Act::WakeUp => matches!(endpoint.sleep, Sleep::Hot | Sleep::Cold),
            Act::Fetch => {
                let ready = !input.receiving.is_empty() || (input.has_end() && !self.has_ended(side));
                free && ready
            }
            Act::FetchFirst => free && self.bounds.short_fetches && input.receiving.runs().len() > 1,
            Act::Offer => {
                awake && endpoint.stage == Stage::Plain && self.monitor.is_some() && self.is_established(side)
            }
            Act::Receive => awake && endpoint.replies[0] != Reply::Nothing,
            Act::Adopt => {
                let fetched = !endpoint.fetched.is_empty() && !self.is(Mutation::AdoptOverFetched);
                awake
                    && endpoint.stage == Stage::Granted
                    && endpoint.waiting.is_empty()
                    && !fetched
                    && self.is_established(side)
            }
            Act::Write => {
                awake
                    && !endpoint.shut
                    && !endpoint.failed
                    && endpoint.writes < self.bounds.writes[side].len()
            }
            Act::Consume(_) => awake && endpoint.reported.is_none(),
            Act::SleepCold => {
                awake && endpoint.idle && endpoint.reported.is_none() && self.sleeps(Sleep::Cold)
            }
            Act::SleepHot => awake && endpoint.idle && endpoint.reported.is_none() && self.sleeps(Sleep::Hot),
            Act::Shutdown => awake && !endpoint.shut,
            Act::Close => awake,
        }
    }

    fn sleeps(&self, how: Sleep) -> bool {
        self.bounds.sleeps.contains(&how)
    }

    /// Does it, and checks what has to hold.
    pub(crate) fn step(&mut self, side: usize, act: Act) -> Verdict {
        self.events = 0;
        match act {
            Act::Offer => {
                self.endpoints[side].stage = Stage::Offered;
                if let Some(offers) = &mut self.monitor {
                    offers[side] = true;
                }
            }
            Act::Receive => self.receive(side),
            Act::Adopt => self.adopt(side)?,
            Act::Write => self.write(side)?,
            Act::CheckWakeUp => self.check_wake_up(side)?,
            Act::Spill => self.spill(side)?,
            Act::SendWakeUp => self.send_wake_up(side),
            Act::KernelAccepts => self.kernel_accepts(side),
            Act::Deliver => self.deliver(side),
            Act::Fetch => self.fetch(side, usize::MAX)?,
            Act::FetchFirst => self.fetch(side, 1)?,
            Act::Consume(count) => self.consume(side, count)?,
            Act::SleepCold => self.sleep_cold(side)?,
            Act::SleepHot => self.sleep_hot(side),
            Act::Poll => self.check_ring(side)?,
            Act::WakeUp => self.wake(side),
            Act::Shutdown => self.shutdown(side),
            Act::Close => self.close(side)?,
            Act::Release => self.release(side),
            Act::Kill => self.kill(side),
            Act::Grant | Act::GrantOne => self.grant(side, act == Act::Grant),
            Act::Refuse => {
                self.reply(side, Reply::Refuse);
                if let Some(offers) = &mut self.monitor {
                    offers[side] = false;
                }
            }
            Act::MonitorDies => self.monitor = None,
        }
        if !self.bounds.delays {
            while let Some(sender) = [0, 1].into_iter().find(|sender| self.ways[*sender].is_moving()) {
                self.deliver(sender);
            }
        }
        self.words = self.memory.words();
        self.check()
    }

    fn check(&self) -> Verdict {
        for side in [0, 1] {
            must(
                self.endpoints[side].got <= self.endpoints[1 - side].accepted,
                "bytes that were never sent",
            )?;
        }
        Ok(())
    }

    /// Whether nothing goes on by itself; `changes`: the acts that change the state.
    pub(crate) fn is_quiet(&self, mut changes: impl Iterator<Item = Act>) -> bool {
        !changes.any(Act::is_progress)
    }

    /// What has to hold when nothing goes on by itself.
    pub(crate) fn check_quiet(&self) -> Verdict {
        for side in [0, 1] {
            let (endpoint, peer) = (&self.endpoints[side], &self.endpoints[1 - side]);
            must(endpoint.life != Life::Closing, "a close never ends")?;
            if endpoint.life != Life::Open || endpoint.reported.is_some() {
                continue;
            }
            let asleep = matches!(endpoint.sleep, Sleep::Hot | Sleep::Cold);
            must(
                endpoint.got == peer.accepted || !asleep,
                "a reader sleeps over bytes that are there for it",
            )?;
            must(endpoint.got == peer.accepted, "bytes never come")?;
            must(!peer.shut && !self.is_reset(side), "an end of stream is never reported")?;
            must(peer.waiting.is_empty(), "bytes wait for ever")?;
        }
        Ok(())
    }
}
