//! What the load generator sends, and how it finds the end of an answer.

/// What is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
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
}

impl Request {
    const ALL: [(&'static str, Request); 5] = [
        ("memcached-get", Request::MemcachedGet),
        ("memcached-set", Request::MemcachedSet),
        ("redis-get", Request::RedisGet),
        ("redis-set", Request::RedisSet),
        ("http", Request::Http),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, one)| *one == self).map_or("", |(name, _)| name)
    }

    /// The request of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(one, _)| *one == name).map(|(_, request)| *request)
    }

    /// What a connection sends, and what each response begins with.
    pub(super) fn words(self) -> (String, &'static str) {
        match self {
            Request::MemcachedGet => ("get key\r\n".to_owned(), "VALUE key 0 64\r\n"),
            Request::MemcachedSet => (format!("set key 0 0 64\r\n{VALUE}\r\n"), "STORED\r\n"),
            Request::RedisGet => ("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_owned(), "$64\r\n"),
            Request::RedisSet => (format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$64\r\n{VALUE}\r\n"), "+OK\r\n"),
            Request::Http => ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), "HTTP/1.1 200 "),
        }
    }

    /// What the first connection sends before, and the answer, so that there is something to read.
    pub(super) fn preparation(self) -> Option<(String, &'static str)> {
        match self {
            Request::MemcachedGet => Some(Request::MemcachedSet.words()),
            Request::RedisGet => Some(Request::RedisSet.words()),
            Request::MemcachedSet | Request::RedisSet | Request::Http => None,
        }
    }

    /// The length of a response that begins so, once so much of it is there that it can be told.
    pub(super) fn length(self, response: &[u8]) -> Option<usize> {
        let (_, start) = self.words();
        match self {
            Request::MemcachedGet => Some(start.len() + VALUE.len() + "\r\nEND\r\n".len()),
            Request::MemcachedSet | Request::RedisSet => Some(start.len()),
            Request::RedisGet => Some(start.len() + VALUE.len() + "\r\n".len()),
            Request::Http => {
                let text = str::from_utf8(response).ok()?;
                let head = text.find("\r\n\r\n")?;
                let fields = text[..head].lines().filter_map(|line| line.split_once(':'));
                let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                Some(head + 4 + lengths.next()?.1.trim().parse::<usize>().ok()?)
            }
        }
    }
}

/// What keys hold.
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_names() {
        for (name, request) in Request::ALL {
            assert_eq!((request.name(), Request::from_name(name)), (name, Some(request)));
        }
    }
}
