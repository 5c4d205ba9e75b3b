//! How early or late a low-water mark with a timeout reports: `lateness [CONNECTIONS] [TIMEOUT_MS] [SECONDS]`. Bytes below
//! the mark come at random times on TCP connections of this host; the time from their arrival to the report of epoll,
//! less the timeout, is printed as a distribution; beside it, how late a thread wakes that does nothing but sleep: what the
//! machine is late by itself.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mmsg::RcvLowat;
use sys::epoll::{self, Event, Set};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let connections = arguments.next().unwrap_or(Ok(1000))? as usize;
    let timeout = Duration::from_millis(arguments.next().unwrap_or(Ok(40))?);
    let seconds = Duration::from_secs(arguments.next().unwrap_or(Ok(5))?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let lowat = RcvLowat::in_background()?;
    let set = Set::new()?;
    let mut pairs = Vec::new();
    for at in 0..connections {
        let sender = TcpStream::connect(listener.local_addr()?)?;
        sender.set_nodelay(true)?;
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        set.add(socket.as_fd(), epoll::IN | epoll::EDGES, at as u64)?;
        lowat.set(&socket, 1000, timeout)?;
        pairs.push((socket, sender));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let sleeper = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || sleep_on(&stop)
    });
    let mut sent: Vec<Option<Instant>> = vec![None; connections];
    let mut early = Vec::new();
    let mut events = [Event::NONE; 256];
    let (began, mut random) = (Instant::now(), 1u64);
    while began.elapsed() < seconds {
        // Some more each time, so that about half of the connections have something.
        for _ in 0..1 + connections / 100 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % connections;
            if sent[at].is_none() {
                pairs[at].1.write_all(b"below the mark")?;
                sent[at] = Some(Instant::now());
            }
        }
        let count = set.wait(&mut events, Some(Duration::from_micros(500)))?;
        let now = Instant::now();
        for event in &events[..count] {
            let at = event.data() as usize;
            while pairs[at].0.read(&mut [0; 64]).is_ok() {}
            lowat.rearm(&pairs[at].0);
            if let Some(sent) = sent[at].take() {
                early.push((now - sent).as_secs_f64() * 1e3 - timeout.as_secs_f64() * 1e3);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let mut asleep = sleeper.join().map_err(|_| "the sleeping thread ended")?;
    early.sort_by(f64::total_cmp);
    asleep.sort_by(f64::total_cmp);
    println!(
        "{connections} connections, timeout {timeout:?}, {} reports; ms after the timeout (negative: before), and a sleeper:",
        early.len()
    );
    for share in [0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
        let at = |values: &[f64]| values[((values.len() - 1) as f64 * share) as usize];
        println!("{:>6} %  {:+9.3}  {:+9.3}", share * 100.0, at(&early), at(&asleep));
    }
    Ok(())
}

/// How many ms too late a thread wakes that wants to run every half millisecond; also for the times
/// over which it did not run.
fn sleep_on(stop: &AtomicBool) -> Vec<f64> {
    let mut late = Vec::new();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        due += Duration::from_micros(500);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        late.push(due.elapsed().as_secs_f64() * 1e3);
    }
    late
}
