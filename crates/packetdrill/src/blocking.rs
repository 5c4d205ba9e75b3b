//! Calls that block: tried again until they succeed or fail.

use std::time::Duration;

use tcp::Time;

use crate::Cause;
use crate::call::Outcome;
use crate::parse::Call;
use crate::run::{Run, differs};
use crate::system::System;

/// How often a call is tried again.
pub(crate) const STEP: Duration = Duration::from_millis(1);

/// A call that has to return at a time.
pub(crate) struct Blocked {
    call: Call,
    returns: Time,
    /// It was tried before.
    begun: bool,
    /// What it has returned, and when.
    returned: Option<(Time, Result<Outcome, Cause>)>,
}

impl<S: System> Run<S> {
    /// Begins a call. It is compared when something else is called, or the script ends.
    pub(crate) fn block(&mut self, call: &Call, returns: Time) -> Result<(), Cause> {
        self.blocked = Some(Blocked { call: call.clone(), returns, begun: false, returned: None });
        self.retry();
        Ok(())
    }

    /// Tries the call again that has not returned.
    pub(crate) fn retry(&mut self) {
        let Some(mut blocked) = self.blocked.take() else { return };
        if blocked.returned.is_none() {
            let outcome = self.make(&blocked.call).map(|outcome| outcome.of_try(blocked.begun));
            blocked.begun = true;
            if !outcome.as_ref().is_ok_and(|outcome| outcome.would_block(&blocked.call)) {
                blocked.returned = Some((self.system.now(), outcome));
            }
        }
        self.blocked = Some(blocked);
    }

    /// Waits for the call that blocks, and compares what it returns and when.
    pub(crate) fn returned(&mut self) -> Result<(), Cause> {
        let Some(returns) = self.blocked.as_ref().map(|blocked| blocked.returns) else { return Ok(()) };
        self.pass(returns.after(self.late(Duration::ZERO)), false);
        let Some(Blocked { call, returned, .. }) = self.blocked.take() else { return Ok(()) };
        let (when, outcome) = returned.ok_or_else(|| differs(&call.name, "a call that still blocks"))?;
        self.compare(&call, outcome?)?;
        if when > returns.after(self.late(Duration::ZERO)) || when.after(self.early() + STEP) < returns {
            let print = |time: Time| format!("{} to return at {} us", call.name, time.micros());
            return Err(differs(print(returns), print(when)));
        }
        Ok(())
    }
}
