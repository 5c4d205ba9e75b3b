//! What is asked of a server, and what its answers have to be.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use super::{LoadError, Target, socket};

/// What is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// So many bytes, which are answered with as many.
    Echo(usize),
    /// As many bytes as the server takes, so many with a call; no answers. Counted are bytes.
    Upload(usize),
    /// As many bytes as the server sends, unasked. Counted are bytes.
    Download(usize),
    /// memcached: read so many bytes.
    MemcachedGet(usize),
    /// Redis: read 64 bytes.
    RedisGet,
    /// HTTP/1.1: fetch `/`.
    Http,
    /// HTTP/1.0: fetch `/`; the server closes the connection behind the answer.
    HttpOnce,
    /// The same of `BLOCKING`.
    HttpBlocking,
}

/// The path that blocks the worker of a server of `listen` that is asked for it.
pub(crate) const BLOCKING: &str = "/block";

/// What each answer has to be: a beginning and a length, both as in the first one.
pub(super) struct Answer {
    pub(super) start: Vec<u8>,
    pub(super) length: usize,
    /// The server closes the connection behind it.
    pub(super) closes: bool,
}

impl Request {
    /// What a connection sends.
    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Request::Echo(size) | Request::Upload(size) | Request::Download(size) => return vec![b'q'; size],
            Request::MemcachedGet(_) => "get key\r\n".to_owned(),
            Request::RedisGet => "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_owned(),
            Request::Http => "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            Request::HttpOnce => "GET / HTTP/1.0\r\nHost: megapipe\r\n\r\n".to_owned(),
            Request::HttpBlocking => format!("GET {BLOCKING} HTTP/1.0\r\nHost: megapipe\r\n\r\n"),
        }
        .into_bytes()
    }

    /// What its answer is. Asks the server where only it can say, and writes what is to be read.
    pub(super) fn answer(self, target: &Target) -> Result<Answer, LoadError> {
        let known = |start: String| Answer { length: start.len(), start: start.into(), closes: false };
        match self {
            Request::Echo(length) | Request::Upload(length) | Request::Download(length) => {
                Ok(Answer { start: Vec::new(), length, closes: false })
            }
            Request::MemcachedGet(size) => {
                let value = VALUE.chars().cycle().take(size).collect::<String>();
                store(target, &format!("set key 0 0 {size}\r\n{value}\r\n"), "STORED\r\n")?;
                Ok(known(format!("VALUE key 0 {size}\r\n{value}\r\nEND\r\n")))
            }
            Request::RedisGet => {
                store(target, &format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$64\r\n{VALUE}\r\n"), "+OK\r\n")?;
                Ok(known(format!("$64\r\n{VALUE}\r\n")))
            }
            Request::Http => fetch(target, &self.bytes(), false),
            Request::HttpOnce | Request::HttpBlocking => fetch(target, &self.bytes(), true),
        }
    }
}

fn store(target: &Target, request: &str, answer: &str) -> Result<(), LoadError> {
    let (line, _) = ask(target, request.as_bytes())?;
    if line == answer { Ok(()) } else { Err(refused(&line)) }
}

/// The answer of HTTP to this request.
fn fetch(target: &Target, request: &[u8], closes: bool) -> Result<Answer, LoadError> {
    let (mut answer, mut rest) = ask(target, request)?;
    let first = answer.clone();
    if !first.starts_with("HTTP/1.") || first.split(' ').nth(1) != Some("200") {
        return Err(refused(&first));
    }
    let mut body = None;
    loop {
        let from = answer.len();
        rest.read_line(&mut answer).map_err(failed)?;
        let Some((name, value)) = answer[from..].split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            body = value.trim().parse::<usize>().ok().filter(|length| *length < MOST as usize);
        }
    }
    let body = body.ok_or_else(|| refused(&first))?;
    rest.read_exact(&mut vec![0; body]).map_err(failed)?;
    let start = first.as_bytes()[..STATUS_LINE.min(first.len())].to_vec();
    Ok(Answer { start, length: answer.len() + body, closes })
}

/// Asks once: the first line of the answer, and where the rest can be read.
fn ask(target: &Target, request: &[u8]) -> Result<(String, impl BufRead), LoadError> {
    let connection = socket::connected(target, socket::PATIENCE).map_err(failed)?;
    (&connection).write_all(request).map_err(failed)?;
    let (mut line, mut reader) = (String::new(), BufReader::new(connection.take(MOST)));
    reader.read_line(&mut line).map_err(failed)?;
    Ok((line, reader))
}

fn failed(error: io::Error) -> LoadError {
    LoadError::Server(1, error)
}

fn refused(line: &str) -> LoadError {
    LoadError::Answer(line.trim_end().chars().take(80).collect())
}

/// What keys hold.
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Bytes of `HTTP/1.1 200 `.
const STATUS_LINE: usize = 13;

/// No answer is as long.
const MOST: u64 = 1 << 20;
