//! Log lines on stderr: one an event, and lost if they are not read.

use std::io::{self, Write};

/// Writes one event, which comes in one piece and ends with a line feed.
pub(super) struct Line;

impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let mut line = Vec::with_capacity(event.len() + 1);
        for &byte in event.strip_suffix(b"\n").unwrap_or(event) {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                byte => line.push(byte),
            }
        }
        line.push(b'\n');
        // The monitor serves on without its log: there is no one to report its loss to.
        let _ = io::stderr().write_all(&line);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
