//! Channels that accept from one listener, one of which is away and then stops accepting.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use megapipe::{AcceptAs, AcceptCount, AcceptError, CpuSet, EngineKind, Event, Handle, OpId};
use socket2::{Domain, Socket, Type};
use sys::capabilities::Capabilities;

use super::partition::{answer, ask, join, shared_socket};
use crate::conformance::Fixture;
use crate::driver::{Driver, Form};
use crate::net::{self, Scratch};
use crate::skip::{Skipped, Verdict};

/// Skips where any system call of a thread that is away has its accepts go on.
pub(super) fn needs_deferral(fixture: &Fixture) -> Verdict {
    if fixture.engine() == EngineKind::Uring && !Capabilities::get().defer_taskrun {
        return Err(Skipped::because("without IORING_SETUP_DEFER_TASKRUN any system call runs accepts"));
    }
    Ok(())
}

/// Ends the accept, and returns what goes on without it.
type Leave = fn(Driver, Handle, OpId) -> Option<Driver>;

fn end_channel(away: Driver, _: Handle, _: OpId) -> Option<Driver> {
    drop(away);
    None
}

fn close(mut away: Driver, handle: Handle, _: OpId) -> Option<Driver> {
    away.close(handle).unwrap();
    away.expect_silence();
    Some(away)
}

fn unregister(mut away: Driver, handle: Handle, _: OpId) -> Option<Driver> {
    drop(away.unregister(handle).unwrap());
    Some(away)
}

fn cancel(mut away: Driver, _: Handle, op: OpId) -> Option<Driver> {
    away.cancel(op).unwrap();
    let completion = away.next();
    assert_eq!(completion.op, op);
    let Event::Accept { result: Err(AcceptError::Cancelled), more: false } = completion.event else {
        panic!("{:?}", completion.event);
    };
    Some(away)
}

/// A channel with an accept on the listener.
fn accepting(fixture: &Fixture, listener: OwnedFd) -> Driver {
    let mut driver = fixture.driver();
    let handle = driver.register(listener, 0).unwrap();
    driver.accept(handle, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
    driver.flush().unwrap();
    driver
}

/// The channel answers every client.
fn answer_all<T: Read + Write + Send>(mut driver: Driver, mut peers: Vec<T>) {
    let (expected, mut served) = (peers.len(), 0);
    driver.drive_while(
        || peers.iter_mut().for_each(|peer| ask(peer).expect("the other channel answers")),
        |channel, completion| served += usize::from(answer(channel, completion)),
    );
    assert_eq!(served, expected);
}

/// Connections come while the channel that the kernel wakes first is away. Then it stops
/// accepting: the other one answers all of them, though no further connection wakes it.
fn leave_to_another(fixture: &Fixture, leave: Leave) {
    for count in [AcceptCount::Unlimited, AcceptCount::Exactly(1), AcceptCount::Exactly(9)] {
        for kind in [AcceptAs::Fd, AcceptAs::LwSocket] {
            for form in Form::ALL {
                // The accept is the kernel's, or queued.
                for (waiting, started) in [(1, true), (20, true), (20, false)] {
                    let listener = net::listener();
                    let mut away = fixture.driver();
                    let handle = away.add(listener.try_clone().unwrap().into(), form, 0);
                    let op = away.accept(handle, count, kind).unwrap();
                    if started {
                        away.flush().unwrap();
                    }
                    let other = accepting(fixture, listener.try_clone().unwrap().into());
                    let peers: Vec<_> = (0..waiting).map(|_| net::connect(&listener)).collect();
                    let _rest = leave(away, handle, op);
                    answer_all(other, peers);
                }
            }
        }
    }
}

pub fn a_channel_that_ends_takes_nothing_from_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    leave_to_another(fixture, end_channel);
    Ok(())
}

pub fn a_closed_handle_takes_nothing_from_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    leave_to_another(fixture, close);
    Ok(())
}

pub fn an_unregistered_handle_takes_nothing_from_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    leave_to_another(fixture, unregister);
    Ok(())
}

pub fn a_cancelled_accept_takes_nothing_from_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    leave_to_another(fixture, cancel);
    Ok(())
}

pub fn a_unix_listener_is_left_to_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    let scratch = Scratch::new();
    for (number, leave) in [end_channel, close, unregister, cancel].into_iter().enumerate() {
        let path = scratch.join(number.to_string());
        let listener = UnixListener::bind(&path).unwrap();
        let mut away = fixture.driver();
        let handle = away.register(listener.try_clone().unwrap(), 0).unwrap();
        let op = away.accept(handle, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
        away.flush().unwrap();
        let other = accepting(fixture, listener.into());
        let connect = || {
            let peer = UnixStream::connect(&path).unwrap();
            net::bounded(&peer);
            peer
        };
        let peers: Vec<_> = (0..20).map(|_| connect()).collect();
        let _rest = leave(away, handle, op);
        answer_all(other, peers);
    }
    Ok(())
}

/// The channel registers a socket before the caller's listen(2).
pub fn a_socket_that_listens_late_is_left_to_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    for leave in [end_channel, close, unregister, cancel] {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let mut away = fixture.driver();
        let handle = away.register(socket.try_clone().unwrap(), 0).unwrap();
        socket.bind(&net::v4().into()).unwrap();
        socket.listen(100).unwrap();
        let op = away.accept(handle, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
        away.flush().unwrap();
        let listener = TcpListener::from(socket);
        let other = accepting(fixture, listener.try_clone().unwrap().into());
        let peers: Vec<_> = (0..20).map(|_| net::connect(&listener)).collect();
        let _rest = leave(away, handle, op);
        answer_all(other, peers);
    }
    Ok(())
}

/// A listener of the caller's that a partitioned handle shares is not shut down with the handle.
pub fn a_listener_of_the_callers_is_left_to_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    let leaves: [fn(&mut Driver, Handle); 2] =
        [|away, handle| away.close(handle).unwrap(), |away, handle| drop(away.unregister(handle).unwrap())];
    for leave in leaves.into_iter().map(Some).chain([None]) {
        let (socket, address) = shared_socket(net::v4());
        socket.listen(100).unwrap();
        let mut away = join(fixture, &socket, &CpuSet::empty());
        let other = accepting(fixture, socket.as_fd().try_clone_to_owned().unwrap());
        let peers: Vec<_> = (0..20).map(|_| net::connect_to(address)).collect();
        if let Some(leave) = leave {
            leave(&mut away.driver, away.listener);
            away.driver.expect_silence();
        } else {
            drop(away);
        }
        answer_all(other, peers);
    }
    Ok(())
}

/// Many listeners of one channel: the end of one accept must not have the others go on.
pub fn many_listeners_are_left_to_another(fixture: &mut Fixture) -> Verdict {
    needs_deferral(fixture)?;
    // The closes make no batch by themselves.
    for closed in [0, 20] {
        let listeners: Vec<_> = (0..300).map(|_| net::listener()).collect();
        let mut away = fixture.driver();
        let mut other = fixture.driver();
        let mut handles = Vec::new();
        for driver in [&mut away, &mut other] {
            for listener in &listeners {
                let handle = driver.register(listener.try_clone().unwrap(), 0).unwrap();
                driver.accept(handle, AcceptCount::Unlimited, AcceptAs::LwSocket).unwrap();
                handles.push(handle);
            }
            driver.flush().unwrap();
        }
        let peers: Vec<_> = listeners.iter().map(net::connect).collect();
        handles[..closed].iter().for_each(|&handle| away.close(handle).unwrap());
        drop(away);
        answer_all(other, peers);
    }
    Ok(())
}
