//! Sockets: their making, addresses, options and end.

use std::ffi::{c_int, c_ulong, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use libc::{in_addr_t, sockaddr, socklen_t};
use tcp::sockets::{Errno as Error, Options, Readiness, Socket};

use crate::address;
use crate::context::Context;
use crate::errno::{BAD, Errno, FAULT, INVALID, NOT_SOCKET, int};
use crate::files::File;
use crate::link::Link;
use crate::pipe::End;
use crate::registry::{self, Handle};
use crate::threaded::Kind;

/// A new socket: AF_INET, or AF_INET6, which mTCP does not have; SOCK_STREAM.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_socket(mctx: Handle, domain: c_int, kind: c_int, _protocol: c_int) -> c_int {
    int(registry::with(mctx, |context| {
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        if kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != libc::SOCK_STREAM {
            return Err(INVALID);
        }
        let socket = context.run(|stack| {
            let socket = stack.sockets.socket().map_err(full)?;
            // mTCP has no Nagle's algorithm. Accepted sockets inherit this.
            let options = Options { no_delay: true, ..Options::default() };
            stack.sockets.set_options(stack.now(), socket, options)?;
            Ok(socket)
        })?;
        context.link.opened(socket);
        keep(context, socket, kind & libc::SOCK_NONBLOCK != 0, v6)
    }))
}

/// ENFILE, as mTCP says when it has no more sockets.
fn full(error: Error) -> Errno {
    match error {
        Error::TooMany => Errno(libc::ENFILE),
        error => error.into(),
    }
}

fn keep(context: &mut Context, socket: Socket, nonblocking: bool, v6: bool) -> Result<c_int, Errno> {
    let file = File::Socket { socket, nonblocking, v6 };
    context.files.insert(file).inspect_err(|_| {
        let _ = context.link.close(socket);
    })
}

/// Calls that would block return EAGAIN from now on.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_setsock_nonblock(mctx: Handle, id: c_int) -> c_int {
    int(registry::with(mctx, |context| set_nonblocking(context, id, true)))
}

fn set_nonblocking(context: &mut Context, id: c_int, on: bool) -> Result<c_int, Errno> {
    match context.files.get(id)? {
        File::Socket { nonblocking, .. } | File::Pipe { nonblocking, .. } => *nonblocking = on,
        // Their calls do not block; mTCP takes it, too.
        File::Epoll(_) => {}
    }
    Ok(0)
}

/// FIONREAD and FIONBIO.
///
/// # Safety
/// `argument` is null or valid for an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_socket_ioctl(
    mctx: Handle,
    id: c_int,
    request: c_int,
    argument: *mut c_void,
) -> c_int {
    int(registry::with(mctx, |context| {
        context.files.get(id)?;
        if argument.is_null() {
            return Err(FAULT);
        }
        let argument = argument.cast::<c_int>();
        match c_ulong::from(request as u32) {
            request if request == libc::FIONREAD as c_ulong => {
                let unread = match context.files.get(id)? {
                    File::Socket { socket, .. } => context.link.unread(*socket).map_err(|_| BAD)?,
                    File::Pipe { pipe, end: End::Read, .. } => {
                        context.pipes[*pipe].as_ref().map_or(0, crate::pipe::Pipe::unread)
                    }
                    _ => return Err(BAD),
                };
                // SAFETY: as the caller promises.
                unsafe { argument.write_unaligned(c_int::try_from(unread).unwrap_or(c_int::MAX)) };
                Ok(0)
            }
            request if request == libc::FIONBIO as c_ulong => {
                // SAFETY: as the caller promises.
                set_nonblocking(context, id, unsafe { argument.read_unaligned() } != 0)
            }
            _ => Err(INVALID),
        }
    }))
}

/// Gives a socket its local address.
///
/// # Safety
/// `addr` is null or valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_bind(mctx: Handle, id: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    int(registry::with(mctx, |context| {
        let (socket, _) = context.files.socket(id)?;
        if addr.is_null() {
            return Err(INVALID);
        }
        // SAFETY: as the caller promises.
        let address = unsafe { address::read(addr, len) }.map_err(|_| INVALID)?;
        context.run(move |stack| Ok(stack.sockets.bind(socket, address)?))?;
        Ok(0)
    }))
}

/// Listens.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_listen(mctx: Handle, id: c_int, backlog: c_int) -> c_int {
    int(registry::with(mctx, |context| {
        let (socket, _) = context.files.socket(id)?;
        let backlog = usize::try_from(backlog).ok().filter(|&backlog| backlog > 0).ok_or(INVALID)?;
        let backlog = backlog.min(context.backlog_max);
        context.run(move |stack| Ok(stack.sockets.listen(socket, backlog)?))?;
        context.link.became(socket, Kind::Listener);
        Ok(0)
    }))
}

