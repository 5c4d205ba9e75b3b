//! A model of one direction of a kernel connection: the queues of its sender and its
//! receiver, FIN and RST. Bytes are runs of the stream: the model knows their offsets.

use std::hash::{Hash, Hasher};

/// Bytes that follow one another, or one wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    /// Stream offset of the first.
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) wake_up: bool,
}

impl Run {
    pub(crate) const WAKE_UP: Run = Run { start: 0, len: 1, wake_up: true };

    pub(crate) fn data(start: u64, len: usize) -> Run {
        Run { start: start as u32, len: len as u32, wake_up: false }
    }
}

const ROOM: usize = 12;

/// Runs in their order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    runs: [Run; ROOM],
    len: usize,
}

impl Hash for Queue {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.runs().hash(hasher);
    }
}

impl Queue {
    pub(crate) const EMPTY: Queue = Queue { runs: [Run { start: 0, len: 0, wake_up: false }; ROOM], len: 0 };

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs[..self.len]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.runs().iter().map(|run| run.len as usize).sum()
    }

    pub(crate) fn has_data(&self) -> bool {
        self.runs().iter().any(|run| !run.wake_up)
    }

    pub(crate) fn first(&self) -> Option<Run> {
        self.runs().first().copied()
    }

    pub(crate) fn push(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        if let Some(last) = self.runs[..self.len].last_mut()
            && !run.wake_up
            && !last.wake_up
            && last.start + last.len == run.start
        {
            last.len += run.len;
            return;
        }
        self.runs[self.len] = run;
        self.len += 1;
    }

    /// The first run, at most `most` bytes of it.
    pub(crate) fn pop(&mut self, most: usize) -> Option<Run> {
        let first = self.first()?;
        let count = first.len.min(most as u32);
        if count == first.len {
            self.runs.copy_within(1.., 0);
            self.len -= 1;
        } else {
            self.runs[0].start += count;
            self.runs[0].len -= count;
        }
        Some(Run { len: count, ..first })
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

/// Where FIN or RST is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Flag {
    #[default]
    Unsent,
    OnItsWay,
    Arrived,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct Way {
    pub(crate) sending: Queue,
    pub(crate) receiving: Queue,
    pub(crate) fin: Flag,
    pub(crate) reset: Flag,
    /// What TCP_INFO, SIOCOUTQ and SIOCINQ report: bytes accepted from the sender, and
    /// delivered to the receiver, since the connection began.
    pub(crate) written: u64,
    pub(crate) consumed: u64,
}

impl Way {
    pub(crate) fn room(&self, all: usize) -> usize {
        all.saturating_sub(self.sending.bytes() + self.receiving.bytes())
    }

    pub(crate) fn accept(&mut self, run: Run) {
        self.sending.push(run);
        self.written += u64::from(run.len);
    }

    /// Whether something is on its way.
    pub(crate) fn is_moving(&self) -> bool {
        !self.sending.is_empty() || self.fin == Flag::OnItsWay || self.reset == Flag::OnItsWay
    }

    pub(crate) fn has_end(&self) -> bool {
        self.fin == Flag::Arrived || self.reset == Flag::Arrived
    }

    /// Its sender is gone, or the connection is: nothing more comes but RST.
    pub(crate) fn cut(&mut self) {
        self.sending.clear();
        if self.fin == Flag::OnItsWay {
            self.fin = Flag::Unsent;
        }
    }
}
