//! The calls that move bytes.

use std::cell::Cell;

use super::*;

#[inline]
pub unsafe fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    if table::is_foreign(fd) { real::read(fd, buffer, count) } else { ours::read(fd, buffer, count) }
}

/// Whether read(2) and write(2) reach the socket: the kernel handles 0 bytes and invalid memory
/// before.
#[inline(always)]
fn moves(buffer: *const c_void, count: size_t) -> bool {
    count > 0 && is_range(buffer.cast(), count)
}

/// The same calls on descriptors that may be tracked: separate, so that other descriptors cost a
/// check and a jump, and no frame.
mod ours {
    use super::*;

    #[inline(never)]
    pub(super) unsafe fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        let Some(socket) = watched(fd).filter(|_| moves(buffer, count)) else {
            return real::read(fd, buffer, count);
        };
        let piece = piece(buffer.cast(), count);
        receiving(fd, socket, || one(&raw const piece), 0, || real::read(fd, buffer, count))
    }

    #[inline(never)]
    pub(super) unsafe fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
        let Some(socket) = watched(fd) else { return real::recv(fd, buffer, length, flags) };
        let piece = piece(buffer.cast(), length);
        receiving(fd, socket, || one(&raw const piece), flags, || real::recv(fd, buffer, length, flags))
    }

    #[inline(never)]
    pub(super) unsafe fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        let Some(socket) = watched(fd).filter(|_| moves(buffer, count)) else {
            return real::write(fd, buffer, count);
        };
        let piece = piece(buffer.cast(), count);
        sends(fd, socket, || one(&raw const piece), 0, || real::write(fd, buffer, count))
    }

    #[inline(never)]
    pub(super) unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        let Some(socket) = watched(fd) else { return real::send(fd, buffer, length, flags) };
        let piece = piece(buffer.cast(), length);
        sends(fd, socket, || one(&raw const piece), flags, || real::send(fd, buffer, length, flags))
    }
}

pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let plain = || real::readv(fd, iov, count);
    match with_pieces(watched(fd), iov, count) {
        Some((socket, pieces)) => receiving(fd, socket, || Ok(pieces), 0, plain),
        None => plain(),
    }
}

/// RWF_HIPRI, DSYNC, SYNC, NOWAIT, APPEND and NOAPPEND; sockets use one of them.
const SOCKETS_TAKE: c_int = 0x3f;

fn waits(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }
}

/// preadv2(2) without an offset is readv(2), which sockets support.
pub unsafe fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    let plain = || real::preadv2(fd, iov, count, offset, flags);
    let socket = watched(fd).filter(|_| offset == -1 && flags & !SOCKETS_TAKE == 0);
    match with_pieces(socket, iov, count) {
        Some((socket, pieces)) => receiving(fd, socket, || Ok(pieces), waits(flags), plain),
        None => plain(),
    }
}

/// As [`preadv2`], for writev(2).
pub unsafe fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    let plain = || real::pwritev2(fd, iov, count, offset, flags);
    let socket = watched(fd).filter(|_| offset == -1 && flags & !SOCKETS_TAKE == 0);
    match with_pieces(socket, iov, count) {
        Some((socket, pieces)) => sends(fd, socket, || Ok(pieces), waits(flags), plain),
        None => plain(),
    }
}

