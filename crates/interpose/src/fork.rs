//! fork(2): the child gets copies of its parent's state, and is a process of its own.

use crate::hidden;
use crate::local_listen;
use crate::promoter;
use crate::real;
use crate::receive;
use crate::sets;
use crate::signals;
use crate::sockets::{self, Promoted, State};
use crate::spin;
use crate::start;
use crate::uring::rings;
use crate::vfork;

/// fork(2), made by `call`; a child that does not return from it calls [`in_child`] first.
pub(crate) fn fork(call: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    if vfork::borrows_sockets() {
        return call();
    }
    promoter::hold();
    sets::about_to_fork();
    let (mut held, mut counted, mut announced) = (Vec::new(), Vec::new(), Vec::new());
    for (_, socket) in sockets::all() {
        match socket.state() {
            State::Free => continue,
            State::Promoted => {
                let mut inner = socket.lock();
                // It may have been demoted meanwhile.
                let promoted = inner.promoted.as_deref_mut();
                let shared = promoted.map(Promoted::prepare_fork);
                held.push(inner);
                if let Some(may_have_bytes) = shared {
                    announced.extend(may_have_bytes.then_some(socket));
                    continue;
                }
            }
            State::Plain | State::Kernel | State::Offered => {}
        }
        socket.holders.fork();
        counted.push(socket);
    }
    let listeners = local_listen::hold_still();
    let process = call();
    let errno = real::errno();
    drop(listeners);
    if process < 0 {
        counted.iter().for_each(|socket| socket.holders.give_up());
        for inner in &mut held {
            if let Some(promoted) = inner.promoted.as_deref_mut() {
                promoted.connection.unshare();
            }
        }
    }
    drop(held);
    promoter::release();
    match process {
        0 => in_child(),
        _ => announced.into_iter().for_each(receive::list_in_set),
    }
    real::set_errno(errno);
    process
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
