//! The same input to memcached and to `megapipe-kv`: the same bytes come back.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use testkit::process::PATIENCE;

use crate::on_both_engines;
use crate::support::{Server, Skipped, Verdict, transcript};

on_both_engines!(answers_are_memcached_s, random_commands_bring_the_same_answers,);

/// A memcached as a child process, which is ended with its value.
struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    /// Starts memcached on a port that it chooses, and waits until it has told the port.
    fn start() -> Result<Self, Skipped> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let file =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memcached-{}-{number}", std::process::id()));
        let mut child = Command::new("memcached")
            .args(["-l", "127.0.0.1", "-p", "-1", "-U", "0", "-t", "1", "-u", "root"])
            // Commands it carries out at one go: those left when its client ends are
            // lost.
            .args(["-R", "100000"])
            .env("MEMCACHED_PORT_FILENAME", &file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Skipped(format!("memcached cannot be started ({error}); install memcached")))?;
        let deadline = Instant::now() + PATIENCE;
        let ports = loop {
            if let Ok(ports) = fs::read_to_string(&file) {
                break ports;
            }
            let ended = child.try_wait().expect("memcached is our child");
            assert!(ended.is_none() && Instant::now() < deadline, "memcached does not start: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        fs::remove_file(&file).expect("the file was there");
        let port = ports.trim_end().rsplit(' ').next().and_then(|port| port.parse().ok());
        let port: u16 = port.expect("memcached tells its port");
        Ok(Self { child, address: ([127, 0, 0, 1], port).into() })
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Transcripts in which the two agree. Each starts with an empty cache.
fn transcripts() -> Vec<Vec<u8>> {
    let longest = "k".repeat(250);
    let too_long = "k".repeat(251);
    let many: String = (0..2_000).map(|number| format!(" key{number}")).collect();
    let large = "x".repeat(2_000_000);
    let nearly_1m = "y".repeat(1_000_000);
    let texts = [
        // Retrieval.
        "get a\r\nget a b c\r\nget\r\nget \r\ngets\r\nget  a   b \r\nget a\n".to_owned(),
        format!("set {longest} 0 0 1\r\nx\r\nget {longest}\r\nget {too_long}\r\n"),
        // Apart, since memcached drops the answer before this error.
        format!("get a {too_long} b\r\n"),
        format!("set key7 1 0 1\r\na\r\nset key1999 2 0 1\r\nb\r\nget{many}\r\ngets{many}\r\n"),
        "set é 0 0 2\r\né\r\nget é\r\n".to_owned(),
        // Storage.
        "set a 5 0 2\r\nxy\r\nget a\r\ngets a\r\nset a 4294967295 0 0\r\n\r\nget a\r\n".to_owned(),
        "set a 0 0 4\r\n\r\n\r\n\r\nget a\r\nset a 0 0 01\r\nx\r\nset a +1 0 1\r\ny\r\nget a\r\n".to_owned(),
        "add a 0 0 1\r\nx\r\nadd a 0 0 1\r\ny\r\nreplace a 1 0 1\r\nz\r\nreplace b 0 0 1\r\nz\r\nget a b\r\n".to_owned(),
        "append a 0 0 1\r\nx\r\nset a 7 0 1\r\nb\r\nappend a 1 0 1\r\nc\r\nprepend a 1 0 1\r\na\r\nget a\r\n".to_owned(),
        "set a 0 0 1\r\nx\r\ngets a\r\ncas a 0 0 1 1\r\ny\r\ncas a 0 0 1 1\r\nz\r\ncas b 0 0 1 1\r\nz\r\ngets a\r\n".to_owned(),
        "set a 0 0 1\r\n1\r\ngets a\r\ntouch a 9\r\ngets a\r\nincr a 1\r\ngets a\r\nappend a 0 0 1\r\n0\r\ngets a\r\n".to_owned(),
        "set a 0 0 1 noreply\r\nx\r\nget a\r\nset a 0 0\r\nset a\r\nset\r\ncas a 0 0 1\r\ncas\r\n".to_owned(),
        "set a x 0 1\r\nset a -1 0 1\r\nset a 0 x 1\r\nset a 0 0 x\r\nset a 0 0 -1\r\nset a 0 0 1x\r\n".to_owned(),
        "cas a 0 0 1 x\r\ncas a 0 0 1 -1\r\ncas a 0 0 1 99999999999999999999\r\nset a 0 0 2147483648\r\n".to_owned(),
        format!("set {too_long} 0 0 1\r\nx\r\n"),
        // Data blocks.
        "set a 0 0 1\r\nxy\r\nget a\r\nset a 0 0 3\r\nx\r\nget a\r\nset a 0 0 1\r\nx\n\nget a\r\n".to_owned(),
        "set a 0 0 1 noreply\r\nxyz\r\nget a\r\nset a 0 0 1\nx\r\nget a\r\n".to_owned(),
        format!("set a 0 0 1\r\nx\r\nset a 0 0 2000000\r\n{large}\r\nget a\r\n"),
        format!("set a 0 0 2000000 noreply\r\n{large}\r\nget a\r\n"),
        format!("set a 9 0 1000000\r\n{nearly_1m}\r\nget a a\r\ngets a\r\n"),
        // Numbers.
        "set n 0 0 2\r\n10\r\nincr n 1\r\ndecr n 2\r\nget n\r\nincr n 1\r\nget n\r\nincr n 100\r\nget n\r\n".to_owned(),
        "set n 0 0 1\r\n5\r\nincr n 18446744073709551615\r\ndecr n 99\r\nget n\r\nincr n 1 noreply\r\nget n\r\n".to_owned(),
        "set n 0 0 20\r\n18446744073709551615\r\nincr n 1\r\nget n\r\n".to_owned(),
        "incr n 1\r\nset n 0 0 1\r\nx\r\nincr n 1\r\nincr n x\r\nincr n -1\r\nincr n 18446744073709551616\r\n".to_owned(),
        "set n 0 0 0\r\n\r\nincr n 1\r\nset n 0 0 2\r\n-1\r\nincr n 1\r\nincr n\r\nincr\r\n".to_owned(),
        // Deletion and expiry.
        "set a 0 0 1\r\nx\r\ndelete a\r\ndelete a\r\nset a 0 0 1\r\nx\r\ndelete a 0\r\ndelete a noreply\r\ndelete\r\n".to_owned(),
        "set a 0 -1 1\r\nx\r\nget a\r\nadd a 0 2592001 1\r\ny\r\nget a\r\nset a 0 2000000000 1\r\nz\r\nget a\r\n".to_owned(),
        "set a 0 2592000 1\r\nx\r\nget a\r\ntouch a -1\r\nget a\r\ntouch a 0\r\ntouch\r\ntouch a\r\ntouch a x\r\n".to_owned(),
        "set a 0 0 1\r\nx\r\ntouch a 100 noreply\r\ntouch b 1 noreply\r\n".to_owned(),
        "set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\nset a 0 0 1\r\ny\r\nflush_all 0\r\nget a\r\nflush_all noreply\r\n".to_owned(),
        // The rest.
        "verbosity 1\r\nverbosity 1 noreply\r\n\r\nfoo\r\nquitx\r\ngetx a\r\nquit\r\nget a\r\n".to_owned(),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}

/// Commands as clients send them, some of them wrong, on few keys. Without those that
/// return a cas unique: memcached uses numbers up where nothing is stored.
fn command() -> impl Strategy<Value = String> {
    let key = || prop::sample::select(vec!["a", "b", "number"]);
    let noreply = || prop::sample::select(vec!["", "", "", " noreply"]);
    let exptime = || prop::sample::select(vec!["0", "0", "1000", "-1", "2592001", "2000000000"]);
    let amount = || prop::sample::select(vec!["0", "1", "7", "99", "18446744073709551615"]);
    let modes = vec!["set", "set", "add", "replace", "append", "prepend", "cas"];
    let store = (prop::sample::select(modes), key(), exptime(), "[0-9a-z ]{0,12}", 0..20usize, noreply());
    let store = store.prop_map(|(mode, key, exptime, value, odd, noreply)| {
        // One in twenty has a wrong length.
        let length = value.len() + usize::from(odd == 0);
        let unique = if mode == "cas" { " 999999" } else { "" };
        format!("{mode} {key} 5 {exptime} {length}{unique}{noreply}\r\n{value}\r\n")
    });
    let delta = (prop::sample::select(vec!["incr", "decr"]), key(), amount(), noreply());
    let words =
        vec!["version", "verbosity 1", "flush_all", "", "set", "incr a -1", "touch a x", "set a x 0 1"];
    prop_oneof![
        6 => store,
        5 => (key(), key()).prop_map(|(one, two)| format!("get {one} {two}\r\n")),
        2 => (key(), amount()).prop_map(|(key, number)| format!("set {key} 0 0 {}\r\n{number}\r\n", number.len())),
        4 => delta.prop_map(|(verb, key, amount, noreply)| format!("{verb} {key} {amount}{noreply}\r\n")),
        1 => (key(), noreply()).prop_map(|(key, noreply)| format!("delete {key}{noreply}\r\n")),
        1 => (key(), exptime(), noreply()).prop_map(|(key, time, noreply)| format!("touch {key} {time}{noreply}\r\n")),
        1 => prop::sample::select(words).prop_map(|word| format!("{word}\r\n")),
    ]
}

/// The answer with counters as they were before padding. memcached overwrites a counter
/// in place, padded with spaces to its old length, unless one of its own threads happens
/// to hold the item; then the new one has its own length.
fn without_padding(answer: &str) -> String {
    let mut lines: Vec<String> = answer.split("\r\n").map(str::to_owned).collect();
    for at in 1..lines.len() {
        let counter = lines[at].trim_end_matches(' ').to_owned();
        let is_counter = !counter.is_empty() && counter.bytes().all(|byte| byte.is_ascii_digit());
        if is_counter
            && lines[at - 1].starts_with("VALUE ")
            && let Some((head, _length)) =
                lines[at - 1].rsplit_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()))
        {
            lines[at - 1] = head;
            lines[at] = counter;
        }
    }
    lines.join("\r\n")
}

fn random_commands_bring_the_same_answers(engine: &'static str) -> Verdict {
    let memcached = Memcached::start()?;
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    let mut runner = TestRunner::deterministic();
    let commands = prop::collection::vec(command(), 1..40);
    for round in 0..300 {
        let input = commands.new_tree(&mut runner).expect("the strategy rejects nothing").current().concat();
        // With something after the last command, since memcached keeps all answers to
        // itself while a data block is not whole.
        let input = format!("flush_all\r\n{input}\r\n\r\n");
        let expected = transcript(memcached.address, [input.as_bytes()].into_iter());
        // Cut anywhere: the answers do not depend on it.
        let answer = transcript(server.address, input.as_bytes().chunks(1 + round % 50));
        // In this order: what shows line ends leaves no lines.
        let comparable =
            |answer: &[u8]| without_version(without_padding(&String::from_utf8_lossy(answer)).as_bytes());
        let (expected, answer) = (comparable(&expected), comparable(&answer));
        assert!(
            answer == expected,
            "to {}\n  memcached: {expected}\n  megapipe:  {answer}",
            input.escape_debug()
        );
    }
    Ok(())
}

/// The answers with line ends shown, and without what differs between any two servers.
fn without_version(answers: &[u8]) -> String {
    let lines = answers.split_inclusive(|&byte| byte == b'\n');
    lines
        .map(
            |line| {
                if line.starts_with(b"VERSION ") {
                    "VERSION|".into()
                } else {
                    line.escape_ascii().to_string()
                }
            },
        )
        .collect()
}

fn answers_are_memcached_s(engine: &'static str) -> Verdict {
    for input in transcripts() {
        // New servers each time: the numbers that `gets` tells start anew.
        let memcached = Memcached::start()?;
        let server = Server::start(engine, "kv", &["--threads", "1"])?;
        let expected = transcript(memcached.address, [&input[..]].into_iter());
        let answer = transcript(server.address, [&input[..]].into_iter());
        let shown = |bytes: &[u8]| bytes[..bytes.len().min(600)].escape_ascii().to_string();
        let (input, expected_text, answer_text) = (shown(&input), shown(&expected), shown(&answer));
        assert!(answer == expected, "to {input}\n  memcached: {expected_text}\n  megapipe:  {answer_text}");
    }
    Ok(())
}
