//! From text to events.

use std::time::Duration;

use crate::code::assertions;
use crate::icmp::{Icmp, parse_icmp};
use crate::segment::{Segment, parse_segment};
use crate::settings::Settings;
use crate::{Cause, Error};

/// A script that has been read.
#[derive(Clone, Debug)]
pub struct Script {
    pub(crate) file: String,
    pub(crate) v6: bool,
    pub(crate) mtu: u32,
    /// How much earlier or later than expected a packet may be, in microseconds.
    pub(crate) tolerance: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) settings: Settings,
    pub(crate) dialect: Dialect,
    /// Events up to the last packet that has to be sent. packetdrill does not compare what is sent
    /// behind it, and so scripts for other stacks may be wrong there.
    pub(crate) compared: usize,
}

/// The stack that a script was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// This one.
    Megapipe,
    /// Linux's: the same, with `#ifdef Linux` where it differs.
    Linux,
    /// FreeBSD's, which the interpreter makes allowance for: see [`crate`].
    FreeBsd,
    /// The same, with `#ifdef STANDARD` instead of `#ifdef FreeBSD` where a script has both.
    Standard,
}

impl Dialect {
    pub(crate) fn is_freebsds(self) -> bool {
        matches!(self, Dialect::FreeBsd | Dialect::Standard)
    }

    /// The name for which `#ifdef` holds.
    fn name(self) -> Option<&'static str> {
        match self {
            Dialect::Megapipe => None,
            Dialect::Linux => Some("Linux"),
            Dialect::FreeBsd => Some("FreeBSD"),
            Dialect::Standard => Some("STANDARD"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) line: usize,
    pub(crate) at: At,
    pub(crate) what: What,
}

/// When, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// Since the script's start.
    Absolute(u64),
    /// Since the event before.
    After(u64),
    /// Between two times since the event before.
    Within(u64, u64),
    Any,
}

impl At {
    /// The time, or the first one, if the event before was at `clock`.
    pub(crate) fn from(self, clock: u64) -> u64 {
        match self {
            At::Absolute(time) => time,
            At::After(wait) | At::Within(wait, _) => clock + wait,
            At::Any => clock,
        }
    }
}

impl Event {
    /// When it is due, if the event before was at `clock`.
    pub(crate) fn time(&self, clock: u64) -> u64 {
        self.at.from(clock)
    }

    /// When it is due at the latest. `None` if that is open.
    pub(crate) fn latest(&self, clock: u64) -> Option<u64> {
        match self.at {
            At::Any => None,
            At::Within(_, wait) => Some(clock + wait),
            At::Absolute(_) | At::After(_) => Some(self.time(clock)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Inject(Segment),
    /// An ICMP error about a segment of ours.
    Error(Icmp),
    Expect(Segment),
    /// A call. With a time it blocks, and returns then.
    Call(Call, Option<At>),
    /// Conditions on the connection that was used last.
    Code(Vec<String>),
    /// What holds from now on.
    Settings(Settings),
}

/// A call and what it has to return.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) result: i64,
    pub(crate) errno: Option<String>,
}

/// Reads a script. `file` is its name in errors.
pub fn parse(file: &str, text: &str, dialect: Dialect) -> Result<Script, Error> {
    let mut script = Script {
        file: file.into(),
        v6: false,
        mtu: 1500,
        tolerance: 4_000,
        events: Vec::new(),
        settings: Settings::default(),
        dialect,
        compared: 0,
    };
    // Which of the conditions around a line hold.
    let mut conditions = Vec::new();
    let text = without_comments(text);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let mut line = line.trim();
        if let Some(directive) = line.strip_prefix('#') {
            match (directive.strip_prefix("ifdef "), conditions.last_mut()) {
                (Some(name), _) => conditions.push(Some(name.trim()) == dialect.name()),
                (None, Some(holds)) if directive == "else" => *holds = !*holds,
                _ if directive == "endif" => conditions.truncate(conditions.len().saturating_sub(1)),
                // A comment.
                _ => {}
            }
            line = "";
        }
        if conditions.contains(&false) {
            continue;
        }
        let mut whole = line.to_string();
        while is_open(&whole)
            && let Some((_, next)) = lines.next()
        {
            whole.extend(["\n", next.trim()]);
        }
        let line = whole.as_str();
        let read = match line.strip_prefix("--") {
            _ if line.is_empty() => Ok(()),
            Some(option) => script.option(option),
            None if line.contains('`') => script.command(number + 1, line),
            None => event(line, script.v6)
                .map(|(at, what)| script.events.push(Event { line: number + 1, at, what })),
        };
        read.map_err(|cause| Error { file: file.into(), line: number + 1, cause })?;
    }
    let is_plain = |call: &Call| (call.argument(2), call.argument(3)) == ("TCP_NOOPT", "[1]");
    if script.events.iter().any(|event| matches!(&event.what, What::Call(call, _) if is_plain(call))) {
        for event in &mut script.events {
            if let What::Settings(settings) = &mut event.what {
                settings.offer_nothing();
            }
        }
    }
    let expects = |event: &Event| matches!(event.what, What::Expect(_));
    script.compared = match script.events.iter().rposition(expects) {
        Some(last) if dialect.is_freebsds() => last + 1,
        _ => script.events.len(),
    };
    Ok(script)
}

impl Script {
    /// Whether it was written for another stack than ours and Linux's.
    pub(crate) fn is_freebsds(&self) -> bool {
        self.dialect.is_freebsds()
    }

