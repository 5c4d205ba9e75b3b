//! What each of the two processes does.
//!
//! The first side answers, or sends, until it is ended. The second one measures: the other's CPU
//! clock beside its own, and the time of each round trip.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Scenario;
use super::transport::{End, Side, Transport};
use crate::clock;
use crate::cpu::{self, CpuSet};
use crate::part::{self, Part};
use crate::region;
use crate::{Reason, failed};

/// One of two processes that exchange messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exchange {
    /// What is measured.
    pub scenario: Scenario,
    /// What carries the bytes.
    pub transport: Transport,
    /// Which side it is.
    pub side: Side,
    /// Bytes of a message.
    pub bytes: usize,
    /// Where it may run.
    pub cpus: CpuSet,
    /// Time before the measured one.
    pub warm_up: Duration,
    /// Measured time.
    pub window: Duration,
    /// One message a millisecond instead of one after the other.
    pub paced: bool,
    /// The other process, for the side that measures.
    pub peer: Option<u32>,
    /// Its end of the transport, which it inherits.
    pub descriptors: Vec<RawFd>,
}

/// What the second side has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Messages received in the window by either side.
    pub(super) messages: u64,
    /// Length of the window.
    pub(super) seconds: f64,
    /// CPU time of both processes in it.
    pub(super) cpu_ns: f64,
    /// Time in which they were ready to run and something else had their CPU, summed over both.
    pub(super) waited_s: Option<f64>,
    /// 50th, 99th and 99.9th percentile of the round trips, nanoseconds, without the reading of the
    /// clock that lies in each; of a stream, none.
    pub(super) rtt_ns: Option<[f64; 3]>,
}

impl Part for Exchange {
    const NAME: &'static str = "side";

    /// Prints the figures, if it measures.
    fn run(self) -> Result<(), Reason> {
        cpu::pin(self.cpus.as_slice()).map_err(failed(format!("cannot run on CPU {}", self.cpus)))?;
        let descriptors = self.descriptors.iter().copied().map(region::inherited).collect();
        let figures = self.transport.calls().1(&self, descriptors).map_err(failed(self.transport))?;
        figures.as_ref().map_or(Ok(()), part::print)
    }
}

/// A process that uses a CPU.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Busy {
    /// Which one.
    pub cpu: usize,
    /// For how long.
    pub time: Duration,
}

impl Part for Busy {
    const NAME: &'static str = "busy";

