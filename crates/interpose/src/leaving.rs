//! Connections that go to a program, or a part of this one, that knows of no rings: by exec, in
//! a message, into stdio. They are brought back to TCP before, for good.
//!
//! What lies unread in the incoming ring at that time is seen by this process only.

use std::ffi::c_int;
use std::time::Duration;

use crate::fork;
use crate::kernel;
use crate::promoter;
use crate::real;
use crate::sockets::{self, Socket, State};
use crate::stats::{self, Stays};
use crate::table::{self, Entry};

/// What a message that the other end is just sending takes at the most, if it is not held up.
const SETTLES: Duration = Duration::from_micros(200);

/// Somebody else is about to use the socket of this descriptor.
pub(crate) fn leave(fd: c_int) {
    if let Entry::Socket(number) = table::entry(fd) {
        let errno = real::errno();
        if bring_back(number, sockets::at(number), fd) {
            settle(sockets::at(number), fd);
        }
        real::set_errno(errno);
    }
}

/// Another program is about to take this one's place, with all descriptors that are not closed
/// on exec(2).
pub(crate) fn before_exec() {
    if fork::borrows_memory() {
        // Its descriptors are not those of the table: what it duplicated was brought back then.
        return;
    }
    let inherited = |fd: &c_int| matches!(table::entry(*fd), Entry::Socket(_)) && kernel::is_inherited(*fd);
    (0..table::end()).filter(inherited).for_each(leave);
}

/// Whether it was promoted.
fn bring_back(number: u32, socket: &'static Socket, fd: c_int) -> bool {
    match socket.state() {
        State::Free | State::Kernel => false,
        State::Plain | State::Offered => {
            if socket.state() == State::Offered {
                promoter::forget_offer(socket, number);
            }
            stats::stays(Stays::Shared);
            socket.set_state(State::Kernel);
            false
        }
        State::Promoted => {
            let mut inner = socket.lock();
            let Some(promoted) = inner.promoted.as_deref_mut() else { return false };
            let first = !std::mem::replace(&mut promoted.left, true);
            promoted.shown_in_kernel = true;
            if first && promoted.connection.leave().is_err() {
                promoted.corrupt(fd);
            }
            first
        }
    }
}

/// Takes out the bells that came before the other end saw what was asked for.
fn settle(socket: &'static Socket, fd: c_int) {
    std::thread::sleep(SETTLES);
    if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
        promoted.drop_bells(fd);
    }
}
