//! The task of one connection, alike on every runtime: a buffer of its own for the connection's life,
//! and a whole write for each request.

use std::io;

use super::Arrived;

/// A connection of a runtime. What completes takes the buffer and gives it back; what is ready
/// borrows it meanwhile.
pub(super) trait Stream {
    /// Reads into the buffer, which is empty and has room, what has come; 0 at the end of file.
    async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>);
    /// Writes all of the response.
    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()>;
}

/// Answers until the connection ends or fails.
pub(super) async fn answer(mut stream: impl Stream, response: &'static [u8]) {
    let mut buffer = Vec::with_capacity(response.len().max(4096));
    let mut arrived = Arrived::default();
    loop {
        buffer.clear();
        let (read, returned) = stream.read(buffer).await;
        buffer = returned;
        let Ok(count @ 1..) = read else { return };
        for _ in 0..arrived.whole_messages(count, response.len()) {
            if stream.write_all(response).await.is_err() {
                return;
            }
        }
    }
}
