//! Configuration, contexts, CPUs and signals.

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::sighandler_t;
use packet::{Capabilities, group};
use tcp::{Config, Prefix};

use crate::carrier::{CallerDevice, Carrier, Foreign, Queue, Waiter};
use crate::config::{self, Conf, Placement, Settings};
use crate::context::Context;
use crate::cpu;
use crate::errno::{self, Errno, FAULT, INVALID, int, open_error, say};
use crate::link::Link;
use crate::registry::{self, Handle};
use crate::signal::{self, Interrupt};
use crate::stack::Stack;
use crate::threaded;

/// What the contexts of a process have in common. No call on a context looks at it.
struct Shared {
    settings: Settings,
    /// Whether the device was opened.
    opened: bool,
    /// Queues that no context has. They stay open: when one is closed, the kernel moves flows of
    /// the others.
    queues: Vec<group::Queue>,
    /// CPUs that have a context.
    cpus: Vec<(Handle, c_int)>,
}

// SAFETY: a handle is a number, not a pointer.
unsafe impl Send for Shared {}

static SHARED: Mutex<Shared> =
    Mutex::new(Shared { settings: Settings::new(), opened: false, queues: Vec::new(), cpus: Vec::new() });

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the configuration. What is wrong is said on standard error.
///
/// # Safety
/// `file` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_init(file: *const c_char) -> c_int {
    let network = std::env::var(config::NETWORK_VARIABLE).ok();
    let thread = std::env::var(config::THREAD_VARIABLE).ok();
    let (name, text) = if file.is_null() {
        ("mtcp_init".to_owned(), Ok(String::new()))
    } else {
        // SAFETY: as the caller promises.
        let name = unsafe { CStr::from_ptr(file) }.to_string_lossy().into_owned();
        let text = fs::read_to_string(&name);
        (name, text)
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            say(format_args!("{name}: {error}"));
            return int(Err(error.into()));
        }
    };
    let read = shared().settings.read(&text, network.as_deref(), thread.as_deref());
    int(read.map(|()| 0).map_err(|problem| {
        say(format_args!("{name}: {problem}"));
        INVALID
    }))
}

/// Closes the device. Contexts have to be destroyed before.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy() {
    let mut shared = shared();
    shared.queues.clear();
    shared.opened = false;
}

/// Writes the configuration.
///
/// # Safety
/// `conf` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getconf(conf: *mut Conf) -> c_int {
    if conf.is_null() {
        return int(Err(INVALID));
    }
    let now = shared().settings.conf;
    let num_cores = c_int::try_from(now.cores()).unwrap_or(c_int::MAX);
    // SAFETY: as the caller promises.
    unsafe { conf.write(Conf { num_cores, ..now }) };
    0
}

/// Changes the configuration of contexts that are made from now on. Numbers that are not positive
/// leave a setting as it is.
///
/// # Safety
/// `conf` is null or valid for reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setconf(conf: *const Conf) -> c_int {
    if conf.is_null() {
        return int(Err(INVALID));
    }
    // SAFETY: as the caller promises.
    let new = unsafe { conf.read() };
    let conf = &mut shared().settings.conf;
    let counts = [
        (&mut conf.num_cores, new.num_cores),
        (&mut conf.max_concurrency, new.max_concurrency),
        (&mut conf.max_num_buffers, new.max_num_buffers),
        (&mut conf.rcvbuf_size, new.rcvbuf_size),
        (&mut conf.sndbuf_size, new.sndbuf_size),
    ];
    for (setting, value) in counts {
        if value > 0 {
            *setting = value;
        }
    }
    if new.tcp_timewait >= 0 {
        conf.tcp_timewait = new.tcp_timewait;
    }
    if new.tcp_timeout > 0 || new.tcp_timeout == -1 {
        conf.tcp_timeout = new.tcp_timeout;
    }
    0
}

/// CPUs that this process may use.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // as programs for mTCP call it
pub extern "C" fn GetNumCPUs() -> c_int {
    c_int::try_from(config::online()).unwrap_or(c_int::MAX)
}

/// Lets the calling thread run on this CPU alone.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_core_affinitize(cpu: c_int) -> c_int {
    let bound = usize::try_from(cpu).map_err(|_| INVALID).and_then(|cpu| match cpu::bind(cpu) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Err(INVALID),
        result => Ok(result?),
    });
    int(bound.map(|()| 0))
}

/// A context for this CPU: a stack on a queue of the device, in a thread of its own unless the configuration has
/// it inside the program's calls. The calling thread's affinity stays as it is. Null on an error.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_create_context(cpu: c_int) -> Handle {
    pointer(create(cpu))
}

