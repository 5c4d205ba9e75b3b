//! What each of the two processes does: it obeys orders on standard input, one JSON value a line.
//!
//! The first side answers whatever comes on any connection. The second one asks.

use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use megapipe::{Channel, Completion, Config, Event, Handle, Promotion, ReadData, Spin};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cpu::{self, CpuSet};

/// What one process is.
#[derive(Debug, Clone)]
pub struct Task {
    /// Where it may run.
    pub cpus: CpuSet,
    /// Where the first side listens; none for the first side itself.
    pub port: Option<u16>,
    /// The monitor's socket; none to promote nothing.
    pub monitor: Option<PathBuf>,
    /// Never look for messages before a sleep.
    pub no_spin: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// Make so many connections; for now they are no channel's.
    Connect(usize),
    /// Give connections to the channel, and wait until they are promoted, if they are to be.
    Promote(Course),
    /// Ask on the first connection. Second side only.
    Ask { seconds: f64, under_way: usize, meanwhile: Option<Course> },
    /// So many questions on each connection. Second side only.
    AskAll(usize),
}

/// How connections come to the channel.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Course {
    pub(super) count: usize,
    /// How many may be unfinished.
    pub(super) most_waiting: usize,
    pub(super) per_second: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Report {
    Listening(u16),
    Connected,
    Promoted { seconds: f64, cpu_us_p50: f64, cpu_us_mean: f64 },
    Asked { messages: u64, seconds: f64, rtt_ns_p50: f64, rtt_ns_p99: f64 },
    AskedAll,
}

/// Why a process ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// It cannot be pinned.
    #[error("cannot run on CPU {cpus}")]
    Pin {
        /// The CPUs asked for.
        cpus: CpuSet,
        /// The kernel's reason.
        source: io::Error,
    },
    /// It cannot do what it is to do.
    #[error("cannot work on the connections")]
    Work(#[source] io::Error),
}

/// Obeys until standard input closes.
pub fn run(task: &Task) -> Result<(), SideError> {
    let pinned = cpu::pin(task.cpus.as_slice());
    pinned.map_err(|source| SideError::Pin { cpus: task.cpus.clone(), source })?;
    work(task).map_err(SideError::Work)
}

fn work(task: &Task) -> io::Result<()> {
    let listener = match task.port {
        Some(_) => None,
        None => Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?),
    };
    let promotes = task.monitor.is_some();
    let channel = Channel::new(Config {
        promotion: if promotes { Promotion::Eager } else { Promotion::Off },
        monitor: task.monitor.clone(),
        spin: if task.no_spin { Spin::Off } else { Spin::Auto },
        ..Config::default()
    });
    let channel = channel.map_err(io::Error::other)?;
    let (to_side, orders) = mpsc::channel();
    let waker = channel.waker();
    thread::Builder::new().name("orders".into()).spawn(move || {
        for line in io::stdin().lock().lines() {
            let order = line.and_then(|line| Ok(serde_json::from_str::<Order>(&line)?));
            if to_side.send(order).is_err() {
                break;
            }
            waker.wake();
        }
        // The controller is done, or gone.
        std::process::exit(0);
    })?;
    if let Some(listener) = &listener {
        tell(Report::Listening(listener.local_addr()?.port()))?;
    }
    let side =
        Side { channel, promotes, peer: task.port, listener, spare: VecDeque::new(), handles: Vec::new() };
    side.obey(&orders)
}

fn tell(report: Report) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(&report)?)?;
    output.flush()
}

struct Side {
    channel: Channel,
    promotes: bool,
    /// Where the other side listens, if that one does.
    peer: Option<u16>,
    listener: Option<TcpListener>,
    /// Connections of no channel, in the same order on both sides.
    spare: VecDeque<OwnedFd>,
    /// By cookie.
    handles: Vec<Handle>,
}

