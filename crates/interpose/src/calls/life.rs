//! Calls that create and close descriptors and processes, and options.

use super::*;

pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = real::socket(domain, kind, protocol);
    if fd >= 0 {
        let is_stream = matches!(domain, libc::AF_INET | libc::AF_INET6)
            && kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
        match protocol {
            0 | libc::IPPROTO_TCP if is_stream => drop(descriptors::tcp(fd, kind & libc::SOCK_NONBLOCK != 0)),
            libc::IPPROTO_MPTCP => descriptors::made(fd, Entry::Multipath),
            _ => descriptors::foreign(fd),
        }
    }
    fd
}

pub unsafe fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
    made_pair(real::socketpair(domain, kind, protocol, pair), pair)
}

pub unsafe fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    local_listen::connecting(fd, address, length);
    let call = || real::connect(fd, address, length);
    let family = address.cast::<libc::sa_family_t>();
    // connect(2) with AF_UNSPEC dissolves the association. Without a TCP socket only the kernel
    // tries the address.
    let dissolves = sockets::any()
        && length as usize >= size_of::<libc::sa_family_t>()
        && is_readable(family)
        && c_int::from(family.read_unaligned()) == libc::AF_UNSPEC;
    let status = match dissolves.then(|| watched(fd)).flatten() {
        Some((_, socket)) => demotion::dissolve(socket, fd, call),
        None => call(),
    };
    if dissolves {
        if status == 0 {
            local_listen::shut_down(fd);
        }
    } else if let Some((number, socket)) = watched(fd)
        && (status == 0 || real::errno() == libc::EINPROGRESS)
    {
        kept_errno(|| promoter::connected(socket, number));
    }
    status
}

pub unsafe fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let new = local_listen::accept(fd, |from| real::accept(from, address, length));
    accepted(fd, new, 0)
}

pub unsafe fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let new = local_listen::accept(fd, |from| real::accept4(from, address, length, flags));
    accepted(fd, new, flags)
}

pub unsafe fn listen(fd: c_int, backlog: c_int) -> c_int {
    let status = real::listen(fd, backlog);
    if status == 0 {
        local_listen::listened(fd, backlog);
    }
    status
}

fn accepted(listener: c_int, new: c_int, flags: c_int) -> c_int {
    if new < 0 {
        return new;
    }
    kept_errno(|| {
        let Some((_, listener)) = watched(listener) else {
            if table::entry(listener) != Entry::Multipath {
                return descriptors::foreign(new);
            }
            descriptors::made(new, Entry::Unknown);
            if let Some((number, socket)) = watched(new) {
                promoter::connected(socket, number);
            }
            return;
        };
        if let Some((number, socket)) = descriptors::tcp(new, flags & libc::SOCK_NONBLOCK != 0) {
            // Options are inherited.
            socket.send_limit.store(listener.send_limit.load(Ordering::Relaxed), Ordering::Relaxed);
            // Calls of other processes on the listener were not seen.
            let may_have =
                listener.may_have_options.load(Ordering::Relaxed) || listener.holders.are_several();
            socket.may_have_options.store(may_have, Ordering::Relaxed);
            promoter::connected(socket, number);
        }
    });
    new
}

pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(socket) = table::socket(fd)
        && socket.state() == State::Promoted
        && matches!(how, libc::SHUT_WR | libc::SHUT_RDWR)
        && let Some(promoted) = socket.lock().promoted.as_deref_mut()
    {
        // FIN comes behind the ring's bytes; the kernel refuses later ones.
        promoted.connection.kernel_sends();
        promoted.copy_unconsumed(fd);
        promoted.before_fin(fd, true);
    }
    let status = real::shutdown(fd, how);
    if status == 0 {
        local_listen::shut_down(fd);
    }
    status
}

pub unsafe fn close(fd: c_int) -> c_int {
    if hidden::contains(fd) {
        real::set_errno(libc::EBADF);
        return -1;
    }
    local_listen::closing(fd);
    let is_ring = kept_errno(|| descriptors::closing(fd));
    let status = real::close(fd);
    if is_ring {
        table::ring_is_closed(fd);
    }
    status
}

pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const ONLY_MARK: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    let (Ok(low), high) = (c_int::try_from(first), c_int::try_from(last).unwrap_or(c_int::MAX)) else {
        return real::close_range(first, last, flags);
    };
    if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 && !threads::is_alone() {
        forks::unshare_descriptors();
    }
    if flags & ONLY_MARK != 0 || first > last {
        return real::close_range(first, last, flags);
    }
    let rings = kept_errno(|| descriptors::closing_range(low, high));
    // The library's own descriptors stay open.
    let (mut first, mut status) = (first, 0);
    local_listen::closing_range(low, high);
    for hidden in hidden::between(low, high) {
        let hidden = hidden.unsigned_abs();
        if first < hidden {
            status = status.min(real::close_range(first, hidden - 1, flags));
        }
        first = hidden + 1;
    }
    if first <= last {
        status = status.min(real::close_range(first, last, flags));
    }
    rings.into_iter().for_each(table::ring_is_closed);
    status
}

/// closefrom(3), which returns nothing.
pub unsafe fn closefrom(first: c_int) {
    close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0);
}

pub unsafe fn dup(fd: c_int) -> c_int {
    let new = real::dup(fd);
    if new >= 0 {
        duplicated(fd, new);
    }
    new
}

/// Through syscall(2): glibc has it from 2.36 on.
pub unsafe fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
    let (process, fd, flags) = (process.into(), fd.into(), flags.into());
    let new = real::syscall(libc::SYS_pidfd_getfd, process, fd, flags, 0, 0, 0) as c_int;
    if new >= 0 {
        // The file that it refers to is not known here.
        descriptors::handed_over(new);
        if table::socket(new).is_some() {
            kept_errno(|| promoter::copied(new));
        }
    }
    new
}

fn duplicated(fd: c_int, new: c_int) {
    descriptors::same(fd, new);
    local_listen::duplicated(fd, new);
}

pub unsafe fn dup2(fd: c_int, new: c_int) -> c_int {
    replaced(fd, new, || real::dup2(fd, new))
}

pub unsafe fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    replaced(fd, new, || real::dup3(fd, new, flags))
}

fn replaced(fd: c_int, new: c_int, call: impl Fn() -> c_int) -> c_int {
    // If the call does anything it closes the file at the new number: `fd` is open.
    let before = real::errno();
    let borrows = vfork::borrows_sockets();
    if borrows {
        // For the program that the child of a vfork(2) executes.
        demotion::demote(fd);
    }
    let is_known = matches!(table::entry(new), Entry::Socket(_) | Entry::Set(_)) || local_listen::tracks(new);
    if fd != new && is_known && kernel::is_open(fd) {
        let _is_no_ring = descriptors::closing(new);
        local_listen::closing(new);
    }
    let vacate = || {
        local_listen::vacate_number(new);
        arming::vacate_number(new)
    };
    let call = || {
        real::set_errno(before);
        call()
    };
    // In the child of a vfork(2) the call replaces only the child's copy.
    let is_plain =
        borrows || fd == new || !(sockets::any() || local_listen::is_on() && !vfork::borrows_memory());
    let status = if is_plain { call() } else { promoter::replacing(fd, new, vacate, call) };
    if status >= 0 {
        duplicated(fd, new);
    }
    status
}

pub unsafe fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if command == libc::F_SETFL && argument.addr() as c_int & libc::O_ASYNC != 0 {
        // The kernel sends a signal for each arrival, so that all have to go through it.
        kept_errno(|| demotion::demote_for_option(fd));
    }
    let result = real::fcntl(fd, command, argument);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if result >= 0 => duplicated(fd, result),
        libc::F_SETFL if result >= 0 => {
            became_nonblocking(fd, argument.addr() as c_int & libc::O_NONBLOCK != 0);
        }
        _ => {}
    }
    result
}

