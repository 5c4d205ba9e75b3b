//! Pipes and disk files.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use megapipe::{AcceptAs, AcceptCount, Event, SubmitError, WriteData};

use crate::conformance::Fixture;
use crate::driver::Driver;
use crate::net::{self, Scratch};
use crate::skip::Verdict;

fn set_nonblocking(fd: &OwnedFd) {
    // SAFETY: the call takes integers only.
    let status = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(status, 0);
}

/// Runs `body` for a pipe in blocking and in non-blocking mode; the channel's end is the
/// one that `reader` chooses.
fn for_each_mode(fixture: &Fixture, mut body: impl FnMut(Driver, OwnedFd, OwnedFd)) {
    for nonblocking in [false, true] {
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        if nonblocking {
            set_nonblocking(&reader);
            set_nonblocking(&writer);
        }
        body(fixture.driver(), reader, writer);
    }
}

pub fn pipes_carry_bytes(fixture: &mut Fixture) -> Verdict {
    for_each_mode(fixture, |mut driver, reader, writer| {
        let reader = driver.register(reader, 1).unwrap();
        let writer = driver.register(writer, 2).unwrap();
        // Waits for bytes that are not there yet.
        let read = driver.read(reader).unwrap();
        driver.expect_silence();
        let write = driver.write(writer, &b"hello"[..]).unwrap();
        let mut seen = 0;
        for _ in 0..2 {
            let completion = driver.next();
            match completion.event {
                Event::Read { result, data, more } => {
                    assert!(completion.op == read && completion.cookie == 1 && !more);
                    assert_eq!((result.unwrap(), data.bytes()), (5, &b"hello"[..]));
                    seen |= 1;
                }
                Event::Write { result, .. } => {
                    assert!(completion.op == write && completion.cookie == 2);
                    assert_eq!(result.unwrap(), 5);
                    seen |= 2;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, 3);
        let read = driver.read_into(reader, Vec::with_capacity(10)).unwrap();
        driver.write_quiet(writer, vec![WriteData::from(&b"a"[..]), WriteData::from(&b"bc"[..])]).unwrap();
        assert_eq!(driver.expect_read(read).0.unwrap(), b"abc");
        let stream = driver.read_stream(reader).unwrap();
        for round in 0..10u8 {
            driver.write_quiet(writer, vec![round; 3]).unwrap();
            let (result, more) = driver.expect_read(stream);
            assert!(result.unwrap() == [round; 3] && more);
        }
    });
    Ok(())
}

pub fn a_full_pipe_waits_for_its_reader(fixture: &mut Fixture) -> Verdict {
    for_each_mode(fixture, |mut driver, reader, writer| {
        let writer = driver.register(writer, 0).unwrap();
        let text = net::pattern(1 << 20, 5);
        let op = driver.write(writer, text.clone()).unwrap();
        let tail = driver.write(writer, &b"tail"[..]).unwrap();
        driver.expect_silence();
        // Back to blocking for the test's own end: it is another open file.
        // SAFETY: the call takes integers only.
        unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, 0) };
        let mut reader = File::from(reader);
        let (got, seen) = driver.while_peer(|| net::read_exactly(&mut reader, text.len() + 4));
        let mut seen: Vec<_> = seen.into_iter().map(|completion| completion.op).collect();
        while seen.len() < 2 {
            seen.push(driver.next().op);
        }
        assert_eq!(seen, [op, tail]);
        assert!(got[..text.len()] == text[..] && &got[text.len()..] == b"tail");
    });
    Ok(())
}

pub fn the_end_of_a_pipe_ends_the_reading(fixture: &mut Fixture) -> Verdict {
    for_each_mode(fixture, |mut driver, reader, writer| {
        let reader = driver.register(reader, 0).unwrap();
        let op = driver.read_stream(reader).unwrap();
        driver.flush().unwrap();
        let mut writer = File::from(writer);
        writer.write_all(b"end").unwrap();
        drop(writer);
        let (result, more) = driver.expect_read(op);
        assert!(result.unwrap() == b"end" && more);
        let (result, more) = driver.expect_read(op);
        assert!(result.unwrap().is_empty() && !more);
    });
    for_each_mode(fixture, |mut driver, reader, writer| {
        drop(reader);
        // A program that another test begins just now holds a copy until it has replaced itself.
        let mut broken = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one live pollfd.
        assert_eq!(unsafe { libc::poll(&raw mut broken, 1, 20_000) }, 1);
        let writer = driver.register(writer, 0).unwrap();
        let op = driver.write(writer, &b"nobody"[..]).unwrap();
        assert_eq!(driver.expect_write(op).unwrap_err().raw_os_error(), Some(libc::EPIPE));
    });
    // A close delivers the writer's end.
    for_each_mode(fixture, |mut driver, reader, writer| {
        let writer = driver.register(writer, 0).unwrap();
        driver.write_quiet(writer, &b"all"[..]).unwrap();
        driver.close(writer).unwrap();
        // SAFETY: the call takes integers only.
        unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, 0) };
        let mut all = Vec::new();
        let mut reader = File::from(reader);
        driver.quietly_while(|| reader.read_to_end(&mut all).unwrap());
        assert_eq!(all, b"all");
    });
    Ok(())
}