impl Side {
    fn obey(mut self, orders: &Receiver<io::Result<Order>>) -> io::Result<()> {
        loop {
            let order = match orders.try_recv() {
                Ok(order) => order?,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    self.step(Some(REST))?;
                    continue;
                }
            };
            tell(match order {
                Order::Connect(count) => self.connect(count)?,
                Order::Promote(course) => self.promote(course)?,
                Order::Ask { seconds, under_way, meanwhile } => self.ask(seconds, under_way, meanwhile)?,
                Order::AskAll(questions) => self.ask_all(questions)?,
            })?;
        }
    }

    /// Both sides are at it at the same time: a connect is done when it is in the other's queue,
    /// so that they have the connections in the same order.
    fn connect(&mut self, count: usize) -> io::Result<Report> {
        for _ in 0..count {
            let stream = match (&self.listener, self.peer) {
                (Some(listener), _) => listener.accept()?.0,
                (None, Some(port)) => TcpStream::connect((Ipv4Addr::LOCALHOST, port))?,
                (None, None) => return Err(io::ErrorKind::NotConnected.into()),
            };
            // Thousands in each round: none shall keep its port afterwards.
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            stream.set_nodelay(true)?;
            self.spare.push_back(stream.into());
        }
        Ok(Report::Connected)
    }

    fn promote(&mut self, course: Course) -> io::Result<Report> {
        let mut run = Run::begin(self, course);
        let mut costs = Histogram::<u64>::new_with_max(LONGEST, 3).map_err(io::Error::other)?;
        let begin = cpu_time()?;
        let (mut before, mut settled) = (begin, self.settled()?);
        loop {
            let now = Instant::now();
            run.go_on(self, now)?;
            let now_settled = self.settled()?;
            if course.most_waiting == 1 && now_settled > settled {
                let after = cpu_time()?;
                costs.saturating_record((after - before).as_nanos() as u64);
                before = after;
            }
            settled = now_settled;
            if run.is_done(self, now)? {
                break;
            }
            self.step(Some(run.rest()))?;
        }
        let cpu = cpu_time()? - begin;
        Ok(Report::Promoted {
            seconds: run.began.elapsed().as_secs_f64(),
            cpu_us_p50: costs.value_at_quantile(0.5) as f64 / 1e3,
            cpu_us_mean: cpu.as_secs_f64() * 1e6 / course.count.max(1) as f64,
        })
    }

    fn ask(&mut self, seconds: f64, under_way: usize, meanwhile: Option<Course>) -> io::Result<Report> {
        let handle = *self.handles.first().ok_or(io::ErrorKind::NotConnected)?;
        let mut run = meanwhile.map(|course| Run::begin(self, course));
        let mut times = Histogram::<u64>::new_with_max(LONGEST, 3).map_err(io::Error::other)?;
        let begin = Instant::now();
        let end = begin + Duration::from_secs_f64(seconds);
        let mut asked = begin;
        for _ in 0..under_way {
            self.send(handle)?;
        }
        let (mut messages, mut bytes, mut waiting) = (0, 0, under_way);
        let mut stopped = None;
        while waiting > 0 {
            let came = self.step(Some(Duration::from_millis(1)))?;
            let now = Instant::now();
            if let Some(run) = &mut run {
                run.go_on(self, now)?;
            }
            bytes += came.filter(|&(cookie, _)| cookie == 0).map_or(0, |(_, bytes)| bytes);
            while bytes >= MESSAGE.len() {
                bytes -= MESSAGE.len();
                waiting -= 1;
                // Without an answer there is nothing to tell: the window waits for one.
                if now < end || messages == 0 {
                    messages += 1;
                    times.saturating_record((now - asked).as_nanos() as u64);
                    asked = Instant::now();
                    self.send(handle)?;
                    waiting += 1;
                } else {
                    stopped.get_or_insert(now);
                }
            }
            if now > end + PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        while let Some(run) = &mut run {
            let now = Instant::now();
            if run.is_done(self, now)? {
                break;
            }
            run.go_on(self, now)?;
            self.step(Some(run.rest()))?;
        }
        Ok(Report::Asked {
            messages,
            seconds: (stopped.unwrap_or(end) - begin).as_secs_f64(),
            rtt_ns_p50: times.value_at_quantile(0.5) as f64,
            rtt_ns_p99: times.value_at_quantile(0.99) as f64,
        })
    }

    /// One connection after the other, many times over.
    fn ask_all(&mut self, questions: usize) -> io::Result<Report> {
        for _ in 0..questions {
            for place in 0..self.handles.len() {
                self.send(self.handles[place])?;
                let deadline = Instant::now() + PATIENCE;
                let mut bytes = 0;
                while bytes < MESSAGE.len() {
                    bytes += self.step(Some(REST))?.map_or(0, |(_, bytes)| bytes);
                    if Instant::now() > deadline {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
        Ok(Report::AskedAll)
    }

    #[inline]
    fn send(&mut self, handle: Handle) -> io::Result<()> {
        self.channel.write_copy(handle, &MESSAGE).map_err(io::Error::other)
    }

    /// Takes one completion; the cookie and the bytes, if it brings any. The first side answers.
    #[inline]
    fn step(&mut self, timeout: Option<Duration>) -> io::Result<Option<(u64, usize)>> {
        let Some(Completion { handle, cookie, event, .. }) =
            self.channel.dispatch(timeout).map_err(io::Error::other)?
        else {
            return Ok(None);
        };
        match event {
            Event::Read { result: Ok(1..), data: ReadData::Buffer(data), .. } => {
                if self.peer.is_none() {
                    self.channel.write_copy(handle, &data).map_err(io::Error::other)?;
                }
                Ok(Some((cookie, data.len())))
            }
            Event::Read { result: Ok(_), .. } => Err(io::ErrorKind::UnexpectedEof.into()),
            Event::Read { result: Err(error), .. } | Event::Write { result: Err(error), .. } => Err(error),
            _ => Ok(None),
        }
    }

    fn give_one(&mut self) -> io::Result<()> {
        let socket = self.spare.pop_front().ok_or(io::ErrorKind::NotConnected)?;
        let handle = self.channel.register(socket, self.handles.len() as u64).map_err(io::Error::other)?;
        self.channel.read_stream(handle).map_err(io::Error::other)?;
        self.handles.push(handle);
        Ok(())
    }

    /// Connections that are what they are to be.
    fn settled(&self) -> io::Result<usize> {
        if !self.promotes {
            return Ok(self.handles.len());
        }
        let stats = self.channel.stats();
        match stats.promotions_refused {
            0 => Ok(stats.promoted as usize),
            refused => Err(io::Error::other(format!("{refused} connections were not promoted"))),
        }
    }
}

/// Connections on their way to the channel.
struct Run {
    course: Course,
    began: Instant,
    given: usize,
    /// Connections that the channel is to have in the end.
    target: usize,
    deadline: Instant,
}

impl Run {
    fn begin(side: &Side, course: Course) -> Self {
        let began = Instant::now();
        let pace = course.per_second.map_or(0.0, |rate| course.count as f64 / rate);
        let deadline = began + Duration::from_secs_f64(pace) + PATIENCE;
        Self { course, began, given: 0, target: side.handles.len() + course.count, deadline }
    }

    /// Gives what is due.
    #[inline]
    fn go_on(&mut self, side: &mut Side, now: Instant) -> io::Result<()> {
        let due = match self.course.per_second {
            None => self.course.count,
            Some(rate) => ((now - self.began).as_secs_f64() * rate) as usize,
        };
        let due = due.min(self.course.count);
        // Without promotion a connection settles at once, and its way to the kernel counts, too.
        let most = due.min(self.given + self.course.most_waiting);
        while self.given < most && side.handles.len() - side.settled()? < self.course.most_waiting {
            side.give_one()?;
            self.given += 1;
        }
        Ok(())
    }

    fn is_done(&self, side: &Side, now: Instant) -> io::Result<bool> {
        if now > self.deadline {
            let (settled, target) = (side.settled()?, self.target);
            return Err(io::Error::other(format!("{settled} of {target} connections were promoted in time")));
        }
        Ok(side.settled()? >= self.target)
    }

    /// A dispatch does not return for a promotion: it has to be short.
    fn rest(&self) -> Duration {
        if self.course.most_waiting == 1 { Duration::from_millis(1) } else { Duration::from_micros(200) }
    }
}

fn cpu_time() -> io::Result<Duration> {
    clock::of_process(std::process::id())
}

/// Small, as in most requests.
const MESSAGE: [u8; 64] = [0x5a; 64];

/// How long a process without orders sleeps at a time; connections grow cold by that.
pub(super) const REST: Duration = Duration::from_millis(20);

/// How long the other side may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Nanoseconds; longer ones count as this.
const LONGEST: u64 = 100_000_000_000;
