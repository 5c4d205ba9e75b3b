//! Stacks in user space, seen from the channel.

use crate::channel::Channel;
use crate::engine::stack::Stack;
use crate::engine::view::View;
use crate::error::AttachError;

impl Channel {
    /// Gives the channel a TCP of its own, beside the kernel's. From now on [`Self::listen_on`] an
    /// address of the stack, and [`Self::connect_to`] an address that its device reaches, make
    /// sockets of the stack; all others are the kernel's, as before.
    ///
    /// Sockets of a stack are lightweight sockets: they have no descriptor, so they stay in this
    /// channel, are accepted as [`crate::AcceptAs::LwSocket`] only, and are never promoted. The stack
    /// lives as long as the channel. A channel that is dropped sends what was written for at most
    /// one second, and resets what the peer has not acknowledged by then. The copy of a forked child
    /// does nothing.
    ///
    /// [`crate::Config::latency_bound`] has no effect any more: packets do not wait for a batch.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach(&mut self, stack: Stack) -> Result<(), AttachError> {
        self.engine.attach(&mut View::of(&mut self.core), stack)
    }
}
