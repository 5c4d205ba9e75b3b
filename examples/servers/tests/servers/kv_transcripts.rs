//! The same input to memcached and to `megapipe-kv`: the same bytes come back.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use testkit::process::{Fosterling, until};
use testkit::programs::find;

use crate::on_both_engines;
use crate::support::{Server, Skipped, Verdict, transcript};

on_both_engines!(answers_are_memcached_s, random_commands_bring_the_same_answers,);

/// A memcached as a child process, which is ended with its value.
struct Memcached {
    _process: Fosterling,
    address: SocketAddr,
}

impl Memcached {
    /// Starts memcached on a port that it chooses, and waits until it has told the port.
    fn start() -> Result<Self, Skipped> {
        let program =
            find("memcached").ok_or_else(|| Skipped::because("there is no memcached; install it"))?;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("port");
        let mut command = Command::new(program);
        command.args(["-l", "127.0.0.1", "-p", "-1", "-U", "0", "-t", "1", "-u", "root"]);
        // Commands it carries out at one go: those left when its client ends are lost.
        command.args(["-R", "100000"]).env("MEMCACHED_PORT_FILENAME", &file);
        let process =
            Fosterling::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        // The file gets its name when it is whole.
        let ports = until("the port of memcached", || fs::read_to_string(&file).ok());
        let port = ports.trim_end().rsplit(' ').next().and_then(|port| port.parse().ok());
        let port: u16 = port.expect("memcached tells its port");
        Ok(Self { _process: process, address: ([127, 0, 0, 1], port).into() })
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

/// Commands as clients send them, some of them wrong, on few keys. Without those that return a cas
/// unique: memcached uses numbers up where nothing is stored. A counter is not read: memcached pads
/// it to its old length, unless one of its own threads happens to hold the item.
fn command() -> impl Strategy<Value = String> {
    let key = || prop::sample::select(vec!["a", "b"]);
    let any = || prop::sample::select(vec!["a", "b", "number"]);
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
    let delta = (prop::sample::select(vec!["incr", "decr"]), amount(), noreply());
    let words = vec!["verbosity 1", "flush_all", "", "set", "incr a -1", "touch a x", "set a x 0 1"];
    prop_oneof![
        6 => store,
        5 => (key(), key()).prop_map(|(one, two)| format!("get {one} {two}\r\n")),
        2 => amount().prop_map(|number| format!("set number 0 0 {}\r\n{number}\r\n", number.len())),
        4 => delta.prop_map(|(verb, amount, noreply)| format!("{verb} number {amount}{noreply}\r\n")),
        1 => (any(), noreply()).prop_map(|(key, noreply)| format!("delete {key}{noreply}\r\n")),
        1 => (any(), exptime(), noreply()).prop_map(|(key, time, noreply)| format!("touch {key} {time}{noreply}\r\n")),
        1 => prop::sample::select(words).prop_map(|word| format!("{word}\r\n")),
    ]
}

/// Both get the same input, ours in pieces of so many bytes: the answers do not depend on that.
fn agree(memcached: &Memcached, server: &Server, input: &[u8], piece: usize) {
    let expected = transcript(memcached.address, [input].into_iter());
    let answer = transcript(server.address, input.chunks(piece));
    let shown = |bytes: &[u8]| bytes[..bytes.len().min(600)].escape_ascii().to_string();
    let (input, expected_text, answer_text) = (shown(input), shown(&expected), shown(&answer));
    assert!(answer == expected, "to {input}\n  memcached: {expected_text}\n  megapipe:  {answer_text}");
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
        agree(&memcached, &server, input.as_bytes(), 1 + round % 50);
    }
    Ok(())
}

fn answers_are_memcached_s(engine: &'static str) -> Verdict {
    for input in transcripts() {
        // New servers each time: the numbers that `gets` tells start anew.
        let memcached = Memcached::start()?;
        let server = Server::start(engine, "kv", &["--threads", "1"])?;
        agree(&memcached, &server, &input, input.len());
    }
    Ok(())
}
