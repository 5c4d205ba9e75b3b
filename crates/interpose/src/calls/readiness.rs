//! The calls that wait for readiness.

use super::*;

pub unsafe fn epoll_create(size: c_int) -> c_int {
    let fd = real::epoll_create(size);
    made_set(fd)
}

pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    let fd = real::epoll_create1(flags);
    made_set(fd)
}

fn made_set(fd: c_int) -> c_int {
    if fd >= 0 {
        descriptors::set(fd);
        local_listen::made_set(fd);
    }
    fd
}

pub unsafe fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let call = || epoll::control(set, operation, fd, event, || real::epoll_ctl(set, operation, fd, event));
    local_listen::control(set, operation, fd, event, call)
}

/// A wait whose buffer is invalid, which the kernel notices once there are events.
unsafe fn unreachable_memory(
    set: c_int,
    promoted: &'static Set,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let mut event = epoll_event { events: 0, u64: 0 };
    let count = epoll::wait(set, promoted, &raw mut event, 1, limit, mask);
    if count > 0 {
        real::set_errno(libc::EFAULT);
        return -1;
    }
    count
}

/// A wait in a set, made by `call`, with the timeout `limit`; `None`: the kernel refuses it.
#[inline(always)]
unsafe fn in_set(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: impl FnOnce() -> Option<Limit>,
    mask: *const sigset_t,
    call: impl Fn() -> c_int,
) -> c_int {
    local_listen::around_wait(set, events, || {
        promoter::answers();
        let promoted = epoll::promoted_set(set);
        if epoll::is_kernel_only(promoted) {
            return call();
        }
        match limit() {
            Some(limit) => wait(set, promoted, events, most, limit, mask, call),
            None => call(),
        }
    })
}

#[inline]
pub unsafe fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let limit = || Some(epoll::milliseconds(timeout));
    in_set(set, events, most, limit, std::ptr::null(), || real::epoll_wait(set, events, most, timeout))
}

#[inline]
pub unsafe fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let limit = || Some(epoll::milliseconds(timeout));
    in_set(set, events, most, limit, mask, || real::epoll_pwait(set, events, most, timeout, mask))
}

#[inline]
pub unsafe fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let call = || real::epoll_pwait2(set, events, most, timeout, mask);
    in_set(set, events, most, || limit_at(timeout), mask, call)
}

/// The timeout; `None`: the kernel refuses it.
unsafe fn limit_at(timeout: *const timespec) -> Option<Limit> {
    match timeout.is_null() {
        true => Some(Limit::Never),
        false if is_readable(timeout) => epoll::time(Some(&timeout.read_unaligned())).ok(),
        false => None,
    }
}

/// A wait in a set that has promoted sockets, or may get some meanwhile; `call` is the program's
/// own. Not inlined, so that other waits do not return through here: the cache is cold after a
/// sleep.
#[inline(never)]
unsafe fn wait(
    set: c_int,
    promoted: Option<&'static Set>,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match promoted {
        // The kernel checks the mask first.
        Some(_) if !mask.is_null() && !is_readable(mask.cast::<u64>()) => call(),
        Some(promoted) if most > 0 && is_writable(events) => {
            epoll::wait(set, promoted, events, most, limit, mask)
        }
        Some(promoted) if most > 0 => unreachable_memory(set, promoted, limit, mask),
        _ => epoll::wait_unaware(set, events, most, limit, mask, call),
    }
}

/// The descriptors of a poll, if promoted sockets are among them; also records that listeners are
/// polled.
unsafe fn promoted_among<'a>(fds: *mut pollfd, count: libc::nfds_t) -> Option<&'a mut [pollfd]> {
    let is_on = local_listen::is_on();
    if !(sockets::any() || is_on) || count == 0 || count > 1 << 20 || !are_readable(fds, count as usize) {
        return None;
    }
    // SAFETY: poll(2): `count` entries lie there.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    if is_on {
        let polled = fds.iter().filter(|fd| fd.events & (libc::POLLIN | libc::POLLRDNORM) != 0);
        polled.for_each(|fd| local_listen::polled_outside_epoll(fd.fd));
    }
    polling::concerns(fds).then_some(fds)
}

pub unsafe fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    promoter::answers();
    match promoted_among(fds, count) {
        Some(fds) => polling::wait(fds, epoll::milliseconds(timeout), std::ptr::null()),
        None => real::poll(fds, count, timeout),
    }
}

pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    promoter::answers();
    if let Some(concerned) = promoted_among(fds, count)
        && let Some(limit) = limit_at(timeout)
    {
        return polling::wait(concerned, limit, mask);
    }
    real::ppoll(fds, count, timeout, mask)
}

/// As [`promoted_among`], for select(2).
unsafe fn listeners_in(count: c_int, sets: Sets) {
    if local_listen::is_on() {
        selecting::polled_for_reading(count, sets).for_each(local_listen::polled_outside_epoll);
    }
}

pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    promoter::answers();
    let sets = Sets { read, write, except };
    listeners_in(count, sets);
    let ready = selecting::Ready::of(count, sets);
    if !ready.is_empty() {
        let mut at_once = timeval { tv_sec: 0, tv_usec: 0 };
        return ready.added_to(real::select(count, read, write, except, &raw mut at_once), sets);
    }
    if !selecting::concerns(count, sets) || !(timeout.is_null() || is_writable(timeout)) {
        return real::select(count, read, write, except, timeout);
    }
    let limit = timeout
        .as_ref()
        .map(|timeout| timespec { tv_sec: timeout.tv_sec, tv_nsec: timeout.tv_usec.saturating_mul(1000) });
    let Ok(limit) = epoll::time(limit.as_ref()) else {
        return real::select(count, read, write, except, timeout);
    };
    let began = clock::now();
    let ready = selecting::wait(count, sets, limit, std::ptr::null());
    if let (Some(timeout), Limit::After(limit)) = (timeout.as_mut(), limit) {
        // Linux's select writes the remaining time (select(2)).
        let left = limit.saturating_sub(clock::elapsed(began));
        timeout.tv_sec = left.as_secs() as i64;
        timeout.tv_usec = i64::from(left.subsec_micros());
    }
    ready
}

pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    promoter::answers();
    let sets = Sets { read, write, except };
    listeners_in(count, sets);
    let ready = selecting::Ready::of(count, sets);
    if !ready.is_empty() {
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        return ready.added_to(real::pselect(count, read, write, except, &raw const at_once, mask), sets);
    }
    if selecting::concerns(count, sets)
        && let Some(limit) = limit_at(timeout)
    {
        return selecting::wait(count, sets, limit, mask);
    }
    real::pselect(count, read, write, except, timeout, mask)
}
