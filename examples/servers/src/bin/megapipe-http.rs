//! Greets over HTTP/1.1 (RFC 9112).

use std::ops::ControlFlow::{self, Break, Continue};

use clap::Parser;
use httparse::{Header, Request, Status};
use servers::{Output, Service};

/// Greets over HTTP/1.1: the answer to GET and HEAD is "hello"
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    server: servers::ServerArguments,
}

fn main() -> anyhow::Result<()> {
    servers::serve(&Arguments::parse().server, 8080, Greeting)
}

/// Bytes of a request's head, and its header fields.
const HEAD_MAX: usize = 8 << 10;
const FIELDS_MAX: usize = 64;

const BODY: &[u8] = b"hello\n";

struct Greeting;

impl Service for Greeting {
    type Session = ();

    fn receive(&self, (): &mut (), input: &[u8], output: &mut Output) -> ControlFlow<(), usize> {
        let mut left = input;
        while !left.is_empty() && !output.is_full() {
            match answer(left, output) {
                Ok(0) => break,
                Ok(consumed) => left = &left[consumed..],
                Err(Closed) => return Break(()),
            }
        }
        Continue(input.len() - left.len())
    }

    fn refusal(&self) -> &'static [u8] {
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    }
}

/// The connection ends behind the answer.
struct Closed;

/// Answers one request; returns its length, or 0 if more of it has to come.
fn answer(input: &[u8], output: &mut Output) -> Result<usize, Closed> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = Request::new(&mut fields);
    let consumed = match request.parse(input) {
        Ok(Status::Complete(consumed)) => consumed,
        Ok(Status::Partial) if input.len() < HEAD_MAX => return Ok(0),
        Ok(Status::Partial) => return refuse("431 Request Header Fields Too Large", output),
        Err(_) => return refuse("400 Bad Request", output),
    };
    // A body would have to be read before the next request.
    let has_body = |field: &Header<'_>| {
        field.name.eq_ignore_ascii_case("transfer-encoding")
            || field.name.eq_ignore_ascii_case("content-length") && field.value != b"0"
    };
    let with_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return refuse("405 Method Not Allowed\r\nAllow: GET, HEAD", output),
    };
    if request.headers.iter().any(has_body) {
        return refuse("413 Content Too Large", output);
    }
    let stays = stays(&request);
    // What HTTP/1.1 does by itself need not be said (RFC 9112, 9.3).
    let connection: &[u8] = match (request.version, stays) {
        (Some(0), true) => b"Connection: keep-alive\r\n",
        (_, false) => b"Connection: close\r\n",
        _ => b"",
    };
    output.push(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ");
    output.push_number(BODY.len() as u64);
    output.push(b"\r\n");
    output.push(connection);
    output.push(b"\r\n");
    if with_body {
        output.push(BODY);
    }
    if stays { Ok(consumed) } else { Err(Closed) }
}

/// Whether the client may go on with this connection (RFC 9112, 9.3).
fn stays(request: &Request<'_, '_>) -> bool {
    let options = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("connection"));
    let mut options = options.flat_map(|field| field.value.split(|&byte| byte == b','));
    let mut asks = |option: &[u8]| options.any(|value| value.trim_ascii().eq_ignore_ascii_case(option));
    if request.version == Some(0) { asks(b"keep-alive") } else { !asks(b"close") }
}

fn refuse(status: &str, output: &mut Output) -> Result<usize, Closed> {
    output.push_line(format_args!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n"));
    Err(Closed)
}
