//! What a run leaves behind: one JSON object per line, and what the machine was.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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

    /// The first line of a run: this version, this machine, and the fields of an object. What the kernel does not
    /// report is "unknown". Mitigations are those of CPU vulnerabilities, which make system calls dearer.
    pub fn header(fields: impl Serialize) -> Self {
        let kernel = rustix::system::uname();
        let [release, build] = [kernel.release(), kernel.version()].map(CStr::to_string_lossy);
        let origin = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "command": std::env::args().collect::<Vec<_>>().join(" "),
            "date": date(),
            "machine": machine(),
            "cpu": cpu_field("model name"),
            "kernel": format!("{release} {build}"),
            "mitigations": mitigations(),
        });
        Self::new("header", origin).with(fields)
    }

    /// Why a place has no measurements: the fields of an object say which.
    pub fn absent(place: impl Serialize, reason: &str) -> Self {
        Self::new("absent", place).with(json!({ "reason": reason }))
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

/// A value as a table shows it.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Architecture, number of CPUs, memory, and whether it is a virtual machine.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, |count| count.get());
    let memory = rustix::system::sysinfo();
    let gib = memory.totalram as f64 * f64::from(memory.mem_unit) / f64::from(1 << 30);
    let is_virtual = cpu_field("flags").split_whitespace().any(|flag| flag == "hypervisor");
    let kind = if is_virtual { ", virtual" } else { "" };
    format!("{}, {cpus} CPUs, {gib:.1} GiB{kind}", std::env::consts::ARCH)
}

fn cpu_field(name: &str) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(key, _)| key.trim() == name);
    found.map_or("unknown", |(_, value)| value.trim()).to_owned()
}

/// Now, RFC 3339, UTC.
fn date() -> String {
    let output = Command::new("date").args(["-u", "+%FT%TZ"]).output();
    output.map_or("unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
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
