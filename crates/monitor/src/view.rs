//! What the monitor reports of its state: everything to root and its own user, to others
//! only their own. It reads memory that its clients write, and trusts none of it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use promote::watch::{LoopWatch, RegionWatch};
use promote::wire::MonitorMessage;
use promote::wire::view::{self, Allowed, Place, Promoted, Record, Section, Totals};
use sys::tcp::Endpoint;

use crate::client::Client;
use crate::matcher::Matcher;
use crate::offers::ClientId;

/// Records of one page.
const PAGE: usize = 64;
/// Clients or endpoints that are checked for one page.
const CHECKED_MOST: usize = 4096;

/// One endpoint of a promoted connection, as it is watched.
pub(crate) struct SeenEndpoint {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) other: u64,
    pub(crate) endpoint: Endpoint,
    pub(crate) size: u32,
    pub(crate) since: Instant,
    /// `None` if its region could not be mapped.
    pub(crate) watch: Option<RegionWatch>,
}

/// The endpoints of promoted connections, by number; numbers are not used twice.
#[derive(Default)]
pub(crate) struct Endpoints {
    seen: BTreeMap<u64, SeenEndpoint>,
    last: u64,
}

impl Endpoints {
    /// Numbers of a new connection's endpoints.
    pub(crate) fn next_two(&mut self) -> [u64; 2] {
        self.last += 2;
        [self.last - 1, self.last]
    }

    pub(crate) fn insert(&mut self, number: u64, endpoint: SeenEndpoint) {
        self.seen.insert(number, endpoint);
    }

    /// Watches an endpoint no more: its memory is unmapped.
    pub(crate) fn remove(&mut self, number: u64) {
        self.seen.remove(&number);
    }

    fn record(&self, number: u64, seen: &SeenEndpoint, now: Instant) -> Record {
        // What the other endpoint consumed is loaded before what this one sent: then the
        // latter is never less.
        let other = self.seen.get(&seen.other).and_then(|other| other.watch.as_ref());
        let tail_consumed = other.map(|watch| watch.words().head);
        Record::Promoted(Promoted {
            number,
            other: seen.other,
            client: seen.client.0,
            cookie: seen.endpoint.cookie,
            local: seen.endpoint.local,
            peer: seen.endpoint.peer,
            age_ms: milliseconds(seen.since, now),
            segment_size: seen.size,
            words: seen.watch.as_ref().map(RegionWatch::words),
            tail_consumed: tail_consumed.filter(|_| seen.watch.is_some()),
        })
    }
}

fn milliseconds(since: Instant, now: Instant) -> u64 {
    now.saturating_duration_since(since).as_millis().try_into().unwrap_or(u64::MAX)
}

fn loop_record(id: ClientId, client: &Client, now: Instant) -> Option<Record> {
    let greeted = client.greeted.as_ref()?;
    Some(Record::Loop(view::Loop {
        number: id.0,
        pid: client.pid,
        uid: client.subject.uid,
        gid: client.subject.gid,
        name: greeted.name,
        asleep: greeted.watch.as_ref().map(LoopWatch::asleep),
        age_ms: milliseconds(client.since, now),
        waiting: client.waiting,
        promoted: (client.held.len() as u64).saturating_sub(client.waiting),
        offers: client.tally.offers,
        granted: client.tally.granted,
        refused: client.tally.refused,
    }))
}

/// One page of records.
struct Page<'a> {
    asker: &'a Client,
    left: usize,
}

impl Page<'_> {
    /// Sends one record; false if the page has no room for it.
    fn add(&mut self, record: &Record) -> bool {
        let sent = self.left > 0 && self.asker.send_record(record).is_ok();
        self.left = if sent { self.left - 1 } else { 0 };
        sent
    }
}

/// Root and the monitor's own user get the records of all users.
fn sees_all_users(asker: &Client) -> bool {
    asker.subject.uid == 0 || asker.subject.uid == rustix::process::geteuid().as_raw()
}

