//! What other users can do with memory files. It begins programs, which hold copies of this process's descriptors until
//! they have replaced themselves: apart from tests that look at the end of a socket.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;

use megapipe_sys::memory_file::MemoryFile;
use rustix::fs::MemfdFlags;

/// Through /proc a descriptor could be opened anew, with rights it does not have.
#[test]
fn strangers_cannot_open_it_anew_for_writing() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED strangers_cannot_open_it_anew_for_writing: needs root to become another user");
        return;
    }
    let status = |fd: &OwnedFd, uid: u32| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "exec 9<>/proc/self/fd/0"]).stdin(fd.try_clone().unwrap());
        command.uid(uid).gid(uid).stderr(std::process::Stdio::null()).status().unwrap().success()
    };
    let file = MemoryFile::create("test", 4096, b"").unwrap();
    assert!(!status(&file.read_only, 65_534));
    let plain = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    assert!(status(&plain, 65_534), "which it could, were its permissions left");
}
