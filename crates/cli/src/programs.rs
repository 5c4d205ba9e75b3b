//! Running programs that have the library of `megapipe run`.

use std::fs;

use crate::library::FILE_NAME;

/// The library's path in this process, or what it was before the file was replaced; `Ok(None)`: it is not loaded.
///
/// # Errors
///
/// The process is gone, or another user's.
pub(crate) fn library_of(pid: u32) -> std::io::Result<Option<String>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    // proc_pid_maps(5): the path is the sixth column, and the last.
    let paths = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let is_ours = |path: &&str| {
        let path = path.trim_end_matches(" (deleted)");
        path.rsplit('/').next() == Some(FILE_NAME)
    };
    Ok(paths.filter(|path| is_ours(path)).map(str::to_owned).next())
}

/// Those processes that this user may inspect.
pub(crate) fn with_library() -> Vec<u32> {
    all().filter(|pid| matches!(library_of(*pid), Ok(Some(_)))).collect()
}

/// Each process of this namespace.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The sockets of a process that this user may inspect: their descriptors and inodes.
pub(crate) fn sockets(pid: u32) -> impl Iterator<Item = (i32, u64)> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, inode))
    })
}

/// What the kernel calls it, and its effective user (proc_pid_status(5)).
pub(crate) fn name_and_user(pid: u32) -> Option<(String, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    Some((field("Name")?, field("Uid")?.split_whitespace().nth(1)?.parse().ok()?))
}