impl Matcher {
    /// Sends a client one page from a place on. Records for which it has no room come
    /// with its next query.
    pub(crate) fn answer_query(&mut self, id: ClientId, from: Place, now: Instant) {
        let next = self.page(id, from, now);
        self.send_end(id, next);
    }

    /// Reports what the policy allows the programs of a user, if this client may ask that.
    pub(crate) fn answer_policy(&mut self, id: ClientId, user: u32) {
        let Some(asker) = self.clients.get(&id) else { return };
        if asker.subject.uid == user || sees_all_users(asker) {
            // A client without room gets the end alone, like one that may not know.
            let _ = asker.send_record(&Record::Allowed(self.allowed(user)));
        }
        self.send_end(id, None);
    }

    fn allowed(&self, user: u32) -> Allowed {
        let own = rustix::process::geteuid().as_raw();
        let path = self.policy_source.path.as_ref().map(|path| path.display().to_string());
        let mut allowed = self.policy().allowed(own, user, path.as_deref().unwrap_or_default());
        allowed.outdated = self.policy_source.outdated;
        allowed
    }

    fn send_end(&mut self, id: ClientId, next: Option<Place>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.send(MonitorMessage::End { next }) || client.is_stalled() {
            self.stalled.push(id);
        }
    }

    fn page(&self, id: ClientId, from: Place, now: Instant) -> Option<Place> {
        let asker = self.clients.get(&id)?;
        let everybody = sees_all_users(asker);
        let sees = |uid: u32| everybody || uid == asker.subject.uid;
        let mut page = Page { asker, left: PAGE };
        let mut checked = 0;
        let mut place = from;
        if place.section == Section::Totals {
            if !page.add(&Record::Totals(self.totals(id, asker, everybody, now))) {
                return Some(place);
            }
            place = Place { section: Section::Loops, after: 0 };
        }
        if place.section == Section::Loops {
            let rest = (Bound::Excluded(ClientId(place.after)), Bound::Unbounded);
            for (number, client) in self.clients.range(rest) {
                checked += 1;
                let record = if *number != id && sees(client.subject.uid) {
                    loop_record(*number, client, now)
                } else {
                    None
                };
                if checked > CHECKED_MOST || record.is_some_and(|record| !page.add(&record)) {
                    return Some(place);
                }
                place.after = number.0;
            }
            place = Place { section: Section::Promoted, after: 0 };
        }
        let rest = (Bound::Excluded(place.after), Bound::Unbounded);
        for (number, seen) in self.endpoints.seen.range(rest) {
            checked += 1;
            let sent = !sees(seen.uid) || page.add(&self.endpoints.record(*number, seen, now));
            if checked > CHECKED_MOST || !sent {
                return Some(place);
            }
            place.after = *number;
        }
        None
    }

    fn totals(&self, id: ClientId, asker: &Client, everybody: bool, now: Instant) -> Totals {
        let (regions, bytes) =
            if everybody { self.ledger.regions() } else { self.ledger.regions_of(asker.subject.uid) };
        let mut totals = Totals {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            everybody,
            age_ms: milliseconds(self.since, now),
            clients: (self.clients.len() as u64).saturating_sub(1),
            waiting: self.offers.len() as u64,
            promoted: regions,
            bytes,
            offers: self.metrics.offers.get(),
            granted: self.metrics.matches.get() * 2,
            refused: self.metrics.refusals(),
        };
        if !everybody {
            let own = |client: &&Client| client.subject.uid == asker.subject.uid;
            let others = self.clients.iter().filter(|(number, _)| **number != id).map(|(_, client)| client);
            let none =
                Totals { clients: 0, waiting: 0, offers: 0, granted: 0, refused: <_>::default(), ..totals };
            totals = others.filter(own).fold(none, |mut sum, client| {
                sum.clients += 1;
                sum.waiting += client.waiting;
                sum.offers += client.tally.offers;
                sum.granted += client.tally.granted;
                for (sum, count) in sum.refused.iter_mut().zip(client.tally.refused) {
                    *sum += count;
                }
                sum
            });
        }
        totals
    }
}
