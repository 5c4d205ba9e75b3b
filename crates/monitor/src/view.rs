//! What the monitor tells of what it sees: to root and its own user everything, to others
//! what is theirs. It looks at memory that its clients write, and believes nothing of it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use promote::watch::{LoopWatch, RegionWatch};
use promote::wire::MonitorMessage;
use promote::wire::view::{self, Allowed, Place, Promoted, Record, Section, Totals};
use sys::tcp::End;

use crate::client::Client;
use crate::meeting::Meeting;
use crate::offers::ClientId;

/// Records of one page.
const PAGE: usize = 64;
/// Clients or ends that are looked through for one page.
const LOOKED_THROUGH: usize = 4096;

/// One end of a promoted connection, as it is looked at.
pub(crate) struct SeenEnd {
    pub(crate) client: ClientId,
    pub(crate) uid: u32,
    pub(crate) other: u64,
    pub(crate) end: End,
    pub(crate) size: u32,
    pub(crate) since: Instant,
    /// `None` if its segment could not be mapped.
    pub(crate) watch: Option<RegionWatch>,
}

/// The ends of promoted connections, by number; numbers are not used twice.
#[derive(Default)]
pub(crate) struct Ends {
    seen: BTreeMap<u64, SeenEnd>,
    last: u64,
}

impl Ends {
    /// Numbers of a new connection's ends.
    pub(crate) fn next_two(&mut self) -> [u64; 2] {
        self.last += 2;
        [self.last - 1, self.last]
    }

    pub(crate) fn insert(&mut self, number: u64, end: SeenEnd) {
        self.seen.insert(number, end);
    }

    /// Looks at an end no more: its memory is unmapped.
    pub(crate) fn remove(&mut self, number: u64) {
        self.seen.remove(&number);
    }

    fn record(&self, number: u64, seen: &SeenEnd, now: Instant) -> Record {
        // What the other end took is loaded before what this one sent, which is then more.
        let other = self.seen.get(&seen.other).and_then(|other| other.watch.as_ref());
        let tail_consumed = other.map(|watch| watch.words().head);
        Record::Promoted(Promoted {
            number,
            other: seen.other,
            client: seen.client.0,
            cookie: seen.end.cookie,
            local: seen.end.local,
            peer: seen.end.peer,
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

/// What a page comes to.
struct Page<'a> {
    asker: &'a Client,
    left: usize,
}

impl Page<'_> {
    /// Tells one record; false if the page has no room for it.
    fn tell(&mut self, record: &Record) -> bool {
        let told = self.left > 0 && self.asker.tell(record).is_ok();
        self.left = if told { self.left - 1 } else { 0 };
        told
    }
}

/// Root and the monitor's own user get the records of all users.
fn sees_everybody(asker: &Client) -> bool {
    asker.subject.uid == 0 || asker.subject.uid == rustix::process::geteuid().as_raw()
}

impl Meeting {
    /// Tells a client one page from a place on. Records for which it has no room come with
    /// its next question.
    pub(crate) fn tell(&mut self, id: ClientId, from: Place, now: Instant) {
        let next = self.page(id, from, now);
        self.end(id, next);
    }

    /// Reports what the policy allows the programs of a user, if this client may ask that.
    pub(crate) fn tell_policy(&mut self, id: ClientId, user: u32) {
        let Some(asker) = self.clients.get(&id) else { return };
        if asker.subject.uid == user || sees_everybody(asker) {
            // An asker without room gets the end alone, as one that may not know.
            let _ = asker.tell(&Record::Allowed(self.allowed(user)));
        }
        self.end(id, None);
    }

    fn allowed(&self, user: u32) -> Allowed {
        let own = rustix::process::geteuid().as_raw();
        let path = self.policy_source.path.as_ref().map(|path| path.display().to_string());
        let mut allowed = self.policy().allowed(own, user, path.as_deref().unwrap_or_default());
        allowed.outdated = self.policy_source.outdated;
        allowed
    }

    fn end(&mut self, id: ClientId, next: Option<Place>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.say(MonitorMessage::End { next }) || client.is_stalled() {
            self.unwell.push(id);
        }
    }

    fn page(&self, id: ClientId, from: Place, now: Instant) -> Option<Place> {
        let asker = self.clients.get(&id)?;
        let everybody = sees_everybody(asker);
        let sees = |uid: u32| everybody || uid == asker.subject.uid;
        let mut page = Page { asker, left: PAGE };
        let mut looked = 0;
        let mut place = from;
        if place.section == Section::Totals {
            if !page.tell(&Record::Totals(self.totals(id, asker, everybody, now))) {
                return Some(place);
            }
            place = Place { section: Section::Loops, after: 0 };
        }
        if place.section == Section::Loops {
            let rest = (Bound::Excluded(ClientId(place.after)), Bound::Unbounded);
            for (number, client) in self.clients.range(rest) {
                looked += 1;
                let record = if *number != id && sees(client.subject.uid) {
                    loop_record(*number, client, now)
                } else {
                    None
                };
                if looked > LOOKED_THROUGH || record.is_some_and(|record| !page.tell(&record)) {
                    return Some(place);
                }
                place.after = number.0;
            }
            place = Place { section: Section::Promoted, after: 0 };
        }
        let rest = (Bound::Excluded(place.after), Bound::Unbounded);
        for (number, seen) in self.ends.seen.range(rest) {
            looked += 1;
            let told = !sees(seen.uid) || page.tell(&self.ends.record(*number, seen, now));
            if looked > LOOKED_THROUGH || !told {
                return Some(place);
            }
            place.after = *number;
        }
        None
    }

    fn totals(&self, id: ClientId, asker: &Client, everybody: bool, now: Instant) -> Totals {
        let (segments, bytes) =
            if everybody { self.ledger.segments() } else { self.ledger.segments_of(asker.subject.uid) };
        let mut totals = Totals {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            everybody,
            age_ms: milliseconds(self.since, now),
            clients: (self.clients.len() as u64).saturating_sub(1),
            waiting: self.offers.len() as u64,
            promoted: segments,
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
