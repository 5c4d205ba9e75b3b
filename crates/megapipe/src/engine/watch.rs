//! Descriptors beside the handles that a turn waits for too: the monitor's socket, later the
//! device of a TCP in user space.

/// Names one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch(u8);

impl Watch {
    /// The socket to the monitor.
    pub(crate) const MONITOR: Watch = Watch(0);

    /// The device of the stack with this number.
    #[cfg(feature = "tcp")]
    pub(crate) fn of_stack(number: usize) -> Option<Watch> {
        Watch::from_number(2 * number as u64 + 1)
    }

    /// The other stacks on the device of this one.
    #[cfg(feature = "tcp")]
    pub(crate) fn of_group(number: usize) -> Option<Watch> {
        Watch::from_number(2 * number as u64 + 2)
    }

    /// The set of polled descriptors: the last number, which no stack has.
    pub(crate) const POLLS: Watch = Watch(Watch::MAX - 1);

    /// How many there may be.
    const MAX: u8 = 32;

    pub(crate) fn number(self) -> u32 {
        self.0.into()
    }

    /// The watch of this number, which came back through the kernel.
    pub(crate) fn from_number(number: u64) -> Option<Watch> {
        u8::try_from(number).ok().filter(|&number| number < Watch::MAX).map(Watch)
    }
}

/// The watched descriptors that have something to read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readable(u32);

impl Readable {
    pub(crate) fn raise(&mut self, watch: Watch) {
        self.0 |= 1 << watch.0;
    }

    #[inline]
    pub(crate) fn has(self, watch: Watch) -> bool {
        self.0 & 1 << watch.0 != 0
    }

    /// Whether this one was raised since it was last asked.
    pub(crate) fn take(&mut self, watch: Watch) -> bool {
        let raised = self.has(watch);
        self.0 &= !(1 << watch.0);
        raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_watch_is_taken_once() {
        let mut readable = Readable::default();
        let last = Watch::from_number(31).expect("in range");
        assert_eq!(Watch::from_number(32), None);
        assert_eq!(Watch::from_number(u64::MAX), None);
        readable.raise(last);
        assert!(!readable.take(Watch::MONITOR));
        readable.raise(Watch::MONITOR);
        assert!(readable.take(last) && readable.take(Watch::MONITOR));
        assert!(!readable.take(last) && !readable.take(Watch::MONITOR));
    }
}