pub fn a_disk_file_reads_to_its_end(fixture: &mut Fixture) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("file");
    let text = net::pattern(20_000, 6);
    std::fs::write(&path, &text).unwrap();
    let mut driver = fixture.driver();
    for stream in [false, true] {
        let handle = driver.register(File::open(&path).unwrap(), 0).unwrap();
        let mut all = Vec::new();
        if stream {
            let op = driver.read_stream(handle).unwrap();
            loop {
                let (result, more) = driver.expect_read(op);
                let bytes = result.unwrap();
                assert_eq!(more, !bytes.is_empty());
                all.extend_from_slice(&bytes);
                if !more {
                    break;
                }
            }
        } else {
            // Several at once: sequential reads take their turns.
            let ops: Vec<_> = (0..7)
                .map(|round| match round % 2 {
                    0 => driver.read(handle).unwrap(),
                    _ => driver.read_into(handle, Vec::with_capacity(3000)).unwrap(),
                })
                .collect();
            for op in ops {
                all.extend(driver.expect_read(op).0.unwrap());
            }
            assert_eq!(driver.read_exactly(handle, 0), b"");
        }
        assert!(all == text, "other bytes, or in another order");
        let op = driver.read(handle).unwrap();
        assert!(driver.expect_read(op).0.unwrap().is_empty());
        driver.close(handle).unwrap();
    }
    Ok(())
}

pub fn a_disk_file_reads_at_offsets(fixture: &mut Fixture) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("file");
    let text = net::pattern(20_000, 7);
    std::fs::write(&path, &text).unwrap();
    let mut driver = fixture.driver();
    let handle = driver.register(File::open(&path).unwrap(), 0).unwrap();
    let offsets = [19_990u64, 0, 777, 10_000, 20_000, 30_000];
    let mut ops: std::collections::HashMap<_, _> = offsets
        .iter()
        .map(|&offset| (driver.read_at(handle, Vec::with_capacity(100), offset).unwrap(), offset as usize))
        .collect();
    for _ in offsets {
        let completion = driver.next();
        let offset = ops.remove(&completion.op).expect("each read ends once").min(text.len());
        let Event::Read { result, data, more } = completion.event else { panic!("no read") };
        let want = &text[offset..text.len().min(offset + 100)];
        assert!(result.unwrap() == want.len() && data.bytes() == want && !more);
    }
    // They leave the file's own position alone.
    let op = driver.read_into(handle, Vec::with_capacity(10)).unwrap();
    assert_eq!(driver.expect_read(op).0.unwrap(), &text[..10]);
    let (socket, _peer) = net::tcp_pair();
    let socket = driver.register(socket, 0).unwrap();
    let refused = driver.read_at(socket, vec![0; 8], 0).unwrap_err();
    assert_eq!(refused.reason, SubmitError::Unsupported);
    Ok(())
}

pub fn a_disk_file_writes(fixture: &mut Fixture) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("file");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let mut driver = fixture.driver();
    let handle = driver.register(open(), 0).unwrap();
    let text = net::pattern(300_000, 8);
    let ops = [
        driver.write(handle, text[..100_000].to_vec()).unwrap(),
        driver.write(handle, vec![WriteData::from(text[100_000..250_000].to_vec())]).unwrap(),
        driver.write(handle, text[250_000..].to_vec()).unwrap(),
    ];
    for (op, len) in ops.into_iter().zip([100_000, 150_000, 50_000]) {
        assert_eq!(driver.expect_write(op).unwrap(), len);
    }
    assert!(std::fs::read(&path).unwrap() == text);
    let ops = [
        driver.write_at(handle, &b"middle"[..], 150_000).unwrap(),
        driver.write_at(handle, &b"past"[..], 300_010).unwrap(),
        driver.write_at(handle, &b"start"[..], 0).unwrap(),
    ];
    let mut ended = [false; 3];
    for _ in ops {
        let completion = driver.next();
        let which = ops.iter().position(|&op| op == completion.op).expect("one of the writes");
        assert!(!std::mem::replace(&mut ended[which], true));
        assert!(matches!(completion.event, Event::Write { result: Ok(4..=6), .. }));
    }
    // The file's own position stands where the sequential writes left it.
    driver.write_quiet(handle, &b"tail"[..]).unwrap();
    driver.close(handle).unwrap();
    driver.drive_until(
        |_| std::fs::read(&path).unwrap().get(300_000..300_004) == Some(b"tail"),
        |_, completion| panic!("{completion:?}"),
    );
    let got = std::fs::read(&path).unwrap();
    assert_eq!(&got[..5], b"start");
    assert_eq!(&got[150_000..150_006], b"middle");
    assert_eq!(&got[300_010..], b"past");
    Ok(())
}

pub fn sockets_only_calls_are_refused(fixture: &mut Fixture) -> Verdict {
    let scratch = Scratch::new();
    let mut driver = fixture.driver();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let handles = [
        driver.register(File::create(scratch.join("file")).unwrap(), 0).unwrap(),
        driver.register(pipe, 0).unwrap(),
    ];
    let (_closed, address) = net::closed_port();
    for handle in handles {
        let unsupported = SubmitError::Unsupported;
        let accept = driver.accept(handle, AcceptCount::Unlimited, AcceptAs::Fd);
        assert_eq!(accept.unwrap_err(), unsupported);
        assert_eq!(driver.connect(handle, &address).unwrap_err(), unsupported);
        assert_eq!(driver.disconnect(handle).unwrap_err(), unsupported);
        assert_eq!(driver.shutdown(handle, std::net::Shutdown::Both).unwrap_err(), unsupported);
        let refused = driver.send_to(handle, &b"x"[..], &address).unwrap_err();
        assert_eq!(refused.reason, unsupported);
    }
    Ok(())
}
