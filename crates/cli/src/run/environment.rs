//! The environment that the program gets.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use clap::ValueEnum;
use promote::recorder::Address;

use super::{Arguments, Failure, When};
use crate::library::FILE_NAME;

const PROMOTE: &str = "MEGAPIPE_PROMOTE";
const SPIN: &str = "MEGAPIPE_SPIN";
const ARM: &str = "MEGAPIPE_ARM";
const IO_URING: &str = "MEGAPIPE_IO_URING";
const STATS: &str = "MEGAPIPE_STATS";
const LOG: &str = "MEGAPIPE_LOG";
const ONLY: &str = "MEGAPIPE_ONLY";
const NOT: &str = "MEGAPIPE_NOT";
const LOCAL_LISTEN: &str = "MEGAPIPE_LOCAL_LISTEN";
const VERBOSE: &str = "MEGAPIPE_VERBOSE";
const PRELOAD: &str = "LD_PRELOAD";
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
const LINK_ORDER: &str = "verify_asan_link_order";

/// Variables by name.
pub(super) struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    pub(super) fn of_this_process() -> Environment {
        Environment(std::env::vars_os().collect())
    }

    /// Puts what the options ask for in, where the library looks for it, and checks what is there already: the library
    /// itself cannot refuse to run.
    pub(super) fn settle(&mut self, arguments: &Arguments) -> Result<When, Failure> {
        let name = |when: When| when.to_possible_value().map(|value| value.get_name().to_owned());
        self.put(PROMOTE, arguments.promote.and_then(name));
        self.put(SPIN, arguments.spin.clone());
        self.put(ONLY, arguments.only.clone());
        self.put(NOT, arguments.not.clone());
        self.put(IO_URING, arguments.io_uring.clone());
        self.put(STATS, arguments.stats.then(|| "1".to_owned()));
        self.put(LOCAL_LISTEN, arguments.local_listen.then(|| "1".to_owned()));
        self.put(VERBOSE, arguments.verbose.then(|| "1".to_owned()));
        if let Some(path) = &arguments.log {
            let absolute = check_log(path)?;
            self.0.insert(LOG.into(), absolute.into());
        }
        let when =
            self.check(PROMOTE, "off, observe, auto or eager", |text| When::from_str(text, false).ok())?;
        self.check(SPIN, "auto, or microseconds from 0 to 1000000", |text| super::spin(text).ok())?;
        self.check(ARM, "auto, or always", |text| matches!(text, "auto" | "always").then_some(()))?;
        self.check(IO_URING, "auto, or files", |text| matches!(text, "auto" | "files").then_some(()))?;
        self.check(ONLY, "port numbers, as in 6379,8080", |text| super::ports(text).ok())?;
        self.check(NOT, "port numbers, as in 6379,8080", |text| super::ports(text).ok())?;
        let stats = self.check(STATS, "1, or 0 for none", stats)?;
        self.check(LOCAL_LISTEN, "1, or 0", switch)?;
        let verbose = self.check(VERBOSE, "1, or 0", switch)?;
        self.check_ports()?;
        let log = self
            .0
            .get(OsStr::new(LOG))
            .map(Path::new)
            .filter(|_| stats == Some(true) || verbose == Some(true));
        match log {
            Some(path) if path.is_absolute() => drop(check_log(path)?),
            // Another word is a level for libmegapipe, and none of those looks like this.
            Some(path) if path.as_os_str().as_bytes().iter().any(|byte| b"./".contains(byte)) => {
                let path = path.display();
                return Err(Failure::own(format!(
                    "MEGAPIPE_LOG={path} is a relative path, and programs change their directory; set it to an absolute one, or use --log"
                )));
            }
            _ => {}
        }
        Ok(when.unwrap_or(When::Auto))
    }

    pub(super) fn has_local_listen(&self) -> bool {
        self.0.get(OsStr::new(LOCAL_LISTEN)).is_some_and(|value| value == "1")
    }

    /// Starts a recorder where summaries are asked for: this process becomes the program. A program under
    /// another `megapipe run --stats` has one.
    pub(super) fn record(&mut self) {
        let Some(value) = self.0.get(OsStr::new(STATS)).and_then(|value| value.to_str()) else { return };
        if Address::parse(value).is_some() || stats(value) != Some(true) {
            return;
        }
        let log = self.0.get(OsStr::new(LOG)).map(Path::new).filter(|path| path.is_absolute());
        match super::recorder::start(log) {
            Ok(address) => self.put(STATS, Some(address)),
            Err(cause) => super::warn(&format!(
                "the process that prints summaries cannot be started ({cause}), so programs killed by a signal print none"
            )),
        }
    }

    /// Whether any port is left that may be promoted.
    fn check_ports(&self) -> Result<(), Failure> {
        let ports = |name: &str| -> Vec<u16> {
            let text = self.0.get(OsStr::new(name)).and_then(|text| text.to_str()).unwrap_or_default();
            text.split(',').filter_map(|port| port.trim().parse().ok()).collect()
        };
        let (only, not) = (ports(ONLY), ports(NOT));
        if !only.is_empty() && only.iter().all(|port| not.contains(port)) {
            let message =
                "--not excludes each port of --only, so nothing can be promoted; drop one of the two options";
            return Err(Failure { status: 2, message: message.into() });
        }
        Ok(())
    }

    fn put(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            self.0.insert(name.into(), value.into());
        }
    }

    fn check<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let Some(value) = self.0.get(OsStr::new(name)).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        match value.to_str().and_then(parse) {
            Some(value) => Ok(Some(value)),
            None => {
                let value = value.to_string_lossy();
                Err(Failure::own(format!("{name}={value} is not valid; set it to {expected}, or unset it")))
            }
        }
    }

    /// The library comes before all others, whose calls then are those that it makes.
    pub(super) fn put_library_first(&mut self, library: &Path) {
        let mut list = vec![library.as_os_str().as_bytes().to_vec()];
        list.extend(self.other_libraries());
        self.set_libraries(&list);
        self.let_sanitizers_be();
    }

    /// A program that was built with gcc's AddressSanitizer ends at once where another library than its own comes first,
    /// although that one's calls pass through it, too. Programs that a test suite starts may be such ones.
    fn let_sanitizers_be(&mut self) {
        let options = self.0.entry(ASAN_OPTIONS.into()).or_default();
        if !options.as_bytes().windows(LINK_ORDER.len()).any(|part| part == LINK_ORDER.as_bytes()) {
            let separator = if options.is_empty() { "" } else { ":" };
            options.push(format!("{separator}{LINK_ORDER}=0"));
        }
    }

    /// For a program that must not get it, or shall not.
    pub(super) fn leave_out_library(&mut self) {
        let list: Vec<Vec<u8>> = self.other_libraries().collect();
        self.set_libraries(&list);
    }

    /// What LD_PRELOAD names, but for this library: a `megapipe run` within another is one.
    fn other_libraries(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let list = self.0.get(OsStr::new(PRELOAD)).cloned().unwrap_or_default().into_vec();
        let is_ours =
            |entry: &[u8]| Path::new(OsStr::from_bytes(entry)).file_name() == Some(OsStr::new(FILE_NAME));
        // ld.so(8): separated by spaces or colons.
        let entries = list.split(|byte| matches!(byte, b' ' | b':')).filter(|entry| !entry.is_empty());
        entries.filter(|entry| !is_ours(entry)).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
    }

    fn set_libraries(&mut self, list: &[Vec<u8>]) {
        if list.is_empty() {
            self.0.remove(OsStr::new(PRELOAD));
        } else {
            self.0.insert(PRELOAD.into(), OsString::from_vec(list.join(&b':')));
        }
    }

    /// As execve(2) takes it.
    pub(super) fn strings(&self) -> Vec<CString> {
        let line = |(name, value): (&OsString, &OsString)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        };
        self.0.iter().filter_map(line).collect()
    }
}

/// 1 or 0.
fn switch(text: &str) -> Option<bool> {
    match text {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

/// Whether MEGAPIPE_STATS asks for summaries.
fn stats(text: &str) -> Option<bool> {
    let number = text.parse::<u32>().ok().map(|number| number > 0);
    number.or_else(|| Address::parse(text).map(|_| true))
}

/// The path as it is after a change of directory, of a file that can be written to.
fn check_log(path: &Path) -> Result<std::path::PathBuf, Failure> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.and_then(|_| std::path::absolute(path)).map_err(|cause| {
        let path = path.display();
        Failure::own(format!(
            "the log {path} cannot be written: {cause}; name another file with --log or MEGAPIPE_LOG"
        ))
    })
}
