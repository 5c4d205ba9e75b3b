//! One connection's side of the protocol, without the connection: bytes in, answers out.
//!
//! Input may be cut anywhere. A command is carried out when its last byte is there, or, where only
//! its line is needed, with the line; the answers do not depend on how the input came in pieces.

use std::mem;

use servers::{Next, Output, Progress};

use super::Worker;
use super::clock::Moment;
use super::command::{
    Command, CommandError, Delta, Exptime, Keys, OwnedKeys, Retrieve, RetrieveForm, Stats,
    Store as StoreLine, StoreMode,
};
use super::partial::Charge;
use super::stats::{self, Counter};
use super::store::{Item, Lookup, NewItem, StoreOutcome};

/// The longest line of a command other than a retrieval, in bytes.
const LINE_MAX: usize = 2048;

/// The longest line of a retrieval, in bytes: some ten thousand keys.
const RETRIEVAL_LINE_MAX: usize = 1024 * 1024;

/// The first byte of a request in memcached's binary protocol.
const BINARY_MAGIC: u8 = 0x80;

/// What ends a data block.
const BLOCK_END: &[u8; 2] = b"\r\n";

/// Where a connection stands in the protocol.
#[derive(Debug, Default)]
pub(crate) struct Session {
    state: State,
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// For what it holds between two pieces of input.
    charge: Charge,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    Block(Block),
    /// Passing over a data block that was refused.
    Skip {
        left: usize,
    },
    Retrieve {
        keys: OwnedKeys,
        form: RetrieveForm,
    },
    Closed,
}

/// A data block that is being read.
#[derive(Debug)]
struct Block {
    item: NewItem,
    length: usize,
    end: [u8; BLOCK_END.len()],
    end_length: usize,
    noreply: bool,
}

impl Session {
    /// Takes as much of `input` as there is room for answers, and answers it.
    pub(crate) fn receive(&mut self, input: &[u8], worker: Worker<'_>, output: &mut Output) -> Progress {
        let mut round = Round { worker, now: worker.service.clock.now(), output };
        let mut rest = input;
        let mut next = self.advance(&mut rest, &mut round);
        // What came whole is never refused.
        let held = self.held();
        if !worker.service.store.charge(&mut self.charge, held) {
            next = self.give_up(&mut round);
            worker.service.store.charge(&mut self.charge, 0);
        }
        Progress { next, consumed: input.len() - rest.len() }
    }

    /// Bytes that it holds until more input comes or the client reads.
    fn held(&self) -> usize {
        let state = match &self.state {
            State::Block(block) => block.item.key.len() + block.item.value.capacity(),
            State::Retrieve { keys, .. } => keys.len(),
            State::Line | State::Skip { .. } | State::Closed => 0,
        };
        state + self.partial.capacity()
    }

    /// Refuses the request that is under way, since there is no memory for it.
    fn give_up(&mut self, round: &mut Round<'_>) -> Next {
        self.partial = Vec::new();
        if let State::Block(block) = mem::take(&mut self.state) {
            self.state = round.refuse_block(block);
            return Next::Read;
        }
        round.output.push(b"SERVER_ERROR out of memory reading request\r\n");
        self.state = State::Closed;
        Next::Close
    }

    /// Works off `input` as far as the room for answers lets it.
    fn advance(&mut self, input: &mut &[u8], round: &mut Round<'_>) -> Next {
        loop {
            if round.output.is_full() {
                return Next::Drain;
            }
            match &mut self.state {
                State::Line => match self.line(input, round) {
                    LineEnd::Found => {}
                    LineEnd::Missing => return Next::Read,
                },
                State::Block(block) => {
                    if !block.fill(input) {
                        return Next::Read;
                    }
                    if let State::Block(block) = mem::take(&mut self.state) {
                        round.finish_block(block);
                    }
                }
                State::Skip { left } => {
                    let skipped = input.len().min(*left);
                    *left -= skipped;
                    *input = &input[skipped..];
                    if *left > 0 {
                        return Next::Read;
                    }
                    self.state = State::Line;
                }
                State::Retrieve { keys, form } => {
                    let mut rest = keys.rest();
                    if round.retrieve(&mut rest, *form) {
                        self.state = State::Line;
                    } else {
                        let left = rest.left();
                        keys.advance(left);
                    }
                }
                State::Closed => return Next::Close,
            }
        }
    }

    /// Reads a line and carries it out, if its end is there.
    fn line(&mut self, input: &mut &[u8], round: &mut Round<'_>) -> LineEnd {
        let bytes = *input;
        if self.partial.is_empty() && bytes.first() == Some(&BINARY_MAGIC) {
            round.output.push(b"CLIENT_ERROR the binary protocol is not supported\r\n");
            self.state = State::Closed;
            return LineEnd::Found;
        }
        let end = memchr::memchr(b'\n', bytes);
        let (piece, rest) = match end {
            Some(end) => (&bytes[..end], &bytes[end + 1..]),
            None => (bytes, &[][..]),
        };
        *input = rest;
        if end.is_some() && self.partial.is_empty() {
            self.state = round.execute(piece);
            return LineEnd::Found;
        }
        self.partial.extend_from_slice(piece);
        if end.is_none() && self.partial.len() <= line_max(&self.partial) {
            return LineEnd::Missing;
        }
        // Not kept for the next line: an idle connection is to hold no memory.
        let line = mem::take(&mut self.partial);
        self.state = round.execute(&line);
        LineEnd::Found
    }
}

