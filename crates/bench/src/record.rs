//! What a run leaves behind: one JSON object per line, and what the machine was.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Reason, failed};

/// One line of a result file: its fields, beside the tag `record`, which names their kind.
///
/// `header` is the first line: where and how the run was made. `absent` says why something that
/// was asked for has no measurements from there on. Every other kind is one measurement: of one
/// subject at one point in one round, or, for `floor`, of the kernel's own calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    #[serde(rename = "record")]
    kind: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// All records of a file that `--json` wrote, this version's or an earlier one's.
///
/// # Errors
///
/// There is no such file, or one of its lines is no record: which one.
pub fn read(file: &Path) -> Result<Vec<Record>, Reason> {
    let name = file.display();
    let unreadable = failed(format!("cannot read {name}; name a file that --json wrote"));
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let record = |(at, line)| {
        serde_json::from_str(line).map_err(failed(format!("{name}: line {} is not a record", at + 1)))
    };
    text.lines().enumerate().map(record).collect()
}

impl Record {
    /// A record of a kind with the fields of an object.
    pub fn new(kind: &str, fields: impl Serialize) -> Self {
        Self { kind: kind.to_owned(), fields: Map::new() }.with(fields)
    }

    /// The first line of a run: this machine, and the fields of an object.
    pub fn header(fields: impl Serialize) -> Self {
        Self::new("header", Origin::of_this_machine()).with(fields)
    }

    /// Why a place has no measurements: the fields of an object say which.
    pub fn absent(place: impl Serialize, reason: &str) -> Self {
        Self::new("absent", place).with(serde_json::json!({ "reason": reason }))
    }

    /// The same with the fields of one more object.
    ///
    /// # Panics
    ///
    /// If it is no object.
    pub fn with(mut self, fields: impl Serialize) -> Self {
        match serde_json::to_value(fields) {
            Ok(Value::Object(fields)) => self.fields.extend(fields),
            other => panic!("the fields of a record are an object, not {other:?}"),
        }
        self
    }

    /// The tag.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether it is a measurement.
    pub fn is_measurement(&self) -> bool {
        !matches!(self.kind(), "header" | "floor" | "absent")
    }

    /// A field, if the record has it and it is not null.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// All fields, by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.field(name)?.as_f64()
    }

    /// A field in words; empty if there is none.
    pub fn text(&self, name: &str) -> String {
        self.field(name).map(text).unwrap_or_default()
    }

    /// The fields as a type that has some of them.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_value(Value::Object(self.fields.clone())).ok()
    }
}

impl From<Record> for Value {
    /// Its fields.
    fn from(record: Record) -> Value {
        Value::Object(record.fields)
    }
}

/// A value as a table shows it.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// What made a result file, and where.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Origin {
    /// The version of this program.
    version: String,
    /// The command line.
    command: String,
    /// When it began, RFC 3339, UTC.
    date: String,
    /// Architecture, number of CPUs, memory, and whether it is a virtual machine.
    machine: String,
    /// Model name of the CPU.
    cpu: String,
    /// Release and build of the kernel.
    kernel: String,
    /// The kernel's mitigations of CPU vulnerabilities, which make system calls dearer.
    mitigations: BTreeMap<String, String>,
}

impl Origin {
    /// Describes this machine; what the kernel does not tell is "unknown".
    fn of_this_machine() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            date: date(SystemTime::now()),
            machine: machine(),
            cpu: cpu_field("model name").unwrap_or_else(|| "unknown".to_owned()),
            kernel: format!("{} {}", proc_line("sys/kernel/osrelease"), proc_line("sys/kernel/version")),
            mitigations: mitigations(),
        }
    }
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, |count| count.get());
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let memory =
        memory.map_or("unknown memory".to_owned(), |kib| format!("{:.1} GiB", kib as f64 / 1024.0 / 1024.0));
    let hypervisor =
        cpu_field("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    let kind = if hypervisor { ", virtual" } else { "" };
    format!("{}, {cpus} CPUs, {memory}{kind}", std::env::consts::ARCH)
}

fn cpu_field(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn proc_line(path: &str) -> String {
    match fs::read_to_string(format!("/proc/{path}")) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => "unknown".to_owned(),
    }
}

fn mitigations() -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, state.trim().to_owned()))
        })
        .filter(|(_, state)| state != "Not affected")
        .collect()
}

/// RFC 3339 in UTC, by the days-to-civil algorithm of Howard Hinnant.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_civil() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
