//! When a monitor on demand ends although it has clients: a monitor of the system answers, or
//! its executable was replaced. Its clients then find the other one, or the one that the next
//! `megapipe run` starts.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use promote::Place;
use promote::viewer::Viewer;
use sys::eventfd;

/// Between two checks. With the time that a monitor has for its answer an end comes within 10 s.
const EVERY: Duration = Duration::from_secs(4);

/// A thread that checks for a successor: a monitor that is hung must not stop this one.
pub(crate) struct Succession(Arc<OwnedFd>);

impl Succession {
    /// Begins to check. The thread ends soon after `Succession` is dropped.
    pub(crate) fn watch(system: Option<Place>) -> io::Result<Succession> {
        let due = Arc::new(eventfd::create()?);
        let seen = Arc::downgrade(&due);
        std::thread::Builder::new().name("succession".into()).spawn(move || check(system.as_ref(), &seen))?;
        Ok(Succession(due))
    }

    /// Readable once this monitor has to end.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn check(system: Option<&Place>, due: &Weak<OwnedFd>) {
    let executable = Executable::of_this_process();
    loop {
        std::thread::sleep(EVERY);
        let Some(due) = due.upgrade() else { return };
        let reason = if executable.as_ref().is_some_and(Executable::is_replaced) {
            "its executable was replaced"
        } else if system.is_some_and(|place| Viewer::connect(place, "succession").is_ok()) {
            "a system monitor answers"
        } else {
            continue;
        };
        tracing::info!(reason, "the monitor ends");
        return eventfd::raise(due.as_fd());
    }
}

/// The file that this process executes, where it can be seen by its path.
struct Executable {
    path: PathBuf,
    file: (u64, u64),
}

impl Executable {
    fn of_this_process() -> Option<Executable> {
        const OWN: &str = "/proc/self/exe";
        let executable = Executable { path: fs::read_link(OWN).ok()?, file: identity(OWN.as_ref())? };
        (!executable.is_replaced()).then_some(executable)
    }

    /// Removed counts, too: a package manager may unlink before it renames.
    fn is_replaced(&self) -> bool {
        identity(&self.path) != Some(self.file)
    }
}

/// Device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
