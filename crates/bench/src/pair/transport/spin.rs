//! Waiting without sleeping, within a bound.

use std::io;
use std::time::{Duration, Instant};

/// One wait: counts its turns and gives up in the end.
#[derive(Default)]
pub(super) struct Spin {
    turns: u32,
    began: Option<Instant>,
}

impl Spin {
    /// One turn in vain. Looks at the clock only now and then; [`io::ErrorKind::TimedOut`] after
    /// [`PATIENCE`].
    #[inline]
    pub(super) fn turn(&mut self) -> io::Result<()> {
        self.turns = self.turns.wrapping_add(1);
        match self.turns % TURNS_PER_LOOK {
            0 => self.look(),
            _ => Ok(()),
        }
    }

    #[cold]
    fn look(&mut self) -> io::Result<()> {
        match self.began.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

const TURNS_PER_LOOK: u32 = 1 << 16;

/// The other side may be without a CPU for long, yet not for so long.
const PATIENCE: Duration = Duration::from_secs(60);
