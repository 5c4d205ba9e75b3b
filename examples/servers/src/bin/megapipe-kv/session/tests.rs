use proptest::prelude::*;

use servers::Segment;

use super::super::clock::Clock;
use super::super::stats::Totals;
use super::super::store::{Limits, Store};
use super::super::{Service, Settings};
use super::*;

fn service() -> Service {
    let limits = Limits { memory: 64 << 20, value: 1 << 20 };
    Service {
        store: Store::new(limits).expect("limits that hold together"),
        totals: Totals::new(1),
        clock: Clock::start(),
        settings: Settings { address: ([127, 0, 0, 1], 11211).into(), max_connections: 1024 },
    }
}

/// A connection to a service, as its client sees it.
struct Client<'a> {
    worker: Worker<'a>,
    session: Session,
    answers: Vec<u8>,
    closed: bool,
}

impl<'a> Client<'a> {
    fn new(service: &'a Service) -> Self {
        let worker = Worker::new(service, 0);
        Self { worker, session: Session::default(), answers: Vec::new(), closed: false }
    }

    fn send(&mut self, mut input: &[u8]) {
        let mut output = Output::default();
        loop {
            let progress = self.session.receive(input, self.worker, &mut output);
            input = &input[progress.consumed..];
            for segment in output.segments() {
                match segment {
                    Segment::Copied(text) => self.answers.extend_from_slice(text),
                    Segment::Shared(value) => self.answers.extend_from_slice(value),
                }
            }
            output.clear();
            match progress.next {
                Next::Read => return assert!(input.is_empty()),
                Next::Drain => {}
                Next::Close => {
                    self.closed = true;
                    return;
                }
            }
        }
    }
}

/// What a new server answers to `input`, with `|` for the line ends.
fn answers(input: &[u8]) -> String {
    let service = service();
    let mut client = Client::new(&service);
    client.send(input);
    let end = if client.closed { "<closed>" } else { "" };
    let text = String::from_utf8_lossy(&client.answers).replace("\r\n", "|");
    text + end
}

