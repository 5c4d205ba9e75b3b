//! The findings as text for people and as JSON for programs.

use serde::Serialize;

use super::engine::Choice;
use super::finding::{Finding, Verdict};
use super::system::System;

/// Goes up when a field changes its meaning or goes away; new fields do not change it.
const SCHEMA: u32 = 1;

/// Everything that was found. The fields are the JSON schema.
#[derive(Serialize)]
pub(super) struct Report {
    schema: u32,
    megapipe: &'static str,
    kernel: String,
    machine: &'static str,
    /// Whether Megapipe can run here; the exit status says the same.
    runs: bool,
    /// `uring` or `epoll`; null where neither works.
    engine: Option<&'static str>,
    engine_reason: String,
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(system: &System, choice: &Choice, findings: Vec<Finding>) -> Self {
        Self {
            schema: SCHEMA,
            megapipe: env!("CARGO_PKG_VERSION"),
            kernel: kernel(system),
            machine: std::env::consts::ARCH,
            runs: choice.runs(),
            engine: choice.engine,
            engine_reason: choice.reason.clone(),
            findings,
        }
    }

    pub(super) fn json(&self) -> String {
        as_json(self)
    }

    pub(super) fn text(&self) -> String {
        let heading = heading(self.megapipe, &self.kernel, self.machine);
        format!("{heading}{}\n{}", as_text(&self.findings), self.verdict())
    }

    /// The last line: the answer for someone who reads nothing else.
    fn verdict(&self) -> String {
        let count = |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        let counts = format!(
            "{} ok, {} to note, {} missing",
            count(Verdict::Ok),
            count(Verdict::Note),
            count(Verdict::Missing)
        );
        match (self.runs, self.engine) {
            (true, Some(engine)) => {
                format!("Megapipe runs here, on the {engine} engine. {counts}.\n")
            }
            _ => format!("Megapipe cannot run here: {}. {counts}.\n", self.engine_reason),
        }
    }
}

/// What was found about a program or a process. The fields are the JSON schema.
#[derive(Serialize)]
pub(super) struct OfSubject {
    schema: u32,
    megapipe: &'static str,
    kernel: String,
    machine: &'static str,
    findings: Vec<Finding>,
    /// The command to type.
    next: Option<String>,
}

impl OfSubject {
    pub(super) fn new(system: &System, findings: Vec<Finding>, next: Option<String>) -> Self {
        Self {
            schema: SCHEMA,
            megapipe: env!("CARGO_PKG_VERSION"),
            kernel: kernel(system),
            machine: std::env::consts::ARCH,
            findings,
            next,
        }
    }

    /// Whether nothing is missing.
    pub(super) fn is_fine(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Missing)
    }

    pub(super) fn json(&self) -> String {
        as_json(self)
    }

    pub(super) fn text(&self) -> String {
        let heading = heading(self.megapipe, &self.kernel, self.machine);
        let next = self.next.as_ref().map_or(String::new(), |next| format!("\nnext: {next}\n"));
        format!("{heading}{}{next}", as_text(&self.findings))
    }
}

fn kernel(system: &System) -> String {
    system.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned())
}

fn heading(megapipe: &str, kernel: &str, machine: &str) -> String {
    format!("Megapipe {megapipe} on Linux {kernel} ({machine})\n")
}

fn as_json(report: &impl Serialize) -> String {
    // Strings, numbers and lists of them: there is nothing in it that JSON cannot hold.
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    let groups = grouped(findings);
    let width =
        groups.iter().map(|(names, _)| names.len()).filter(|&width| width <= NAME_WIDTH).max().unwrap_or(0);
    let mut area = "";
    for (names, finding) in &groups {
        if finding.area != area {
            area = finding.area;
            text.push_str(&format!("\n{area}\n"));
        }
        push_finding(&mut text, names, finding, width);
    }
    text
}

/// Names up to this length share a column; longer ones push their line out.
const NAME_WIDTH: usize = 32;

/// Neighbours that differ in nothing but their names become one, with their names in a row.
fn grouped(findings: &[Finding]) -> Vec<(String, &Finding)> {
    let mut groups: Vec<(Vec<&str>, &Finding)> = Vec::new();
    for finding in findings {
        match groups.last_mut() {
            Some((names, last)) if finding.verdict != Verdict::Ok && same_but_name(last, finding) => {
                names.push(&finding.name);
            }
            _ => groups.push((vec![&finding.name], finding)),
        }
    }
    groups.into_iter().map(|(names, finding)| (names.join(" "), finding)).collect()
}

fn same_but_name(a: &Finding, b: &Finding) -> bool {
    (a.area, &a.found, a.verdict, &a.instead, &a.remedy)
        == (b.area, &b.found, b.verdict, &b.instead, &b.remedy)
}

fn push_finding(text: &mut String, names: &str, finding: &Finding, width: usize) {
    let verdict = finding.verdict.name();
    let indented =
        |lines: &str| lines.trim_end().replace('\n', &format!("\n{:width$}", "", width = 12 + width));
    let found = indented(&finding.found);
    if names.len() <= NAME_WIDTH {
        text.push_str(&format!("  {verdict:<8}{names:<width$}  {found}\n"));
    } else {
        text.push_str(&format!("  {verdict:<8}{names}\n{:10}{:<width$}  {found}\n", "", ""));
    }
    for (label, line) in [("effect", &finding.instead), ("remedy", &finding.remedy)] {
        if let Some(line) = line {
            text.push_str(&format!("{:10}{label:>width$}  {}\n", "", indented(line)));
        }
    }
}
