//! The system calls of programs, by strace(1).

use std::fs;
use std::process::Command;

use crate::support::{Lab, clean, find};

/// Calls by which memory is had: they differ with what else is loaded.
const OF_MEMORY: [&str; 6] = ["brk(", "mmap(", "munmap(", "mprotect(", "madvise(", "mremap("];

/// A program under strace(1), whose trace goes to `trace`.
pub(crate) fn traced(lab: &Lab, command: &Command) -> Command {
    under_strace(lab, command, &["-f"])
}

/// The same, with a file for each process, for [`calls`].
pub(crate) fn traced_apart(lab: &Lab, command: &Command) -> Command {
    traces(lab).into_iter().for_each(|pid| fs::remove_file(trace(lab, pid)).unwrap());
    under_strace(lab, command, &["-ff", "-s", "0", "-e", "signal=none"])
}

fn under_strace(lab: &Lab, command: &Command, options: &[&str]) -> Command {
    let mut traced = clean(find("strace").expect("strace"));
    traced.args(options).args(["-qq", "-o"]).arg(lab.path("trace"));
    traced.arg(command.get_program()).args(command.get_args());
    traced.current_dir(lab.path(""));
    traced
}

fn trace(lab: &Lab, pid: u32) -> std::path::PathBuf {
    lab.path(&format!("trace.{pid}"))
}

/// The processes and threads of [`traced_apart`].
pub(crate) fn traces(lab: &Lab) -> Vec<u32> {
    let names = fs::read_dir(lab.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let pid = |name: std::ffi::OsString| name.to_str()?.strip_prefix("trace.")?.parse().ok();
    let mut pids: Vec<u32> = names.filter_map(pid).collect();
    pids.sort_unstable();
    pids
}

/// The calls of one so far, in order, with their arguments; of large numbers (addresses,
/// processes, ports) `#`.
pub(crate) fn calls(lab: &Lab, pid: u32) -> Vec<String> {
    // strace(1) makes the file after the process.
    let text = fs::read_to_string(trace(lab, pid)).unwrap_or_default();
    let calls = text.lines().filter(|line| !OF_MEMORY.iter().any(|call| line.starts_with(call)));
    let pids = traces(lab);
    let is_large = |number: &str| number.len() > 2 || number.parse().is_ok_and(|pid| pids.contains(&pid));
    calls.map(|call| without(call, is_large)).collect()
}

/// A text with `#` for numbers.
fn without(text: &str, is_such: impl Fn(&str) -> bool) -> String {
    let mut rest = text;
    let mut result = String::new();
    while let Some(first) = rest.find(|letter: char| letter.is_ascii_alphanumeric()) {
        let (before, word) = rest.split_at(first);
        let end = word.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        result.push_str(before);
        let is_number = word.starts_with(|letter: char| letter.is_ascii_digit());
        result.push_str(if is_number && is_such(word) { "#" } else { word });
        rest = after;
    }
    result + rest
}

/// The first call in which the sequences of some processes differ.
pub(crate) fn difference(some: &[Vec<String>], others: &[Vec<String>]) -> Option<[Option<String>; 2]> {
    assert_eq!(some.len(), others.len());
    some.iter().zip(others).find_map(|(some, other)| {
        let calls = (0..some.len().max(other.len())).map(|place| [some.get(place), other.get(place)]);
        calls.map(|pair| pair.map(Option::<&String>::cloned)).find(|[one, other]| one != other)
    })
}
