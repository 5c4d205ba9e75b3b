//! The error of an operation that was not queued. It carries the data, and still goes to any
//! thread, as `?` into `anyhow::Error` or `Box<dyn Error + Send + Sync>` requires.
#![allow(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::mem::ManuallyDrop;
use std::thread::{self, ThreadId};

use crate::error::SubmitError;

/// An operation that was not queued, and the data that came with it.
///
/// ```
/// # extern crate megapipe as megapipe;
/// use megapipe::{Channel, Config, Handle, SubmitError};
///
/// fn greet(channel: &mut Channel, client: Handle) -> anyhow::Result<()> {
///     channel.write(client, b"hello".as_slice())?;
///     Ok(())
/// }
///
/// let mut channel = Channel::new(Config::default())?;
/// let error = greet(&mut channel, Handle::NONE).unwrap_err();
/// assert!(error.to_string().contains("the handle is closed"));
///
/// let rejected = channel.write(Handle::NONE, vec![1, 2, 3]).unwrap_err();
/// assert_eq!(rejected.reason, SubmitError::StaleHandle);
/// assert_eq!(rejected.into_data().len(), 3);
/// # anyhow::Ok(())
/// ```
pub struct Rejected<D> {
    /// Why.
    pub reason: SubmitError,
    data: Confined<D>,
}

impl<D> Rejected<D> {
    pub(crate) fn new(reason: SubmitError, data: D) -> Rejected<D> {
        Rejected { reason, data: Confined { value: ManuallyDrop::new(data), thread: thread::current().id() } }
    }
}

impl<D: Default> Rejected<D> {
    /// What the caller gave, untouched. Data belongs to the channel's thread: on another one this
    /// is empty, and what was given is leaked, as it is when the error is dropped there.
    pub fn into_data(self) -> D {
        self.data.into_value().unwrap_or_default()
    }
}

impl<D> fmt::Debug for Rejected<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<D> fmt::Display for Rejected<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<D> Error for Rejected<D> {}

impl<D> From<Rejected<D>> for SubmitError {
    fn from(rejected: Rejected<D>) -> SubmitError {
        rejected.reason
    }
}

/// A value that is used and dropped on the thread that made it only.
struct Confined<D> {
    value: ManuallyDrop<D>,
    thread: ThreadId,
}

// SAFETY: `value` is private to this module, nothing refers to it, and it is taken out and dropped
// on the thread that made it only: both methods below compare the thread first. Thread ids are
// never used again.
unsafe impl<D> Send for Confined<D> {}
// SAFETY: as above; a shared reference gives no access to `value` at all.
unsafe impl<D> Sync for Confined<D> {}

impl<D> Confined<D> {
    fn into_value(self) -> Option<D> {
        let mut confined = ManuallyDrop::new(self);
        // SAFETY: this is the thread of the value, which is not used again: `confined` is not dropped.
        (confined.thread == thread::current().id())
            .then(|| unsafe { ManuallyDrop::take(&mut confined.value) })
    }
}

impl<D> Drop for Confined<D> {
    fn drop(&mut self) {
        if self.thread == thread::current().id() {
            // SAFETY: this is the thread of the value, which nothing uses afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn rejected(data: &Rc<()>) -> Rejected<Option<Rc<()>>> {
        Rejected::new(SubmitError::QueueFull, Some(Rc::clone(data)))
    }

    #[test]
    fn data_stays_with_its_thread() {
        let data = Rc::new(());
        assert!(rejected(&data).into_data().is_some());
        drop(rejected(&data));
        assert_eq!(Rc::strong_count(&data), 1);

        let (taken, dropped) = (rejected(&data), rejected(&data));
        let elsewhere = thread::spawn(move || {
            drop(dropped);
            (taken.reason, format!("{taken:?}"), taken.into_data().is_none())
        });
        let (reason, text, none) = elsewhere.join().expect("no panic");
        assert_eq!(reason, SubmitError::QueueFull);
        assert!(text.contains("QueueFull") && none);
        // Leaked, and not touched by the other thread.
        assert_eq!(Rc::strong_count(&data), 3);
    }
}
