//! What is asked of a server, and what its answers have to be.

use std::io;

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
            Request::MemcachedSet => whole("STORED\r\n"),
            Request::RedisSet => whole("+OK\r\n"),
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

    /// Asks once, and returns the answer.
    fn ask(self, target: &Target) -> Result<Vec<u8>, LoadError> {
        let failed = |error| LoadError::Server(1, error);
        let socket = ClientSocket::blocking(target, PATIENCE).map_err(failed)?;
        socket.send_all(&self.bytes()).map_err(failed)?;
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = socket.receive(&mut buffer).map_err(failed)?;
            answer.extend_from_slice(&buffer[..count]);
            match self.is_whole(&answer, count == 0) {
                Some(true) => return Ok(answer),
                Some(false) if count == 0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Some(false) if answer.len() <= MOST => {}
                _ => return Err(LoadError::Answer(first_line(&answer))),
            }
        }
    }

    /// Whether an answer, of which this is here, is whole; `None` if it is none to this request.
    fn is_whole(self, answer: &[u8], ended: bool) -> Option<bool> {
        let fixed = |expected: &str| match expected.as_bytes().starts_with(answer) {
            true => Some(answer.len() == expected.len()),
            false => None,
        };
        match self {
            Request::MemcachedSet => fixed("STORED\r\n"),
            Request::RedisSet => fixed("+OK\r\n"),
            Request::Http | Request::HttpOnce | Request::HttpBlocking => {
                let text = String::from_utf8_lossy(answer);
                let status = text.split(' ').nth(1);
                if text.len() >= STATUS_LINE && (!text.starts_with("HTTP/1.") || status != Some("200")) {
                    return None;
                }
                let Some(head) = text.find("\r\n\r\n") else { return Some(false) };
                let fields = text[..head].lines().filter_map(|line| line.split_once(':'));
                let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                let length = head + 4 + lengths.next()?.1.trim().parse::<usize>().ok()?;
                let is_there = answer.len() == length && (ended || self == Request::Http);
                if answer.len() > length { None } else { Some(is_there) }
            }
            _ => None,
        }
    }
}

fn first_line(bytes: &[u8]) -> String {
    let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned()
}

/// What keys hold.
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Bytes of `HTTP/1.1 200 `.
const STATUS_LINE: usize = 13;

/// No answer is as long.
const MOST: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_answers_end_where_they_say() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nServer: here\r\n\r\nhello";
        for end in 0..answer.len() {
            assert_eq!(Request::Http.is_whole(&answer[..end], false), Some(false), "{end}");
        }
        assert_eq!(Request::Http.is_whole(answer, false), Some(true));
        assert_eq!(Request::HttpOnce.is_whole(answer, false), Some(false));
        assert_eq!(Request::HttpOnce.is_whole(answer, true), Some(true));
        assert_eq!(Request::Http.is_whole(&[answer, &b"!"[..]].concat(), false), None);
        assert_eq!(Request::Http.is_whole(b"HTTP/1.1 503 Service Unavailable\r\n", false), None);
    }
}
