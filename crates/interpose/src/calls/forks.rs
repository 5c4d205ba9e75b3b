//! Calls that create another process with copies of this one's memory and descriptors.

use super::*;

pub unsafe fn fork() -> pid_t {
    process::fork_with_handlers(|| real::fork())
}

pub unsafe fn _Fork() -> pid_t {
    process::fork(|| real::_Fork())
}

/// The start of a child of clone(2).
struct Beginning {
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

extern "C" fn begin(beginning: *mut c_void) -> c_int {
    // SAFETY: it lies on the stack of the caller of `clone` below, of which the child has a copy.
    let Beginning { run, argument } = unsafe { beginning.cast::<Beginning>().read() };
    process::in_child();
    run(argument)
}

/// clone(2): a fork, unless the child shares this process's memory: then it is a thread, or like
/// the child of a vfork(2).
pub unsafe fn clone(
    run: Option<extern "C" fn(*mut c_void) -> c_int>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    storage: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    match run {
        Some(run) if flags & libc::CLONE_VM == 0 => {
            let mut beginning = Beginning { run, argument };
            let beginning = (&raw mut beginning).cast();
            process::fork(|| real::clone(Some(begin), stack, flags, beginning, parent, storage, child))
        }
        _ => {
            shares_memory(flags as u64);
            real::clone(run, stack, flags, argument, parent, storage, child)
        }
    }
}

/// A clone(2) with these flags may create another process that shares this one's memory.
pub(super) fn shares_memory(flags: u64) {
    let has = |flag: c_int| flags & flag as u64 != 0;
    match (has(libc::CLONE_VM), has(libc::CLONE_THREAD)) {
        (true, false) => vfork::lends_memory(),
        (true, true) if !has(libc::CLONE_FILES) => unshare_descriptors(),
        _ => {}
    }
}

/// A thread is to have a descriptor table of its own: here one table serves all threads.
pub(super) fn unshare_descriptors() {
    kept_errno(|| {
        promoter::stop();
        demotion::demote_all(Reason::Shared);
    });
}

pub unsafe fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 && !threads::is_alone() {
        unshare_descriptors();
    }
    real::unshare(flags)
}

/// Before vfork(2): returns the next function of that name, for the caller to jump to. A function
/// that called it could not return twice.
pub extern "C" fn next_vfork() -> *const c_void {
    static NEXT: real::Next = real::Next::new(c"vfork");
    vfork::lends_memory();
    NEXT.address()
}

/// The arguments of clone3(2) that decide whether it is a fork.
#[repr(C)]
struct Clone3 {
    flags: u64,
    between: [u64; 4],
    stack: u64,
}

/// clone3(2), through syscall(2).
pub(super) unsafe fn clone3(arguments: *const c_void, size: size_t) -> c_long {
    let call = || real::syscall(libc::SYS_clone3, arguments as c_long, size as c_long, 0, 0, 0, 0);
    if !sockets::any() {
        // Its flags are read after the kernel has read them: no address is tried here. By then a
        // child of a vfork(2) has run.
        vfork::lends_memory();
        let process = call();
        if process == 0 && arguments.cast::<Clone3>().read_unaligned().flags & libc::CLONE_VM as u64 == 0 {
            kept_errno(process::in_child);
        }
        return process;
    }
    let is_valid = size >= size_of::<Clone3>() && is_readable(arguments.cast::<Clone3>());
    match is_valid.then(|| arguments.cast::<Clone3>().read_unaligned()) {
        Some(Clone3 { flags, stack: 0, .. }) if flags & libc::CLONE_VM as u64 == 0 => {
            c_long::from(process::fork(|| call() as pid_t))
        }
        Some(Clone3 { flags, .. }) => {
            shares_memory(flags);
            call()
        }
        None => call(),
    }
}

/// forkpty(3), as glibc does it: glibc's own fork bypasses this library.
pub unsafe fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const libc::termios,
    size: *const libc::winsize,
) -> pid_t {
    let mut pair = [-1; 2];
    let [own, theirs] = &mut pair;
    if real::openpty(own, theirs, name, settings, size) < 0 {
        return -1;
    }
    made_pair(0, pair.as_ptr());
    let [own, theirs] = pair;
    match fork() {
        -1 => {
            kept_errno(|| {
                close(own);
                close(theirs);
            });
            -1
        }
        0 => {
            close(own);
            if real::login_tty(theirs) != 0 {
                _exit(1);
            }
            // The first three numbers refer to the terminal.
            (0..=libc::STDERR_FILENO).for_each(descriptors::foreign);
            0
        }
        child => {
            *terminal = own;
            close(theirs);
            child
        }
    }
}

/// daemon(3), as glibc does it: glibc's own fork bypasses this library.
pub unsafe fn daemon(stays: c_int, keeps: c_int) -> c_int {
    match fork() {
        -1 => return -1,
        0 => {}
        _ => {
            _exit(0);
            return -1;
        }
    }
    if libc::setsid() < 0 {
        return -1;
    }
    if stays == 0 {
        libc::chdir(c"/".as_ptr());
    }
    if keeps != 0 {
        return 0;
    }
    let null = made(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR));
    if null < 0 {
        return -1;
    }
    let mut status: libc::stat = std::mem::zeroed();
    let is_device = libc::fstat(null, &raw mut status) == 0
        && status.st_mode & libc::S_IFMT == libc::S_IFCHR
        && status.st_rdev == libc::makedev(1, 3);
    if !is_device {
        close(null);
        real::set_errno(libc::ENODEV);
        return -1;
    }
    for fd in 0..=libc::STDERR_FILENO {
        dup2(null, fd);
    }
    if null > libc::STDERR_FILENO {
        close(null);
    }
    0
}
