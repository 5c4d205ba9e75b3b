//! The client of the monitor: which connections are offered, and how answers are handled.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use promote::client::{Answer, Client, Kept, LossCause, OfferError, Options, PeerLoop};
use promote::wire::Token;
use promote::{ConnectError, Doorbells, OtherLoop, Reason};
use sys::mapping::SharedMapping;

use crate::adopt::adopt;
use crate::clock::{self, Instant, milliseconds, nanoseconds};
use crate::doorbell::Doorbell;
use crate::hidden;
use crate::kernel;
use crate::kernel_options;
use crate::mode;
use crate::pages;
use crate::real::{self, borrow};
use crate::report;
use crate::sets;
use crate::settings::{Mode, Settings};
use crate::signals::{self, Quiet};
use crate::sockets::{self, Socket, State};
use crate::stats;
use crate::uring;

mod hold;
mod pace;
mod replaced;
mod withdrawals;

pub(crate) use hold::{hold, release};
use pace::check_later;
pub(crate) use pace::{after_message, ended};
pub(crate) use replaced::replacing;
pub(crate) use withdrawals::withdraw;

/// Consecutive offers without a match that are counted: each doubles the number of connections that
/// are not offered next.
const UNMATCHED_MAX: u32 = 6;
/// Interval between checks for an answer, at first and at last: each check without one doubles it.
const ANSWERS_EVERY: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(10)];
/// An interval from which on no answer is imminent.
const PATIENT: Duration = Duration::from_millis(5);
/// How long a call waits for the monitor: a connection's first one in eager mode, and a copy of
/// another process's connection.
const MONITORS_TIME: Duration = Duration::from_millis(10);
/// How long the monitor is read after the last offer that was withdrawn unanswered.
const READS_FOR: Duration = Duration::from_secs(2);

struct Promoter {
    settings: Settings,
    /// How to reach the monitor, from the environment at the start.
    options: Options,
    client: Option<Client>,
    others: Vec<Arc<OtherLoop>>,
    /// Grants for connections with a call in progress.
    kept: Vec<Grant>,
    /// The interval before the next check.
    pause: Duration,
    /// Consecutive offers without a match.
    unmatched: u32,
    /// The monitor's reason for the last of them.
    unmatched_reason: Reason,
    /// Connections that are not offered, because of that.
    skip_offers: u32,
    /// The offer that is about to be refused because the peer's program declines.
    declined: Option<Token>,
    /// Until then the answer to a withdrawn offer may arrive.
    reads_until: Instant,
    /// Why there is no monitor, while there is none.
    absence: Reason,
}

static PROMOTER: Mutex<Option<Promoter>> = Mutex::new(None);
/// Offers without an answer.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Something else may have to be read from the monitor, or sent to it: a monitor that is not read
/// from stops reading.
static READS_MONITOR: AtomicBool = AtomicBool::new(false);
/// Time of the next check: in nanoseconds of the clock while an answer is imminent, else in
/// milliseconds.
static ASK_AT: AtomicU64 = AtomicU64::new(0);
static ASKED_FROM: AtomicU64 = AtomicU64::new(0);
/// An answer is imminent.
static IMPATIENT: AtomicBool = AtomicBool::new(false);
/// The descriptor of the connection to the monitor; -1: none.
static MONITOR: AtomicI32 = AtomicI32::new(-1);