#[test]
fn commands_have_memcached_s_answers() {
    let key = "k".repeat(251);
    let cases = [
        ("get a b\r\n", "END|"),
        ("set a 5 0 2\r\nxy\r\nget a\r\ngets a\r\n", "STORED|VALUE a 5 2|xy|END|VALUE a 5 2 1|xy|END|"),
        ("set a 0 0 0\r\n\r\nget a\n", "STORED|VALUE a 0 0||END|"),
        ("set a 0 0 1 noreply\r\nx\r\nget b a a\r\n", "VALUE a 0 1|x|VALUE a 0 1|x|END|"),
        ("add a 0 0 1\r\nx\r\nadd a 0 0 1\r\ny\r\nget a\r\n", "STORED|NOT_STORED|VALUE a 0 1|x|END|"),
        ("replace a 0 0 1\r\nx\r\nappend a 0 0 1\r\nx\r\n", "NOT_STORED|NOT_STORED|"),
        (
            "set a 7 0 1\r\nb\r\nappend a 1 0 1\r\nc\r\nprepend a 1 0 1\r\na\r\nget a\r\n",
            "STORED|STORED|STORED|VALUE a 7 3|abc|END|",
        ),
        (
            "set a 0 0 1\r\nx\r\ncas a 0 0 1 1\r\ny\r\ncas a 0 0 1 1\r\nz\r\ncas b 0 0 1 1\r\nz\r\nget a\r\n",
            "STORED|STORED|EXISTS|NOT_FOUND|VALUE a 0 1|y|END|",
        ),
        (
            "set n 0 0 2\r\n10\r\nincr n 1\r\ndecr n 2\r\nget n\r\nincr n 100\r\nincr m 1\r\n",
            "STORED|11|9|VALUE n 0 2|9 |END|109|NOT_FOUND|",
        ),
        (
            "set a 0 0 1\r\nx\r\nincr a 1\r\n",
            "STORED|CLIENT_ERROR cannot increment or decrement non-numeric value|",
        ),
        ("set a 0 0 1\r\nx\r\ndelete a 0\r\ndelete a\r\ndelete a noreply\r\n", "STORED|DELETED|NOT_FOUND|"),
        (
            "set a 0 0 1\r\nx\r\ntouch a 100\r\ntouch b 1\r\ntouch a -1 noreply\r\nget a\r\n",
            "STORED|TOUCHED|NOT_FOUND|END|",
        ),
        (
            "set a 1 0 1\r\nx\r\ngat 100 a b a\r\ngats -1 a\r\nget a\r\ngat 1\r\n",
            "STORED|VALUE a 1 1|x|VALUE a 1 1|x|END|VALUE a 1 1 1|x|END|END|END|",
        ),
        ("set a 0 -1 1\r\nx\r\nadd a 0 2592001 1\r\ny\r\nget a\r\n", "STORED|STORED|END|"),
        ("set a 0 2000000000 1\r\nx\r\nget a\r\n", "STORED|VALUE a 0 1|x|END|"),
        (
            "set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\nflush_all 100\r\nset a 0 0 1\r\ny\r\nget a\r\n",
            "STORED|OK|END|OK|STORED|VALUE a 0 1|y|END|",
        ),
        ("verbosity 1\r\nverbosity 1 noreply\r\nflush_all 0 noreply\r\n", "OK|"),
        ("stats reset\r\nstats slabs\r\nstats bogus\r\n", "RESET|END|ERROR|"),
        ("quit\r\nget a\r\n", "<closed>"),
        ("\r\nGET a\r\nget\r\n", "ERROR|ERROR|ERROR|"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\nget a\r\n", "ERROR|<closed>"),
        (&format!("get {key}\r\nget a\r\n"), "CLIENT_ERROR bad command line format|END|"),
        (&format!("set {key} 0 0 1\r\nx\r\nget a\r\n"), "CLIENT_ERROR bad command line format|ERROR|END|"),
        ("set a 0 0 1\r\nxy\r\nget a\r\n", "CLIENT_ERROR bad data chunk|ERROR|END|"),
        ("set a 0 0 3\r\nx\r\nget a\r\n", "CLIENT_ERROR bad data chunk|ERROR|"),
        ("set a 0 0 1 noreply\r\nxyz\r\nget a\r\n", "ERROR|END|"),
    ];
    for (input, expected) in cases {
        assert_eq!(answers(input.as_bytes()), expected, "{}", input.escape_debug());
    }
}

#[test]
fn the_largest_value_fits_and_a_larger_one_is_passed_over() {
    let largest = vec![b'x'; 1 << 20];
    let service = service();
    let mut client = Client::new(&service);
    client.send(b"set a 0 0 1048576\r\n");
    client.send(&largest);
    client.send(b"\r\nget a\r\n");
    let expected = [b"STORED\r\nVALUE a 0 1048576\r\n", &largest[..], b"\r\nEND\r\n"].concat();
    assert!(client.answers == expected);

    client.answers.clear();
    client.send(b"add a 0 0 1048577\r\n");
    client.send(&largest);
    client.send(b"x\r\nset a 0 0 1048577 noreply\r\n");
    client.send(&largest);
    client.send(b"x\r\nget a\r\n");
    let text = String::from_utf8_lossy(&client.answers);
    assert_eq!(text, "SERVER_ERROR object too large for cache\r\nEND\r\n");
}

#[test]
fn a_line_without_end_is_refused() {
    assert_eq!(answers(&[b'x'; LINE_MAX]), "");
    assert_eq!(answers(&[b'x'; LINE_MAX + 1]), "CLIENT_ERROR line too long|<closed>");
    let mut retrieval = b"get ".to_vec();
    retrieval.resize(RETRIEVAL_LINE_MAX, b' ');
    assert_eq!(answers(&retrieval), "");
    retrieval.push(b' ');
    assert_eq!(answers(&retrieval), "CLIENT_ERROR line too long|<closed>");
}

#[test]
fn a_binary_client_is_told_at_once() {
    let expected = "CLIENT_ERROR the binary protocol is not supported|<closed>";
    assert_eq!(answers(&[BINARY_MAGIC, 0, 0, 0]), expected);
}

#[test]
fn a_retrieval_of_many_large_values_pauses() {
    let service = service();
    let mut client = Client::new(&service);
    client.send(b"set a 0 0 1048576\r\n");
    client.send(&vec![b'x'; 1 << 20]);
    client.send(b"\r\n");
    client.answers.clear();

    let mut output = Output::default();
    let line = [&b"get"[..], &b" a".repeat(1000), b"\r\nversion\r\n"].concat();
    let (mut rounds, mut length, mut input) = (0, 0, &line[..]);
    loop {
        let progress = client.session.receive(input, client.worker, &mut output);
        input = &input[progress.consumed..];
        if progress.next == Next::Read {
            break;
        }
        assert_eq!(progress.next, Next::Drain);
        assert!(output.len() < 2 << 20, "{}", output.len());
        (rounds, length) = (rounds + 1, length + output.len());
        output.clear();
    }
    assert_eq!(rounds, 1000);
    let value = b"VALUE a 0 1048576\r\n\r\n".len() + (1 << 20);
    assert_eq!(length, 1000 * value);
    assert_eq!(output.len(), b"END\r\nVERSION \r\n".len() + super::super::VERSION.len());
}

#[test]
fn an_idle_session_is_small() {
    let service = service();
    let mut client = Client::new(&service);
    client.send(b"set key 0 0 5\r\nva");
    client.send(b"lue\r\nget k");
    client.send(b"ey\r\n");
    assert_eq!(client.session.partial.capacity(), 0);
    assert!(size_of::<Session>() <= 192, "{}", size_of::<Session>());
}

#[test]
fn a_hit_allocates_nothing() {
    let service = service();
    let mut client = Client::new(&service);
    let value = "v".repeat(100);
    client.send(format!("set key 0 0 100\r\n{value}\r\n").as_bytes());
    let mut output = Output::default();
    let mut get = || {
        output.clear();
        client.session.receive(b"get key\r\n", client.worker, &mut output)
    };
    get();
    let allocated = allocation_counter::measure(|| assert_eq!(get().next, Next::Read));
    assert_eq!(allocated.count_total, 0);
    assert_eq!(output.len(), b"VALUE key 0 100\r\n\r\nEND\r\n".len() + 100);
}

#[test]
fn statistics_count() {
    let service = service();
    let mut client = Client::new(&service);
    client.send(b"set a 0 0 1\r\nx\r\nget a b\r\ndelete b\r\nincr b 1\r\ncas b 0 0 1 1\r\nx\r\n");
    client.answers.clear();
    client.send(b"stats\r\n");
    let text = String::from_utf8_lossy(&client.answers);
    let expected = [
        "cmd_get 2",
        "get_hits 1",
        "get_misses 1",
        "cmd_set 2",
        "delete_misses 1",
        "incr_misses 1",
        "cas_misses 1",
        "curr_items 1",
        "total_items 1",
        "evictions 0",
        "limit_maxbytes 67108864",
        "threads 1",
    ];
    for line in expected {
        assert!(text.contains(&format!("STAT {line}\r\n")), "{line} in {text}");
    }
    assert!(text.ends_with("\r\nEND\r\n"));
}

/// A command as clients send it, or nearly.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let key = || prop_oneof![Just("a"), Just("b"), Just("num"), Just("")];
    let block = || prop::collection::vec(any::<u8>(), 0..40);
    let name =
        prop_oneof![Just("set"), Just("add"), Just("replace"), Just("append"), Just("prepend"), Just("cas"),];
    let store =
        (name, key(), block(), 0..3u8, any::<bool>()).prop_map(|(name, key, block, wrong, noreply)| {
            let length = block.len() + usize::from(wrong == 1);
            let unique = if name == "cas" { " 1" } else { "" };
            let noreply = if noreply { " noreply" } else { "" };
            let line = format!("{name} {key} 1 0 {length}{unique}{noreply}\r\n");
            [line.as_bytes(), &block, b"\r\n"].concat()
        });
    // Not under the key of which the long retrieval asks for thousands.
    let large = (prop_oneof![Just("a"), Just("b")], 1_000_000..1_100_000usize).prop_map(|(key, length)| {
        [format!("set {key} 0 0 {length}\r\n").as_bytes(), &vec![b'L'; length], b"\r\n"].concat()
    });
    let number = (key(), any::<u64>())
        .prop_map(|(key, number)| format!("set {key} 0 0 {}\r\n{number}\r\n", number.to_string().len()));
    let line = prop_oneof![
        Just("get a b num a".to_owned()),
        Just("gets a b".to_owned()),
        Just("gat 10 a b".to_owned()),
        Just("incr num 17".to_owned()),
        Just("decr num 18 noreply".to_owned()),
        Just("touch a 100".to_owned()),
        Just("delete a".to_owned()),
        Just("flush_all".to_owned()),
        Just("version".to_owned()),
        Just("verbosity 1".to_owned()),
        Just(String::new()),
        Just(format!("get {}", "num ".repeat(3000))),
        Just("x".repeat(2100)),
        "[ -~]{0,60}",
    ];
    prop_oneof![
        8 => store,
        1 => large,
        4 => number.prop_map(String::into_bytes),
        8 => line.prop_map(|line| (line + "\r\n").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn answers_do_not_depend_on_how_the_input_is_cut(
        commands in prop::collection::vec(command(), 1..12),
        sizes in prop::collection::vec(1..3000usize, 1..8),
    ) {
        let input = commands.concat();
        let (whole_service, cut_service) = (service(), service());
        let mut whole = Client::new(&whole_service);
        whole.send(&input);
        let mut cut = Client::new(&cut_service);
        let mut rest = &input[..];
        // Long input in larger pieces: some ten thousand are enough.
        let scale = 1 + input.len() / 20_000;
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(size * scale));
            cut.send(piece);
            rest = after;
            if rest.is_empty() || cut.closed {
                break;
            }
        }
        prop_assert_eq!(whole.closed, cut.closed);
        prop_assert!(whole.answers == cut.answers);
    }

    #[test]
    fn byte_by_byte_is_as_good_as_at_once(commands in prop::collection::vec(command(), 1..6)) {
        let mut input = commands.concat();
        input.truncate(20_000);
        let (whole_service, cut_service) = (service(), service());
        let mut whole = Client::new(&whole_service);
        whole.send(&input);
        let mut cut = Client::new(&cut_service);
        for byte in &input {
            cut.send(&[*byte]);
        }
        prop_assert_eq!(whole.closed, cut.closed);
        prop_assert!(whole.answers == cut.answers);
    }
}

