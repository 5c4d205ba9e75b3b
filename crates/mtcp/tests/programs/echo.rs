//! An echo server as programs for mTCP are written, with clients of the kernel's: sizes from a byte to
//! many times the buffers, ends of both kinds, and clients that break off.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use testkit::net::{pattern, reset_on_drop};
use testkit::netns;

use super::support::{BOUND, Place, THREADS, connect};

const SIZES: [usize; 6] = [1, 1_448, 8_192, 70_000, 300_000, 2_000_000];

/// Sends while it reads, and compares; a half-close asks for the end of the stream.
fn exchange(mut stream: TcpStream, size: usize, seed: u64, half_close: bool) {
    let bytes = pattern(size, seed);
    thread::scope(|scope| {
        let mut writer = stream.try_clone().expect("a descriptor");
        let sent = &bytes;
        scope.spawn(move || {
            writer.write_all(sent).expect("written");
            if half_close {
                writer.shutdown(Shutdown::Write).expect("half-closed");
            }
        });
        let mut back = vec![0; size];
        stream.read_exact(&mut back).expect("an echo");
        assert!(back == bytes, "{size} bytes came back changed");
    });
    if half_close {
        assert_eq!(stream.read(&mut [0]).expect("the end of the stream"), 0);
    }
}

/// Breaks off with a reset, with bytes under way both ways.
fn break_off(mut stream: TcpStream) {
    stream.write_all(&[7; 50_000]).expect("written");
    reset_on_drop(&stream);
}

fn echo(test: &str, edge: &str) {
    if !netns::enter(test, BOUND) {
        return;
    }
    for (threads, stack) in ["1", "2"].into_iter().flat_map(|threads| THREADS.map(|stack| (threads, stack))) {
        let place = Place::new(&format!("echo-{edge}-{threads}"), stack);
        let mut server = place.start(&place.build("tests/c/echo.c"), &[threads, edge]);
        server.ready(threads.parse().expect("a number"));
        thread::scope(|scope| {
            for client in 0..12u64 {
                scope.spawn(move || {
                    for (round, size) in SIZES.into_iter().enumerate() {
                        let port = 7 + (client % 2) as u16;
                        exchange(connect(port), size, client, (client as usize + round).is_multiple_of(3));
                        break_off(connect(port));
                    }
                });
            }
        });
        server.interrupt();
    }
}

#[test]
fn by_level() {
    echo("echo::by_level", "0");
}

#[test]
fn by_edge() {
    echo("echo::by_edge", "1");
}