thread_local! {
    /// This thread runs code of the promoter.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Starts the promoter, once.
pub(crate) fn start(settings: Settings) {
    mode::set(settings.mode);
    alone(|promoter| *promoter = Some(Promoter::new(settings)));
}

/// Makes no offers from here on, and reads no answers.
pub(crate) fn stop() {
    mode::set(Mode::Off);
    with(Promoter::disconnect);
}

/// Runs with the promoter, unless another thread, or this one under a signal handler, holds it.
/// False: it does.
fn with(run: impl FnOnce(&mut Promoter)) -> bool {
    let ran = alone(|promoter| promoter.as_mut().map(run)).is_some();
    if ran {
        withdrawals::promoter_is_free();
    }
    ran
}

fn alone<T>(run: impl FnOnce(&mut Option<Promoter>) -> T) -> Option<T> {
    if signals::is_on_small_stack() {
        return None;
    }
    let _quiet = Quiet::begin();
    let mut promoter = PROMOTER.try_lock().ok()?;
    INSIDE.set(true);
    let result = run(&mut promoter);
    INSIDE.set(false);
    Some(result)
}

/// A socket was connected, or is about to be: a nonblocking program may call connect(2) again to
/// check.
pub(crate) fn connected(socket: &'static Socket, number: u32) {
    if socket.connects() {
        socket.checked_at.store(0, Ordering::Relaxed);
        socket.checked_when.store(milliseconds(), Ordering::Relaxed);
        stats::begins(socket);
    }
    if mode::is_eager() && socket.state() == State::Plain {
        offer(socket, number);
    }
}

/// Before a socket's bytes go over TCP: eager mode wants them on rings. True: the call may have
/// waited for that.
#[inline]
pub(crate) fn before_message(socket: &'static Socket, number: u32) -> bool {
    mode::is_eager() && {
        match socket.state() {
            State::Plain | State::Offered if !socket.awaited.swap(true, Ordering::Relaxed) => {
                await_answer(socket, number)
            }
            State::Offered => answers(),
            _ => {}
        }
        true
    }
}

/// Waits for the monitor's answer before the first byte is sent, for up to [`MONITORS_TIME`].
#[cold]
fn await_answer(socket: &'static Socket, number: u32) {
    if signals::is_on_small_stack() {
        // Neither offers nor answers are handled here.
        return;
    }
    let deadline = clock::now() + MONITORS_TIME;
    // Another thread may have held the promoter during the offer.
    while socket.state() == State::Plain && !offer(socket, number) && clock::now() < deadline {
        std::thread::yield_now();
    }
    // The answer may have come before.
    with(Promoter::answers);
    while socket.state() == State::Offered && await_monitor(deadline) {}
}

/// Handles what the monitor says next. False: it says nothing until then.
fn await_monitor(deadline: Instant) -> bool {
    let left = deadline.saturating_sub(clock::now());
    let monitor = borrow(MONITOR.load(Ordering::Relaxed)).filter(|_| !left.is_zero());
    let Some(monitor) = monitor else { return false };
    let mut monitor = [rustix::event::PollFd::new(&monitor, rustix::event::PollFlags::IN)];
    // Another thread may read the answer meanwhile.
    let left = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(left.min(Duration::from_millis(1)).subsec_nanos()),
    };
    let polled = rustix::event::poll(&mut monitor, Some(&left)).is_ok();
    if polled {
        with(Promoter::answers);
    }
    polled
}

/// This descriptor was copied out of another process, which does not know: the monitor refuses its
/// offer of that connection.
#[cold]
pub(crate) fn copied(raw: c_int) {
    let Some(fd) = borrow(raw).filter(|_| mode::promotes() && kernel::peer(raw).is_some()) else { return };
    let deadline = clock::now() + MONITORS_TIME;
    loop {
        let mut told = None;
        let free = with(|promoter| {
            told = promoter.client().map(|client| client.decline(Reason::Shared, fd));
        });
        // Until the monitor has said hello, or another thread has read that.
        let goes_on = match (free, told) {
            (true, Some(false)) => await_monitor(deadline),
            (true, _) => return,
            (false, _) => clock::now() < deadline,
        };
        if !goes_on {
            return;
        }
        std::thread::yield_now();
    }
}

/// Offers the socket, if that can succeed. False: another thread holds the promoter.
#[cold]
fn offer(socket: &'static Socket, number: u32) -> bool {
    if !mode::promotes() {
        // Only its counters are kept.
        socket.check_at.store(u32::MAX, Ordering::Relaxed);
        return true;
    }
    if socket.holders.are_several() {
        // A server that forks for each connection closes it in one of the two processes.
        stats::begins(socket);
        stats::stays_on_tcp(socket, Reason::Shared);
        check_later(socket);
        return true;
    }
    with(|promoter| promoter.offer(socket, number))
}

/// Whether an answer of the monitor is imminent.
pub(crate) fn is_impatient() -> bool {
    IMPATIENT.load(Ordering::Relaxed)
}

/// Handles the monitor's answers.
#[inline]
pub(crate) fn answers() {
    if WAITING.load(Ordering::Relaxed) > 0 || READS_MONITOR.load(Ordering::Relaxed) {
        handle_answers();
    }
}

#[cold]
fn handle_answers() {
    let is_early = match is_impatient() {
        true => nanoseconds() < ASK_AT.load(Ordering::Relaxed),
        false => milliseconds() < ASKED_FROM.load(Ordering::Relaxed),
    };
    if !is_early {
        real::kept_errno(|| with(Promoter::answers));
    }
}

