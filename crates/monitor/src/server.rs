//! The event loop: clients, messages, deadlines, and the end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use promote::wire::{ClientMessage, MOST_BYTES, MonitorMessage};
use promote::{Place, Reason};
use sys::epoll::{self, Event, Set};
use sys::packet::Credentials;
use sys::{packet, signals};

use crate::client::Client;
use crate::closing::{Closers, Foreign};
use crate::listener::Listener;
use crate::matcher::Matcher;
use crate::offers::ClientId;
use crate::policy::{Policy, PolicyError};
use crate::policy_file::PolicyFile;
use crate::process::Strangers;
use crate::scrape::{MetricsAddress, Scrape};
use crate::succession::Succession;

/// Messages of one client, or connections, that are handled before the next is served.
const TURN: usize = 16;
/// How long a client may take for its hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long the monitor does not accept after it ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The subject of an event: one of these, or a client by number.
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const SCRAPE: u64 = 2;
const ROOM: u64 = 3;
const SUCCESSION: u64 = 4;
const FIRST_CLIENT: u64 = 16;
/// Set in the numbers of clients of the metrics.
const ASKER: u64 = 1 << 63;

/// How a monitor runs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The policy; `None`: the built-in one.
    pub policy: Option<PathBuf>,
    /// The file of `policy` may be missing; the built-in policy holds then.
    pub policy_optional: bool,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<MetricsAddress>,
    /// Ends by itself; `None`: stays.
    pub on_demand: Option<OnDemand>,
    /// Takes the process's signals: SIGTERM and SIGINT end the monitor, SIGHUP reads the
    /// policy again. For a process that is a monitor and nothing else: no other thread
    /// can wait for these signals any more.
    pub signals: bool,
    /// Two users may wake each other by message queues, which this process makes. Its IPC namespace has to be its own
    /// (ipc_namespaces(7)): a process that reads the directory of one (/dev/mqueue) can hold up those that make queues there for as
    /// long as it likes, and the kernel bounds their number for all.
    pub queues: bool,
}

/// How an unmanaged monitor runs: it ends when it is not needed any more.
#[derive(Clone, Debug)]
pub struct OnDemand {
    /// It ends when it has had no client for this long, or when its executable was replaced.
    pub linger: Duration,
    /// It ends when a monitor answers there, too: the place where its clients search
    /// first.
    pub gives_way_to: Option<Place>,
}

/// Why a monitor does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The metrics cannot be offered.
    #[error("metrics cannot be served at {address}: {cause}; choose another place with --metrics")]
    Metrics {
        /// Where.
        address: MetricsAddress,
        /// bind(2) or listen(2); or what lies there and stays.
        #[source]
        cause: io::Error,
    },
    /// A system call failed that every monitor needs.
    #[error("the monitor cannot run: {what} failed: {cause}")]
    System {
        /// Which call.
        what: &'static str,
        /// Its error.
        #[source]
        cause: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |cause| RunError::System { what, cause }
}

/// A monitor that listens.
pub struct Monitor {
    on_demand: Option<OnDemand>,
    policy: Option<PolicyFile>,
    _succession: Option<Succession>,
    listener: Listener,
    set: Set,
    signals: OwnedFd,
    scrape: Option<Scrape>,
    strangers: Strangers,
    closers: Closers,
    matcher: Matcher,
    /// Clients that are not read, since too many descriptors that their users sent are
    /// unclosed.
    full: Vec<ClientId>,
    next_client: u64,
    /// Clients without a hello, in the order in which they connected.
    ungreeted: VecDeque<(Instant, ClientId)>,
    /// Accepting goes on then.
    paused_until: Option<Instant>,
    /// Since when there has been no client.
    alone_since: Instant,
}

