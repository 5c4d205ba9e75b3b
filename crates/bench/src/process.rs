//! Programs of others, as their controller sees them: started, pinned, counted, ended.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::child::ends_with_controller;
use crate::clock;
use crate::cpu::{self, CpuSet};
use crate::run::RunError;
use crate::{Reason, failed};

/// A running program; dropping it ends it and its children. It is told to end, too, when its
/// controller is killed.
pub(crate) struct Process {
    child: Child,
    name: String,
    output: PathBuf,
    errors: PathBuf,
    /// What ends it, SIGTERM unless changed.
    pub(crate) ending: Signal,
}

impl Process {
    /// Starts a program on some CPUs; what it says goes into files of a folder.
    pub(crate) fn start(mut command: Command, folder: &Path, cpus: &CpuSet) -> Result<Self, Reason> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // `megapipe run ... -- PROGRAM` becomes the program.
        let run = command.get_args().skip_while(|argument| *argument != "--").nth(1);
        let program = Path::new(run.unwrap_or(command.get_program()));
        let name = program.file_name().unwrap_or(OsStr::new("program")).to_string_lossy().into_owned();
        let [output, errors] = ["out", "err"].map(|kind| folder.join(format!("{name}-{number}.{kind}")));
        let cpus = cpus.as_slice().to_vec();
        command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&errors)?);
        // SAFETY: between fork and exec only sched_setaffinity is called, a plain system call; nothing is allocated
        // or locked.
        unsafe { ends_with_controller(&mut command, Signal::TERM).pre_exec(move || cpu::pin(&cpus)) };
        let child = command.spawn().map_err(failed(format!("cannot start {name}")))?;
        Ok(Self { child, name, output, errors, ending: Signal::TERM })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        // It is not waited for yet, so its id is its own.
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for its end and gives what it has printed.
    pub(crate) fn finish(&mut self, patience: Duration, stop: &AtomicBool) -> Result<String, Reason> {
        self.wait(patience, stop, |status| status.is_some_and(|status| status.success()))?;
        Ok(fs::read_to_string(&self.output)?)
    }

    /// Waits until it is ready; an end before is a failure.
    pub(crate) fn wait_until(
        &mut self,
        mut ready: impl FnMut() -> bool,
        stop: &AtomicBool,
    ) -> Result<(), Reason> {
        self.wait(PATIENCE, stop, |_| ready())
    }

    /// Waits until all is done, by its status if it has ended; an end before is a failure.
    fn wait(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
        mut is_done: impl FnMut(Option<ExitStatus>) -> bool,
    ) -> Result<(), Reason> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait()? {
                status if is_done(status) => return Ok(()),
                Some(status) => return Err(self.failure(status)),
                None if stop.load(Ordering::Relaxed) => return Err(RunError::Stopped.into()),
                None if Instant::now() > deadline => {
                    return Err(format!("{} was not done in time", self.name).into());
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn failure(&self, status: ExitStatus) -> Reason {
        let said = [&self.errors, &self.output].map(|file| fs::read_to_string(file).unwrap_or_default());
        let said = said.iter().flat_map(|text| text.trim().lines().rev().take(3)).collect::<Vec<_>>();
        let said = said.into_iter().rev().collect::<Vec<_>>().join("; ");
        format!("{} ended with {status}: {said}", self.name).into()
    }

    /// CPU time of it and of all that descend from it, those included that have ended and were waited for.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        time_of_family(self.child.id())
    }

    /// Ends it, as kindly as it lets us.
    pub(crate) fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        let _ = self.signal(self.ending); // a failure shows below
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL); // the one that was made for it
        let _ = self.child.wait(); // cannot fail for a child that is not waited for
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// CPU time of a process and of all that descend from it, those included that have ended and were waited for
/// (proc_pid_stat(5)).
fn time_of_family(process: u32) -> io::Result<Duration> {
    let folder = format!("/proc/{process}");
    let Ok(stat) = fs::read_to_string(format!("{folder}/stat")) else { return Ok(Duration::ZERO) }; // has ended
    // SAFETY: plain call.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let of_ended = fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>();
    let mut sum = clock::of_process(process).unwrap_or_default() + Duration::from_secs_f64(of_ended / ticks);
    for thread in fs::read_dir(format!("{folder}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            sum += time_of_family(child)?;
        }
    }
    Ok(sum)
}

/// CPU time of all children that were waited for, and of theirs (getrusage(2)).
pub(crate) fn cpu_of_ended_children() -> Duration {
    // SAFETY: all zeroes is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the write.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let time =
        |time: libc::timeval| Duration::new(time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a program may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Process::start(command, folder, &CpuSet::allowed().unwrap()).unwrap()
    }

    #[test]
    fn a_program_is_heard_and_its_children_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut said = shell("echo words", folder.path());
        assert_eq!(said.finish(PATIENCE, &stop).unwrap(), "words\n");
        let mut failed = shell("echo reason >&2; exit 3", folder.path());
        let reason = failed.finish(PATIENCE, &stop).unwrap_err().to_string();
        assert!(reason.contains("exit status: 3: reason"), "{reason}");
        let done = folder.path().join("done");
        let loops = "(i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done)";
        let mut busy = shell(&format!("{loops}; touch {}; sleep 60", done.display()), folder.path());
        busy.wait_until(|| done.exists(), &stop).unwrap();
        assert!(busy.cpu_time().unwrap() >= Duration::from_millis(10));
        let pid = busy.pid();
        drop(busy);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
