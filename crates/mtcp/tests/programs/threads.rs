//! Stacks in threads of their own: what they do while the program does something else, and how they end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use testkit::netns;

use super::support::{BOUND, OWN_OR_NONE, Place, Running, THREADS, connect};

fn start(place: &Place, what: &str) -> Running {
    let mut program = place.start(&place.build("tests/c/stack_thread.c"), &[what]);
    program.ready(1);
    program
}

/// Bytes that the peer has not acknowledged.
fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut left = 0;
    // SAFETY: a live descriptor, and a number to write to.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut left) }, 0);
    left
}

/// While the program calls nothing, a connection is accepted and its bytes are acknowledged.
#[test]
fn a_program_that_computes_has_its_peers_answered() {
    if !netns::enter("threads::a_program_that_computes_has_its_peers_answered", BOUND) {
        return;
    }
    for thread in ["own", "other"] {
        let place = Place::new("compute", thread);
        let mut program = start(&place, "compute");
        let _first = connect(7);
        assert_eq!(program.line(), "computing");
        let mut second = connect(7);
        second.write_all(&[7; 64]).expect("written");
        let deadline = Instant::now() + BOUND;
        while unacknowledged(&second) > 0 {
            assert!(Instant::now() < deadline, "the stack acknowledges nothing");
            thread::sleep(Duration::from_millis(1));
        }
        program.tell("go on");
        let mut answer = [0; 64];
        second.read_exact(&mut answer).expect("an echo");
        assert_eq!(answer, [7; 64]);
        program.ended();
    }
}

/// What was written before the context is destroyed arrives, and the stack's thread is gone.
#[test]
fn a_context_that_is_destroyed_loses_nothing() {
    if !netns::enter("threads::a_context_that_is_destroyed_loses_nothing", BOUND) {
        return;
    }
    for stack in THREADS {
        let place = Place::new("destroy", stack);
        let mut program = start(&place, "destroy");
        let mut stream = connect(7);
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("the end of the stream");
            all
        });
        let written: usize = program.line().parse().expect("a number");
        let all = reader.join().expect("no panic");
        assert!(all.len() == written && all.iter().all(|&byte| byte == 7), "{} of {written}", all.len());
        program.ended();
    }
}

/// As with the kernel's TCP, whether the program or its stack has the bytes.
#[test]
fn a_close_with_bytes_unread_resets() {
    if !netns::enter("threads::a_close_with_bytes_unread_resets", BOUND) {
        return;
    }
    for stack in OWN_OR_NONE {
        let place = Place::new("unread", stack);
        let mut program = start(&place, "unread");
        let mut stream = connect(7);
        stream.write_all(b"unread").expect("written");
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(connect(7));
        program.ended();
    }
}

/// A child has no stack: its calls fail, and its end leaves the parent's connections alone.
#[test]
fn a_forked_child_has_no_stack() {
    if !netns::enter("threads::a_forked_child_has_no_stack", BOUND) {
        return;
    }
    let place = Place::new("fork", "own");
    let mut program = start(&place, "fork");
    let mut stream = connect(7);
    assert_eq!(program.line(), "forked");
    stream.write_all(b"x").expect("written");
    stream.read_exact(&mut [0]).expect("an echo");
    program.ended();
}