enum LineEnd {
    Found,
    Missing,
}

/// The most bytes that the line which begins with `line` may have.
fn line_max(line: &[u8]) -> usize {
    let Some(start) = line.get(..LINE_MAX) else {
        return LINE_MAX;
    };
    let start = start.trim_ascii_start();
    let retrievals = [&b"get "[..], b"gets ", b"gat ", b"gats "];
    let retrieval = retrievals.iter().any(|name| start.starts_with(name));
    if retrieval { RETRIEVAL_LINE_MAX } else { LINE_MAX }
}

impl Block {
    /// Takes what belongs to the block from `input`; true when the block is whole.
    fn fill(&mut self, input: &mut &[u8]) -> bool {
        let value = &mut self.item.value;
        let (block, rest) = input.split_at(input.len().min(self.length - value.len()));
        // As the bytes come, and in the end no more than they are.
        let length = value.len() + block.len();
        if length > value.capacity() {
            let capacity = length.max(2 * value.capacity()).min(self.length);
            value.reserve_exact(capacity - value.len());
        }
        value.extend_from_slice(block);
        let (end, rest) = rest.split_at(rest.len().min(BLOCK_END.len() - self.end_length));
        self.end[self.end_length..self.end_length + end.len()].copy_from_slice(end);
        self.end_length += end.len();
        *input = rest;
        self.end_length == BLOCK_END.len()
    }
}

/// The carrying out of commands at one time.
struct Round<'a> {
    worker: Worker<'a>,
    now: Moment,
    output: &'a mut Output,
}

