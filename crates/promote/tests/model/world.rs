//! Two ends, the kernel connection between them, and their monitor: what each may do next, and
//! what holds after it. The driver of an end does what a channel's does, call by call.

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
    /// Bytes of the writes of either end, in their order.
    pub(crate) writes: [&'static [usize]; 2],
    /// Bytes that a read takes at most: each of them.
    pub(crate) reads: &'static [usize],
    /// Bytes that the kernel takes before its receiver reads.
    pub(crate) kernel_room: usize,
    /// Both have their memory from the beginning, and there is no monitor.
    pub(crate) promoted: bool,
    /// What the kernel takes arrives later.
    pub(crate) delays: bool,
    /// Reads from the kernel that leave something there.
    pub(crate) short_fetches: bool,
    pub(crate) sleeps: &'static [Sleep],
    /// Ends of either end.
    pub(crate) ends: [&'static [Act]; 2],
}

/// How a reader waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sleep {
    Awake,
    /// Its loop has said that it sleeps, and has not looked again yet.
    Dozing,
    Hot,
    Cold,
}

/// What goes wrong on purpose, to see that the search finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    BellOmitted,
    BellAskedBeforeWrite,
    BellNotCounted,
    BellAsData,
    BellBehindSpill,
    BellsUnreadAtClose,
    DroppedBellsNotCounted,
    RecordBehindBytes,
    KernelBytesNotCounted,
    AwareAtGrant,
    GrantTwice,
    AdoptOverFetched,
    HotWithoutLook,
    ColdWithoutLook,
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
    /// Takes granted memory up.
    Adopt,
    Write,
    /// Asks whether what was written needs a bell.
    AskBell,
    /// Gives what the ring had no room for to the kernel.
    Spill,
    /// The bell that is queued goes to the kernel, which has room for it or not.
    Bell,
    KernelTakes,
    /// What comes next arrives at the other end.
    Deliver,
    /// Reads all that is there from the kernel.
    Fetch,
    /// Reads the first run of it.
    FetchFirst,
    /// Takes at most so much of what is here.
    Take(usize),
    SleepCold,
    SleepHot,
    /// The last look before a sleep.
    Look,
    /// Wakes for reasons of its own.
    WakeUp,
    Shutdown,
    Close,
    /// A closed end leaves its socket: it has sent all, or could not in time.
    Leave,
    Kill,
    /// The monitor grants to both; told to this end first.
    Grant,
    /// The monitor grants, can tell this end alone, and takes it back.
    GrantOne,
    Refuse,
    MonitorDies,
}

impl Act {
    /// Happens in the end, whatever the program wants.
    fn is_progress(self) -> bool {
        use Act::*;
        matches!(self, AskBell | Spill | Bell | KernelTakes | Deliver | Fetch | Take(_) | Look | Leave)
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
    /// Closed, with bytes left for the kernel.
    Closing,
    Gone,
    Killed,
}

#[derive(Clone, Copy, Debug, Hash)]
struct End {
    stage: Stage,
    replies: [Reply; 2],
    /// Writes begun.
    writes: usize,
    /// Of the last one, what was not handed on yet.
    rest: usize,
    owes_ask: bool,
    bell: bool,
    waiting: Queue,
    failed: bool,
    fetched: Queue,
    /// Stream bytes: that its program wrote, that a lane took, that its program got.
    sent: u64,
    accepted: u64,
    got: u64,
    sleep: Sleep,
    /// The last look found nothing.
    idle: bool,
    muted: bool,
    shut: bool,
    life: Life,
    /// Before the connection was taken up.
    kernel_end: Option<KernelEnd>,
    told: Option<KernelEnd>,
    /// Bytes in its ring: where their ring counts begin, and which they are.
    ring_start: u64,
    ring: Queue,
}

const NEW: End = End {
    stage: Stage::Plain,
    replies: [Reply::Nothing; 2],
    writes: 0,
    rest: 0,
    owes_ask: false,
    bell: false,
    waiting: EMPTY,
    failed: false,
    fetched: EMPTY,
    sent: 0,
    accepted: 0,
    got: 0,
    sleep: Sleep::Awake,
    idle: false,
    muted: false,
    shut: false,
    life: Life::Open,
    kernel_end: None,
    told: None,
    ring_start: 0,
    ring: EMPTY,
};
const EMPTY: Queue = Queue::EMPTY;

/// What happened on some way, for the counts of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Event {
    Promoted,
    AloneAware,
    WroteRing,
    RingFull,
    Returned,
    BellTaken,
    BellWithoutRoom,
    LateBellDropped,
    BellMetReset,
    SleptCold,
    SleptHot,
    StayedAwake,
    ResetAtClose,
    EndFinished,
    EndReset,
    /// A reset that TCP would not have sent: a bell met a socket that was closed or killed.
    ResetByBell,
    /// And with it the last bytes of the end that had gone were lost.
    LostToBell,
    /// An end was killed with bells unread and no bytes: RST where TCP would have sent FIN.
    KilledOverBells,
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
    ends: [End; 2],
    /// By sender.
    ways: [Way; 2],
    /// Whether bells alone made it send RST.
    reset_by_bell: [bool; 2],
    /// What the monitor holds offers of, while it lives.
    monitor: Option<[bool; 2]>,
    pub(crate) events: u32,
}