fn became_nonblocking(fd: c_int, nonblocking: bool) {
    if let Some(socket) = table::socket(fd) {
        waiters::nonblocking(socket, nonblocking);
    }
    if !nonblocking {
        local_listen::polled_outside_epoll(fd);
    }
}

const FIOASYNC: c_ulong = 0x5452;

pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == libc::FIONREAD as c_ulong
        && let Some(socket) = table::socket(fd)
        && is_writable(argument.cast::<c_int>())
        && let Some(unread) = kept_errno(|| options::unread(socket, fd))
    {
        argument.cast::<c_int>().write_unaligned(unread);
        return 0;
    }
    if request == FIOASYNC
        && is_readable(argument.cast::<c_int>())
        && argument.cast::<c_int>().read_unaligned() != 0
    {
        kept_errno(|| demotion::demote_for_option(fd));
    }
    let result = real::ioctl(fd, request, argument);
    if request == libc::FIONBIO as c_ulong && result >= 0 {
        became_nonblocking(fd, argument.cast::<c_int>().read_unaligned() != 0);
    }
    result
}

pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let ours = table::socket(fd).and_then(|socket| options::get(fd, socket, level, name, value, length));
    let status = ours.unwrap_or_else(|| real::getsockopt(fd, level, name, value, length));
    if status == 0 && local_listen::hides_option(fd, level, name) {
        // The kernel has just written that many bytes there.
        value.write_bytes(0, *length as usize);
    }
    status
}

pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let ours = match table::entry(fd) {
        Entry::Socket(number) => options::set(fd, number, level, name, value, length),
        _ => None,
    };
    let status = ours.unwrap_or_else(|| real::setsockopt(fd, level, name, value, length));
    if status == 0 {
        options::was_set(fd, level, name);
        local_listen::set_option(fd, level, name, value, length);
    }
    status
}

pub unsafe fn setuid(user: libc::uid_t) -> c_int {
    local_listen::changes_user(user);
    real::setuid(user)
}

pub unsafe fn seteuid(user: libc::uid_t) -> c_int {
    local_listen::changes_user(user);
    real::seteuid(user)
}

pub unsafe fn setreuid(real: libc::uid_t, effective: libc::uid_t) -> c_int {
    local_listen::changes_user(effective);
    real::setreuid(real, effective)
}

pub unsafe fn setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int {
    local_listen::changes_user(effective);
    real::setresuid(real, effective, saved)
}

pub unsafe fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let is_strict = a == c_ulong::from(libc::SECCOMP_MODE_STRICT);
    if option == libc::PR_SET_SECCOMP && (is_strict || b != 0) {
        confined::before();
    }
    real::prctl(option, a, b, c, d)
}

/// fdopen(3): from then on the C library's own calls read and write.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    demotion::demote(fd);
    real::fdopen(fd, mode)
}

/// A function of libc reads or writes the descriptor next.
pub fn read_by_libc(fd: c_int) {
    demotion::demote(fd);
}

/// posix_spawn(3) is to give a descriptor to another program.
pub unsafe fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    demotion::demote(fd);
    real::posix_spawn_file_actions_adddup2(actions, fd, new)
}

/// fclose(3) of a stream made by fdopen(3) closes its descriptor inside libc.
pub unsafe fn fclose(stream: *mut libc::FILE) -> c_int {
    if sockets::any() && is_readable(stream) {
        // No stream is a ring's.
        let _is_ring = kept_errno(|| descriptors::closing(libc::fileno(stream)));
    }
    real::fclose(stream)
}

/// `arguments` is a va_list, which Linux's 64-bit systems pass by address.
pub unsafe fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if watched(fd).is_none() {
        return real::vdprintf(fd, format, arguments);
    }
    print(fd, |text| real::vasprintf(text, format, arguments))
}