fn pointer(made: Result<Handle, Errno>) -> Handle {
    made.unwrap_or_else(|error| {
        errno::set(error);
        std::ptr::null_mut()
    })
}

fn create(cpu: c_int) -> Result<Handle, Errno> {
    let mut shared = shared();
    let conf = shared.settings.conf;
    let taken = shared.cpus.iter().any(|&(_, with)| with == cpu);
    let place = usize::try_from(cpu).map_err(|_| INVALID)?;
    if taken || place >= conf.cores() {
        return Err(INVALID);
    }
    let network = shared.settings.network.clone().ok_or(INVALID)?;
    if !shared.opened {
        let queues = network.open_queues(conf.cores()).map_err(|error| {
            say(&error);
            open_error(error)
        })?;
        shared.queues = queues;
        shared.opened = true;
    }
    let made = registry::insert(|index| {
        let (program, own) = (Interrupt::of(index)?, Interrupt::of_stack(index)?);
        let placement = shared.settings.thread;
        let interrupt = if placement == Placement::None { program } else { own };
        let waiter = Waiter::on(shared.queues.last().ok_or(INVALID)?, interrupt)?;
        let seed = seed()?;
        // From here on nothing fails, except to start a thread: nobody would read a queue that is lost.
        let queue = shared.queues.pop().ok_or(INVALID)?;
        let ports = queue.ports();
        let carrier = Queue::new(queue, waiter);
        let config = stack(&conf, network.networks(), &carrier);
        let stack = |sockets| Stack::new(Box::new(carrier), config, &conf, sockets, ports, seed);
        let open = conf.descriptors();
        let thread_on = match placement {
            Placement::None => return Ok(Context::new(Link::Here(Box::new(stack(open))), &conf)),
            Placement::Own => Some(place),
            // Those below it have contexts. If there is none, any.
            Placement::Other => Some(conf.cores() + place).filter(|&cpu| cpu < cpu::count()),
        };
        // Twice as many: connections that the program has not accepted yet, or whose bytes are still to be sent
        // after it has closed them, have numbers, too.
        let front = threaded::start(stack(open * 2), (thread_on, placement == Placement::Own), program, own)?;
        Ok(Context::new(Link::Thread(Box::new(front)), &conf))
    });
    if let Ok(handle) = made {
        shared.cpus.push((handle, cpu));
    }
    made
}

fn seed() -> Result<[u8; 32], Errno> {
    let mut seed = [0; 32];
    sys::random::fill(&mut seed)?;
    Ok(seed)
}

fn stack(conf: &Conf, networks: &[Prefix], carrier: &impl Carrier) -> Config {
    let addresses = networks.iter().map(|network| Prefix::one(network.address)).collect();
    let capabilities: Capabilities = carrier.capabilities();
    Config { limits: conf.limits(), profile: conf.profile(), ..Config::new(addresses, capabilities) }
}

/// A context on packets and a clock of the caller's: see `mtcp_device.h`. Its stack is inside the program's calls,
/// whose threads alone call the device's functions.
///
/// # Safety
/// `device` is null or valid for reads, and its functions can be called while the context lives;
/// `addresses` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_create_context_on(
    device: *const CallerDevice,
    addresses: *const c_char,
) -> Handle {
    if device.is_null() || addresses.is_null() {
        return pointer(Err(FAULT));
    }
    // SAFETY: as the caller promises; `size` says how much of the struct there is.
    let whole = unsafe { (&raw const (*device).size).read() } >= size_of::<CallerDevice>();
    if !whole {
        return pointer(Err(INVALID));
    }
    // SAFETY: as the caller promises.
    let (carrier, text) = unsafe { (Foreign::new(device.read()), CStr::from_ptr(addresses)) };
    pointer(carrier.and_then(|carrier| {
        let networks: Option<Vec<Prefix>> =
            text.to_string_lossy().split(',').map(|text| text.trim().parse().ok().map(Prefix::one)).collect();
        let networks = networks.ok_or(INVALID)?;
        let conf = shared().settings.conf;
        let config = stack(&conf, &networks, &carrier);
        registry::insert(|_| {
            let stack = Stack::new(Box::new(carrier), config, &conf, conf.descriptors(), None, seed()?);
            Ok(Context::new(Link::Here(Box::new(stack)), &conf))
        })
    }))
}

/// Ends a context, and waits of other threads on it: closes all that is open, sends what was written for a second at
/// most, and resets what was not acknowledged by then. If all threads of the context have ended before and another
/// context is there, what was written may be lost.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy_context(handle: Handle) {
    if let Err(error) = destroy(handle) {
        errno::set(error);
    }
}

