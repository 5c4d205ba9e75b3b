//! What the records of a scenario are about: their points, their figures, and what is compared.

use crate::record::Record;

/// The records of one kind, as tables and plots show them.
#[derive(Debug)]
pub struct View {
    /// Above the table.
    pub title: &'static str,
    /// The tag of its records.
    pub kind: &'static str,
    /// The field that names what is compared, which no other view's records of this kind have;
    /// empty where nothing is compared.
    pub subject: &'static str,
    /// What makes a point: subjects are compared where all of these are equal.
    pub point: &'static [Key],
    /// What is shown of each subject at each point; if empty, every number.
    pub figures: &'static [Figure],
    /// Headings of figures, of which a plot has a line of panels each; none: no plot.
    pub plotted: &'static [&'static str],
}

/// A dimension of points.
#[derive(Debug)]
pub struct Key {
    /// Its name in tables and plots.
    pub heading: &'static str,
    /// The field of records that has its value.
    pub field: &'static str,
}

/// A number that each record has, or some have.
#[derive(Debug)]
pub struct Figure {
    /// Its name in tables and plots, with the unit.
    pub heading: &'static str,
    /// Digits behind the point.
    pub digits: usize,
    /// Its value in a record.
    pub of: fn(&Record) -> Option<f64>,
    /// What is shown of the rounds' values.
    pub over: Over,
    /// What it is compared with.
    pub ratios: &'static [Ratio],
}

/// What is shown of the values of all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The median.
    Median,
    /// The median, and the smallest and largest value.
    Range,
    /// The largest value.
    Most,
}

/// A figure beside the same one of a baseline in the same round.
#[derive(Debug)]
pub struct Ratio {
    /// Its name in tables.
    pub heading: &'static str,
    /// Subjects to compare with: of the first group of which one was measured at the point, that with least.
    pub to: &'static [&'static [&'static str]],
    /// Whether it says how many times as little it is, rather than how many times as much.
    pub inverse: bool,
    /// What is shown of the rounds' ratios.
    pub over: Over,
}

impl View {
    /// Without anything that scenarios may leave out.
    pub const fn new(title: &'static str, kind: &'static str, subject: &'static str) -> Self {
        Self { title, kind, subject, point: &[], figures: &[], plotted: &[] }
    }

    /// Whether it shows a record.
    pub fn shows(&self, record: &Record) -> bool {
        record.kind() == self.kind && (self.subject.is_empty() || record.field(self.subject).is_some())
    }
}

impl Key {
    /// Its value in a record. A rate says that a loop was open, and `pacing` at a quarter.
    pub fn of(&self, record: &Record) -> String {
        match (self.field, record.number("rate")) {
            ("rate", Some(_)) if record.text("pacing") == "quarter" => "quarter".to_owned(),
            ("rate", Some(_)) => "open".to_owned(),
            ("rate", None) => "closed".to_owned(),
            (field, _) => record.text(field),
        }
    }
}

impl Ratio {
    /// How many times as much as of these.
    pub const fn to(heading: &'static str, to: &'static [&'static [&'static str]]) -> Self {
        Self { heading, to, inverse: false, over: Over::Median }
    }

    /// How many times as little.
    pub const fn inverse(self) -> Self {
        Self { inverse: true, ..self }
    }

    /// The same with the smallest and largest ratio.
    pub const fn ranged(self) -> Self {
        Self { over: Over::Range, ..self }
    }
}

impl Figure {
    /// The median.
    pub const fn new(heading: &'static str, digits: usize, of: fn(&Record) -> Option<f64>) -> Self {
        Self { heading, digits, of, over: Over::Median, ratios: &[] }
    }

    /// The same with another choice of the rounds' values.
    pub const fn over(self, over: Over) -> Self {
        Self { over, ..self }
    }

    /// The same beside baselines.
    pub const fn beside(self, ratios: &'static [Ratio]) -> Self {
        Self { ratios, ..self }
    }
}