    fn run(self) -> Result<(), Reason> {
        cpu::pin(&[self.cpu]).map_err(failed(format!("cannot run on CPU {}", self.cpu)))?;
        let end = Instant::now() + self.time;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Works at one end of a connection; the measuring side returns its figures.
pub(super) fn work<E: End>(task: &Exchange, descriptors: Vec<OwnedFd>) -> io::Result<Option<Figures>> {
    let mut end = E::attach(task.side, descriptors)?;
    let ended = match (task.scenario, task.side) {
        (Scenario::Pingpong, Side::Second) => return ask(&mut end, task).map(Some),
        (Scenario::Stream, Side::Second) => return drain(&mut end, task).map(Some),
        (Scenario::Pingpong, Side::First) => answer(&mut end, task),
        (Scenario::Stream, Side::First) => feed(&mut end, task),
    };
    let Err(error) = ended;
    match error.kind() {
        // The measuring side is done.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(None),
        _ => Err(error),
    }
}

fn answer<E: End>(end: &mut E, task: &Exchange) -> io::Result<std::convert::Infallible> {
    let mut message = vec![0; task.bytes];
    loop {
        end.receive(&mut message)?;
        end.send(&message)?;
    }
}

fn feed<E: End>(end: &mut E, task: &Exchange) -> io::Result<std::convert::Infallible> {
    let message = vec![FILLING; task.bytes];
    let mut pace = Pace::of(task);
    loop {
        pace.wait();
        end.send(&message)?;
        end.flush()?;
    }
}

fn ask<E: End>(end: &mut E, task: &Exchange) -> io::Result<Figures> {
    let question = vec![FILLING; task.bytes];
    let mut reply = vec![0; task.bytes];
    let mut pace = Pace::of(task);
    let mut histogram = Histogram::<u64>::new_with_max(LONGEST_ROUND_TRIP, 3).map_err(io::Error::other)?;
    let reading = clock_reading().as_nanos() as u64;
    let mut figures = measure(task, 2, |is_measured| {
        pace.wait();
        let asked = Instant::now();
        end.send(&question)?;
        end.receive(&mut reply)?;
        let answered = Instant::now();
        if is_measured {
            let nanoseconds = (answered - asked).as_nanos() as u64;
            histogram.saturating_record(nanoseconds.saturating_sub(reading).max(1));
        }
        Ok(answered)
    })?;
    let quantiles = [0.5, 0.99, 0.999].map(|quantile| histogram.value_at_quantile(quantile) as f64);
    figures.rtt_ns = Some(quantiles);
    Ok(figures)
}

fn drain<E: End>(end: &mut E, task: &Exchange) -> io::Result<Figures> {
    let mut message = vec![0; task.bytes];
    // The clock is looked at once in so many messages.
    let stride = if task.paced { 1 } else { (STRIDE_BYTES / task.bytes).clamp(1, STRIDE_MOST) };
    measure(task, stride as u64, |_| {
        for _ in 0..stride {
            end.take(&mut message)?;
        }
        Ok(Instant::now())
    })
}

/// Repeats a step of so many messages for the time to warm up and for the window. A step gets whether
/// it is in the window, and returns the time of its end.
fn measure(
    task: &Exchange,
    messages: u64,
    mut step: impl FnMut(bool) -> io::Result<Instant>,
) -> io::Result<Figures> {
    let warm = step(false)? + task.warm_up;
    while step(false)? < warm {}
    let begin = Marks::take(task)?;
    let stop = begin.at + task.window;
    let mut steps = 1;
    while step(true)? < stop {
        steps += 1;
    }
    let seconds = begin.at.elapsed().as_secs_f64();
    let end = Marks::take(task)?;
    Ok(Figures {
        messages: steps * messages,
        seconds,
        cpu_ns: (end.cpu - begin.cpu).as_nanos() as f64,
        waited_s: Option::zip(begin.waited, end.waited)
            .map(|(before, after)| after.saturating_sub(before).as_secs_f64()),
        rtt_ns: None,
    })
}

/// The clocks at one moment.
struct Marks {
    waited: Option<Duration>,
    cpu: Duration,
    at: Instant,
}

impl Marks {
    fn take(task: &Exchange) -> io::Result<Self> {
        let pids = [std::process::id(), task.peer.ok_or(io::ErrorKind::InvalidInput)?];
        let waited = pids.iter().map(|&pid| clock::waited_for_cpu(pid)).sum();
        let cpu = pids.iter().map(|&pid| clock::of_process(pid)).sum::<io::Result<Duration>>()?;
        Ok(Self { waited, cpu, at: Instant::now() })
    }
}

/// Sends one message a millisecond, if asked to.
struct Pace {
    due: Option<Instant>,
}

impl Pace {
    fn of(task: &Exchange) -> Self {
        Self { due: task.paced.then(Instant::now) }
    }

    /// Sleeps until the next message is due. One that is late puts off all after it.
    #[inline]
    fn wait(&mut self) {
        if let Some(due) = &mut self.due {
            let now = Instant::now();
            thread::sleep(due.saturating_duration_since(now));
            *due = now.max(*due) + INTERVAL;
        }
    }
}

/// What one reading of the clock takes: the least of several means, since others may use the CPU.
pub(super) fn clock_reading() -> Duration {
    const READINGS: u32 = 1000;
    let mean = |_| {
        let began = Instant::now();
        for _ in 1..READINGS {
            std::hint::black_box(Instant::now());
        }
        began.elapsed() / READINGS
    };
    (0..10).map(mean).min().unwrap_or_default()
}

/// What messages consist of.
const FILLING: u8 = 0x5a;

const INTERVAL: Duration = Duration::from_millis(1);

/// Nanoseconds; longer ones count as this.
const LONGEST_ROUND_TRIP: u64 = 100_000_000_000;

const STRIDE_BYTES: usize = 64 << 10;

const STRIDE_MOST: usize = 64;