#[test]
fn requests_that_come_whole_need_no_room_for_parts() {
    let limits = Limits { memory: 1 << 20, value: 60_000 };
    let service = Service { store: Store::new(limits).expect("limits that hold together"), ..service() };
    let mut holders: Vec<Client<'_>> = Vec::new();
    // Until one is refused; its client gets an error.
    while holders.last().is_none_or(|client| client.answers.is_empty()) {
        let mut client = Client::new(&service);
        client.send(b"set held 0 0 60000\r\n");
        client.send(&[b'x'; 59_999]);
        holders.push(client);
    }
    let mut refused = holders.pop().expect("the refused one");
    assert_eq!(refused.answers, b"SERVER_ERROR out of memory storing object\r\n");
    let mut whole = b"set whole 0 0 60000\r\n".to_vec();
    whole.resize(whole.len() + 60_000, b'y');
    whole.extend_from_slice(b"\r\n");
    refused.answers.clear();
    // The rest of the refused block, then what comes in one piece.
    refused.send(b"x\r\n");
    refused.send(&whole);
    refused.send(b"set a 0 0 1\r\nx\r\n");
    assert_eq!(refused.answers, b"STORED\r\nSTORED\r\n");
    // The others are served as if nothing had happened.
    for client in &mut holders {
        client.send(b"x\r\n");
        assert_eq!(client.answers, b"STORED\r\n");
    }
    assert_eq!(service.store.partial_bytes(), 0);
}
