//! Greets over HTTP/1.1 (RFC 9112).

use std::process::ExitCode;

use clap::Parser;
use httparse::{Header, Request, Status};
use servers::{Next, Output, Progress, Server, ServerArguments, Service, Traffic};

/// Greets over HTTP/1.1: the answer to GET and HEAD is "hello"
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    server: ServerArguments<8080>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    servers::serve("megapipe-http", || Ok(Server::bind(&arguments.server)?.run(Greeting)?))
}

/// Bytes of a request's head, and its header fields.
const HEAD_MAX: usize = 8 << 10;
const FIELDS_MAX: usize = 64;

const BODY: &[u8] = b"hello\n";

struct Greeting;

impl Service for Greeting {
    /// What has come of a request that is not whole yet.
    type Session = Vec<u8>;

    fn receive(&self, _: usize, partial: &mut Vec<u8>, input: &[u8], output: &mut Output) -> Progress {
        let joined;
        let input_len = input.len();
        let mut left = input;
        if !partial.is_empty() {
            partial.extend_from_slice(input);
            joined = std::mem::take(partial);
            left = &joined;
        }
        while !left.is_empty() {
            match answer(left, output) {
                Answered::One { taken, keep: true } => left = &left[taken..],
                Answered::One { keep: false, .. } | Answered::Refused => {
                    return Progress { next: Next::Close, consumed: input_len };
                }
                Answered::Incomplete => {
                    partial.extend_from_slice(left);
                    break;
                }
            }
        }
        // Input comes a pool buffer at a time, and an answer is at most four times as long as the shortest request:
        // what is held back is bounded, as in the echo.
        let next = if output.is_full() { Next::Drain } else { Next::Read };
        Progress { next, consumed: input_len }
    }

    fn refusal(&self) -> &'static [u8] {
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    }

    fn count(&self, _: usize, _: Traffic) {}
}

enum Answered {
    /// A request of so many bytes; whether the connection stays.
    One { taken: usize, keep: bool },
    /// More of the request has to come.
    Incomplete,
    /// With an error, after which nothing makes sense.
    Refused,
}

fn answer(input: &[u8], output: &mut Output) -> Answered {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = Request::new(&mut fields);
    let taken = match request.parse(input) {
        Ok(Status::Complete(taken)) => taken,
        Ok(Status::Partial) if input.len() < HEAD_MAX => return Answered::Incomplete,
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
    let keep = stays(&request);
    // What HTTP/1.1 does by itself need not be said (RFC 9112, 9.3).
    let said: &[u8] = match (request.version, keep) {
        (Some(0), true) => b"Connection: keep-alive\r\n",
        (_, false) => b"Connection: close\r\n",
        _ => b"",
    };
    output.push(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ");
    output.push_number(BODY.len() as u64);
    output.push(b"\r\n");
    output.push(said);
    output.push(b"\r\n");
    if with_body {
        output.push(BODY);
    }
    Answered::One { taken, keep }
}

/// Whether the client may go on with this connection (RFC 9112, 9.3).
fn stays(request: &Request<'_, '_>) -> bool {
    let options = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("connection"));
    let mut options = options.flat_map(|field| field.value.split(|&byte| byte == b','));
    let mut asks = |option: &[u8]| options.any(|value| value.trim_ascii().eq_ignore_ascii_case(option));
    if request.version == Some(0) { asks(b"keep-alive") } else { !asks(b"close") }
}

fn refuse(status: &str, output: &mut Output) -> Answered {
    output.push_line(format_args!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n"));
    Answered::Refused
}