/// The next connection of a listener, and its peer's address unless `addr` is null.
///
/// # Safety
/// `addr` and `len` are null, or valid for writes; `addr` of the address of a connection of IPv4,
/// whatever is in `len`, as programs for mTCP have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_accept(
    mctx: Handle,
    id: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    int(registry::with_waits(mctx, |context| {
        let listener = context.files.socket(id);
        let (listener, nonblocking) =
            listener.map_err(|error| if error == NOT_SOCKET { INVALID } else { error })?;
        if !context.files.has_room(1) {
            return Err(Errno(libc::ENFILE).into());
        }
        let (socket, peer) = context.call(nonblocking, |link| link.accept(listener))?;
        let id = keep(context, socket, false, peer.is_some_and(|peer| peer.is_ipv6()))?;
        if let Some(peer) = peer
            && !addr.is_null()
            && !len.is_null()
        {
            // SAFETY: as the caller promises.
            unsafe {
                if peer.is_ipv4() {
                    len.write(size_of::<libc::sockaddr_in>() as socklen_t);
                }
                address::write(peer, addr, len)?;
            }
        }
        Ok(id)
    }))
}

/// Connects. A socket that may not block returns EINPROGRESS.
///
/// # Safety
/// `addr` is null or valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_connect(
    mctx: Handle,
    id: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let mut begun = false;
    int(registry::with_waits(mctx, |context| {
        let (socket, nonblocking) = context.files.socket(id)?;
        if !begun {
            // SAFETY: as the caller promises.
            let remote = unsafe { address::read(addr, len) }.map_err(connect_error)?;
            let result = context.run(move |stack| stack.connect(socket, remote));
            begun = result == Err(Errno(libc::EINPROGRESS));
            if begun {
                context.link.became(socket, Kind::Connection);
            }
            if !begun || nonblocking {
                return Ok(result.map(|()| 0).map_err(connect_error)?);
            }
        }
        // It is open when it can be written, and has failed when there is an error.
        context.call(false, |link| match link.readiness(socket)? {
            ready if ready.is_none() => Err(Error::WouldBlock),
            ready if ready.has(Readiness::ERROR) => Err(link.take_error(socket)?.unwrap_or(Error::Refused)),
            _ => Ok(0),
        })
    }))
}

/// mTCP's errors of an address that is too short, and of a listener.
fn connect_error(error: Errno) -> Errno {
    match error {
        INVALID => Errno(libc::EAFNOSUPPORT),
        Errno(libc::EOPNOTSUPP) => NOT_SOCKET,
        error => error,
    }
}

/// Prepares connections to this peer, from the address or from any: where the device has several
/// queues, learns from which ports their answers come to this context's. Otherwise the first
/// `mtcp_connect` to the peer does.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_init_rss(
    mctx: Handle,
    saddr_base: in_addr_t,
    num_addr: c_int,
    daddr: in_addr_t,
    dport: in_addr_t,
) -> c_int {
    int(registry::with(mctx, |context| {
        if num_addr < 1 {
            return Err(INVALID);
        }
        let [local, remote] = [saddr_base, daddr].map(|address| Ipv4Addr::from_bits(u32::from_be(address)));
        let port = u16::from_be(dport as u16);
        let remote = SocketAddr::new(remote.into(), port);
        context.run(move |stack| stack.prepare(local.into(), remote)).map(|()| 0)
    }))
}

/// Closes a socket, an epoll set, or an end of a pipe.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_close(mctx: Handle, id: c_int) -> c_int {
    int(registry::with(mctx, |context| {
        match context.files.remove(id).ok_or(BAD)? {
            File::Socket { socket, .. } => context.close_socket(socket, Link::close)?,
            File::Epoll(epoll) => context.close_epoll(id, &epoll)?,
            File::Pipe { pipe, end, .. } => context.close_pipe(pipe, end),
        }
        Ok(0)
    }))
}

/// Resets a connection, and closes its socket.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_abort(mctx: Handle, id: c_int) -> c_int {
    int(registry::with(mctx, |context| {
        let (socket, _) = context.files.socket(id)?;
        context.close_socket(socket, Link::abort)?;
        context.files.remove(id);
        Ok(0)
    }))
}

