//! One line of the memcached text protocol, parsed into a command that cannot be wrong.
//!
//! The contract is `doc/protocol.txt` of memcached; where that is silent, memcached 1.6 was asked.
//! Stricter than memcached in two places: flags that do not fit 32 bits are refused rather than
//! cut, and so are keys with a NUL. Other control characters, which `protocol.txt` forbids, are
//! taken as memcached takes them: its own load generator uses them.

use thiserror::Error;

/// The longest key, in bytes.
pub(crate) const KEY_MAX: usize = 250;

/// The longest data block a client may announce; beyond it the line itself is malformed.
const LENGTH_MAX: u32 = i32::MAX as u32 - 2;

/// What a client asks for, borrowed from its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Retrieve(Retrieve<'a>),
    Store(Store<'a>),
    Delete { key: Key<'a>, noreply: bool },
    Delta { key: Key<'a>, delta: Delta, noreply: bool },
    Touch { key: Key<'a>, exptime: Exptime, noreply: bool },
    FlushAll { delay: Exptime, noreply: bool },
    Stats(Stats),
    Version,
    Verbosity { noreply: bool },
    Quit,
}

/// `get`, `gets`, `gat` and `gats`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Retrieve<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) form: RetrieveForm,
}

/// What a retrieval does besides reading the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetrieveForm {
    /// The answer carries the cas unique.
    pub(crate) with_cas: bool,
    /// The items found get this expiry.
    pub(crate) touch: Option<Exptime>,
}

/// The line of a storage command; its data block follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Store<'a> {
    pub(crate) mode: StoreMode,
    pub(crate) key: Key<'a>,
    pub(crate) flags: u32,
    pub(crate) exptime: Exptime,
    /// Bytes in the data block, without the CR LF that ends it.
    pub(crate) length: usize,
    pub(crate) noreply: bool,
}

/// When a storage command stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// Only over the item with this cas unique.
    Cas(u64),
}

/// `incr` and `decr`, with the amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    /// Wraps at 2^64.
    Increment(u64),
    /// Stops at 0.
    Decrement(u64),
}

/// An expiry as the client wrote it: 0 is never, negative is at once, up to 30 days is seconds from
/// now, and more is seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exptime(pub(crate) i64);

/// Which statistics are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stats {
    General,
    Settings,
    Reset,
    /// Of slabs, items and connections, about which there is nothing to tell.
    Empty,
}

/// A line that is no command. `Display` is the answer the protocol has for it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum CommandError {
    #[error("ERROR")]
    Unknown,
    /// The line is an HTTP request: a browser or proxy made to talk to us, whose further lines must
    /// not be taken for commands.
    #[error("ERROR")]
    Http,
    #[error("CLIENT_ERROR bad command line format")]
    BadFormat,
    #[error("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]")]
    DeleteUsage,
    #[error("CLIENT_ERROR invalid exptime argument")]
    InvalidExptime,
    #[error("CLIENT_ERROR invalid numeric delta argument")]
    InvalidDelta,
    /// The line is malformed, and asked for no answer.
    #[error("")]
    Silent,
}

impl CommandError {
    /// The same error, or silence where the client has asked for it.
    fn unless(self, noreply: bool) -> Self {
        if noreply { Self::Silent } else { self }
    }
}

impl<'a> Command<'a> {
    /// Parses one line, given without its line end.
    pub(crate) fn parse(line: &'a [u8]) -> Result<Self, CommandError> {
        let (name, rest) = split_token(line);
        match name {
            b"get" => retrieve(rest, false),
            b"gets" => retrieve(rest, true),
            b"gat" => touch_and_retrieve(rest, false),
            b"gats" => touch_and_retrieve(rest, true),
            b"set" => store(rest, StoreMode::Set),
            b"add" => store(rest, StoreMode::Add),
            b"replace" => store(rest, StoreMode::Replace),
            b"append" => store(rest, StoreMode::Append),
            b"prepend" => store(rest, StoreMode::Prepend),
            b"cas" => cas(rest),
            b"delete" => delete(rest),
            b"incr" => delta(rest, Delta::Increment),
            b"decr" => delta(rest, Delta::Decrement),
            b"touch" => touch(rest),
            b"flush_all" => flush_all(rest),
            b"stats" => stats(rest),
            b"version" => Ok(Self::Version),
            b"verbosity" => verbosity(rest),
            b"quit" => Ok(Self::Quit),
            _ => Err(unknown(rest)),
        }
    }
}