pub(crate) fn destroy(handle: Handle) -> Result<(), Errno> {
    let context = registry::remove(handle)?;
    let queue = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| context.end()));
    let mut shared = shared();
    shared.cpus.retain(|&(with, _)| with != handle);
    if let Ok(Some(queue)) = queue
        && shared.opened
    {
        shared.queues.push(queue);
    }
    Ok(())
}

/// As signal(2); the handler also ends the waits of all contexts with EINTR, as that of SIGINT does
/// in mTCP.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_register_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    signal::register(signal, handler).unwrap_or_else(|error| {
        errno::set(error);
        libc::SIG_ERR
    })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use testkit::netns;

    use super::*;
    use crate::context::Pause;

    const NETWORK: Option<&str> = Some("tun:mtcp%d,10.79.0.2/24");

    /// A defect in one context: clients that the kernel sends to its queue are served by the other one,
    /// and its CPU can have a new context.
    #[test]
    fn a_context_that_panics_leaves_its_queue() {
        const BOUND: Duration = Duration::from_secs(60);
        const CLIENTS: usize = 40;
        if !netns::enter("lifecycle::tests::a_context_that_panics_leaves_its_queue", BOUND) {
            return;
        }
        for thread in ["none", "own"] {
            shared().settings.read("num_cores = 2", NETWORK, Some(thread)).expect("settings");
            let [torn, whole] = [0, 1].map(|cpu| create(cpu).expect("a context"));
            let at = SocketAddr::from(([10, 79, 0, 2], 7));
            for context in [torn, whole] {
                let listening = registry::with(context, |context| {
                    context.run(move |stack| {
                        let socket = stack.sockets.socket()?;
                        stack.sockets.bind(socket, at)?;
                        stack.sockets.listen(socket, CLIENTS)?;
                        Ok(())
                    })
                });
                listening.expect("a listener");
            }
            let panicked: Result<(), Errno> =
                registry::with(torn, |context| context.run(|_| panic!("a defect, for this test")));
            assert_eq!(panicked, Err(Errno(libc::ENOTRECOVERABLE)));
            assert_eq!(registry::with(torn, |_| Ok(())), Err(INVALID));

            let clients =
                thread::spawn(move || (0..CLIENTS).map(|_| TcpStream::connect(at)).collect::<Vec<_>>());
            while !clients.is_finished() {
                registry::with(whole, Context::turn).expect("a turn");
            }
            assert!(clients.join().expect("no panic").iter().all(Result::is_ok));
            destroy(create(0).expect("a context")).expect("a context");
            destroy(whole).expect("a context");
            mtcp_destroy();
        }
    }

    /// What the signal handler below uses, and the error of its last call.
    static CONTEXT: AtomicUsize = AtomicUsize::new(0);
    static ERROR: AtomicI32 = AtomicI32::new(0);

    extern "C" fn panic_in_a_call(_signal: c_int) {
        let context = std::ptr::without_provenance_mut(CONTEXT.load(Ordering::Relaxed));
        let panicked: Result<(), Errno> = registry::with(context, |_| panic!("a defect, for this test"));
        if let Err(Errno(error)) = panicked {
            ERROR.store(error, Ordering::Relaxed);
        }
    }

    /// A defect that a signal handler meets while its thread sleeps for the context.
    #[test]
    fn a_context_may_panic_in_a_signal_handler() {
        const BOUND: Duration = Duration::from_secs(60);
        if !netns::enter("lifecycle::tests::a_context_may_panic_in_a_signal_handler", BOUND) {
            return;
        }
        shared().settings.read("num_cores = 1", NETWORK, Some("none")).expect("settings");
        let number = create(0).expect("a context").addr();
        CONTEXT.store(number, Ordering::Relaxed);
        let handler: extern "C" fn(c_int) = panic_in_a_call;
        // SAFETY: the handler interrupts a thread that this test has made for it, and it makes calls that
        // signal handlers may make.
        unsafe { libc::signal(libc::SIGUSR1, handler as sighandler_t) };
        let (begun, begin) = mpsc::channel();
        let sleeper = thread::spawn(move || {
            let context = std::ptr::without_provenance_mut(number);
            registry::with_waits(context, |_| {
                begun.send(()).expect("the test waits");
                Err::<(), _>(Pause::Sleep(None))
            })
        });
        begin.recv().expect("the call begins");
        // EBUSY until it sleeps.
        while ERROR.load(Ordering::Relaxed) != libc::ENOTRECOVERABLE && !sleeper.is_finished() {
            // SAFETY: the thread was not joined.
            unsafe { libc::pthread_kill(sleeper.as_pthread_t(), libc::SIGUSR1) };
            thread::sleep(Duration::from_millis(1));
        }
        assert!(sleeper.join().expect("no panic of its own").is_err());
        create(0).expect("a context");
    }
}
