//! The settings in the environment, read once when the library is loaded: programs such as nginx
//! clear theirs.

use std::path::PathBuf;
use std::time::Duration;

use promote::recorder::Address;
use sys::process::variable;

/// When connections are promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never; sockets are not tracked either.
    Off,
    /// Never; connections are tracked and counted.
    Observe,
    /// Once some messages have gone each way.
    #[default]
    Auto,
    /// At once.
    Eager,
}

/// Which process prints the summary of one that had connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stats {
    /// No summary.
    #[default]
    None,
    /// The process itself, when it exits.
    Own,
    /// The recorder of `megapipe run`; the process itself, if that cannot be reached.
    Recorded(Address),
}

/// The settings of one process.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// MEGAPIPE_PROMOTE.
    pub mode: Mode,
    /// MEGAPIPE_SPIN: how long to spin before a sleep; `None`: adaptive.
    pub spin: Option<Duration>,
    /// MEGAPIPE_ARM is `always`: every return from a wait arms the connection, whatever waits were
    /// seen.
    pub arm_always: bool,
    /// MEGAPIPE_IO_URING is `files`: untracked rings touch no sockets.
    pub rings_for_files: bool,
    /// MEGAPIPE_STATS: a summary at exit, on standard error or in the file of MEGAPIPE_LOG.
    pub stats: Stats,
    /// MEGAPIPE_LOG, if it is an absolute path: other libraries define it as a level.
    pub log: Option<PathBuf>,
    /// MEGAPIPE_ONLY: promote connections with one of these ports only, if any are given.
    pub only: Vec<u16>,
    /// MEGAPIPE_NOT: promote no connection with one of these ports.
    pub not: Vec<u16>,
    /// MEGAPIPE_LOCAL_LISTEN: a listen queue for each worker.
    pub local_listen: bool,
    /// MEGAPIPE_VERBOSE: a line for each listener that gets such queues, or does not.
    pub verbose: bool,
}

impl Settings {
    /// Reads the environment, unless this process has more privileges than its caller, to whose log
    /// file it would write. Invalid values are ignored, since a library cannot refuse to run a
    /// program: `megapipe run` checks them.
    pub fn from_environment() -> Settings {
        let text = |name: &str| variable(name)?.into_string().ok();
        Settings {
            mode: text("MEGAPIPE_PROMOTE").and_then(|text| Mode::parse(&text)).unwrap_or_default(),
            spin: text("MEGAPIPE_SPIN").and_then(|text| text.parse().ok()).map(Duration::from_micros),
            arm_always: text("MEGAPIPE_ARM").as_deref() == Some("always"),
            rings_for_files: text("MEGAPIPE_IO_URING").as_deref() == Some("files"),
            stats: text("MEGAPIPE_STATS").and_then(|text| Stats::parse(&text)).unwrap_or_default(),
            log: variable("MEGAPIPE_LOG").map(PathBuf::from).filter(|path| path.is_absolute()),
            only: ports(text("MEGAPIPE_ONLY")),
            not: ports(text("MEGAPIPE_NOT")),
            local_listen: is_set(text("MEGAPIPE_LOCAL_LISTEN")),
            verbose: is_set(text("MEGAPIPE_VERBOSE")),
        }
    }

    /// Invalid variables, each with its remedy: for programs that load the library without
    /// `megapipe run`, which refuses them.
    pub fn complaints() -> Vec<String> {
        let is_ports =
            |text: &str| text.split(',').all(|port| port.trim().parse::<u16>().is_ok_and(|port| port > 0));
        let is_spin = |text: &str| text == "auto" || text.parse::<u32>().is_ok();
        type Known<'a> = (&'a str, &'a str, &'a dyn Fn(&str) -> bool);
        let is_switch = |text: &str| matches!(text, "0" | "1");
        let known: [Known<'_>; 9] = [
            ("MEGAPIPE_PROMOTE", "off, observe, auto or eager", &|text| Mode::parse(text).is_some()),
            ("MEGAPIPE_SPIN", "auto, or microseconds", &is_spin),
            ("MEGAPIPE_ARM", "always, or auto", &|text| matches!(text, "always" | "auto")),
            ("MEGAPIPE_IO_URING", "files, or auto", &|text| matches!(text, "files" | "auto")),
            ("MEGAPIPE_STATS", "1, or 0 for none", &|text| Stats::parse(text).is_some()),
            ("MEGAPIPE_ONLY", "port numbers, as in 6379,8080", &is_ports),
            ("MEGAPIPE_NOT", "port numbers, as in 6379,8080", &is_ports),
            ("MEGAPIPE_LOCAL_LISTEN", "1, or 0", &is_switch),
            ("MEGAPIPE_VERBOSE", "1, or 0", &is_switch),
        ];
        let wrong = |(name, remedy, means): Known<'_>| {
            let text = variable(name).filter(|text| !text.is_empty())?;
            let fits = text.to_str().is_some_and(means);
            let text = text.display();
            (!fits).then(|| {
                format!("{name}={text} is not valid and is ignored; set it to {remedy}, or unset it")
            })
        };
        known.into_iter().filter_map(wrong).collect()
    }

    /// Whether a connection between these ports may be promoted.
    pub(crate) fn admits(&self, local: u16, peer: u16) -> bool {
        let among = |ports: &[u16]| ports.contains(&local) || ports.contains(&peer);
        (self.only.is_empty() || among(&self.only)) && !among(&self.not)
    }
}

impl Mode {
    /// `off`, `observe`, `auto` or `eager`.
    pub fn parse(text: &str) -> Option<Mode> {
        match text {
            "off" => Some(Mode::Off),
            "observe" => Some(Mode::Observe),
            "auto" => Some(Mode::Auto),
            "eager" => Some(Mode::Eager),
            _ => None,
        }
    }
}

impl Stats {
    fn parse(text: &str) -> Option<Stats> {
        match text.parse::<u32>() {
            Ok(0) => Some(Stats::None),
            Ok(_) => Some(Stats::Own),
            Err(_) => Address::parse(text).map(Stats::Recorded),
        }
    }
}

fn is_set(text: Option<String>) -> bool {
    text.as_deref() == Some("1")
}

fn ports(text: Option<String>) -> Vec<u16> {
    text.iter().flat_map(|text| text.split(',')).filter_map(|port| port.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_choose_connections() {
        let mut settings = Settings { only: ports(Some("6379, 80".into())), ..Settings::default() };
        assert!(settings.admits(6379, 40000) && settings.admits(40000, 80) && !settings.admits(1, 2));
        settings.not = vec![80];
        assert!(!settings.admits(40000, 80));
        assert_eq!(ports(Some("none".into())), []);
        assert_eq!(Mode::parse("eager"), Some(Mode::Eager));
        assert_eq!(Mode::parse("EAGER"), None);
    }
}