/// A key: 1 to [`KEY_MAX`] bytes, none of them a space, an end of line or NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<'a>(&'a [u8]);

impl<'a> Key<'a> {
    fn parse(token: &'a [u8]) -> Result<Self, CommandError> {
        let legal = |byte: &u8| !matches!(byte, b' ' | b'\r' | b'\n' | 0);
        if token.is_empty() || token.len() > KEY_MAX || !token.iter().all(legal) {
            return Err(CommandError::BadFormat);
        }
        Ok(Self(token))
    }

    pub(crate) fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// The keys of a retrieval, every one of them legal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys<'a>(&'a [u8]);

impl<'a> Keys<'a> {
    fn parse(list: &'a [u8]) -> Result<Self, CommandError> {
        for Key(token) in Self(list) {
            Key::parse(token)?;
        }
        Ok(Self(list))
    }

    fn is_empty(&self) -> bool {
        split_token(self.0).0.is_empty()
    }

    /// Bytes of the list that are left: what [`OwnedKeys::advance`] takes.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// Keeps the keys that are left beyond the life of the line.
    pub(crate) fn to_owned(&self) -> OwnedKeys {
        OwnedKeys { list: self.0.into(), position: 0 }
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = Key<'a>;

    fn next(&mut self) -> Option<Key<'a>> {
        let (token, rest) = split_token(self.0);
        self.0 = rest;
        (!token.is_empty()).then_some(Key(token))
    }
}

/// Keys of a retrieval that is answered piece by piece.
#[derive(Debug)]
pub(crate) struct OwnedKeys {
    list: Box<[u8]>,
    position: usize,
}

impl OwnedKeys {
    /// Bytes that it takes.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The keys not yet passed over by [`OwnedKeys::advance`].
    pub(crate) fn rest(&self) -> Keys<'_> {
        Keys(&self.list[self.position..])
    }

    /// Passes over all keys but those that [`Keys::left`] counts.
    pub(crate) fn advance(&mut self, left: usize) {
        self.position = self.list.len() - left;
    }
}

fn retrieve(rest: &[u8], with_cas: bool) -> Result<Command<'_>, CommandError> {
    let keys = Keys::parse(rest)?;
    if keys.is_empty() {
        return Err(CommandError::Unknown);
    }
    Ok(Command::Retrieve(Retrieve { keys, form: RetrieveForm { with_cas, touch: None } }))
}

fn touch_and_retrieve(rest: &[u8], with_cas: bool) -> Result<Command<'_>, CommandError> {
    let (exptime, rest) = split_token(rest);
    if exptime.is_empty() {
        return Err(CommandError::Unknown);
    }
    let touch = Some(Exptime(number(exptime).ok_or(CommandError::InvalidExptime)?));
    let keys = Keys::parse(rest)?;
    Ok(Command::Retrieve(Retrieve { keys, form: RetrieveForm { with_cas, touch } }))
}

fn store(rest: &[u8], mode: StoreMode) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 4, 5)?;
    store_fields(&arguments, mode)
}

fn cas(rest: &[u8]) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 5, 6)?;
    let unique = number(arguments[4]).ok_or(CommandError::BadFormat.unless(arguments.noreply()))?;
    store_fields(&arguments, StoreMode::Cas(unique))
}

fn store_fields<'a>(arguments: &Arguments<'a>, mode: StoreMode) -> Result<Command<'a>, CommandError> {
    let noreply = arguments.noreply();
    let bad = CommandError::BadFormat.unless(noreply);
    let length: u32 = number(arguments[3]).ok_or(bad)?;
    if length > LENGTH_MAX {
        return Err(bad);
    }
    Ok(Command::Store(Store {
        mode,
        key: Key::parse(arguments[0]).map_err(|_| bad)?,
        flags: number(arguments[1]).ok_or(bad)?,
        exptime: Exptime(number(arguments[2]).ok_or(bad)?),
        length: length as usize,
        noreply,
    }))
}