/// An offered socket is closed, or no longer wants an answer.
pub(crate) fn forget_offer(socket: &Socket, number: u32) {
    if answered(socket, State::Kernel)
        && let Some(token) = token(socket, number)
    {
        withdraw(token, true);
    }
}

/// Keeps a socket on TCP; one that is promoted stays so.
pub(crate) fn keep_on_tcp(socket: &Socket, number: u32) {
    // The monitor may answer in between.
    while !socket.change_state(State::Plain, State::Kernel) && socket.state() == State::Offered {
        forget_offer(socket, number);
    }
}

/// Ends the wait for an answer. False: another thread did, or the socket is gone.
fn answered(socket: &Socket, becomes: State) -> bool {
    let first = socket.change_state(State::Offered, becomes);
    if first {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
    first
}

/// In the child of a fork: the connection to the monitor and the pages are the parent's.
pub(crate) fn forked() {
    pages::forget();
    MONITOR.store(-1, Ordering::Relaxed);
    no_longer_offered(|_| {});
    // Threads of the parent may have been halfway through an update.
    WAITING.store(0, Ordering::Relaxed);
    READS_MONITOR.store(false, Ordering::Relaxed);
    IMPATIENT.store(false, Ordering::Relaxed);
    withdrawals::forget();
    with(|promoter| {
        // Closes the child's copy of the descriptor.
        promoter.client = None;
        promoter.kept.clear();
        promoter.unmatched = 0;
        promoter.skip_offers = 0;
    });
}

fn token(socket: &Socket, number: u32) -> Option<Token> {
    Token::new(u64::from(socket.generation.load(Ordering::Relaxed)) << 32 | u64::from(number))
}

impl Promoter {
    fn new(settings: Settings) -> Promoter {
        let doorbells = !settings.arm_always;
        let keep = |low| hidden::hide(low).map(|hidden| Box::new(hidden) as Kept);
        let options = Options { doorbells, keep, ..Options::from_environment(&report::program_name()) };
        Promoter {
            settings,
            options,
            client: None,
            others: Vec::new(),
            kept: Vec::new(),
            reads_until: clock::now(),
            absence: Reason::NoMonitor,
            pause: ANSWERS_EVERY[0],
            unmatched: 0,
            unmatched_reason: Reason::NoPeer,
            skip_offers: 0,
            declined: None,
        }
    }

    fn client(&mut self) -> Option<&mut Client> {
        #[allow(clippy::disallowed_methods)] // attempts are seconds apart, by any clock
        let found = match &mut self.client {
            _ if !sets::prepare() => Err(ConnectError::Descriptors),
            Some(client) => client.reconnect_due(std::time::Instant::now()).map(drop),
            None => Client::connect(&self.options).map(|client| self.client = Some(client)),
        };
        if let Err(ConnectError::Descriptors) = found {
            self.absence = Reason::NoMemory;
        }
        self.note_number();
        self.client.as_mut()
    }

    fn note_number(&self) {
        let monitor = self.client.as_ref().and_then(Client::fd);
        MONITOR.store(monitor.map_or(-1, |monitor| monitor.as_raw_fd()), Ordering::Relaxed);
    }

    fn offer(&mut self, socket: &'static Socket, number: u32) {
        if socket.state() != State::Plain {
            // Another thread was first.
            return;
        }
        let raw = socket.fd.load(Ordering::Relaxed);
        let Some(fd) = borrow(raw) else { return };
        check_later(socket);
        let (Some(local), Some(peer)) = (kernel::address(raw), kernel::peer(raw)) else { return };
        // An inherited socket counts in this process from now on.
        stats::begins(socket);
        let admitted = self.settings.admits(local.port(), peer.port());
        if !admitted || !sys::tcp::is_local(peer.ip()) {
            stats::stays_on_tcp(socket, if admitted { Reason::OtherHost } else { Reason::Ports });
            socket.set_state(State::Kernel);
            return;
        }
        if kernel_options::has_any(socket, raw) {
            stats::stays_on_tcp(socket, Reason::Option);
            return socket.set_state(State::Kernel);
        }
        if self.skip_offers > 0 && !mode::is_eager() {
            self.skip_offers -= 1;
            return stats::skipped(socket, self.unmatched_reason);
        }
        if self.client.is_none() {
            uring::find();
        }
        if uring::has_untracked() {
            stats::stays_on_tcp(socket, Reason::IoUring);
            return match self.client().map(|client| client.decline(Reason::IoUring, fd)) {
                Some(false) => self.answers(),
                Some(true) | None => socket.set_state(State::Kernel),
            };
        }
        let Some(token) = token(socket, number) else { return };
        withdrawals::send_pending(self);
        match self.client().map(|client| client.offer(token, fd)) {
            Some(Ok(())) => {
                stats::offered(socket);
                self.expect_soon();
                WAITING.fetch_add(1, Ordering::Relaxed);
                if !socket.change_state(State::Plain, State::Offered) {
                    WAITING.fetch_sub(1, Ordering::Relaxed);
                    self.withdraw(token, false);
                }
            }
            None | Some(Err(OfferError::NoMonitor)) => {
                stats::stays_on_tcp(socket, self.absence);
                // Only reading finds that the connection ended; then a monitor is searched for
                // again.
                self.answers();
            }
            Some(Err(OfferError::Full)) => stats::stays_on_tcp(socket, Reason::Rate),
            Some(Err(OfferError::Descriptor(_))) => stats::stays_on_tcp(socket, Reason::NoMemory),
        }
    }

    fn withdraw(&mut self, token: Token, unanswered: bool) {
        // Withdrawn now: the program may make no other call for long.
        self.kept.retain(|grant| grant.token != token);
        let Some(client) = &mut self.client else { return };
        client.withdraw(token);
        if unanswered {
            self.reads_until = clock::now() + READS_FOR;
        }
        if unanswered || client.has_unsent() {
            READS_MONITOR.store(true, Ordering::Relaxed);
        }
    }

    /// An answer is imminent.
    fn expect_soon(&mut self) {
        self.pause = ANSWERS_EVERY[0];
        self.ask_later();
        IMPATIENT.store(true, Ordering::Relaxed);
    }

    fn ask_later(&self) {
        ASK_AT.store(nanoseconds() + self.pause.as_nanos() as u64, Ordering::Relaxed);
        ASKED_FROM.store(milliseconds() + self.pause.as_millis() as u64, Ordering::Relaxed);
    }

    fn answers(&mut self) {
        let now = clock::now();
        self.pause = (self.pause * 2).min(ANSWERS_EVERY[1]);
        self.ask_later();
        IMPATIENT.store(self.pause < PATIENT, Ordering::Relaxed);
        for grant in std::mem::take(&mut self.kept) {
            self.pause = ANSWERS_EVERY[0];
            self.promote(grant);
        }
        let mut came = false;
        loop {
            let Some(client) = self.client() else { return };
            let answer = client.receive();
            came |= matches!(answer, Ok(Some(_)));
            match answer {
                Ok(Some(Answer::Welcome { loop_page, .. })) => {
                    self.absence = Reason::NoMonitor;
                    if !pages::keep(loop_page) {
                        // Peers could not see that this process sleeps.
                        mode::set(Mode::Off);
                    }
                }
                Ok(Some(Answer::Granted { token, own, peer, peer_loop, doorbells })) => {
                    self.granted(token, own, peer, peer_loop, doorbells)
                }
                Ok(Some(Answer::Peer { token, user })) => {
                    if let Some(user) = user {
                        stats::note_other_user(user);
                    }
                    if let Some(socket) = offered(token) {
                        stats::stays_on_tcp(socket, user.map_or(Reason::NoPeer, |_| Reason::OtherUser));
                    }
                }
                Ok(Some(Answer::Declined { token, reason })) => {
                    stats::note_declined(reason);
                    self.declined = Some(token);
                }
                Ok(Some(Answer::Refused { token, reason })) => self.refused(token, reason),
                Ok(None) => {
                    let unsent = client.has_unsent();
                    READS_MONITOR.store(unsent || now < self.reads_until, Ordering::Relaxed);
                    // Connections that began together get their answers together.
                    if came {
                        self.expect_soon();
                    }
                    return;
                }
                Err(loss) => {
                    self.absence = match loss.cause {
                        cause if cause.is_version() => Reason::Version,
                        LossCause::Refused(reason) => reason,
                        _ => Reason::NoMonitor,
                    };
                    self.lost();
                    return;
                }
            }
        }
    }

    fn disconnect(&mut self) {
        self.client = None;
        self.lost();
    }

    /// The monitor is gone: offered sockets stay on TCP until they are next considered.
    fn lost(&mut self) {
        READS_MONITOR.store(false, Ordering::Relaxed);
        MONITOR.store(-1, Ordering::Relaxed);
        self.kept.clear();
        no_longer_offered(|socket| stats::stays_on_tcp(socket, self.absence));
    }

    fn refused(&mut self, token: Token, reason: Reason) {
        let Some(socket) = offered(token) else { return };
        stats::stays_on_tcp(socket, reason);
        let declined = self.declined.take() == Some(token);
        match reason {
            // The peer's program will not offer it later, either.
            Reason::NoPeer if declined => drop(answered(socket, State::Kernel)),
            // Too many offers at once, or the monitor is ending: a later offer may succeed.
            Reason::Rate | Reason::NoMonitor => {
                check_later(socket);
                answered(socket, State::Plain);
            }
            // The peer does not run with Megapipe, or has carried too little till now; or the
            // policy may change.
            Reason::NoPeer | Reason::OtherUser => {
                check_later(socket);
                answered(socket, State::Plain);
                self.unmatched = (self.unmatched + 1).min(UNMATCHED_MAX);
                self.unmatched_reason = reason;
                self.skip_offers = if self.unmatched < 4 { 0 } else { 1 << self.unmatched };
            }
            _ => drop(answered(socket, State::Kernel)),
        }
    }

    fn granted(
        &mut self,
        token: Token,
        own: SharedMapping,
        peer: SharedMapping,
        peer_loop: Arc<PeerLoop>,
        doorbells: Option<Doorbells>,
    ) {
        self.unmatched = 0;
        self.skip_offers = 0;
        let Some(socket) = offered(token) else {
            self.withdraw(token, false);
            return;
        };
        self.others.retain(|other| !other.is_forgotten() || Arc::strong_count(other) > 1);
        let other = match self.others.iter().find(|other| other.is(&peer_loop)) {
            Some(other) => other.clone(),
            None => match OtherLoop::new(peer_loop) {
                Ok(other) => {
                    let other = Arc::new(other);
                    self.others.push(other.clone());
                    other
                }
                Err(_) => {
                    stats::stays_on_tcp(socket, Reason::NoMemory);
                    answered(socket, State::Kernel);
                    self.withdraw(token, false);
                    return;
                }
            },
        };
        // At once: until then they have numbers that the program may close.
        let doorbell = doorbells.and_then(Doorbell::new);
        self.promote(Grant { token, own, peer, other, doorbell });
    }

    /// Promotes a connection, unless a call is in progress: then once that has ended.
    fn promote(&mut self, grant: Grant) {
        let token = grant.token;
        let Some(socket) = offered(token) else {
            // It was closed meanwhile, and its offer with it.
            self.withdraw(token, false);
            return;
        };
        // Not before this process uses it: another one may copy it without a word (pidfd_getfd(2)),
        // and counts show only what that one has moved by then.
        if mode::is_eager() && !socket.awaited.load(Ordering::Relaxed) {
            return self.kept.push(grant);
        }
        if socket.busy.load(Ordering::SeqCst) > 0 {
            IMPATIENT.store(true, Ordering::Relaxed);
            stats::stays_on_tcp(socket, Reason::Busy);
            self.kept.push(grant);
            return;
        }
        real::look_up();
        match adopt(socket, grant) {
            Ok(()) => drop(WAITING.fetch_sub(1, Ordering::Relaxed)),
            Err(why) => {
                stats::stays_on_tcp(socket, why);
                answered(socket, State::Kernel);
                self.withdraw(token, false);
            }
        }
    }
}

/// The monitor's grant for a connection.
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) own: SharedMapping,
    pub(crate) peer: SharedMapping,
    pub(crate) other: Arc<OtherLoop>,
    pub(crate) doorbell: Option<Doorbell>,
}

/// Offered sockets stay on TCP until they are next considered.
fn no_longer_offered(also: impl Fn(&Socket)) {
    for (_, socket) in sockets::all() {
        if socket.state() == State::Offered {
            also(socket);
            check_later(socket);
            answered(socket, State::Plain);
        }
    }
}

/// The offered socket of a token, if it still is one.
fn offered(token: Token) -> Option<&'static Socket> {
    let socket = sockets::get(token.get() as u32)?;
    let same = socket.generation.load(Ordering::Relaxed) == (token.get() >> 32) as u32;
    (same && socket.state() == State::Offered).then_some(socket)
}
