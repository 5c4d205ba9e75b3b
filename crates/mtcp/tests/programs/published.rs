//! The published programs of mTCP, unchanged: `apps/example` and `apps/perf` of the checkout of
//! github.com/mtcp-stack/mtcp that MEGAPIPE_TEST_MTCP names, and its ports of lighttpd and ab.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::net::pattern;
use testkit::netns;
use testkit::skip::{self, Skipped};

use super::support::{BOUND, LINUX, OWN_OR_NONE, Place, STACK, connect};

const CONNECTIONS: usize = 4000;
const SIZE: usize = 1000;
/// For a test that builds a program of many files first.
const BUILT: Duration = BOUND.saturating_mul(5);

/// The checkout, and a place for what is built from it; or says why not.
fn checkout(test: &str) -> Option<PathBuf> {
    let why = match env::var_os("MEGAPIPE_TEST_MTCP").map(PathBuf::from) {
        Some(root) if root.join("apps/example/epserver.c").exists() => return Some(root),
        Some(root) => format!("no apps/example/epserver.c in {}", root.display()),
        None => "MEGAPIPE_TEST_MTCP names no checkout of github.com/mtcp-stack/mtcp".to_owned(),
    };
    println!("SKIPPED {test}: {why}");
    skip::record(test, &Skipped::because(why));
    None
}

/// Compiles an application as mTCP's makefiles do. What they leave to older compilers is -fcommon.
fn build(place: &Place, root: &Path, source: &str) -> PathBuf {
    let utilities = root.join("util");
    let include = format!("-I{}", utilities.join("include").display());
    let sources = ["http_parsing.c", "tdate_parse.c", "netlib.c"].map(|name| utilities.join(name));
    let sources: Vec<PathBuf> = [root.join("apps").join(source)].into_iter().chain(sources).collect();
    place.compile(&["-fgnu89-inline", "-std=gnu99", "-fcommon", &include], &sources)
}

/// Connects once the program listens.
fn listening() -> TcpStream {
    let address: SocketAddr = format!("{STACK}:80").parse().expect("an address");
    let deadline = Instant::now() + BOUND;
    loop {
        if let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            return stream;
        }
        assert!(Instant::now() < deadline, "the program does not listen");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn epserver_answers_linux() {
    let test = "published::epserver_answers_linux";
    let Some(root) = checkout(test) else { return };
    if !netns::enter(test, BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("epserver", thread);
        let body: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
        fs::create_dir(place.0.join("www")).expect("a directory");
        fs::write(place.0.join("www/file"), &body).expect("a file");
        let configuration = root.join("apps/example/epserver.conf");
        let configuration = configuration.to_str().expect("a path in UTF-8");
        let program = build(&place, &root, "example/epserver.c");
        let server = place.start(&program, &["-p", "www", "-f", configuration, "-N", "1"]);
        drop(listening());

        let clients: Vec<_> = (0..8)
            .map(|_| {
                let body = body.clone();
                thread::spawn(move || {
                    for _ in 0..CONNECTIONS / 8 {
                        let mut stream = connect(80);
                        stream.write_all(b"GET /file HTTP/1.0\r\n\r\n").expect("written");
                        let mut answer = Vec::new();
                        stream.read_to_end(&mut answer).expect("an answer");
                        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(&body));
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("no error"));
        for connections in ["1", "500"] {
            wrk(connections);
        }
        server.interrupt();
    }
}

/// wrk reports errors in lines of their own; without any it prints none of them.
fn wrk(connections: &str) {
    let url = format!("http://{STACK}/file");
    match Command::new("wrk").args(["-t", "1", "-c", connections, "-d", "2", &url]).output() {
        Ok(wrk) => {
            let text = String::from_utf8_lossy(&wrk.stdout);
            assert!(wrk.status.success() && text.contains("requests in"), "{wrk:?}");
            assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
        }
        Err(error) => println!("SKIPPED wrk at {connections} connections: {error}"),
    }
}

/// Who closes a connection first.
#[derive(Clone, Copy, PartialEq)]
enum First {
    Client,
    Server,
}

/// A server of the kernel's: one answer to a connection.
fn serve(first: First) {
    let listener = TcpListener::bind("0.0.0.0:80").expect("a listener");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let mut request = [0; 1024];
                let len = stream.read(&mut request).expect("a request");
                assert!(request[..len].starts_with(b"GET /file "));
                // In one piece: epwget takes a header that comes alone for the end.
                let mut answer = format!("HTTP/1.0 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").into_bytes();
                answer.resize(answer.len() + SIZE, 7);
                stream.write_all(&answer).expect("written");
                if first == First::Client {
                    let _ = stream.read(&mut request);
                }
            });
        }
    });
}

#[test]
fn epwget_asks_linux() {
    let test = "published::epwget_asks_linux";
    let Some(root) = checkout(test) else { return };
    if !netns::enter(test, BOUND) {
        return;
    }
    let configuration = root.join("apps/example/epwget.conf");
    let configuration = configuration.to_str().expect("a path in UTF-8");
    serve(First::Client);
    let cores = thread::available_parallelism().map_or(1, usize::from).min(2);
    for (cores, stack) in (1..=cores).flat_map(|cores| OWN_OR_NONE.map(|stack| (cores, stack))) {
        let place = Place::new("epwget", stack);
        let program = build(&place, &root, "example/epwget.c");
        let (url, count) = (format!("{LINUX}/file"), CONNECTIONS.to_string());
        let arguments = [&url, &count, "-N", &cores.to_string(), "-c", "100", "-f", configuration];
        let text = place.start(&program, &arguments).output();
        let clean = format!("Completed {} connections, errors: 0 incompletes: 0", CONNECTIONS / cores);
        assert_eq!(text.matches(&clean).count(), cores, "{text}");
    }
}

