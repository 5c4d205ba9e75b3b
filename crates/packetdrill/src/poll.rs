//! poll(2) and epoll(7).

use tcp::sockets::{Errno, Readiness, Trigger};

use crate::call::{field, unsupported};
use crate::parse::{Call, split};
use crate::run::{Run, differs};
use crate::system::{Failed, System, Watch};

/// Names of what a socket can be ready for, without `POLL` or `EPOLL`.
const NAMES: [(&str, Readiness); 5] = [
    ("IN", Readiness::READABLE),
    ("OUT", Readiness::WRITABLE),
    ("ERR", Readiness::ERROR),
    ("HUP", Readiness::HANGUP),
    ("RDHUP", Readiness::READ_HANGUP),
];

impl<S: System> Run<S> {
    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 0) = 1`.
    pub(crate) fn poll(&mut self, call: &Call) -> Result<i64, Failed> {
        let list = call.argument(0).trim_start_matches('[').trim_end_matches(']');
        let mut ready = 0;
        let mut differences = None;
        for one in split(list) {
            let part = |name| field(one, name).ok_or_else(|| unsupported(call));
            let number: i64 = part("fd")?.parse().map_err(|_| unsupported(call))?;
            let events = readiness(part("events")?).ok_or_else(|| unsupported(call))?;
            let wanted = readiness(part("revents")?).ok_or_else(|| unsupported(call))?;
            let socket = *self.sockets.get(&number).ok_or(Errno::BadDescriptor)?;
            let asked = events.with(Readiness::ERROR).with(Readiness::HANGUP);
            let seen = common(self.system.poll(socket)?, asked);
            ready += i64::from(!seen.is_none());
            if seen != wanted {
                differences = Some(differs(format!("fd {number}: {wanted:?}"), format!("{seen:?}")));
            }
        }
        match differences {
            // Else it returns 0, or blocks.
            Some(cause) if ready > 0 => Err(Failed::Cause(cause)),
            _ => Ok(ready),
        }
    }

    /// `epoll_create(1) = 5`.
    pub(crate) fn create_set(&mut self, call: &Call) -> Result<i64, Failed> {
        let set = self.system.create_set()?;
        self.sets.insert(call.result, set);
        Ok(call.result)
    }

    /// `epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, fd=4}) = 0`.
    pub(crate) fn change_set(&mut self, call: &Call) -> Result<i64, Failed> {
        let set = *self.sets.get(&call.number(0)?).ok_or(Errno::BadDescriptor)?;
        let number: i64 = call.number(2)?;
        let socket = *self.sockets.get(&number).ok_or(Errno::BadDescriptor)?;
        let interest = || interest(field(call.argument(3), "events")?);
        let interest = || interest().ok_or_else(|| unsupported(call));
        let change = match call.argument(1) {
            "EPOLL_CTL_ADD" => interest().map(|(wanted, trigger)| Watch::Add(wanted, trigger))?,
            "EPOLL_CTL_MOD" => interest().map(|(wanted, trigger)| Watch::Modify(wanted, trigger))?,
            "EPOLL_CTL_DEL" => Watch::Remove,
            _ => return Err(unsupported(call)),
        };
        self.system.watch(set, socket, change, number as u64)?;
        Ok(0)
    }

    /// `epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1`: what the first one is ready for.
    pub(crate) fn wait(&mut self, call: &Call) -> Result<i64, Failed> {
        let set = *self.sets.get(&call.number(0)?).ok_or(Errno::BadDescriptor)?;
        let ready = self.system.wait(set, call.number(2)?)?;
        let Some(&(seen, data)) = ready.first() else { return Ok(0) };
        let wanted = field(call.argument(1), "events").and_then(readiness);
        let number = field(call.argument(1), "fd").and_then(|fd| fd.parse::<u64>().ok());
        let (Some(wanted), Some(number)) = (wanted, number) else { return Err(unsupported(call)) };
        if (wanted, number) != (seen, data) {
            let seen = format!("fd {data}: {seen:?}");
            return Err(Failed::Cause(differs(format!("fd {number}: {wanted:?}"), seen)));
        }
        Ok(ready.len() as i64)
    }
}

fn readiness(text: &str) -> Option<Readiness> {
    interest(text).map(|(readiness, _)| readiness)
}

/// Reads `EPOLLIN|EPOLLET`.
fn interest(text: &str) -> Option<(Readiness, Trigger)> {
    let (mut all, mut trigger) = (Readiness::NONE, Trigger::Level);
    for word in text.split('|').map(str::trim).filter(|&word| word != "0") {
        let name = word.trim_start_matches('E').strip_prefix("POLL")?;
        match name {
            "ET" => trigger = Trigger::Edge,
            "ONESHOT" => trigger = Trigger::Once,
            name => all = all.with(NAMES.iter().find(|known| known.0 == name)?.1),
        }
    }
    Some((all, trigger))
}

/// What is in both.
fn common(a: Readiness, b: Readiness) -> Readiness {
    let both = NAMES.iter().filter(|(_, one)| a.has(*one) && b.has(*one));
    both.fold(Readiness::NONE, |all, (_, one)| all.with(*one))
}
