//! One connection's side of the protocol: bytes in, answers out.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Instant;

use servers::{Output, Service};

use crate::command::{self, Command, Mode, parse};
use crate::store::{Item, VALUE_MAX, deadline};
use crate::{Cache, VERSION};

/// The longest line, in bytes: a retrieval of some hundred keys of the greatest length,
/// or some thousand short ones.
const LINE_MAX: usize = 64 << 10;

/// The first byte of a request in memcached's binary protocol.
const BINARY_MAGIC: u8 = 0x80;

const BLOCK_END: &[u8] = b"\r\n";

/// Where a connection stands, besides the input that it has not consumed.
#[derive(Default)]
pub(crate) struct Session {
    /// What is left of a block that was refused.
    skip: usize,
    /// Keys of the retrieval at the beginning of the input that were answered before the
    /// output was full.
    answered: usize,
}

/// How far a request came.
enum Step {
    /// It is done, and so many bytes are consumed.
    Consumed(usize),
    /// More of it has to come, or of its answer to go.
    Wait,
    Close,
}

impl Service for Cache {
    type Session = Session;

    fn receive(&self, session: &mut Session, input: &[u8], output: &mut Output) -> ControlFlow<(), usize> {
        let now = Instant::now();
        let mut left = input;
        while !left.is_empty() && !output.is_full() {
            match self.step(session, left, output, now) {
                Step::Consumed(length) => left = &left[length..],
                Step::Wait => break,
                Step::Close => return Break(()),
            }
        }
        Continue(input.len() - left.len())
    }

    fn refusal(&self) -> &'static [u8] {
        b"SERVER_ERROR no room for this connection\r\n"
    }
}

