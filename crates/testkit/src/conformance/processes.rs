//! What depends on the process: forks, the environment, filters, signals.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use megapipe::{Channel, Config, CreateError, DispatchError, EngineKind, Event, Source};

use crate::conformance::Fixture;
use crate::driver::{Driver, Form, WATCHDOG};
use crate::net;
use crate::process;
use crate::skip::Verdict;
use crate::threads::SetAtEnd;

pub fn a_forked_child_is_turned_away(fixture: &mut Fixture) -> Verdict {
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        for form in Form::ALL {
            let mut driver = Driver::new(config.clone());
            let mut peers = Vec::new();
            let mut handles = Vec::new();
            for cookie in 0..4 {
                let (socket, peer) = net::tcp_pair();
                let handle = driver.add(socket, form, cookie);
                driver.read_stream(handle).unwrap();
                handles.push(handle);
                peers.push(peer);
            }
            driver.flush().unwrap();
            for peer in &mut peers {
                peer.write_all(b"before").unwrap();
            }
            // One is handed out; the others are done, or on their way.
            let mut seen = vec![driver.next().cookie];
            let fresh = config.clone();
            let status = process::in_forked_child(|| use_in_child(&mut driver, &handles, fresh));
            assert_eq!(status, 0, "the child's step of this number went wrong ({form:?})");
            while seen.len() < 4 {
                let completion = driver.next();
                assert!(matches!(completion.event, Event::Read { result: Ok(6), .. }));
                seen.push(completion.cookie);
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3]);
            for (handle, peer) in handles.iter().zip(&mut peers) {
                driver.write_quiet(*handle, &b"after"[..]).unwrap();
                driver.flush().unwrap();
                assert_eq!(net::read_exactly(peer, 5), b"after");
                peer.write_all(b"reply").unwrap();
                let completion = driver.next();
                assert_eq!(completion.handle, *handle);
                assert!(matches!(completion.event, Event::Read { result: Ok(5), .. }));
            }
            driver.expect_silence();
        }
    });
    Ok(())
}

pub fn a_forked_child_drops_its_copy_alone(fixture: &mut Fixture) -> Verdict {
    const DESCRIPTORS_LEFT: i32 = 100;
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        let mut driver = Some(Driver::new(config));
        let (socket, mut peer) = net::tcp_pair();
        let Some(channel) = driver.as_mut() else { unreachable!() };
        let handle = channel.register(socket, 0).unwrap();
        channel.read_stream(handle).unwrap();
        channel.flush().unwrap();
        let descriptors = process::open_descriptors();
        let status = process::in_forked_child(|| {
            // What the child maps may lie where the parent has the ring.
            let mappings: Vec<Mapped> = (0..64).map(|_| Mapped::new()).collect();
            drop(driver.take());
            if process::open_descriptors() >= descriptors {
                return DESCRIPTORS_LEFT;
            }
            mappings.iter().filter(|mapping| !mapping.is_there()).count() as i32
        });
        assert_ne!(status, DESCRIPTORS_LEFT, "the child's descriptors stay open");
        assert_eq!(status, 0, "so many of the child's mappings went with the channel");
        let Some(channel) = driver.as_mut() else { unreachable!() };
        peer.write_all(b"after").unwrap();
        assert!(matches!(channel.next().event, Event::Read { result: Ok(5), .. }));
        channel.write_quiet(handle, &b"reply"[..]).unwrap();
        channel.flush().unwrap();
        assert_eq!(net::read_exactly(&mut peer, 5), b"reply");
    });
    Ok(())
}

/// Some memory that is mapped until the process ends.
struct Mapped(*mut libc::c_void);

impl Mapped {
    const LEN: usize = 32 << 10;

    fn new() -> Mapped {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), Mapped::LEN, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Mapped(address)
    }

    fn is_there(&self) -> bool {
        let mut resident = [0; Mapped::LEN / 4096];
        // SAFETY: writes one byte a page; where nothing is mapped it fails.
        unsafe { libc::mincore(self.0, Mapped::LEN, resident.as_mut_ptr()) == 0 }
    }
}

/// What a child may try with its parent's channel. Returns the number of the first step
/// that went wrong, 0 if none did.
fn use_in_child(driver: &mut Driver, handles: &[megapipe::Handle], fresh: Config) -> i32 {
    if !matches!(driver.dispatch(Some(Duration::ZERO)), Err(DispatchError::Forked)) {
        return 1;
    }
    for _ in 0..100 {
        // Queued at most; nothing of it may reach the parent's connections.
        let _ = driver.write_quiet(handles[0], &b"child"[..]);
    }
    if !matches!(driver.flush(), Err(DispatchError::Forked)) {
        return 2;
    }
    let _ = driver.peer_address(handles[0]);
    let _ = driver.reset(handles[1]);
    if let Ok(Source::LwSocket(socket)) = driver.unregister(handles[2]) {
        let _ = driver.to_fd(socket);
    }
    let _ = driver.close(handles[3]);
    let _ = driver.to_lwsocket(net::unix_pair(socket2::Type::STREAM).0);
    if !matches!(driver.dispatch(None), Err(DispatchError::Forked)) {
        return 3;
    }
    // Its own channel is no trouble.
    match Channel::new(fresh) {
        Ok(mut own) => i32::from(!matches!(own.dispatch(Some(Duration::ZERO)), Ok(None))) * 4,
        Err(_) => 5,
    }
}

