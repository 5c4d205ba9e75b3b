//! One line of the memcached text protocol (`doc/protocol.txt` of memcached), parsed into
//! a command that cannot be wrong. Where that text is silent, memcached 1.6 was asked.

/// The longest key, in bytes.
const KEY_MAX: usize = 250;

/// The most words after a command's name, but for the keys of a retrieval.
const WORDS_MAX: usize = 6;

const UNKNOWN: &str = "ERROR";
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";

/// What a client asks for, borrowed from its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// `get` and `gets`; the keys as [`words`] has them.
    Get {
        keys: &'a [u8],
        with_unique: bool,
    },
    Store(Store<'a>),
    /// `incr` and `decr`.
    Count {
        key: &'a [u8],
        by: u64,
        up: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
    },
    Delete {
        key: &'a [u8],
    },
    FlushAll,
    Stats,
    Version,
    Verbosity,
    Quit,
}

/// The line of a storage command, which a block of `length` bytes follows, and CR LF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Store<'a> {
    pub(crate) mode: Mode,
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) exptime: i64,
    pub(crate) length: usize,
}

/// When a storage command stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// Only over the item with this unique number.
    Cas(u64),
}

/// Parses a line, given without its line end; also returns whether the client wants an
/// answer. The error is an answer.
pub(crate) fn parse(line: &[u8]) -> Result<(Command<'_>, bool), &'static str> {
    let (name, rest) = line.split_at(memchr::memchr(b' ', line).unwrap_or(line.len()));
    if matches!(name, b"get" | b"gets") {
        if words(rest).next().is_none() {
            return Err(UNKNOWN);
        }
        let legal = words(rest).all(|word| key(word).is_some());
        return legal
            .then_some((Command::Get { keys: rest, with_unique: name == b"gets" }, true))
            .ok_or(BAD_FORMAT);
    }
    let mut list = [&b""[..]; WORDS_MAX];
    let mut count = 0;
    for word in words(rest) {
        *list.get_mut(count).ok_or(UNKNOWN)? = word;
        count += 1;
    }
    let (arguments, answer) = match &list[..count] {
        [arguments @ .., b"noreply"] => (arguments, false),
        arguments => (arguments, true),
    };
    let command = match (name, arguments) {
        (b"set", fields) => store(Mode::Set, fields)?,
        (b"add", fields) => store(Mode::Add, fields)?,
        (b"replace", fields) => store(Mode::Replace, fields)?,
        (b"append", fields) => store(Mode::Append, fields)?,
        (b"prepend", fields) => store(Mode::Prepend, fields)?,
        (b"cas", [fields @ .., unique]) => store(Mode::Cas(number(unique).ok_or(BAD_FORMAT)?), fields)?,
        (b"incr" | b"decr", [word, by]) => Command::Count {
            key: key(word).ok_or(BAD_FORMAT)?,
            by: number(by).ok_or(BAD_DELTA)?,
            up: name == b"incr",
        },
        (b"touch", [word, exptime]) => {
            Command::Touch { key: key(word).ok_or(BAD_FORMAT)?, exptime: number(exptime).ok_or(BAD_EXPTIME)? }
        }
        // Old clients send a delay of 0.
        (b"delete", [word] | [word, b"0"]) => Command::Delete { key: key(word).ok_or(BAD_FORMAT)? },
        (b"flush_all", [] | [b"0"]) => Command::FlushAll,
        (b"stats", []) if answer => Command::Stats,
        (b"version", _) => Command::Version,
        (b"verbosity", [_]) => Command::Verbosity,
        (b"verbosity", []) if !answer => Command::Verbosity,
        (b"quit", []) => Command::Quit,
        // A browser that was made to talk to us: its further lines must not be taken for
        // commands.
        (b"GET" | b"POST", [_, version]) if version.starts_with(b"HTTP/") => Command::Quit,
        _ => return Err(UNKNOWN),
    };
    Ok((command, answer))
}

fn store<'a>(mode: Mode, fields: &[&'a [u8]]) -> Result<Command<'a>, &'static str> {
    let &[word, flags, exptime, length] = fields else { return Err(UNKNOWN) };
    let parsed = || {
        let length: i32 = number(length)?;
        let (key, length) = (key(word)?, usize::try_from(length).ok()?);
        Some(Store { mode, key, flags: number(flags)?, exptime: number(exptime)?, length })
    };
    parsed().map(Command::Store).ok_or(BAD_FORMAT)
}

/// The words of a line.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// A key: no longer than it may be, and without a byte that ends a line. Other control
/// characters are taken, as memcached takes them: its own load generator uses them.
fn key(word: &[u8]) -> Option<&[u8]> {
    let legal = |byte: &u8| !matches!(byte, b'\r' | 0);
    (word.len() <= KEY_MAX && word.iter().all(legal)).then_some(word)
}

/// A decimal number that fits its type.
pub(crate) fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
