//! fork(2): the child gets copies of its parent's state, and is a process of its own.
#![allow(unsafe_code)] // pthread_atfork(3)

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hidden;
use crate::local_listen;
use crate::promoter;
use crate::real;
use crate::receive;
use crate::sets;
use crate::signals;
use crate::sockets::{self, Guard, Promoted, Socket, State};
use crate::spin;
use crate::start;
use crate::uring::rings;
use crate::vfork;

/// The locks of this process that its forks hold, and what they count.
struct Forking {
    held: Vec<Guard<'static>>,
    counted: Vec<&'static Socket>,
    shared: Vec<&'static Socket>,
    /// Sockets whose doorbells may have announced bytes that the child may consume from a set.
    announced: Vec<&'static Socket>,
    listeners: Option<local_listen::Still>,
}

thread_local! {
    /// Between the handlers of a fork. Without a destructor, which would have to be registered for
    /// the end of the thread.
    static FORKING: Cell<Option<ManuallyDrop<Forking>>> = const { Cell::new(None) };
    /// What the last fork counted: it may have failed, which its handlers do not see.
    static COUNTED: Cell<Option<ManuallyDrop<[Vec<&'static Socket>; 2]>>> = const { Cell::new(None) };
}

/// Our handlers are registered.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Registers handlers with pthread_atfork(3). Those of the program, which are registered later, run
/// before the locks are held and after they are free: they may use connections, or wait for threads
/// that do.
pub(crate) fn register() {
    // SAFETY: functions that stay: the library is not unloaded.
    let status = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(after_in_child)) };
    HAS_HANDLERS.store(status == 0, Ordering::Relaxed);
}

extern "C" fn before() {
    if !vfork::borrows_sockets() {
        FORKING.set(Some(ManuallyDrop::new(Forking::begin())));
    }
}

extern "C" fn in_parent() {
    if let Some(forking) = FORKING.take() {
        COUNTED.set(Some(ManuallyDrop::new(ManuallyDrop::into_inner(forking).end())));
    }
}

extern "C" fn after_in_child() {
    if let Some(forking) = FORKING.take() {
        ManuallyDrop::into_inner(forking).end_in_child();
    }
}

/// fork(2) by a function that runs the handlers of pthread_atfork(3).
pub(crate) fn fork_with_handlers(call: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    if !HAS_HANDLERS.load(Ordering::Relaxed) {
        return fork(call);
    }
    let process = call();
    let counted = COUNTED.take().map(ManuallyDrop::into_inner);
    if let Some(counted) = counted.filter(|_| process < 0) {
        real::kept_errno(|| undo(&counted));
    }
    process
}

/// Another way to fork, made by `call`; a child that does not return from it calls [`in_child`]
/// first.
pub(crate) fn fork(call: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    if vfork::borrows_sockets() {
        return call();
    }
    let forking = Forking::begin();
    let process = call();
    real::kept_errno(|| match process {
        0 => forking.end_in_child(),
        _ => {
            let counted = forking.end();
            if process < 0 {
                undo(&counted);
            }
        }
    });
    process
}

/// The fork failed.
fn undo([counted, shared]: &[Vec<&'static Socket>; 2]) {
    counted.iter().for_each(|socket| socket.holders.give_up());
    for socket in shared {
        if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
            promoted.connection.unshare();
        }
    }
}

impl Forking {
    fn begin() -> Forking {
        promoter::hold();
        sets::about_to_fork();
        let (mut held, mut counted, mut shared, mut announced) = (vec![], vec![], vec![], vec![]);
        for (_, socket) in sockets::all() {
            match socket.state() {
                State::Free => continue,
                State::Promoted => {
                    let mut inner = socket.lock();
                    // It may have been demoted meanwhile.
                    let may_have_bytes = inner.promoted.as_deref_mut().map(Promoted::prepare_fork);
                    held.push(inner);
                    if let Some(may_have_bytes) = may_have_bytes {
                        shared.push(socket);
                        announced.extend(may_have_bytes.then_some(socket));
                        continue;
                    }
                }
                State::Plain | State::Kernel | State::Offered => {}
            }
            socket.holders.fork();
            counted.push(socket);
        }
        Forking { held, counted, shared, announced, listeners: local_listen::hold_still() }
    }

    /// Returns the sockets that were counted and those that are shared.
    fn end(self) -> [Vec<&'static Socket>; 2] {
        let Forking { held, counted, shared, announced, listeners } = self;
        drop(listeners);
        drop(held);
        promoter::release();
        announced.into_iter().for_each(receive::list_in_set);
        [counted, shared]
    }

    fn end_in_child(self) {
        drop(self.listeners);
        drop(self.held);
        in_child();
    }
}

/// In the child of a fork: resets the state that belongs to the parent.
pub(crate) fn in_child() {
    vfork::owns_memory(0);
    promoter::release();
    signals::forked();
    hidden::forked();
    sockets::forked();
    sets::forked();
    rings::forked();
    promoter::forked();
    spin::forked();
    start::forked();
    local_listen::forked();
}