impl Round<'_> {
    /// Carries out a line, given without its line feed; returns what the session then waits for.
    fn execute(&mut self, line: &[u8]) -> State {
        if line.len() > line_max(line) {
            self.output.push(b"CLIENT_ERROR line too long\r\n");
            return State::Closed;
        }
        let command = match Command::parse(line.strip_suffix(b"\r").unwrap_or(line)) {
            Ok(command) => command,
            Err(CommandError::Silent) => return State::Line,
            Err(error) => {
                self.output.push_line(format_args!("{error}"));
                let http = matches!(error, CommandError::Http);
                return if http { State::Closed } else { State::Line };
            }
        };
        match command {
            Command::Retrieve(Retrieve { mut keys, form }) => {
                if !self.retrieve(&mut keys, form) {
                    return State::Retrieve { keys: keys.to_owned(), form };
                }
            }
            Command::Store(line) => return self.begin_block(line),
            Command::Delete { key, noreply } => {
                let found = self.worker.service.store.delete(key.as_bytes(), self.now);
                self.count_hit(found, Counter::DeleteHits, Counter::DeleteMisses);
                self.reply(if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }, noreply);
            }
            Command::Delta { key, delta, noreply } => self.delta(key.as_bytes(), delta, noreply),
            Command::Touch { key, exptime, noreply } => {
                let found = self.touch(key.as_bytes(), exptime).is_some();
                self.reply(if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, noreply);
            }
            Command::FlushAll { delay, noreply } => self.flush_all(delay, noreply),
            Command::Stats(Stats::General) => stats::general(self.worker.service, self.output),
            Command::Stats(Stats::Settings) => stats::settings(self.worker.service, self.output),
            Command::Stats(Stats::Empty) => self.output.push(b"END\r\n"),
            Command::Stats(Stats::Reset) => {
                self.worker.service.totals.reset();
                self.output.push(b"RESET\r\n");
            }
            Command::Version => self.output.push_line(format_args!("VERSION {}", super::VERSION)),
            Command::Verbosity { noreply } => self.reply(b"OK\r\n", noreply),
            Command::Quit => return State::Closed,
        }
        State::Line
    }

    /// Answers for as many keys as there is room; true when that was all of them.
    fn retrieve(&mut self, keys: &mut Keys<'_>, form: RetrieveForm) -> bool {
        while !self.output.is_full() {
            let Some(key) = keys.next() else {
                self.output.push(b"END\r\n");
                return true;
            };
            let key = key.as_bytes();
            let found = match form.touch {
                Some(exptime) => self.touch(key, exptime),
                None => None,
            };
            let lookup = match (form.touch, found) {
                (Some(_), Some(item)) => Lookup::Hit(item),
                (Some(_), None) => Lookup::Miss,
                (None, _) => self.worker.service.store.get(key, self.now),
            };
            self.count(Counter::CmdGet);
            match lookup {
                Lookup::Hit(item) => {
                    self.count(Counter::GetHits);
                    self.value(key, item, form.with_cas);
                    continue;
                }
                Lookup::Miss => {}
                Lookup::Expired => self.count(Counter::GetExpired),
                Lookup::Flushed => self.count(Counter::GetFlushed),
            }
            self.count(Counter::GetMisses);
        }
        false
    }

    fn value(&mut self, key: &[u8], item: Item, with_cas: bool) {
        self.output.push(b"VALUE ");
        self.output.push(key);
        self.output.push(b" ");
        self.output.push_number(u64::from(item.flags));
        self.output.push(b" ");
        self.output.push_number(item.value.len() as u64);
        if with_cas {
            self.output.push(b" ");
            self.output.push_number(item.unique);
        }
        self.output.push(b"\r\n");
        self.output.push_value(item.value);
        self.output.push(b"\r\n");
    }

    fn begin_block(&mut self, line: StoreLine<'_>) -> State {
        let service = self.worker.service;
        if line.length > service.store.limits().value {
            self.count(Counter::StoreTooLarge);
            self.reply(b"SERVER_ERROR object too large for cache\r\n", line.noreply);
            if line.mode == StoreMode::Set {
                service.store.forget(line.key.as_bytes());
            }
            return State::Skip { left: line.length + BLOCK_END.len() };
        }
        let item = NewItem {
            mode: line.mode,
            key: line.key.as_bytes().into(),
            value: Vec::new(),
            flags: line.flags,
            deadline: service.clock.deadline(line.exptime, self.now),
        };
        State::Block(Block {
            item,
            length: line.length,
            end: [0; BLOCK_END.len()],
            end_length: 0,
            noreply: line.noreply,
        })
    }

    /// There is no memory for the rest of the block, which is passed over.
    fn refuse_block(&mut self, block: Block) -> State {
        self.count(Counter::StoreNoMemory);
        self.reply(b"SERVER_ERROR out of memory storing object\r\n", block.noreply);
        if block.item.mode == StoreMode::Set {
            self.worker.service.store.forget(&block.item.key);
        }
        let end = BLOCK_END.len() - block.end_length;
        State::Skip { left: block.length - block.item.value.len() + end }
    }

    fn finish_block(&mut self, block: Block) {
        if block.end != *BLOCK_END {
            self.reply(b"CLIENT_ERROR bad data chunk\r\n", block.noreply);
            return;
        }
        self.count(Counter::CmdSet);
        let cas = matches!(block.item.mode, StoreMode::Cas(_));
        let outcome = self.worker.service.store.store(block.item, self.now);
        let (answer, counter): (&[u8], _) = match outcome {
            StoreOutcome::Stored => (b"STORED\r\n", cas.then_some(Counter::CasHits)),
            StoreOutcome::NotStored => (b"NOT_STORED\r\n", None),
            StoreOutcome::Exists => (b"EXISTS\r\n", Some(Counter::CasBadval)),
            StoreOutcome::NotFound => (b"NOT_FOUND\r\n", Some(Counter::CasMisses)),
            StoreOutcome::TooLarge => {
                (b"SERVER_ERROR object too large for cache\r\n", Some(Counter::StoreTooLarge))
            }
        };
        if let Some(counter) = counter {
            self.count(counter);
        }
        self.reply(answer, block.noreply);
    }

    fn delta(&mut self, key: &[u8], delta: Delta, noreply: bool) {
        let (hits, misses) = match delta {
            Delta::Increment(_) => (Counter::IncrHits, Counter::IncrMisses),
            Delta::Decrement(_) => (Counter::DecrHits, Counter::DecrMisses),
        };
        let result = self.worker.service.store.delta(key, delta, self.now);
        self.count_hit(result.is_ok(), hits, misses);
        match result {
            _ if noreply => {}
            Ok(number) => {
                self.output.push_number(number);
                self.output.push(b"\r\n");
            }
            Err(error) => self.output.push_line(format_args!("{error}")),
        }
    }

    fn touch(&mut self, key: &[u8], exptime: Exptime) -> Option<Item> {
        let service = self.worker.service;
        let deadline = service.clock.deadline(exptime, self.now);
        let item = service.store.touch(key, deadline, self.now);
        self.count(Counter::CmdTouch);
        self.count_hit(item.is_some(), Counter::TouchHits, Counter::TouchMisses);
        item
    }

    fn flush_all(&mut self, delay: Exptime, noreply: bool) {
        let service = self.worker.service;
        let due = match delay {
            Exptime(..=0) => self.now,
            delay => service.clock.deadline(delay, self.now),
        };
        self.count(Counter::CmdFlush);
        service.store.flush(due, self.now);
        self.reply(b"OK\r\n", noreply);
    }

    fn reply(&mut self, answer: &[u8], noreply: bool) {
        if !noreply {
            self.output.push(answer);
        }
    }

    fn count(&self, counter: Counter) {
        self.worker.counters.count(counter);
    }

    fn count_hit(&self, hit: bool, hits: Counter, misses: Counter) {
        self.count(if hit { hits } else { misses });
    }
}

#[cfg(test)]
mod tests;
