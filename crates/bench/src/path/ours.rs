//! Our end of a path: a host on a TUN device, whose packets the kernel forwards.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use megapipe::packet::tun::Tun;
use megapipe::packet::{Batch, Device, pump};
use megapipe::tcp::{Config, Event, Flow, Host, Pattern, Prefix, Profile, Read, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::endpoint::Endpoint;
use super::{Answer, Order};
use crate::{Reason, part};

struct Ours {
    host: Host,
    tun: Tun,
    origin: Instant,
    received: Batch,
    to_send: Batch,
}

impl Ours {
    fn new(endpoint: &Endpoint) -> Result<Ours, Reason> {
        let tun = Tun::open(&format!("mpo{}n{}", endpoint.network, endpoint.number), 1500)?;
        tun.bring_up()?;
        tun.add_kernel_address(IpAddr::V4(endpoint.own_address(1)), 24)?;
        let mut capabilities = tun.capabilities();
        if !endpoint.gso {
            capabilities.segment = 0;
        }
        let mut config = Config::new(vec![Prefix::one(IpAddr::V4(endpoint.own_address(2)))], capabilities);
        if endpoint.lan {
            config.profile = Profile::lan();
        }
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let mut seed = [0; 32];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let (received, to_send) = (Batch::new(1 << 20), Batch::new(1 << 20));
        Ok(Ours { host: Host::new(config, seed), tun, origin: Instant::now(), received, to_send })
    }

    fn now(&self) -> Time {
        Time::from_micros(self.origin.elapsed().as_micros() as u64)
    }

    /// Sends, sleeps until something arrives or is due, and receives.
    fn turn(&mut self, longest: Duration) -> io::Result<()> {
        pump::send(self.now(), &mut self.host, &mut self.tun, &mut self.to_send)?;
        let now = self.now();
        let wait = self.host.deadline().map_or(longest, |at| at.since(now)).min(longest);
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        // Interrupted is as good as ready: the device is asked again.
        let _ = poll(&mut [PollFd::new(&self.tun.as_fd(), PollFlags::IN)], Some(&wait));
        pump::turn(self.now(), &mut self.host, &mut self.tun, &mut self.received, &mut self.to_send)?;
        Ok(())
    }
}

/// Of a connection to a sender.
#[derive(Default)]
struct Served {
    order: Vec<u8>,
    sent: u64,
}

/// Serves connections until the process is ended.
pub(super) fn send(endpoint: &Endpoint) -> Result<(), Reason> {
    let mut ours = Ours::new(endpoint)?;
    ours.host.listen(Pattern { address: None, port: Some(endpoint.address().port()) }, 16)?;
    part::listening("");
    let piece = vec![0; 256 << 10];
    let mut flows = HashMap::<Flow, Served>::new();
    loop {
        ours.turn(Duration::from_secs(1))?;
        let now = ours.now();
        while let Some(event) = ours.host.event() {
            match event {
                Event::Incoming(listener) => {
                    while let Some(flow) = ours.host.accept(listener) {
                        flows.insert(flow, Served::default());
                    }
                }
                Event::Flow { flow, .. } => {
                    let Some(served) = flows.get_mut(&flow) else { continue };
                    if !serve(&mut ours.host, now, flow, served, &piece) {
                        flows.remove(&flow);
                    }
                }
                Event::Ask { .. } => {}
            }
        }
    }
}

/// Goes on with a connection. False: it is over.
fn serve(host: &mut Host, now: Time, flow: Flow, served: &mut Served, piece: &[u8]) -> bool {
    let mut bytes = [0; 8];
    while let Ok(Read::Bytes(len)) = host.read(now, flow, &mut bytes) {
        served.order.extend_from_slice(&bytes[..len]);
    }
    let Some(order) = served.order.first_chunk() else { return true };
    let wanted = u64::from_be_bytes(*order);
    while served.sent < wanted {
        let most = piece.len().min((wanted - served.sent).min(1 << 30) as usize);
        match host.write(now, flow, &piece[..most]) {
            Ok(0) => return true,
            Ok(len) => served.sent += len as u64,
            Err(_) => break,
        }
    }
    host.close(now, flow);
    false
}

/// Receives what is asked for, one connection after the other.
pub(super) fn receive(endpoint: &Endpoint) -> Result<(), Reason> {
    let mut ours = Ours::new(endpoint)?;
    let mut piece = vec![0; 256 << 10];
    part::listening("");
    for line in io::stdin().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let wanted = order.bytes.unwrap_or(u64::MAX);
        for &from in &order.from {
            let (start, most) = (Instant::now(), Duration::from_secs_f64(order.seconds));
            let now = ours.now();
            let flow = ours.host.connect(now, None, None, from)?;
            let (mut asked, mut bytes, mut ended) = (false, 0, false);
            while bytes < wanted && !ended && start.elapsed() < most {
                ours.turn(Duration::from_millis(100))?;
                while ours.host.event().is_some() {}
                let now = ours.now();
                asked = asked || ours.host.write(now, flow, &wanted.to_be_bytes()).is_ok_and(|len| len == 8);
                loop {
                    match ours.host.read(now, flow, &mut piece) {
                        Ok(Read::Bytes(len)) => bytes += len as u64,
                        Ok(Read::Empty) => break,
                        Ok(Read::End) | Err(_) => {
                            ended = true;
                            break;
                        }
                    }
                }
            }
            part::print(&Answer { bytes, seconds: start.elapsed().as_secs_f64() })?;
            ours.host.close(ours.now(), flow);
            ours.turn(Duration::from_millis(1))?;
        }
    }
    Ok(())
}