/// The socket's address.
///
/// # Safety
/// `len` is null or valid, and `addr` null or valid for writes of `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockname(
    mctx: Handle,
    id: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    int(registry::with(mctx, |context| {
        let File::Socket { socket, v6, .. } = *context.files.get(id)? else { return Err(NOT_SOCKET) };
        let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let local = context.run(move |stack| Ok(stack.sockets.local_address(socket).ok()))?;
        let local = local.unwrap_or(SocketAddr::new(any, 0));
        // SAFETY: as the caller promises.
        unsafe { address::write(local, addr, len) }?;
        Ok(0)
    }))
}

/// The peer's address.
///
/// # Safety
/// `len` is null or valid, and `addr` null or valid for writes of `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getpeername(
    mctx: Handle,
    id: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    int(registry::with(mctx, |context| {
        let (socket, _) = context.files.socket(id)?;
        let peer = context.run(move |stack| Ok(stack.sockets.peer_address(socket)?))?;
        // SAFETY: as the caller promises.
        unsafe { address::write(peer, addr, len) }?;
        Ok(0)
    }))
}

/// SO_ERROR, SO_KEEPALIVE, SO_LINGER, TCP_NODELAY, TCP_CORK and TCP_MAXSEG.
///
/// # Safety
/// `len` is null or valid, and `value` null or valid for writes of `*len` bytes; for SO_ERROR of an
/// int, whatever is in `len`, as programs for mTCP have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockopt(
    mctx: Handle,
    id: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    int(registry::with(mctx, |context| {
        let (socket, _) = context.files.socket(id)?;
        if value.is_null() || len.is_null() {
            return Err(FAULT);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            let error = context.link.take_error(socket)?.map_or(0, Error::number);
            // SAFETY: as the caller promises.
            return unsafe {
                len.write(size_of::<c_int>() as socklen_t);
                write(error, value, len)
            };
        }
        let (options, segment) = context
            .run(move |stack| Ok((stack.sockets.options(socket)?, stack.sockets.segment_size(socket)?)))?;
        let Options { no_delay, cork, keep_alive, linger, .. } = options;
        let number: c_int = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => keep_alive.into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => cork.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => segment.into(),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = linger.map_or(0, |linger| linger.as_secs() as c_int);
                let linger = libc::linger { l_onoff: linger.is_some().into(), l_linger: seconds };
                // SAFETY: as the caller promises.
                return unsafe { write(linger, value, len) };
            }
            _ => return Err(Errno(libc::ENOSYS)),
        };
        // SAFETY: as the caller promises.
        unsafe { write(number, value, len) }
    }))
}

/// # Safety
/// `len` is valid, and `value` valid for writes of `*len` bytes.
unsafe fn write<T>(number: T, value: *mut c_void, len: *mut socklen_t) -> Result<c_int, Errno> {
    // SAFETY: as the caller promises; the length is checked before the value is written.
    unsafe {
        if (len.read() as usize) < size_of::<T>() {
            return Err(INVALID);
        }
        value.cast::<T>().write_unaligned(number);
        len.write(size_of::<T>() as socklen_t);
    }
    Ok(0)
}

/// SO_KEEPALIVE, SO_LINGER, TCP_NODELAY, TCP_CORK and TCP_MAXSEG. Others are accepted without effect, as
/// mTCP accepts all.
///
/// # Safety
/// `value` is null or valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setsockopt(
    mctx: Handle,
    id: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    int(registry::with(mctx, |context| {
        let (socket, _) = context.files.socket(id)?;
        let mut options = context.run(move |stack| Ok(stack.sockets.options(socket)?))?;
        // SAFETY: as the caller promises.
        let number = || unsafe { read::<c_int>(value, len) };
        let flag = || number().map(|number| number != 0);
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive = flag()?,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay = flag()?,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => options.cork = flag()?,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let most = u16::try_from(number()?).map_err(|_| INVALID)?;
                options.max_segment = Some(most).filter(|&most| most > 0);
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                // SAFETY: as the caller promises.
                let linger = unsafe { read::<libc::linger>(value, len) }?;
                let time = Duration::from_secs(u64::try_from(linger.l_linger).map_err(|_| INVALID)?);
                options.linger = (linger.l_onoff != 0).then_some(time);
            }
            _ => return Ok(0),
        }
        context.run(move |stack| Ok(stack.sockets.set_options(stack.now(), socket, options)?))?;
        Ok(0)
    }))
}

/// # Safety
/// `value` is null or valid for reads of `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: socklen_t) -> Result<T, Errno> {
    if value.is_null() {
        return Err(FAULT);
    }
    if (len as usize) < size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises, and the length fits.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
