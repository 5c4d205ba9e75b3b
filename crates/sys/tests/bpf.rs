//! Programs and maps in the kernel, by what they do there.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use megapipe_sys::bpf::{
    Arithmetic, Assembler, Condition, Error, Helper, Kind, Program, Register, Size, SocketArray, WordArray,
};
use socket2::{Domain, Socket, Type};

use Register::{R0, R1, R2, R3, R4, R6, R10};

/// Whether BPF is allowed here; says so if not.
fn allowed(test: &str) -> bool {
    match WordArray::new("probe", 1, 1) {
        Ok(_) => true,
        Err(error) => {
            println!("SKIPPED {test}: {error}");
            false
        }
    }
}

/// What a filter of this code returns for a packet of zeroes.
fn result_of(assembler: &mut Assembler<'_>) -> u32 {
    let program = Program::load("test", Kind::SocketFilter, &assembler.finish().unwrap()).unwrap();
    program.run(&[0; 64]).unwrap()
}

#[test]
fn instructions_do_what_they_are_named_after() {
    if !allowed("instructions_do_what_they_are_named_after") {
        return;
    }
    for (operation, expected) in [
        (Arithmetic::Add, 107),
        (Arithmetic::Subtract, 93),
        (Arithmetic::And, 4),
        (Arithmetic::ShiftLeft, 100 << 7),
        (Arithmetic::Modulo, 2),
        (Arithmetic::Move, 7),
    ] {
        let mut constant = Assembler::new();
        constant.set(R0, 100).arithmetic(operation, R0, 7).exit();
        let mut register = Assembler::new();
        register.set(R0, 100).set(R3, 7).arithmetic(operation, R0, R3).exit();
        assert_eq!(
            (result_of(&mut constant), result_of(&mut register)),
            (expected, expected),
            "{operation:?}"
        );
    }
    for (condition, left, right, taken) in [
        (Condition::Equal, 3, 3, true),
        (Condition::Equal, 3, 4, false),
        (Condition::NotEqual, 3, 4, true),
        (Condition::NotEqual, 3, 3, false),
        (Condition::SignedGreater, 1, -1, true),
        (Condition::SignedGreater, -1, 1, false),
        (Condition::Less, 1, -1, true),
        (Condition::Less, -1, 1, false),
    ] {
        let mut assembler = Assembler::new();
        let yes = assembler.label();
        assembler.set(R1, left).jump_if(condition, R1, right, yes).set(R0, 0).exit();
        assembler.place(yes).set(R0, 1).exit();
        assert_eq!(result_of(&mut assembler), u32::from(taken), "{left} {condition:?} {right}");
    }
    // A loop over the stack, in all sizes, with a constant of 64 bits.
    let mut assembler = Assembler::new();
    let (again, end) = (assembler.label(), assembler.label());
    assembler.set_wide(R1, 0x1_0203_0405).store(Size::Double, R10, -8, R1);
    assembler.set(R0, 0).set(R2, 3).place(again);
    assembler.load(Size::Byte, R3, R10, -8).arithmetic(Arithmetic::Add, R0, R3);
    assembler.load(Size::Word, R3, R10, -8).arithmetic(Arithmetic::Add, R0, R3);
    assembler.load(Size::Double, R3, R10, -8).arithmetic(Arithmetic::Subtract, R0, R3);
    assembler.arithmetic(Arithmetic::Add, R2, -1).jump_if(Condition::Equal, R2, 0, end).jump(again);
    assembler.place(end).exit();
    let wide = 0x1_0203_0405_u64;
    let first = u64::from(wide.to_ne_bytes()[0]);
    let word = u64::from(u32::from_ne_bytes(wide.to_ne_bytes()[..4].try_into().unwrap()));
    let expected = (first + word).wrapping_sub(wide).wrapping_mul(3) as u32;
    assert_eq!(result_of(&mut assembler), expected);
}

