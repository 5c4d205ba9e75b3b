//! A client that knows no protocol, only bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use testkit::process::PATIENCE;

/// A connection whose reads and writes fail when they take too long.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("sockets have timeouts");
        stream.set_write_timeout(Some(PATIENCE)).expect("sockets have timeouts");
        stream.set_nodelay(true).expect("TCP sockets have this option");
        Self { stream }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads");
    }

    /// Reads exactly what is expected, and fails if something else comes.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut answer = vec![0; expected.len()];
        let result = self.stream.read_exact(&mut answer);
        assert!(result.is_ok() && answer == expected, "{result:?}: {}", answer.escape_ascii());
    }

    /// Sends a command and expects its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: impl AsRef<[u8]>, answer: impl AsRef<[u8]>) {
        self.send(command);
        self.expect(answer);
    }

    /// Reads until the answer ends with `end`.
    pub(crate) fn read_until(&mut self, end: &str) -> String {
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("the answer has an end");
            answer.push(byte[0]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Reads to the end of the connection. A reset ends it too.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut answer = Vec::new();
        match self.stream.read_to_end(&mut answer) {
            Ok(_) => answer,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => answer,
            Err(error) => panic!("the connection does not end: {error}"),
        }
    }
}

/// Everything that a server answers to `pieces`, which are sent one by one.
pub(crate) fn transcript<'a>(address: SocketAddr, pieces: impl Iterator<Item = &'a [u8]> + Send) -> Vec<u8> {
    let mut reader = Client::connect(address);
    let mut writer = reader.stream.try_clone().expect("descriptors can be had");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in pieces {
                // A server may close before it has read everything.
                if writer.write_all(piece).is_err() {
                    return;
                }
            }
            let _ = writer.shutdown(Shutdown::Write);
        });
        reader.read_to_end()
    })
}