impl Monitor {
    /// Sets a monitor up on the calling thread, the one that is to run it. There it blocks SIGXFSZ, which only ever
    /// concerns the thread that meets the limit, and what [`Options::signals`] says.
    ///
    /// # Errors
    ///
    /// What keeps it from running.
    pub fn new(listener: Listener, options: Options) -> Result<Monitor, RunError> {
        let now = Instant::now();
        let mut file = options.policy.as_deref().map(|path| PolicyFile::new(path, options.policy_optional));
        let policy = file.as_mut().map_or_else(|| Ok(Policy::default()), PolicyFile::load)?;
        let source = file.as_ref().map(PolicyFile::source).unwrap_or_default();
        let scrape = match &options.metrics {
            None => None,
            Some(address) => Some(
                Scrape::listen(address)
                    .map_err(|cause| RunError::Metrics { address: address.clone(), cause })?,
            ),
        };
        let set = Set::new().map_err(system("epoll_create1"))?;
        // A region beyond the limit on the size of files (setrlimit(2)) is refused, and
        // ends no process.
        let watched = [libc::SIGXFSZ, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
        let watched = if options.signals { &watched[..] } else { &watched[..1] };
        let signals = signals::redirect(watched).map_err(system("signalfd"))?;
        set.add(listener.fd(), epoll::IN, LISTENER).map_err(system("epoll_ctl"))?;
        set.add(signals.as_fd(), epoll::IN, SIGNALS).map_err(system("epoll_ctl"))?;
        if let Some(scrape) = &scrape {
            set.add(scrape.fd(), epoll::IN, SCRAPE).map_err(system("epoll_ctl"))?;
        }
        let closers = Closers::new().map_err(system("eventfd"))?;
        // Edge-triggered: it need not be read.
        set.add(closers.room(), epoll::IN | epoll::EDGES, ROOM).map_err(system("epoll_ctl"))?;
        let matcher = Matcher::new(policy, source, options.queues, now).map_err(system("sock_diag"))?;
        let succession = options.on_demand.as_ref().map(|of| Succession::watch(of.gives_way_to.clone()));
        let succession = succession.transpose().map_err(system("clone"))?;
        if let Some(succession) = &succession {
            set.add(succession.fd(), epoll::IN, SUCCESSION).map_err(system("epoll_ctl"))?;
        }
        Ok(Monitor {
            on_demand: options.on_demand,
            policy: file,
            _succession: succession,
            listener,
            set,
            signals,
            scrape,
            strangers: Strangers::new(),
            closers,
            matcher,
            full: Vec::new(),
            next_client: FIRST_CLIENT,
            ungreeted: VecDeque::new(),
            paused_until: None,
            alone_since: now,
        })
    }

    /// Serves until a signal ends it, or it is not needed any more.
    ///
    /// # Errors
    ///
    /// Only what no single client can cause.
    pub fn run(mut self) -> Result<(), RunError> {
        let mut events = [Event::NONE; 64];
        loop {
            let Some(limit) = self.due(Instant::now())? else { return Ok(()) };
            let count = match self.set.wait(&mut events, limit) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(system("epoll_wait")(error)),
            };
            let now = Instant::now();
            for event in &events[..count] {
                match event.data() {
                    LISTENER => self.accept(now)?,
                    SIGNALS => {
                        if self.signalled(now)? {
                            return Ok(());
                        }
                    }
                    SCRAPE => self.accept_asker(now),
                    ROOM => self.serve_again(now),
                    SUCCESSION => {
                        self.matcher.shut_down(now);
                        return Ok(());
                    }
                    number if number & ASKER != 0 => self.answer_asker(number & !ASKER),
                    number => self.serve(ClientId(number), event.readiness(), now),
                }
                self.check_stalled();
            }
        }
    }

    /// Does what is due, and returns how long there is nothing else to do (`Some(None)`:
    /// for ever). `None`: the monitor ends.
    fn due(&mut self, now: Instant) -> Result<Option<Option<Duration>>, RunError> {
        self.matcher.expire(now);
        self.answer_examined(now);
        while let Some((until, id)) = self.ungreeted.front().copied() {
            let waits = self.matcher.clients.get(&id).is_some_and(|client| client.greeted.is_none());
            if waits && until > now {
                break;
            }
            self.ungreeted.pop_front();
            if waits {
                tracing::info!(client = id.0, "disconnected a client that sent no greeting in time");
                self.remove(id);
            }
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            let mut outcome = self.set.modify(self.listener.fd(), epoll::IN, LISTENER);
            if let Some(scrape) = &self.scrape {
                outcome = outcome.and(self.set.modify(scrape.fd(), epoll::IN, SCRAPE));
            }
            if let Err(error) = outcome {
                tracing::error!(%error, "clients can no longer be accepted; restart the monitor");
            }
        }
        self.check_stalled();
        let ends = self.on_demand.as_ref().map(|options| self.alone_since + options.linger);
        if self.matcher.clients.is_empty() && ends.is_some_and(|ends| ends <= now) {
            // A client that connected in this moment is still in the backlog.
            self.accept(now)?;
        }
        if !self.matcher.clients.is_empty() {
            self.alone_since = now;
        }
        let ends = self.on_demand.as_ref().map(|options| self.alone_since + options.linger);
        if ends.is_some_and(|ends| ends <= now) {
            tracing::info!("the last client has gone; the monitor ends");
            return Ok(None);
        }
        let times = [
            self.closers.tend(now),
            self.matcher.next_expiry(),
            self.matcher.examined.next_due(),
            self.ungreeted.front().map(|(until, _)| *until),
            self.paused_until,
            self.scrape.as_mut().and_then(|scrape| scrape.expire(now)),
            ends.filter(|_| self.matcher.clients.is_empty()),
        ];
        Ok(Some(times.into_iter().flatten().min().map(|time| time.saturating_duration_since(now))))
    }