/// The client of apps/perf waits for a connection and sends for a second.
#[test]
fn perf_client_sends_to_linux() {
    let test = "published::perf_client_sends_to_linux";
    let Some(root) = checkout(test) else { return };
    if !netns::enter(test, BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("perf", thread);
        fs::copy(root.join("apps/perf/client.conf"), place.0.join("client.conf")).expect("a copy");
        let program = build(&place, &root, "perf/client.c");
        let client = place.start(&program, &["wait", STACK, "80", "1"]);
        let mut stream = listening();
        stream.set_read_timeout(Some(BOUND)).expect("a timeout");
        let (mut got, mut buffer) = (0, vec![0; 65_536]);
        loop {
            let len = stream.read(&mut buffer).expect("bytes");
            assert!(len > 0, "the client closed without its mark");
            got += len;
            if buffer[len - 1] == 0x96 {
                break;
            }
        }
        stream.write_all(b"OK\n").expect("written");
        let text = client.output();
        // The mark is not counted.
        let sent = format!("Total bytes sent: {}\n", got - 1);
        assert!(text.contains(&sent), "{got} bytes arrived: {text}");
    }
}

/// Builds one of mTCP's ports as the document says, with the library of this build.
fn port(place: &Place, root: &Path, name: &str) -> PathBuf {
    let test = env::current_exe().expect("the test knows its path");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mtcp/ports.sh");
    let built = Command::new(script)
        .args([root, &place.0, Path::new(name)])
        .env("MEGAPIPE_MTCP_LIBRARY", test.with_file_name("libmegapipe_mtcp.a"))
        .output()
        .expect("the script runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    place.0.join(name)
}

/// Asks for a file over an open connection, and compares it.
fn fetch(stream: &mut TcpStream, name: &str, body: &[u8]) {
    write!(stream, "GET /{name} HTTP/1.1\r\nHost: {STACK}\r\n\r\n").expect("written");
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a header");
        header.push(byte[0]);
    }
    let header = String::from_utf8(header).expect("text");
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(header.starts_with("HTTP/1.1 200 OK\r\n") && header.contains(&length), "{header}");
    let mut got = vec![0; body.len()];
    stream.read_exact(&mut got).expect("a body");
    assert!(got == body, "/{name} came changed");
}

#[test]
fn lighttpd_serves_linux() {
    let test = "published::lighttpd_serves_linux";
    let Some(root) = checkout(test) else { return };
    if !netns::enter(test, BUILT) {
        return;
    }
    let files = [("file", pattern(1 << 10, 1)), ("large", pattern(1 << 20, 2))];
    let built = Place::new("lighttpd", "own");
    let program = port(&built, &root, "lighttpd");
    for (contexts, stack) in
        [1, 2].into_iter().flat_map(|contexts| OWN_OR_NONE.map(|stack| (contexts, stack)))
    {
        let place = Place::new(&format!("lighttpd-{contexts}"), stack);
        fs::copy(root.join("apps/lighttpd-1.4.32/src/mtcp.conf"), place.0.join("mtcp.conf")).expect("a copy");
        for (name, body) in &files {
            fs::write(place.0.join(name), body).expect("a file");
        }
        let folder = place.0.display();
        let configuration = format!(
            "server.document-root = \"{folder}\"\nserver.errorlog = \"{folder}/errors\"\n\
             server.bind = \"{STACK}\"\nserver.port = 80\nserver.listen-backlog = 256\n\
             server.max-connections = 1000\n\
             server.event-handler = \"mtcp-epoll\"\nserver.network-backend = \"mtcp_writev\"\n"
        );
        fs::write(place.0.join("lighttpd.conf"), configuration).expect("a file");
        let server = place.start(&program, &["-D", "-n", &contexts.to_string(), "-f", "lighttpd.conf"]);
        let deadline = Instant::now() + BOUND;
        let started = || {
            let errors = fs::read_to_string(place.0.join("errors")).unwrap_or_default();
            errors.matches("server started").count()
        };
        while started() < contexts {
            assert!(Instant::now() < deadline, "no server of {contexts} contexts");
            thread::sleep(Duration::from_millis(10));
        }

        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let mut stream = listening();
                        stream.set_read_timeout(Some(BOUND)).expect("a timeout");
                        files.iter().for_each(|(name, body)| fetch(&mut stream, name, body));
                    }
                });
            }
        });
        wrk("100");
        drop(server);
        let errors = fs::read_to_string(place.0.join("errors")).expect("a log");
        assert_eq!(errors.lines().count(), contexts, "{errors}");
    }
}

#[test]
fn ab_asks_linux() {
    let test = "published::ab_asks_linux";
    let Some(root) = checkout(test) else { return };
    if !netns::enter(test, BUILT) {
        return;
    }
    serve(First::Server);
    let built = Place::new("ab", "own");
    let program = port(&built, &root, "ab");
    for stack in OWN_OR_NONE {
        let place = Place::new("ab-once", stack);
        fs::create_dir(place.0.join("config")).expect("a directory");
        let configuration = root.join("apps/apache_benchmark/support/config/mtcp.conf");
        fs::copy(configuration, place.0.join("config/mtcp.conf")).expect("a copy");
        let url = format!("http://{LINUX}/file");
        let text = place.start(&program, &["-N", "1", "-c", "50", "-n", "2000", &url]).output();
        for (what, count) in [("Complete requests", 2000), ("Failed requests", 0), ("Write errors", 0)] {
            let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
            assert_eq!(line.map(str::trim), Some(count.to_string().as_str()), "{what}: {text}");
        }
        assert!(text.contains(&format!("Document Length:        {SIZE} bytes")), "{text}");
        assert!(!text.contains("Non-2xx"), "{text}");
    }
}