fn delete(rest: &[u8]) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 1, 3)?;
    // Old clients send a delay, of which only 0 is left.
    let usable = match arguments.as_slice() {
        [_] => true,
        [_, second] => *second == b"0" || *second == b"noreply",
        [_, second, third] => *second == b"0" && *third == b"noreply",
        _ => false,
    };
    let noreply = arguments.len() > 1 && arguments.noreply();
    if !usable {
        return Err(CommandError::DeleteUsage.unless(noreply));
    }
    let key = Key::parse(arguments[0]).map_err(|error| error.unless(noreply))?;
    Ok(Command::Delete { key, noreply })
}

fn delta(rest: &[u8], direction: fn(u64) -> Delta) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 2, 3)?;
    let noreply = arguments.noreply();
    let key = Key::parse(arguments[0]).map_err(|error| error.unless(noreply))?;
    let amount = number(arguments[1]).ok_or(CommandError::InvalidDelta.unless(noreply))?;
    Ok(Command::Delta { key, delta: direction(amount), noreply })
}

fn touch(rest: &[u8]) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 2, 3)?;
    let noreply = arguments.noreply();
    let key = Key::parse(arguments[0]).map_err(|error| error.unless(noreply))?;
    let exptime = number(arguments[1]).ok_or(CommandError::InvalidExptime.unless(noreply))?;
    Ok(Command::Touch { key, exptime: Exptime(exptime), noreply })
}

fn flush_all(rest: &[u8]) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 0, 2)?;
    let noreply = arguments.noreply();
    let delay = match arguments.as_slice() {
        [] | [b"noreply"] => 0,
        [delay, ..] => number(delay).ok_or(CommandError::InvalidExptime.unless(noreply))?,
    };
    Ok(Command::FlushAll { delay: Exptime(delay), noreply })
}

fn stats(rest: &[u8]) -> Result<Command<'_>, CommandError> {
    let stats = match split_token(rest).0 {
        b"" => Stats::General,
        b"settings" => Stats::Settings,
        b"reset" => Stats::Reset,
        b"items" | b"slabs" | b"sizes" | b"conns" | b"cachedump" => Stats::Empty,
        _ => return Err(CommandError::Unknown),
    };
    Ok(Command::Stats(stats))
}

fn verbosity(rest: &[u8]) -> Result<Command<'_>, CommandError> {
    let arguments = Arguments::parse(rest, 1, 2)?;
    let noreply = arguments.noreply();
    if arguments[0] != b"noreply" && number::<u32>(arguments[0]).is_none() {
        return Err(CommandError::BadFormat.unless(noreply));
    }
    Ok(Command::Verbosity { noreply })
}

fn unknown(rest: &[u8]) -> CommandError {
    let last = rest.rsplit(|&byte| byte == b' ').find(|token| !token.is_empty());
    match last {
        Some(token) if token.starts_with(b"HTTP/") => CommandError::Http,
        _ => CommandError::Unknown,
    }
}

/// The most words after the name of a command other than a retrieval.
const ARGUMENTS_MAX: usize = 6;

/// The words after the name of a command whose number of words is bounded.
struct Arguments<'a> {
    words: [&'a [u8]; ARGUMENTS_MAX],
    count: usize,
}

impl<'a> Arguments<'a> {
    /// Splits `rest`, which must have at least `least` and at most `most` words.
    fn parse(mut rest: &'a [u8], least: usize, most: usize) -> Result<Self, CommandError> {
        let mut arguments = Self { words: [b""; ARGUMENTS_MAX], count: 0 };
        loop {
            let (word, after) = split_token(rest);
            if word.is_empty() {
                break;
            }
            if arguments.count == most {
                return Err(CommandError::Unknown);
            }
            arguments.words[arguments.count] = word;
            arguments.count += 1;
            rest = after;
        }
        if arguments.count < least {
            return Err(CommandError::Unknown);
        }
        Ok(arguments)
    }

    fn as_slice(&self) -> &[&'a [u8]] {
        &self.words[..self.count]
    }

    fn len(&self) -> usize {
        self.count
    }

    fn noreply(&self) -> bool {
        self.as_slice().last().is_some_and(|word| *word == b"noreply")
    }
}

impl<'a> std::ops::Index<usize> for Arguments<'a> {
    type Output = &'a [u8];

    fn index(&self, index: usize) -> &Self::Output {
        &self.words[index]
    }
}

/// The first word of `line`, which is empty if there is none, and what follows the word.
fn split_token(line: &[u8]) -> (&[u8], &[u8]) {
    let start = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
    let line = &line[start..];
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    line.split_at(end)
}