    fn accept(&mut self, now: Instant) -> Result<(), RunError> {
        for _ in 0..TURN {
            let socket = match packet::accept(self.listener.fd()) {
                Ok(socket) => socket,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(()),
                    Some(libc::ECONNABORTED | libc::EINTR) => continue,
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        tracing::warn!(%error, "no client can be accepted for now; raise the limit of open files (LimitNOFILE=, ulimit -n) or free memory");
                        self.paused_until = Some(now + PAUSE);
                        return self.set.modify(self.listener.fd(), 0, LISTENER).map_err(system("epoll_ctl"));
                    }
                    _ => return Err(system("accept4")(error)),
                },
            };
            if self.policy.as_ref().is_some_and(PolicyFile::has_changed) {
                self.reload();
            }
            let id = ClientId(self.next_client);
            self.next_client += 1;
            let limits = &self.matcher.policy().limits;
            let client = match Client::new(socket, &self.strangers, &mut self.closers, limits, now) {
                Ok(client) => client,
                Err(error) => {
                    tracing::warn!(%error, "rejected a client");
                    continue;
                }
            };
            if !self.matcher.add_client(id, client) {
                continue;
            }
            self.ungreeted.push_back((now + HELLO_WITHIN, id));
            self.alone_since = now;
            let Some(client) = self.matcher.clients.get(&id) else { continue };
            if let Err(error) = self.set.add(client.socket.as_fd(), epoll::IN, id.0) {
                tracing::warn!(%error, "disconnected a client that epoll cannot watch");
                self.matcher.remove_client(id);
            }
        }
        Ok(())
    }

    /// Reads from a client: as much as is its turn, and only while it reads its messages.
    fn serve(&mut self, id: ClientId, readiness: u32, now: Instant) {
        if readiness & (epoll::HANG_UP | epoll::ERROR) != 0 {
            return self.remove(id);
        }
        if readiness & epoll::OUT != 0 {
            let Some(client) = self.matcher.clients.get_mut(&id) else { return };
            if !client.flush() {
                return self.remove(id);
            }
            self.matcher.go_on(id, TURN, now);
            self.watch(id);
        }
        let mut bytes = [0; MOST_BYTES];
        for _ in 0..TURN {
            let Some(client) = self.matcher.clients.get(&id).filter(|client| !client.is_stalled()) else {
                return;
            };
            if self.matcher.examined.is_full(id) || client.socket.closer().is_full() {
                return self.watch(id);
            }
            let received = match packet::receive_from(client.socket.as_fd(), &mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.remove(id),
            };
            if received.len == 0 {
                return self.remove(id);
            }
            let is_sender = client.is_sender(received.sender);
            let closer = client.socket.closer().clone();
            let own = |fd: OwnedFd| Foreign::new(fd, &closer);
            let [descriptor, second, _rest @ ..] = received.descriptors.map(|fd| fd.map(own));
            let _excess: Vec<Foreign> = received.excess.into_iter().map(own).collect();
            if !is_sender {
                return self.reject_sender(id, received.sender);
            }
            // A descriptor that found no room in this process is not its sender's fault.
            let lost = received.truncated && descriptor.is_none() && received.len < MOST_BYTES;
            let decoded = ClientMessage::decode(&bytes[..received.len]);
            // Its answer is work enough for one turn.
            let asked = matches!(decoded, Ok(ClientMessage::Query { .. } | ClientMessage::AskPolicy { .. }));
            let outcome = match decoded {
                Ok(ClientMessage::Offer { token }) if lost => self.matcher.receive_lost(id, token, now),
                Ok(ClientMessage::Decline { .. }) if lost => Ok(()),
                Ok(_) if received.truncated || second.is_some() => Err("too many descriptors"),
                Ok(message) => self.matcher.receive(id, message, descriptor, now),
                Err(error) => {
                    return self.cut_off(id, &error.to_string());
                }
            };
            if let Err(breach) = outcome {
                return self.cut_off(id, breach);
            }
            if asked {
                return;
            }
        }
    }

    /// A message came from another process or user than the one that connected:
    /// disconnects the client. It connects anew with its present user; promoted
    /// connections live on.
    fn reject_sender(&mut self, id: ClientId, sender: Option<Credentials>) {
        if let Some(client) = self.matcher.clients.get(&id) {
            tracing::info!(
                client = id.0,
                uid = client.subject.uid,
                pid = client.pid,
                name = client.name(),
                ?sender,
                "disconnected a client whose process or user changed; it connects anew by itself"
            );
        }
        self.remove(id);
    }

    fn cut_off(&mut self, id: ClientId, breach: &str) {
        self.matcher.metrics.protocol_errors.inc();
        self.matcher.metrics.refused(Reason::Version);
        if let Some(client) = self.matcher.clients.get_mut(&id) {
            tracing::warn!(
                client = id.0,
                uid = client.subject.uid,
                pid = client.pid,
                name = client.name(),
                breach,
                "disconnected a client that broke the protocol"
            );
            client.send(MonitorMessage::Refuse { token: None, reason: Reason::Version });
        }
        self.remove(id);
    }

    fn remove(&mut self, id: ClientId) {
        // It is closed later, and by another thread.
        if let Some(client) = self.matcher.clients.get(&id)
            && let Err(error) = self.set.remove(client.socket.as_fd())
        {
            tracing::error!(%error, client = id.0, "a client that is gone cannot be removed from the epoll set");
        }
        self.matcher.remove_client(id);
    }

    /// Descriptors were closed: reads again from clients that had to wait for it.
    fn serve_again(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.full) {
            self.watch(id);
        }
        self.answer_examined(now);
    }

    fn answer_examined(&mut self, now: Instant) {
        for id in self.matcher.answer_examined(now) {
            self.watch(id);
        }
    }

    /// Waits until clients that do not read have room, and drops those that are gone or
    /// were refused.
    fn check_stalled(&mut self) {
        for id in self.matcher.take_stalled() {
            let Some(client) = self.matcher.clients.get_mut(&id) else { continue };
            if client.greeted.is_none() || !client.flush() {
                self.remove(id);
            } else {
                self.watch(id);
            }
        }
    }

    fn watch(&mut self, id: ClientId) {
        let Some(client) = self.matcher.clients.get(&id) else { return };
        let interest = match client.is_stalled() {
            true => epoll::OUT,
            false if client.socket.closer().is_full() => {
                self.full.push(id);
                0
            }
            false => {
                let reads = if self.matcher.examined.is_full(id) { 0 } else { epoll::IN };
                reads | if self.matcher.is_waited_for(id) { epoll::OUT } else { 0 }
            }
        };
        if let Err(error) = self.set.modify(client.socket.as_fd(), interest, id.0) {
            tracing::warn!(%error, client = id.0, "disconnected a client that epoll cannot watch");
            self.remove(id);
        }
    }

    /// True if the monitor has to end.
    fn signalled(&mut self, now: Instant) -> Result<bool, RunError> {
        while let Some(signal) = signals::next(&self.signals).map_err(system("signalfd"))? {
            match signal {
                libc::SIGHUP => {}
                // The call that met the limit has failed, too.
                libc::SIGXFSZ => continue,
                _ => {
                    tracing::info!(signal, "the monitor ends");
                    self.matcher.shut_down(now);
                    return Ok(true);
                }
            }
            self.reload();
        }
        Ok(false)
    }

    /// Reads the policy again.
    fn reload(&mut self) {
        let Some(file) = &mut self.policy else {
            return tracing::info!("there is no policy file to read again");
        };
        let outcome = file.load();
        self.matcher.metrics.reloaded(outcome.is_ok());
        match outcome {
            Ok(policy) => {
                tracing::info!(path = %file.path().display(), "the policy was read again");
                self.matcher.set_policy(policy, file.source());
            }
            Err(error) => {
                tracing::error!(%error, "the policy stays as it was");
                self.matcher.policy_source.outdated = true;
            }
        }
    }

    fn accept_asker(&mut self, now: Instant) {
        let Some(scrape) = &mut self.scrape else { return };
        let watched = match scrape.accept(now) {
            Ok(None) => return,
            Ok(Some((number, asker))) => self.set.add(asker, epoll::IN, ASKER | number),
            Err(error) => Err(error),
        };
        let Err(error) = watched else { return };
        tracing::warn!(%error, "metrics cannot be served for now");
        let paused = self.set.modify(scrape.fd(), 0, SCRAPE);
        if paused.is_ok() {
            self.paused_until = Some(now + PAUSE);
        }
    }

    fn answer_asker(&mut self, number: u64) {
        let Some(scrape) = &mut self.scrape else { return };
        let matcher = &self.matcher;
        if let Some(asker) = scrape.go_on(number, || matcher.metrics_text())
            && let Err(error) = self.set.modify(asker, epoll::OUT, ASKER | number)
        {
            tracing::warn!(%error, "disconnected a reader of metrics that epoll cannot watch");
        }
    }
}
