//! Whether this process is throttled by a CPU quota (Documentation/admin-guide/cgroup-v2.rst,
//! `cpu.stat`, and Documentation/scheduler/sched-bwc.rst): a spin uses up quota that the program
//! needs to work.

use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::buffer::Room;
use crate::clock::Instant;
use crate::mode;

/// Between two checks.
const EVERY: Duration = Duration::from_secs(1);

/// `cpu.stat` of this process's cgroup and of those above it, each of which may have a limit.
static FILES: OnceLock<Vec<CString>> = OnceLock::new();
/// Nanoseconds of the clock at which they are next read.
static DUE: AtomicU64 = AtomicU64::new(0);
/// Their sum at the last check.
static TIMES: AtomicU64 = AtomicU64::new(0);
static THROTTLED: AtomicBool = AtomicBool::new(false);

/// To be called at the start: later checks may be made by a signal handler, which cannot allocate.
pub(crate) fn start() {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files: Vec<CString> = files(&groups).filter(|file| times(file).is_some()).collect();
    TIMES.store(files.iter().filter_map(times).sum(), Relaxed);
    let _ = FILES.set(files);
}

/// Where the files may be, given /proc/self/cgroup (cgroups(7)).
fn files(groups: &str) -> impl Iterator<Item = CString> {
    let roots = |line: &str| -> Vec<String> {
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            return Vec::new();
        };
        let mounts: &[&str] = match hierarchy {
            "0" => &["", "/unified"],
            _ if controllers.split(',').any(|controller| controller == "cpu") => &["/cpu", "/cpu,cpuacct"],
            _ => &[],
        };
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let above: Vec<&str> = ends.map(|end| &path[..end]).filter(|path| *path != "/").collect();
        let file = |mount: &&str| {
            let root = format!("/sys/fs/cgroup{mount}");
            above.iter().map(move |path| format!("{root}{path}/cpu.stat")).collect::<Vec<_>>()
        };
        mounts.iter().flat_map(file).collect()
    };
    let mut all: Vec<String> = groups.lines().flat_map(roots).collect();
    all.dedup();
    all.into_iter().filter_map(|file| CString::new(file).ok())
}

/// How often a group was throttled. `None`: the file has no such count.
fn times(file: &CString) -> Option<u64> {
    let file = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = Room::take();
    let length = rustix::io::read(file, &mut text[..]).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok())
}

/// Whether a group was throttled in the second before the last check.
pub(crate) fn is_throttled(now: Instant) -> bool {
    let now = now.as_nanos() as u64;
    let due = DUE.load(Relaxed);
    if now >= due && DUE.compare_exchange(due, now + EVERY.as_nanos() as u64, Relaxed, Relaxed).is_ok() {
        ask();
    }
    THROTTLED.load(Relaxed)
}

#[cold]
fn ask() {
    let Some(files) = FILES.get().filter(|files| !files.is_empty() && !mode::is_confined()) else { return };
    // If one cannot be read, for example without a free descriptor, the last result stands.
    let Some(now) = files.iter().map(times).sum() else { return };
    THROTTLED.store(TIMES.swap(now, Relaxed) < now, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_above_may_have_the_limit() {
        let of = |groups| files(groups).map(|file| file.into_string().unwrap()).collect::<Vec<_>>();
        let unified = of("0::/a.slice/b.scope\n");
        assert!(
            ["", "/a.slice", "/a.slice/b.scope"]
                .map(|path| format!("/sys/fs/cgroup{path}/cpu.stat"))
                .iter()
                .all(|file| unified.contains(file)),
            "{unified:?}"
        );
        assert_eq!(
            of("4:memory:/m\n3:cpu,cpuacct:/\n2:cpuset:/c\n"),
            ["/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat"]
        );
        assert_eq!(of("nonsense\n\n1:\n"), Vec::<String>::new());
    }
}
