//! What is asked of a server, and what its answers have to be.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use super::socket::{ClientSocket, PATIENCE};
use super::{LoadError, Target};

/// What is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// So many bytes, which are answered with as many.
    Echo(usize),
    /// As many bytes as the server takes, so many with a call; no answers. Counted are bytes.
    Upload(usize),
    /// As many bytes as the server sends, unasked. Counted are bytes.
    Download(usize),
    /// memcached: read 64 bytes.
    MemcachedGet,
    /// memcached: write 64 bytes.
    MemcachedSet,
    /// Redis: read 64 bytes.
    RedisGet,
    /// Redis: write 64 bytes.
    RedisSet,
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
    start: Vec<u8>,
    length: usize,
    /// The server closes the connection behind it.
    pub(super) closes: bool,
}

/// What an answer is so far.
#[derive(Debug, PartialEq)]
pub(super) enum Arrived {
    Part,
    Whole,
    Wrong,
}

impl Answer {
    /// After so many bytes that were received before, `count` more; `bytes` are those of them that can be read.
    #[inline]
    pub(super) fn check(&self, received: usize, count: usize, bytes: &[u8]) -> Arrived {
        let expected = self.start.get(received..).unwrap_or_default();
        if received + count > self.length || !bytes.iter().zip(expected).all(|(one, other)| one == other) {
            return Arrived::Wrong;
        }
        if received + count == self.length { Arrived::Whole } else { Arrived::Part }
    }
}

impl Request {
    /// What a connection sends.
    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Request::Echo(size) => return vec![b'q'; size],
            Request::Upload(_) | Request::Download(_) => return Vec::new(),
            Request::MemcachedGet => "get key\r\n".to_owned(),
            Request::MemcachedSet => format!("set key 0 0 64\r\n{VALUE}\r\n"),
            Request::RedisGet => "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_owned(),
            Request::RedisSet => format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$64\r\n{VALUE}\r\n"),
            Request::Http => "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            Request::HttpOnce => "GET / HTTP/1.0\r\nHost: megapipe\r\n\r\n".to_owned(),
            Request::HttpBlocking => format!("GET {BLOCKING} HTTP/1.0\r\nHost: megapipe\r\n\r\n"),
        }
        .into_bytes()
    }

    /// What its answer is. Asks the server where only it can say, and writes what is to be read.
    pub(super) fn answer(self, target: &Target) -> Result<Answer, LoadError> {
        let whole = |start: &str| {
            let start = start.as_bytes().to_vec();
            Answer { length: start.len(), start, closes: false }
        };
        Ok(match self {
            Request::Echo(length) => Answer { start: Vec::new(), length, closes: false },
            Request::Upload(_) | Request::Download(_) => whole(""),
            Request::MemcachedSet => whole(STORED),
            Request::RedisSet => whole(OK),
            Request::MemcachedGet => {
                Request::MemcachedSet.ask(target)?;
                whole(&format!("VALUE key 0 64\r\n{VALUE}\r\nEND\r\n"))
            }
            Request::RedisGet => {
                Request::RedisSet.ask(target)?;
                whole(&format!("$64\r\n{VALUE}\r\n"))
            }
            Request::Http | Request::HttpOnce | Request::HttpBlocking => {
                let answer = self.ask(target)?;
                let start = answer[..STATUS_LINE.min(answer.len())].to_vec();
                Answer { start, length: answer.len(), closes: self != Request::Http }
            }
        })
    }

    /// Asks once, and returns the answer: a line, or a response of HTTP.
    fn ask(self, target: &Target) -> Result<Vec<u8>, LoadError> {
        let failed = |error| LoadError::Server(1, error);
        let ClientSocket { socket, .. } = ClientSocket::blocking(target, PATIENCE).map_err(failed)?;
        (&socket).write_all(&self.bytes()).map_err(failed)?;
        let mut reader = BufReader::new(socket.take(MOST));
        let mut answer = Vec::new();
        let mut line = |answer: &mut Vec<u8>| {
            let begin = answer.len();
            match reader.read_until(b'\n', answer).map_err(failed)? {
                0 => Err(failed(io::ErrorKind::UnexpectedEof.into())),
                _ => Ok(String::from_utf8_lossy(&answer[begin..]).into_owned()),
            }
        };
        let first = line(&mut answer)?;
        let refused = || LoadError::Answer(first.trim_end().chars().take(80).collect());
        let is_right = match self {
            Request::MemcachedSet if first == STORED => return Ok(answer),
            Request::RedisSet if first == OK => return Ok(answer),
            _ => first.starts_with("HTTP/1.") && first.split(' ').nth(1) == Some("200"),
        };
        if !is_right {
            return Err(refused());
        }
        let mut length = None;
        while let Some((name, value)) = line(&mut answer)?.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok();
            }
        }
        let mut body = vec![0; length.filter(|length| *length < MOST as usize).ok_or_else(refused)?];
        reader.read_exact(&mut body).map_err(failed)?;
        answer.append(&mut body);
        match self {
            Request::Http => Ok(answer),
            _ if reader.read(&mut [0]).map_err(failed)? == 0 => Ok(answer),
            _ => Err(refused()),
        }
    }
}

/// What keys hold.
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The answers to a write.
const STORED: &str = "STORED\r\n";
const OK: &str = "+OK\r\n";

/// Bytes of `HTTP/1.1 200 `.
const STATUS_LINE: usize = 13;

/// No answer is as long.
const MOST: u64 = 1 << 20;
