//! What the two programs of a connection do, and what all worlds together have to have had.

use tcp::{Flow, Time};

/// One endpoint's program.
pub(crate) struct End {
    pub(crate) flow: Option<Flow>,
    pub(crate) to_send: u32,
    pub(crate) sent: u32,
    pub(crate) to_receive: u32,
    pub(crate) received: u32,
    pub(crate) chunk: usize,
    /// Pauses between writes and between reads.
    pub(crate) pauses: bool,
    pub(crate) write_at: Time,
    pub(crate) read_at: Time,
    /// Resets the connection after so many bytes.
    pub(crate) abort_after: Option<u32>,
    pub(crate) may_write: bool,
    pub(crate) may_read: bool,
    pub(crate) shut: bool,
    pub(crate) over: bool,
}

/// Both sides write without regard to the other, or the first asks, in two writes, and waits for
/// each answer.
#[derive(Clone, Copy)]
pub(crate) enum Manner {
    Streams,
    Questions { question: [u32; 2], answer: u32 },
}

/// A connection between the two hosts.
pub(crate) struct Talk {
    pub(crate) ends: [End; 2],
    pub(crate) manner: Manner,
    /// Whether an end resets it: then the other may see that.
    pub(crate) aborts: bool,
}

/// How much a program has to write now.
pub(crate) fn allowed(manner: Manner, side: usize, end: &End) -> u32 {
    let Manner::Questions { question: [first, second], answer } = manner else {
        return end.to_send - end.sent;
    };
    let question = first + second;
    if side == 1 {
        return end.received / question * answer - end.sent;
    }
    let (round, inside) = (end.sent / question, end.sent % question);
    match inside {
        0 if end.received < round * answer => 0,
        inside if inside < first => first - inside,
        inside => question - inside,
    }
}

/// The byte at a place of a stream.
pub(crate) fn byte(talk: usize, side: usize, at: u32) -> u8 {
    let mixed = (at ^ (talk as u32) << 20 ^ (side as u32) << 28).wrapping_mul(0x9e37_79b1);
    (mixed >> 24) as u8
}

/// What some world has to have had, or the worlds are not what they should be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) flows: usize,
    /// Both have sent a SYN before they received one.
    pub(crate) opened_by_both: usize,
    /// Both have sent a FIN before they received one.
    pub(crate) closed_by_both: usize,
    /// A side went on receiving after it had ended its own stream.
    pub(crate) half_closed: usize,
    /// A window was closed.
    pub(crate) closed_windows: usize,
    pub(crate) questions: usize,
    pub(crate) aborts: usize,
}

impl Seen {
    pub(crate) fn add(&mut self, other: Seen) {
        self.flows += other.flows;
        self.opened_by_both += other.opened_by_both;
        self.closed_by_both += other.closed_by_both;
        self.half_closed += other.half_closed;
        self.closed_windows += other.closed_windows;
        self.questions += other.questions;
        self.aborts += other.aborts;
    }
}
