//! `megapipe-http`.

use crate::on_both_engines;
use crate::support::{Server, Verdict, transcript};

on_both_engines!(requests_are_answered, what_is_no_request_ends_the_connection);

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n";

/// Everything that comes for these bytes until the server closes.
fn all(server: &Server, pieces: &[&str]) -> String {
    let pieces = pieces.iter().map(|piece| piece.as_bytes());
    String::from_utf8(transcript(server.address, pieces)).expect("text")
}

fn requests_are_answered(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "http", &[])?;
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let closed = format!("{OK}Connection: close\r\n\r\nhello\n");
    let kept = format!("{OK}\r\nhello\n");
    assert_eq!(all(&server, &[last]), closed);
    // Several at once, and one in pieces.
    let first = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(all(&server, &[&[first, first, last].concat()]), format!("{kept}{kept}{closed}"));
    let pieces: Vec<&str> = (0..last.len()).map(|at| &last[at..=at]).collect();
    assert_eq!(all(&server, &pieces), closed);
    // HTTP/1.0 closes unless it is asked not to.
    assert_eq!(all(&server, &["GET / HTTP/1.0\r\n\r\n"]), closed);
    let asked = "GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n";
    let answered = format!("{OK}Connection: keep-alive\r\n\r\nhello\n{closed}");
    assert_eq!(all(&server, &[asked, last]), answered);
    let head = last.replace("GET", "HEAD");
    assert_eq!(all(&server, &[&head]), format!("{OK}Connection: close\r\n\r\n"));
    Ok(())
}

fn what_is_no_request_ends_the_connection(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "http", &[])?;
    let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(10_000));
    for (request, status) in [
        ("\u{1}\u{2}\r\n\r\n", "400 Bad Request"),
        ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "405 Method Not Allowed\r\nAllow: GET, HEAD"),
        ("GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "413 Content Too Large"),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "413 Content Too Large"),
        (&long, "431 Request Header Fields Too Large"),
    ] {
        let expected = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(all(&server, &[request]), expected, "{request:?}");
    }
    Ok(())
}