    /// A line with a command: from there on its settings hold for new connections.
    fn command(&mut self, line: usize, text: &str) -> Result<(), Cause> {
        let (at, _, _) = time(text).ok_or_else(|| Cause::Syntax(text.to_string()))?;
        self.settings.command(text)?;
        self.events.push(Event { line, at, what: What::Settings(self.settings) });
        Ok(())
    }

    /// How long it takes, if nothing is late.
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.events.iter().fold(0, |clock, event| event.time(clock)))
    }

    fn option(&mut self, option: &str) -> Result<(), Cause> {
        let unsupported = || Cause::Unsupported(format!("--{option}"));
        let (name, value) = option.split_once('=').ok_or_else(unsupported)?;
        match (name, value) {
            ("ip_version", "ipv4") => self.v6 = false,
            ("ip_version", "ipv6") => self.v6 = true,
            ("mtu", value) => self.mtu = value.parse().map_err(|_| unsupported())?,
            ("tolerance_usecs", value) => self.tolerance = value.parse().map_err(|_| unsupported())?,
            _ => return Err(unsupported()),
        }
        Ok(())
    }
}

/// The same text with blanks for comments, so that lines keep their numbers.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.lines() {
        let mut rest = line;
        loop {
            if inside {
                let Some((_, after)) = rest.split_once("*/") else { break };
                (inside, rest) = (false, after);
            }
            let Some((before, after)) = rest.split_once("/*") else {
                let end = rest.find("//").unwrap_or(rest.len());
                let rest = &rest[..end];
                // At the start of a line it may be a condition.
                let comment = rest.find('#').filter(|&at| !rest[..at].trim().is_empty());
                kept.push_str(&rest[..comment.unwrap_or(rest.len())]);
                break;
            };
            kept.push_str(before);
            (inside, rest) = (true, after);
        }
        kept.push('\n');
    }
    kept
}

/// Whether a call or a code block goes on in the next line.
fn is_open(event: &str) -> bool {
    if event.contains("%{") {
        return !event.contains("}%");
    }
    let Some((_, _, rest)) = time(event).filter(|(_, _, rest)| !rest.starts_with(['<', '>', '`'])) else {
        return false;
    };
    let count = |brackets: [char; 3]| rest.matches(brackets).count();
    count(['(', '[', '{']) > count([')', ']', '}'])
}

/// The time that a line begins with, when a call that blocks returns, and the rest of the line.
fn time(line: &str) -> Option<(At, Option<At>, &str)> {
    // Some have a blank behind the plus.
    let (sign, line) = line.strip_prefix('+').map_or(("", line), |rest| ("+", rest.trim_start()));
    let (time, rest) = line.split_once(char::is_whitespace)?;
    let moment = |time: &str| {
        let micros = micros(time.trim_start_matches('+'))?;
        Some(if sign == "+" { At::After(micros) } else { At::Absolute(micros) })
    };
    let mut returns = None;
    let at = if time == "*" {
        At::Any
    } else if let Some((begins, ends)) = time.split_once("...") {
        returns = Some(moment(ends)?);
        moment(begins)?
    } else if let Some((from, to)) = time.split_once("~+") {
        At::Within(micros(from)?, micros(to)?)
    } else {
        moment(time)?
    };
    Some((at, returns, rest.trim()))
}

fn event(line: &str, v6: bool) -> Result<(At, What), Cause> {
    let syntax = || Cause::Syntax(line.to_string());
    let (at, returns, rest) = time(line).ok_or_else(syntax)?;
    let what = if let Some(error) = rest.strip_prefix('<').and_then(|rest| rest.trim().strip_prefix("icmp "))
    {
        What::Error(parse_icmp(error, v6).ok_or_else(|| Cause::Unsupported(rest.to_string()))?)
    } else if let Some(segment) = rest.strip_prefix('<') {
        let segment = parse_segment(segment)?;
        if segment.window.is_none() || segment.options.is_none() {
            return Err(syntax());
        }
        What::Inject(segment)
    } else if let Some(segment) = rest.strip_prefix('>') {
        What::Expect(parse_segment(segment)?)
    } else if let Some(code) = rest.strip_prefix("%{") {
        What::Code(assertions(code.trim_end().strip_suffix("}%").ok_or_else(syntax)?)?)
    } else {
        What::Call(call(rest).ok_or_else(syntax)?, returns)
    };
    let open = matches!(at, At::Any | At::Within(..));
    if open && !matches!(what, What::Expect(_)) || returns.is_some() && !matches!(what, What::Call(..)) {
        return Err(syntax());
    }
    Ok((at, what))
}

/// Seconds with a fraction, in microseconds.
fn micros(seconds: &str) -> Option<u64> {
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    whole.checked_mul(1_000_000)?.checked_add(fraction)
}

fn call(text: &str) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    let mut depth = 1;
    let close = rest.char_indices().find(|&(_, c)| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    })?;
    let mut words = rest[close.0 + 1..].trim().strip_prefix('=')?.split_whitespace();
    let result = words.next()?;
    let result = match result.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok()?,
        None => result.parse().ok()?,
    };
    let errno = words.next().filter(|word| word.starts_with('E')).map(str::to_string);
    let arguments = split(&rest[..close.0]).into_iter().map(str::to_string).collect();
    Some(Call { name: name.trim().to_string(), arguments, result, errno })
}

/// Splits at commas that no bracket surrounds.
pub(crate) fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(|c| {
        depth += match c {
            '(' | '[' | '{' => 1,
            ')' | ']' | '}' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    });
    parts.map(str::trim).collect()
}