/// A socket and the pieces of a vector; `None` if readv(2) and writev(2) do not reach the socket:
/// the kernel handles 0 bytes and invalid vectors before.
unsafe fn with_pieces(
    socket: Option<(u32, &'static Socket)>,
    iov: *const iovec,
    count: c_int,
) -> Option<((u32, &'static Socket), Pieces<'static>)> {
    let socket = socket?;
    let pieces = Pieces::new(iov, usize::try_from(count).ok()?).ok()?;
    (pieces.left > 0).then_some((socket, pieces))
}

#[inline]
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    if table::is_foreign(fd) {
        real::recv(fd, buffer, length, flags)
    } else {
        ours::recv(fd, buffer, length, flags)
    }
}

pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    let by_kernel = Cell::new(false);
    let plain = || {
        by_kernel.set(true);
        real::recvfrom(fd, buffer, length, flags, address, address_length)
    };
    let Some(socket) = watched(fd) else { return plain() };
    let piece = piece(buffer.cast(), length);
    let count = receiving(fd, socket, || one(&raw const piece), flags, plain);
    if by_kernel.get() || count < 0 || address.is_null() {
        return count;
    }
    if !is_writable(address_length) {
        return failed(libc::EFAULT);
    }
    if *address_length > c_int::MAX as socklen_t {
        return failed(libc::EINVAL);
    }
    // tcp(7): a stream returns no source.
    *address_length = 0;
    count
}

pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = watched(fd).filter(|_| reaches_socket(message, flags)) else {
        return received_descriptors(real::recvmsg(fd, message, flags), message);
    };
    let by_kernel = Cell::new(false);
    let plain = || {
        by_kernel.set(true);
        real::recvmsg(fd, message, flags)
    };
    if is_promoted(socket)
        && !(*message).msg_name.is_null()
        && (*message).msg_namelen > c_int::MAX as socklen_t
    {
        return failed(libc::EINVAL);
    }
    let count = receiving(fd, socket, || Pieces::of_message(&*message), flags, plain);
    if !by_kernel.get() && count >= 0 {
        if !is_writable(message) {
            return failed(libc::EFAULT);
        }
        (*message).msg_namelen = 0;
        let room = std::mem::take(&mut (*message).msg_controllen);
        // As Linux leaves them.
        (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        if let Some(left) = kept_errno(|| options::unread_hint(socket.1, fd)) {
            add_control(message, room, left);
        }
    }
    count
}

/// Adds the control message of TCP_INQ, as far as there is room (`put_cmsg`).
unsafe fn add_control(message: *mut msghdr, room: usize, left: c_int) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let value = left.to_ne_bytes();
    let length = room.min(HEADER + value.len());
    let at = (*message).msg_control.cast::<u8>();
    if length < HEADER + value.len() || at.is_null() {
        (*message).msg_flags |= libc::MSG_CTRUNC;
    }
    if length < HEADER || !are_writable(at, length) {
        return;
    }
    let header = libc::cmsghdr { cmsg_len: length, cmsg_level: libc::IPPROTO_TCP, cmsg_type: libc::TCP_INQ };
    at.cast::<libc::cmsghdr>().write_unaligned(header);
    at.add(HEADER).copy_from_nonoverlapping(value.as_ptr(), length - HEADER);
    (*message).msg_controllen = room.min(libc::CMSG_SPACE(value.len() as c_uint) as usize);
}

/// Whether sendmsg(2) and recvmsg(2) reach the socket: the kernel first refuses invalid messages,
/// and the flag of 32-bit programs.
#[inline]
fn reaches_socket(message: *const msghdr, flags: c_int) -> bool {
    const MSG_CMSG_COMPAT: c_int = c_int::MIN;
    flags & MSG_CMSG_COMPAT == 0 && is_readable(message)
}

/// Descriptors received in a message are another process's, too.
unsafe fn received_descriptors(count: ssize_t, message: *mut msghdr) -> ssize_t {
    if count >= 0 && (*message).msg_controllen > 0 {
        carried(message, |fd| {
            descriptors::handed_over(fd);
            local_listen::received(fd);
        });
    }
    count
}

/// Bytes: the kernel refuses more (net.core.optmem_max).
const MOST_CONTROL: usize = 1 << 20;

/// The descriptors that a message carries.
unsafe fn carried(message: *const msghdr, mut each: impl FnMut(c_int)) {
    let (control, length) = ((*message).msg_control.cast::<u8>(), (*message).msg_controllen);
    // Without a tracked socket the kernel has just filled it.
    if length > MOST_CONTROL || (sockets::any() && !are_readable(control, length)) {
        return;
    }
    let mut header = libc::CMSG_FIRSTHDR(message);
    let end = control.addr() + length;
    // The kernel refuses one that is longer than the rest.
    while !header.is_null() && (*header).cmsg_len <= end - header.addr() {
        if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let bytes = ((*header).cmsg_len).saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            for place in 0..bytes / size_of::<c_int>() {
                each(data.add(place).read_unaligned());
            }
        }
        header = libc::CMSG_NXTHDR(message, header);
    }
}

pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let promoted = watched(fd).is_some_and(|(_, socket)| socket.state() != State::Kernel);
    if !promoted || !is_readable(messages) {
        let received = real::recvmmsg(fd, messages, count, flags, timeout);
        for place in 0..usize::try_from(received).unwrap_or(0) {
            received_descriptors(0, &raw mut (*messages.add(place)).msg_hdr);
        }
        return received;
    }
    if !timeout.is_null() && !is_readable(timeout) {
        return failed(libc::EFAULT) as c_int;
    }
    let until = match epoll::time(timeout.as_ref()) {
        Ok(limit) => limit.deadline(clock::now()),
        Err(()) => return real::recvmmsg(fd, messages, count, flags, timeout),
    };
    let before = real::errno();
    let mut done = 0;
    for place in 0..count.min(libc::UIO_MAXIOV as c_uint) {
        let message = messages.add(place as usize);
        // recvmmsg(2): after the first message, MSG_WAITFORONE turns waiting off.
        let waits = done == 0 || flags & libc::MSG_WAITFORONE == 0;
        let flags = (flags & !libc::MSG_WAITFORONE) | if waits { 0 } else { libc::MSG_DONTWAIT };
        let mut received = recvmsg(fd, &raw mut (*message).msg_hdr, flags);
        if received >= 0 && !is_writable(message) {
            received = failed(libc::EFAULT);
        }
        if received < 0 {
            if done == 0 {
                return -1;
            }
            break;
        }
        (*message).msg_len = received as c_uint;
        done += 1;
        // The time is checked only after a message (recvmmsg(2), BUGS).
        if until.is_some_and(|until| clock::now() >= until) {
            break;
        }
    }
    if until.is_some() && !is_writable(timeout) {
        return failed(libc::EFAULT) as c_int;
    }
    if let (Some(timeout), Some(until)) = (timeout.as_mut(), until) {
        *timeout = clock::timespec(until.saturating_sub(clock::now()));
    }
    real::set_errno(before);
    done
}

#[inline]
pub unsafe fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    if table::is_foreign(fd) { real::write(fd, buffer, count) } else { ours::write(fd, buffer, count) }
}

pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let plain = || real::writev(fd, iov, count);
    match with_pieces(watched(fd), iov, count) {
        Some((socket, pieces)) => sends(fd, socket, || Ok(pieces), 0, plain),
        None => plain(),
    }
}

#[inline]
pub unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    if table::is_foreign(fd) {
        real::send(fd, buffer, length, flags)
    } else {
        ours::send(fd, buffer, length, flags)
    }
}

pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    if flags & libc::MSG_FASTOPEN != 0 {
        local_listen::connecting(fd, address, address_length);
    }
    let plain = || real::sendto(fd, buffer, length, flags, address, address_length);
    let Some(socket) = watched(fd) else { return plain() };
    if is_promoted(socket) && !address.is_null() {
        // A stream does not use it (tcp(7)), but it has to be valid.
        if address_length as usize > size_of::<libc::sockaddr_storage>() {
            return failed(libc::EINVAL);
        }
        if address_length > 0 && !are_readable(address.cast::<u8>(), address_length as usize) {
            return failed(libc::EFAULT);
        }
    }
    let piece = piece(buffer.cast(), length);
    sends(fd, socket, || one(&raw const piece), flags, plain)
}

pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_FASTOPEN != 0 && local_listen::is_on() && is_readable(message) {
        local_listen::connecting(fd, (*message).msg_name.cast(), (*message).msg_namelen);
    }
    let Some(socket) = watched(fd).filter(|_| reaches_socket(message, flags)) else {
        hands_over(message);
        return real::sendmsg(fd, message, flags);
    };
    if is_promoted(socket)
        && let Err(errno) = can_be_sent(&*message)
    {
        return failed(errno);
    }
    sends(fd, socket, || Pieces::of_message(&*message), flags, || real::sendmsg(fd, message, flags))
}

fn is_promoted((_, socket): (u32, &'static Socket)) -> bool {
    socket.state() == State::Promoted
}

/// Checks the address and control data, which a stream does not use, as the kernel does first.
unsafe fn can_be_sent(message: &msghdr) -> Result<(), i32> {
    let named = if message.msg_name.is_null() { 0 } else { message.msg_namelen };
    if named > c_int::MAX as socklen_t {
        return Err(libc::EINVAL);
    }
    let named = (named as usize).min(size_of::<libc::sockaddr_storage>());
    if named > 0 && !are_readable(message.msg_name.cast::<u8>(), named) {
        return Err(libc::EFAULT);
    }
    match message.msg_controllen {
        0 => Ok(()),
        length if length > MOST_CONTROL => Err(libc::ENOBUFS),
        length if are_readable(message.msg_control.cast::<u8>(), length) => Ok(()),
        _ => Err(libc::EFAULT),
    }
}

/// Demotes sockets whose descriptors are sent in a message.
pub(super) unsafe fn hands_over(message: *const msghdr) {
    if sockets::any() && is_readable(message) && (*message).msg_controllen > 0 {
        carried(message, demotion::demote);
    }
}

pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let promoted = watched(fd).is_some_and(|(_, socket)| socket.state() != State::Kernel);
    if !promoted || !is_readable(messages) {
        for place in 0..count.min(libc::UIO_MAXIOV as c_uint) {
            hands_over(&raw const (*messages.wrapping_add(place as usize)).msg_hdr);
        }
        return real::sendmmsg(fd, messages, count, flags);
    }
    let mut done = 0;
    for place in 0..count.min(libc::UIO_MAXIOV as c_uint) {
        let message = messages.add(place as usize);
        let before = real::errno();
        let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
        if sent < 0 {
            if done > 0 {
                real::set_errno(before);
                break;
            }
            return -1;
        }
        if !is_writable(message) {
            return if done > 0 { done } else { failed(libc::EFAULT) as c_int };
        }
        (*message).msg_len = sent as c_uint;
        done += 1;
    }
    done
}

pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let plain = || real::sendfile(out, input, offset, count);
    let Some(socket) = watched(out) else { return plain() };
    sending_pieces(out, socket, || Err(libc::EINVAL), 0, plain).unwrap_or_else(|| {
        match offset.is_null() || is_readable(offset) {
            true => copies::send_file(out, input, offset, count),
            false => failed(libc::EFAULT),
        }
    })
}

pub unsafe fn splice(
    input: c_int,
    input_offset: *mut loff_t,
    output: c_int,
    output_offset: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let plain = || real::splice(input, input_offset, output, output_offset, length, flags);
    // Calls that the kernel refuses, or that do nothing, move no bytes.
    let moves = |other: c_int| {
        let is_pipe = || kernel::control(other, libc::F_GETPIPE_SZ, 0) >= 0;
        length > 0 && input_offset.is_null() && output_offset.is_null() && kept_errno(is_pipe)
    };
    // Spliced bytes are counted like any others.
    if let Some(socket) = watched(output) {
        return sending_pieces(output, socket, || Err(libc::EINVAL), 0, plain).unwrap_or_else(
            || match moves(input) {
                true => copies::splice_to(input, output, length, flags),
                false => plain(),
            },
        );
    }
    match watched(input) {
        Some(socket) => {
            receiving_pieces(input, socket, || Err(libc::EINVAL), 0, plain).unwrap_or_else(|| {
                match moves(output) {
                    true => copies::splice_from(input, output, length, flags),
                    false => plain(),
                }
            })
        }
        None => plain(),
    }
}

mod copies;