pub fn the_environment_chooses_the_engine(fixture: &mut Fixture) -> Verdict {
    let engine = fixture.engine();
    process::isolated(fixture.name(), || {
        let other = match engine {
            EngineKind::Uring => EngineKind::Epoll,
            EngineKind::Epoll => EngineKind::Uring,
        };
        process::set_variable("MEGAPIPE_ENGINE", engine.name());
        for asked in [None, Some(engine), Some(other)] {
            let channel = Channel::new(Config { engine: asked, ..Config::default() }).unwrap();
            assert_eq!(channel.engine(), engine);
        }
        // An empty variable says nothing.
        process::set_variable("MEGAPIPE_ENGINE", "");
        let channel = Channel::new(Config { engine: Some(engine), ..Config::default() }).unwrap();
        assert_eq!(channel.engine(), engine);
    });
    Ok(())
}

pub fn an_unknown_engine_is_an_error(fixture: &mut Fixture) -> Verdict {
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        process::set_variable("MEGAPIPE_ENGINE", "kqueue");
        match Channel::new(config) {
            Err(CreateError::UnknownEngine(name)) => assert_eq!(name, "kqueue"),
            Err(error) => panic!("{error}"),
            Ok(channel) => panic!("{} came up", channel.engine().name()),
        }
    });
    Ok(())
}

pub fn a_seccomp_filter_leads_to_epoll(fixture: &mut Fixture) -> Verdict {
    process::isolated(fixture.name(), || {
        process::forbid_io_uring();
        let mut driver = Driver::new(Config::default());
        assert_eq!(driver.engine(), EngineKind::Epoll);
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.register(socket, 0).unwrap();
        peer.write_all(b"works").unwrap();
        assert_eq!(driver.read_exactly(handle, 5), b"works");
        // Asked for by name, it is an error.
        let forced = Channel::new(Config { engine: Some(EngineKind::Uring), ..Config::default() });
        let Err(CreateError::RingUnavailable(cause)) = forced else {
            panic!("io_uring in spite of the filter")
        };
        assert_eq!(cause.raw_os_error(), Some(libc::EPERM));
    });
    Ok(())
}

pub fn a_signal_interrupts_a_wait(fixture: &mut Fixture) -> Verdict {
    extern "C" fn ignore(_: libc::c_int) {}
    let config = fixture.config();
    process::isolated(fixture.name(), || {
        let mut driver = Driver::new(config);
        let (socket, mut peer) = net::tcp_pair();
        let handle = driver.register(socket, 0).unwrap();
        let op = driver.read(handle).unwrap();
        // SAFETY: the handler does nothing; the struct is live and zeroes are valid in it.
        let us = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
            libc::pthread_self()
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = SetAtEnd(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // SAFETY: the thread lives until this scope ends.
                    unsafe { libc::pthread_kill(us, libc::SIGUSR1) };
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let result = driver.dispatch(Some(WATCHDOG));
            drop(end);
            assert!(matches!(result, Err(DispatchError::Interrupted)), "{result:?}");
        });
        // Nothing is lost; and the loop goes on, however often it is interrupted.
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = SetAtEnd(&over);
            scope.spawn(|| {
                for round in 0.. {
                    // SAFETY: the thread lives until this scope ends.
                    unsafe { libc::pthread_kill(us, libc::SIGUSR1) };
                    std::thread::sleep(Duration::from_millis(1));
                    if round == 20 {
                        peer.write_all(b"x").unwrap();
                    }
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            driver.timer(WATCHDOG, 0).unwrap();
            let ended = driver.run(|_, completion| {
                over.store(true, Ordering::Relaxed);
                Ok::<_, DispatchError>(ControlFlow::Break(completion.op))
            });
            assert_eq!(ended.unwrap(), op);
        });
        // What the closure fails with ends the loop, too.
        driver.timer(Duration::ZERO, 0).unwrap();
        let failed = driver.run(|_, _| Err::<ControlFlow<()>, _>(DispatchError::Forked));
        assert!(matches!(failed, Err(DispatchError::Forked)), "{failed:?}");
    });
    Ok(())
}
