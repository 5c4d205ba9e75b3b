//! Errors that ended a batch which had messages: the next call tells them.

use sys::message;

/// Errors kept at most; older ones are forgotten.
const KEPT_MAX: usize = 64;

/// recvmmsg(2) leaves such an error in the socket; from outside the kernel it can only be kept
/// beside it.
#[derive(Default)]
pub(crate) struct Late {
    errors: Vec<(i32, u64, i32)>,
}

impl Late {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Keeps an error; that nothing waits is none. A socket keeps the first that was not told.
    pub(crate) fn keep(&mut self, fd: i32, errno: i32) {
        if errno == libc::EAGAIN {
            return;
        }
        if let Ok(cookie) = message::cookie(fd)
            && !self.errors.iter().any(|error| (error.0, error.1) == (fd, cookie))
        {
            if self.errors.len() == KEPT_MAX {
                self.errors.remove(0);
            }
            self.errors.push((fd, cookie, errno));
        }
    }

    /// The error kept for this socket, which is thereby told. A descriptor that has become
    /// another socket has none.
    pub(crate) fn take(&mut self, fd: i32) -> Option<i32> {
        let at = self.errors.iter().position(|error| error.0 == fd)?;
        let (_, cookie, errno) = self.errors.remove(at);
        (message::cookie(fd).ok() == Some(cookie)).then_some(errno)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_error_is_told_once_and_only_of_its_socket() {
        let mut late = Late::default();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        late.keep(fd, libc::ECONNREFUSED);
        late.keep(fd, libc::EAGAIN);
        assert_eq!(late.take(fd), Some(libc::ECONNREFUSED));
        assert_eq!(late.take(fd), None);

        late.keep(fd, libc::ECONNREFUSED);
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        // SAFETY: both descriptors are this test's own.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
        assert_eq!(late.take(fd), None);
        assert!(late.is_empty());
    }

    #[test]
    fn old_errors_make_room() {
        let mut late = Late::default();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        late.keep(socket.as_raw_fd(), 1);
        late.keep(socket.as_raw_fd(), 2);
        assert_eq!(late.errors.len(), 1);
        let others: Vec<_> = (0..KEPT_MAX).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        others.iter().for_each(|other| late.keep(other.as_raw_fd(), 3));
        assert_eq!(late.errors.len(), KEPT_MAX);
        assert_eq!(late.take(socket.as_raw_fd()), None);
        assert_eq!(late.take(others[0].as_raw_fd()), Some(3));
    }
}