pub unsafe fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if watched(fd).is_none() {
        return real::__vdprintf_chk(fd, flag, format, arguments);
    }
    print(fd, |text| real::__vasprintf_chk(text, flag, format, arguments))
}

/// dprintf(3) to a socket: the C library's would write inside libc.
unsafe fn print(fd: c_int, format: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let count = format(&raw mut text);
    let Ok(length) = usize::try_from(count) else { return -1 };
    let mut done = 0;
    while done < length {
        let sent = write(fd, text.add(done).cast(), length - done);
        if sent <= 0 {
            break;
        }
        // Not negative.
        done += sent as usize;
    }
    kept_errno(|| {
        // SAFETY: vasprintf(3) allocated it.
        unsafe { libc::free(text.cast()) }
    });
    if done < length { -1 } else { count }
}

/// Two descriptors of other kinds were created, if `status` is 0; returns it.
///
/// # Safety
///
/// `pair` holds them then.
pub unsafe fn made_pair(status: c_int, pair: *const c_int) -> c_int {
    if status == 0 {
        made(*pair);
        made(*pair.add(1));
    }
    status
}

/// A descriptor of any other kind was created.
#[inline]
pub fn made(fd: c_int) -> c_int {
    descriptors::foreign(fd);
    fd
}

/// _exit(2): the summary is written first.
pub unsafe fn _exit(status: c_int) -> c_int {
    vfork::stops_diverging();
    crate::finish();
    real::_exit(status)
}

/// Another program is about to replace this process, or the child of a vfork(2). The latter
/// inherits its parent's descriptors, too, but may have other files at their numbers.
fn before_exec() -> Vec<(c_int, u64)> {
    // The child of a vfork(2) has other descriptors than the table.
    let kept = if vfork::borrows_sockets() { Vec::new() } else { demotion::keep_here(true) };
    crate::start::before_exec();
    if !vfork::borrows_sockets() {
        return kept;
    }
    vfork::stops_diverging();
    for fd in 0..table::end() {
        let Some(socket) = table::socket(fd).filter(|_| kernel::is_inherited(fd)) else { continue };
        let cookie = socket.lock().promoted.as_deref().map(|promoted| promoted.cookie);
        if cookie.is_none_or(|cookie| kept_errno(|| kernel::cookie(fd)) == cookie) {
            match demotion::stays_here(fd, false) {
                // In the table of the child.
                true => kernel::set_close_at_exec(fd, true),
                false => demotion::demote(fd),
            }
        }
    }
    kept
}

unsafe extern "C" {
    /// environ(7).
    static environ: *const *const c_char;
}

/// Makes an exec, which returns only if it fails.
unsafe fn exec_with(environment: *const *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    let kept = before_exec();
    let inherits = local_listen::before_exec(environment);
    let status = call();
    if inherits {
        local_listen::exec_failed();
    }
    demotion::inherit_again(kept);
    status
}

pub unsafe fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    exec_with(environment, || real::execve(path, arguments, environment))
}

pub unsafe fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    exec_with(environ, || real::execv(path, arguments))
}

pub unsafe fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    exec_with(environ, || real::execvp(file, arguments))
}

pub unsafe fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    exec_with(environment, || real::execvpe(file, arguments, environment))
}

pub unsafe fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    exec_with(environment, || real::fexecve(fd, arguments, environment))
}

pub unsafe fn execveat(
    at: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    exec_with(environment, || real::execveat(at, path, arguments, environment, flags))
}

pub unsafe fn system(command: *const c_char) -> c_int {
    if command.is_null() {
        return real::system(command);
    }
    demotion::spawning(|| real::system(command))
}

pub unsafe fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
    let stream = demotion::spawning(|| real::popen(command, kind));
    if !stream.is_null() {
        made(libc::fileno(stream));
    }
    stream
}

pub unsafe fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    demotion::spawning(|| real::posix_spawn(process, path, actions, attributes, arguments, environment))
}

pub unsafe fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    demotion::spawning(|| real::posix_spawnp(process, file, actions, attributes, arguments, environment))
}