impl Cache {
    /// Carries out the request at the beginning of the input.
    fn step(&self, session: &mut Session, input: &[u8], output: &mut Output, now: Instant) -> Step {
        if session.skip > 0 {
            let skipped = session.skip.min(input.len());
            session.skip -= skipped;
            return Step::Consumed(skipped);
        }
        if input[0] == BINARY_MAGIC {
            output.push(b"CLIENT_ERROR the binary protocol is not supported\r\n");
            return Step::Close;
        }
        let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_MAX)]) else {
            if input.len() < LINE_MAX {
                return Step::Wait;
            }
            output.push(b"CLIENT_ERROR line too long\r\n");
            return Step::Close;
        };
        let (line, rest) = (&input[..end], &input[end + 1..]);
        let mut consumed = end + 1;
        let (reply, wanted) = match parse(line.strip_suffix(b"\r").unwrap_or(line)) {
            Err(error) => (error, true),
            Ok((Command::Quit, _)) => return Step::Close,
            Ok((Command::Get { keys, with_unique }, _)) => {
                if !self.get(session, keys, with_unique, output, now) {
                    return Step::Wait;
                }
                ("END", true)
            }
            Ok((Command::Store(store), wanted)) if store.length > VALUE_MAX => {
                session.skip = store.length + BLOCK_END.len();
                // As in memcached: what the client meant to replace is stale.
                self.store.delete(store.key, now);
                ("SERVER_ERROR object too large for cache", wanted)
            }
            Ok((Command::Store(store), wanted)) => {
                let Some((block, _)) = rest.split_at_checked(store.length + BLOCK_END.len()) else {
                    return Step::Wait;
                };
                consumed += block.len();
                (self.put(store, block, now), wanted)
            }
            Ok((Command::Count { key, by, up }, wanted)) => match self.count(key, by, up, now) {
                Ok(number) if wanted => {
                    output.push_number(number);
                    ("", true)
                }
                Ok(_) => ("", false),
                Err(error) => (error, wanted),
            },
            Ok((Command::Stats, _)) => {
                self.stats(output, now);
                ("END", true)
            }
            Ok((Command::Version, _)) => {
                output.push(b"VERSION ");
                (VERSION, true)
            }
            Ok((Command::Touch { key, exptime }, wanted)) => (self.touch(key, exptime, now), wanted),
            Ok((Command::Delete { key }, wanted)) => {
                (if self.store.delete(key, now) { "DELETED" } else { "NOT_FOUND" }, wanted)
            }
            Ok((Command::FlushAll, wanted)) => {
                self.store.clear();
                ("OK", wanted)
            }
            Ok((Command::Verbosity, wanted)) => ("OK", wanted),
        };
        if wanted {
            output.push(reply.as_bytes());
            output.push(b"\r\n");
        }
        Step::Consumed(consumed)
    }

    /// Answers for as many keys as there is room; true when that was all of them.
    fn get(
        &self,
        session: &mut Session,
        keys: &[u8],
        with_unique: bool,
        output: &mut Output,
        now: Instant,
    ) -> bool {
        for key in command::words(keys).skip(session.answered) {
            if output.is_full() {
                return false;
            }
            session.answered += 1;
            let Some(item) = self.store.get(key, now) else { continue };
            output.push(b"VALUE ");
            output.push(key);
            output.push(b" ");
            output.push_number(u64::from(item.flags));
            output.push(b" ");
            output.push_number(item.value.len() as u64);
            if with_unique {
                output.push(b" ");
                output.push_number(item.unique);
            }
            output.push(b"\r\n");
            output.push_value(item.value);
            output.push(b"\r\n");
        }
        session.answered = 0;
        true
    }

    /// Stores what a block holds, and returns the reply.
    fn put(&self, store: command::Store<'_>, block: &[u8], now: Instant) -> &'static str {
        let command::Store { mode, key, flags, exptime, .. } = store;
        let Some(value) = block.strip_suffix(BLOCK_END) else { return "CLIENT_ERROR bad data chunk" };
        let new = |value: Vec<u8>| self.store.item(value, flags, deadline(exptime, now));
        let join = |old: &Item, parts: [&[u8]; 2]| match parts.concat() {
            value if value.len() <= VALUE_MAX => Ok(self.store.item(value, old.flags, old.deadline)),
            _ => Err("SERVER_ERROR object too large for cache"),
        };
        let stored = match mode {
            // Most are that: they need not look at what was there.
            Mode::Set => {
                self.store.set(key, new(value.to_vec()));
                Ok(())
            }
            _ => self.store.update(key, now, |old| match (mode, old) {
                (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => Ok(new(value.to_vec())),
                (Mode::Append, Some(old)) => join(&old, [&old.value, value]),
                (Mode::Prepend, Some(old)) => join(&old, [value, &old.value]),
                (Mode::Cas(unique), Some(old)) if old.unique == unique => Ok(new(value.to_vec())),
                (Mode::Cas(_), Some(_)) => Err("EXISTS"),
                (Mode::Cas(_), None) => Err("NOT_FOUND"),
                (Mode::Add | Mode::Replace | Mode::Append | Mode::Prepend, _) => Err("NOT_STORED"),
            }),
        };
        stored.map_or_else(|error| error, |()| "STORED")
    }

    fn touch(&self, key: &[u8], exptime: i64, now: Instant) -> &'static str {
        let deadline = deadline(exptime, now);
        let touched = self.store.update(key, now, |old| Ok(Item { deadline, ..old.ok_or("NOT_FOUND")? }));
        touched.map_or_else(|error| error, |()| "TOUCHED")
    }

    /// Changes the number that an item's value is, and returns the new one.
    fn count(&self, key: &[u8], by: u64, up: bool, now: Instant) -> Result<u64, &'static str> {
        let mut number = 0;
        self.store.update(key, now, |old| {
            let old = old.ok_or("NOT_FOUND")?;
            // As memcached reads it: with blanks before, and anything after.
            let digits = old.value.split(u8::is_ascii_whitespace).find(|word| !word.is_empty());
            let digits: u64 = digits
                .and_then(command::number)
                .ok_or("CLIENT_ERROR cannot increment or decrement non-numeric value")?;
            number = if up { digits.wrapping_add(by) } else { digits.saturating_sub(by) };
            // memcached writes over the old digits: a value never gets shorter.
            let mut text = number.to_string().into_bytes();
            text.resize(text.len().max(old.value.len()), b' ');
            Ok(self.store.item(text, old.flags, old.deadline))
        })?;
        Ok(number)
    }

    fn stats(&self, output: &mut Output, now: Instant) {
        let (bytes, limit) = self.store.bytes();
        output.push_line(format_args!("STAT version {VERSION}"));
        for (name, value) in [
            ("pid", u64::from(std::process::id())),
            ("uptime", now.duration_since(self.started).as_secs()),
            ("threads", self.threads as u64),
            ("curr_items", self.store.len() as u64),
            ("bytes", bytes),
            ("limit_maxbytes", limit),
        ] {
            output.push_line(format_args!("STAT {name} {value}"));
        }
    }
}