#[test]
fn words_are_shared_with_the_program() {
    if !allowed("words_are_shared_with_the_program") {
        return;
    }
    let array = WordArray::new("words", 600, 3).unwrap();
    assert!(array.entry(600).is_none());
    let mut assembler = Assembler::new();
    let missing = assembler.label();
    // array[599][2] += array[599][1], which it returns.
    assembler.store(Size::Word, R10, -4, 599);
    assembler.set_map(R1, array.as_fd()).set(R2, R10).arithmetic(Arithmetic::Add, R2, -4);
    assembler.call(Helper::MapLookup).jump_if(Condition::Equal, R0, 0, missing);
    assembler.load(Size::Double, R4, R0, 8).atomic_add(R0, 16, R4).set(R0, R4).exit();
    assembler.place(missing).exit();
    let program = Program::load("words", Kind::SocketFilter, &assembler.finish().unwrap()).unwrap();
    let last = array.entry(599).unwrap();
    for round in 1..=3 {
        last[1].store(round, Ordering::Relaxed);
        assert_eq!(program.run(&[0; 64]).unwrap(), round as u32);
    }
    assert_eq!(last[2].load(Ordering::Relaxed), 1 + 2 + 3);
    let others = (0..599).flat_map(|index| array.entry(index).unwrap());
    assert!(others.chain(&last[..1]).all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_refused_program_comes_with_the_verifiers_words() {
    if !allowed("a_refused_program_comes_with_the_verifiers_words") {
        return;
    }
    let mut assembler = Assembler::new();
    assembler.set(R0, R2).exit(); // R2 has no value at the start
    let refused = Program::load("test", Kind::SocketFilter, &assembler.finish().unwrap());
    let Err(Error::Unverified { log, .. }) = refused else { panic!("{refused:?}") };
    assert!(log.contains("R2 !read_ok"), "{log}");
}

/// The verifier gives up when a signal comes (EAGAIN). On a slow machine each attempt meets one, so that
/// a program gets fewer than there are attempts.
#[test]
fn signals_do_not_keep_a_program_from_being_loaded() {
    if !allowed("signals_do_not_keep_a_program_from_being_loaded") {
        return;
    }
    extern "C" fn ignore(_: libc::c_int) {}
    let handler = ignore as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: takes nothing.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    let over = AtomicBool::new(false);
    let signals = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(1));
                let left = signals.load(Ordering::Relaxed);
                if left == 0 {
                    continue;
                }
                signals.store(left - 1, Ordering::Relaxed);
                // SAFETY: numbers only, and the thread lives as long as the scope.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
            }
        });
        let loaded = (0..300).try_for_each(|_| {
            signals.store(20, Ordering::Relaxed);
            let mut assembler = Assembler::new();
            let again = assembler.label();
            assembler.set(R0, 0).set(R2, 500).place(again).arithmetic(Arithmetic::Add, R0, R2);
            assembler.arithmetic(Arithmetic::Add, R2, -1).jump_if(Condition::NotEqual, R2, 0, again).exit();
            Program::load("loop", Kind::SocketFilter, &assembler.finish()?).map(drop)
        });
        over.store(true, Ordering::Relaxed);
        assert!(loaded.is_ok(), "a program was not loaded: {loaded:?}");
    });
}

/// A member of a group on loopback.
fn listener(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(64).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Connections that wait at a listener; each gets a byte.
fn serve(listener: &Socket) -> usize {
    let mut count = 0;
    loop {
        match listener.accept() {
            Ok((mut connection, _)) => connection.write_all(b"!").unwrap(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
        count += 1;
    }
}

#[test]
fn a_selected_socket_gets_connections_and_its_successor_those_that_wait() {
    if !allowed("a_selected_socket_gets_connections_and_its_successor_those_that_wait") {
        return;
    }
    let first = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
    let address = first.local_addr().unwrap().as_socket().unwrap();
    let second = listener(address);
    let sockets = SocketArray::new("sockets", 2).unwrap();
    let choice = WordArray::new("choice", 1, 1).unwrap();
    sockets.insert(0, first.as_fd()).unwrap();
    assert_eq!(sockets.insert(0, second.as_fd()).unwrap_err().raw_os_error(), Some(libc::EEXIST));
    sockets.insert(1, second.as_fd()).unwrap();
    assert_eq!(sockets.remove(2).unwrap_err().raw_os_error(), Some(libc::E2BIG));

    let mut assembler = Assembler::new();
    let by_hash = assembler.label();
    assembler.set(R6, R1).store(Size::Word, R10, -4, 0);
    assembler.set_map(R1, choice.as_fd()).set(R2, R10).arithmetic(Arithmetic::Add, R2, -4);
    assembler.call(Helper::MapLookup).jump_if(Condition::Equal, R0, 0, by_hash);
    assembler.set(R1, R6).set_map(R2, sockets.as_fd()).set(R3, R0).set(R4, 0);
    assembler.call(Helper::SelectReuseport);
    assembler.place(by_hash).set(R0, Program::PASS).exit();
    let kind = Kind::ReuseportSelectOrMigrate;
    let program = Program::load("choose", kind, &assembler.finish().unwrap()).unwrap();
    program.attach_to_reuseport(first.as_fd()).unwrap();

    let connect = |count| (0..count).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>();
    let choose = |index: u32| {
        // The map's key is 32 bits: the first four bytes of the word.
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&index.to_ne_bytes());
        choice.entry(0).unwrap()[0].store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    };
    for index in [1, 0, 1] {
        choose(index);
        let _peers = connect(20);
        assert_eq!(serve(if index == 0 { &first } else { &second }), 20);
    }
    // The second closes with connections in its queue: the first gets them.
    let mut peers = connect(20);
    choose(0);
    assert!(sockets.contains(1));
    drop(second);
    assert!(!sockets.contains(1));
    assert_eq!(serve(&first), 20);
    for peer in &mut peers {
        peer.read_exact(&mut [0]).unwrap();
    }
}
