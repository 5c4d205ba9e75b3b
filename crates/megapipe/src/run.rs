//! The loop that most programs have around a channel.

use std::ops::ControlFlow;

use crate::channel::Channel;
use crate::completion::Completion;
use crate::error::DispatchError;

impl Channel {
    /// Gives every completion to `serve`, until that breaks or fails, and returns what it broke
    /// with. Goes on after signals: a program that ends on one makes it a completion, of a signalfd
    /// or of [`Channel::waker`].
    ///
    /// ```
    /// # extern crate megapipe as megapipe;
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    ///
    /// use megapipe::{Channel, Config};
    ///
    /// fn count_down(channel: &mut Channel, from: u64) -> anyhow::Result<u64> {
    ///     channel.timer(Duration::from_millis(1), from)?;
    ///     channel.run(|channel, completion| {
    ///         if completion.cookie == 0 {
    ///             return Ok(ControlFlow::Break(from));
    ///         }
    ///         channel.timer(Duration::from_millis(1), completion.cookie - 1)?;
    ///         Ok(ControlFlow::Continue(()))
    ///     })
    /// }
    ///
    /// assert_eq!(count_down(&mut Channel::new(Config::default())?, 3)?, 3);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `serve`; [`DispatchError`] but `Interrupted`.
    pub fn run<B, E>(
        &mut self,
        mut serve: impl FnMut(&mut Channel, Completion) -> Result<ControlFlow<B>, E>,
    ) -> Result<B, E>
    where
        E: From<DispatchError>,
    {
        loop {
            let completion = match self.dispatch(None) {
                Ok(Some(completion)) => completion,
                Ok(None) | Err(DispatchError::Interrupted) => continue,
                Err(error) => return Err(error.into()),
            };
            if let ControlFlow::Break(value) = serve(self, completion)? {
                return Ok(value);
            }
        }
    }
}
