//! Answers to requests for metrics, valid or not.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::support::*;

/// Sends this, in pieces, and returns the answer: its head and its body.
fn ask(running: &Running, pieces: &[&[u8]], ends: bool) -> (String, String) {
    let mut stream = UnixStream::connect(running.place.join("metrics")).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    for piece in pieces {
        stream.write_all(piece).unwrap();
    }
    if ends {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut bytes = Vec::new();
    // Bytes beyond the request come back as ECONNRESET, after the answer.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    (head.to_owned(), body.to_owned())
}

fn length(head: &str) -> usize {
    head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap()
}

#[test]
fn the_head_alone_comes_without_a_body() {
    let (running, first) = Running::start(SHARE);
    let (head, body) = ask(&running, &[b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"], false);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.ends_with("# EOF\n"), "{head}");
    assert_eq!(length(&head), body.len());
    assert_eq!(ask(&running, &[b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"], false), (head, String::new()));
    // In pieces, and with lone line feeds.
    let (head, _) = ask(&running, &[b"GE", b"T /metrics HTTP/1.0\n", b"\n"], false);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    drop(first);
    running.end();
}

#[test]
fn bad_requests_get_their_errors() {
    let (running, first) = Running::start(SHARE);
    for method in ["POST", "DELETE", "PUT", "get", "OPTIONS"] {
        let question = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let (head, body) = ask(&running, &[question.as_bytes()], false);
        assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("\r\nAllow: GET, HEAD\r\n"), "{head}");
        assert_eq!(length(&head), body.len());
    }
    let malformed: [&[u8]; 8] = [
        b"garbage\r\n\r\n",
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1 and more\r\n\r\n",
        b"G\0T / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
    ];
    for question in malformed {
        let (head, body) = ask(&running, &[question], false);
        assert!(head.starts_with("HTTP/1.1 400 "), "{question:?}: {head}");
        assert_eq!(length(&head), body.len());
    }
    // No line at all: until it ends, or is too long.
    let (head, _) = ask(&running, &[b"GET / HTTP/1.1\r\nHost: a"], true);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let (head, _) = ask(&running, &[&[b'a'; 9000]], false);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert_eq!(metric(&running.place, "clients"), 1);
    drop(first);
    running.end();
}