/// A decimal number that fits its type.
fn number<T: std::str::FromStr>(token: &[u8]) -> Option<T> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> Key<'_> {
        Key::parse(bytes).expect("a legal key")
    }

    #[test]
    fn storage_commands_have_all_fields() {
        let parsed = Command::parse(b"cas  key 7  -1 12 99 noreply").expect("a command");
        let expected = Store {
            mode: StoreMode::Cas(99),
            key: key(b"key"),
            flags: 7,
            exptime: Exptime(-1),
            length: 12,
            noreply: true,
        };
        assert_eq!(parsed, Command::Store(expected));
    }

    #[test]
    fn retrievals_list_their_keys() {
        let Ok(Command::Retrieve(retrieve)) = Command::parse(b"gats 60 a  bb ccc ") else {
            panic!("gats is a retrieval");
        };
        assert_eq!(retrieve.form, RetrieveForm { with_cas: true, touch: Some(Exptime(60)) });
        let keys: Vec<_> = retrieve.keys.map(Key::as_bytes).collect();
        assert_eq!(keys, [&b"a"[..], b"bb", b"ccc"]);
    }

    #[test]
    fn keys_can_be_taken_up_again() {
        let Ok(Command::Retrieve(retrieve)) = Command::parse(b"get a bb ccc") else {
            panic!("get is a retrieval");
        };
        let mut owned = retrieve.keys.to_owned();
        let mut seen = Vec::new();
        loop {
            let mut keys = owned.rest();
            let Some(key) = keys.next() else { break };
            seen.push(key.as_bytes().to_vec());
            let left = keys.left();
            owned.advance(left);
        }
        assert_eq!(seen, [&b"a"[..], b"bb", b"ccc"]);
    }

    #[test]
    fn keys_are_held_to_the_contract() {
        let longest = [b'k'; KEY_MAX];
        let too_long = [b'k'; KEY_MAX + 1];
        assert!(Key::parse(&longest).is_ok());
        assert!(Key::parse("é".as_bytes()).is_ok());
        assert!(Key::parse(b"a\x10\tb\x7f").is_ok(), "as memcached's load generator has them");
        for bad in [&too_long[..], b"", b"a b", b"a\0", b"a\n", b"a\r"] {
            assert_eq!(Key::parse(bad), Err(CommandError::BadFormat), "{bad:?}");
        }
    }

    #[test]
    fn one_bad_key_spoils_the_retrieval() {
        assert_eq!(Command::parse(b"get a b\0 c"), Err(CommandError::BadFormat));
        assert!(Command::parse(b"get a b\x10 c").is_ok());
    }

    #[test]
    fn errors_follow_memcached() {
        use CommandError::*;
        let cases: &[(&[u8], CommandError)] = &[
            (b"", Unknown),
            (b"  ", Unknown),
            (b"GET a", Unknown),
            (b"get", Unknown),
            (b"gat", Unknown),
            (b"gat x a", InvalidExptime),
            (b"GET / HTTP/1.1", Http),
            (b"set a 0 0", Unknown),
            (b"set a 0 0 1 2 3", Unknown),
            (b"set a x 0 1", BadFormat),
            (b"set a -1 0 1", BadFormat),
            (b"set a 4294967296 0 1", BadFormat),
            (b"set a 0 0 -1", BadFormat),
            (b"set a 0 0 2147483646", BadFormat),
            (b"set a 0 0 x noreply", Silent),
            (b"cas a 0 0 1", Unknown),
            (b"cas a 0 0 1 -1", BadFormat),
            (b"incr a", Unknown),
            (b"incr a -1", InvalidDelta),
            (b"incr a 18446744073709551616", InvalidDelta),
            (b"incr a x noreply", Silent),
            (b"delete", Unknown),
            (b"delete a 5", DeleteUsage),
            (b"delete a 0 x", DeleteUsage),
            (b"delete a 1 2 3", Unknown),
            (b"touch a x", InvalidExptime),
            (b"flush_all x", InvalidExptime),
            (b"flush_all 1 2 3", Unknown),
            (b"verbosity", Unknown),
            (b"verbosity x", BadFormat),
            (b"stats bogus", Unknown),
        ];
        for (line, error) in cases {
            assert_eq!(Command::parse(line).as_ref(), Err(error), "{}", line.escape_ascii());
        }
    }
}