/// What each end sends: any slice of it tells where it comes from.
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
            ends: [NEW; 2],
            ways: [Way::default(); 2],
            reset_by_bell: [false; 2],
            monitor: (!bounds.promoted).then_some([false; 2]),
            events: 0,
        };
        if bounds.promoted {
            for side in [0, 1] {
                world.ends[side].stage = Stage::Granted;
            }
            [0, 1].into_iter().for_each(|side| world.adopt(side).unwrap());
        }
        world.words = memory.words();
        world
    }

    /// Makes the memory what it was at this state.
    pub(crate) fn put_back(&self) {
        self.memory.put_back(&self.words);
        for side in [0, 1] {
            let mut count = self.ends[side].ring_start;
            for run in self.ends[side].ring.runs() {
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
            BellTaken,
            BellWithoutRoom,
            LateBellDropped,
            BellMetReset,
            SleptCold,
            SleptHot,
            StayedAwake,
            ResetAtClose,
            EndFinished,
            EndReset,
            ResetByBell,
            LostToBell,
            KilledOverBells,
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

    /// Names the state: equal for two exactly if the same can follow, but for chance.
    pub(crate) fn name(&self) -> u64 {
        let one = self.name_from(0);
        let bounds = self.bounds;
        if bounds.writes[0] == bounds.writes[1] && bounds.ends[0] == bounds.ends[1] {
            // The ends may change places.
            one.min(self.name_from(1))
        } else {
            one
        }
    }

    fn name_from(&self, first: usize) -> u64 {
        let mut digest = Digest::default();
        for side in [first, 1 - first] {
            self.ends[side].hash(&mut digest);
            self.ways[side].hash(&mut digest);
            self.reset_by_bell[side].hash(&mut digest);
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
            AskBell,
            Spill,
            Bell,
            KernelTakes,
            Deliver,
            Fetch,
            FetchFirst,
            SleepCold,
            SleepHot,
            Look,
            WakeUp,
            Leave,
            Grant,
            GrantOne,
            Refuse,
        ];
        for side in [0, 1] {
            let takes = bounds.reads.iter().map(|count| Take(*count));
            let all = rest.into_iter().chain(takes).chain(bounds.ends[side].iter().copied());
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
            None => self.ends[side].kernel_end.is_some(),
        }
    }

    /// What the kernel calls established, as far as this end knows.
    fn is_established(&self, side: usize) -> bool {
        self.ends[side].life == Life::Open && !self.ends[side].shut && !self.ways[1 - side].has_end()
    }

    fn can(&self, side: usize, act: Act) -> bool {
        let (end, out, input) = (&self.ends[side], &self.ways[side], &self.ways[1 - side]);
        let open = end.life == Life::Open;
        // Its program is between two calls.
        let free = open && !end.owes_ask && end.rest == 0 && end.sleep != Sleep::Dozing;
        let awake = free && end.sleep == Sleep::Awake;
        match act {
            // What the kernel and the monitor do.
            Act::KernelTakes => {
                !end.waiting.is_empty() && (self.is_reset(side) || out.room(self.bounds.kernel_room) > 0)
            }
            Act::Bell => end.bell,
            Act::Deliver => out.is_moving(),
            Act::Leave => {
                let late = out.room(self.bounds.kernel_room) == 0;
                end.life == Life::Closing && (end.waiting.is_empty() || late)
            }
            Act::Grant | Act::GrantOne => {
                let both = self.is_established(0) && self.is_established(1);
                let first = act == Act::GrantOne || side == 0;
                self.monitor == Some([true; 2]) && both && first
            }
            Act::Refuse => self.monitor.is_some_and(|offers| offers[side]),
            Act::MonitorDies => self.monitor.is_some(),
            Act::Kill => matches!(end.life, Life::Open | Life::Closing),
            _ if !open => false,
            // What the end does: first of all what it has begun.
            Act::AskBell => end.owes_ask,
            Act::Spill => !end.owes_ask && end.rest > 0,
            Act::Look => end.sleep == Sleep::Dozing,
            Act::WakeUp => matches!(end.sleep, Sleep::Hot | Sleep::Cold),
            Act::Fetch => {
                let news = !input.receiving.is_empty() || (input.has_end() && !self.has_ended(side));
                free && news
            }
            Act::FetchFirst => free && self.bounds.short_fetches && input.receiving.runs().len() > 1,
            Act::Offer => {
                awake && end.stage == Stage::Plain && self.monitor.is_some() && self.is_established(side)
            }
            Act::Receive => awake && end.replies[0] != Reply::Nothing,
            Act::Adopt => {
                let fetched = !end.fetched.is_empty() && !self.is(Mutation::AdoptOverFetched);
                awake
                    && end.stage == Stage::Granted
                    && end.waiting.is_empty()
                    && !fetched
                    && self.is_established(side)
            }
            Act::Write => awake && !end.shut && !end.failed && end.writes < self.bounds.writes[side].len(),
            Act::Take(_) => awake && end.told.is_none(),
            Act::SleepCold => awake && end.idle && end.told.is_none() && self.sleeps(Sleep::Cold),
            Act::SleepHot => awake && end.idle && end.told.is_none() && self.sleeps(Sleep::Hot),
            Act::Shutdown => awake && !end.shut,
            Act::Close => awake,
        }
    }

    fn sleeps(&self, how: Sleep) -> bool {
        self.bounds.sleeps.contains(&how)
    }

    /// Does it, and looks at what has to hold.
    pub(crate) fn step(&mut self, side: usize, act: Act) -> Verdict {
        self.events = 0;
        match act {
            Act::Offer => {
                self.ends[side].stage = Stage::Offered;
                if let Some(offers) = &mut self.monitor {
                    offers[side] = true;
                }
            }
            Act::Receive => self.receive(side),
            Act::Adopt => self.adopt(side)?,
            Act::Write => self.write(side)?,
            Act::AskBell => self.ask_bell(side)?,
            Act::Spill => self.spill(side)?,
            Act::Bell => self.bell(side),
            Act::KernelTakes => self.kernel_takes(side),
            Act::Deliver => self.deliver(side),
            Act::Fetch => self.fetch(side, usize::MAX)?,
            Act::FetchFirst => self.fetch(side, 1)?,
            Act::Take(count) => self.take(side, count)?,
            Act::SleepCold => self.sleep_cold(side)?,
            Act::SleepHot => self.sleep_hot(side),
            Act::Look => self.check_ring(side)?,
            Act::WakeUp => self.wake(side),
            Act::Shutdown => self.shutdown(side),
            Act::Close => self.close(side)?,
            Act::Leave => self.demote(side),
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
            must(self.ends[side].got <= self.ends[1 - side].accepted, "bytes that were never sent")?;
        }
        Ok(())
    }

    /// Whether nothing goes on by itself: `changes` tells which acts change the state.
    pub(crate) fn is_quiet(&self, mut changes: impl Iterator<Item = Act>) -> bool {
        !changes.any(Act::is_progress)
    }

    /// What has to hold when nothing goes on by itself.
    pub(crate) fn check_quiet(&self) -> Verdict {
        for side in [0, 1] {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            must(end.life != Life::Closing, "a close never ends")?;
            if end.life != Life::Open || end.told.is_some() {
                continue;
            }
            let asleep = matches!(end.sleep, Sleep::Hot | Sleep::Cold);
            must(end.got == peer.accepted || !asleep, "a reader sleeps over bytes that are there for it")?;
            must(end.got == peer.accepted, "bytes never come")?;
            must(!peer.shut && !self.is_reset(side), "an end is never told")?;
            must(peer.waiting.is_empty(), "bytes wait for ever")?;
        }
        Ok(())
    }
}
