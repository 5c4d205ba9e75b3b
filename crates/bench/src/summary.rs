//! Rounds made into figures: medians, and each subject beside its baselines.

use crate::floor;
use crate::record::Record;
use crate::view::{Figure, Ratio, View};

/// What a view shows of some records.
#[derive(Debug)]
pub struct Summary {
    /// The view.
    pub view: &'static View,
    /// A row for each subject at each point, by the order in which points were first measured;
    /// at each point baselines come first.
    pub rows: Vec<Row>,
}

/// All rounds of a subject at a point.
#[derive(Debug)]
pub struct Row {
    /// The values of [`View::point`].
    pub point: Vec<String>,
    /// What was measured.
    pub subject: String,
    /// In the order in which they were measured.
    pub rounds: Vec<Record>,
}

/// The middle and the ends of several values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub minimum: f64,
    /// The largest value.
    pub maximum: f64,
}

impl Spread {
    /// The spread of some values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values = values.into_iter().collect::<Vec<_>>();
        values.sort_by(f64::total_cmp);
        let (&minimum, &maximum) = (values.first()?, values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: (low + high) / 2.0, minimum, maximum })
    }
}

impl Row {
    /// A figure over the rounds.
    pub fn figure(&self, figure: &Figure) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(figure.of))
    }
}

impl Summary {
    /// Of the records that the view shows.
    pub fn of(view: &'static View, records: &[Record]) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let floors = floor::at_points(records);
        for record in records.iter().chain(&floors).filter(|record| view.shows(record)) {
            let point = view.point.iter().map(|key| key.of(record)).collect::<Vec<_>>();
            let subject = record.text(view.subject);
            match rows.iter_mut().find(|row| row.point == point && row.subject == subject) {
                Some(row) => row.rounds.push(record.clone()),
                None => rows.push(Row { point, subject, rounds: vec![record.clone()] }),
            }
        }
        let points = rows.iter().map(|row| row.point.clone()).collect::<Vec<_>>();
        let baselines = view.figures.iter().flat_map(|figure| figure.ratios).flat_map(|ratio| ratio.to);
        let baselines = baselines.copied().flatten().collect::<Vec<_>>();
        rows.sort_by_key(|row| {
            let baseline = baselines.iter().position(|baseline| **baseline == row.subject);
            let point = points.iter().position(|point| *point == row.point);
            (point, baseline.unwrap_or(baselines.len()))
        });
        Self { view, rows }
    }

    /// The figure of a row over that of its baseline, round by round.
    pub fn ratio(&self, row: &Row, figure: &Figure, ratio: &Ratio) -> Option<Spread> {
        let baselines = |names: &&[&str]| {
            let is_one = |other: &&Row| other.point == row.point && names.contains(&&*other.subject);
            let found = self.rows.iter().filter(is_one).collect::<Vec<_>>();
            (!found.is_empty()).then_some(found)
        };
        let baselines = ratio.to.iter().find_map(baselines)?;
        if baselines.len() == 1 && baselines[0].subject == row.subject {
            return None;
        }
        let of = |at: usize| {
            let value = (figure.of)(&row.rounds[at])?;
            let others = baselines.iter().filter_map(|other| (figure.of)(same_round(row, at, other)?));
            let other = others.min_by(f64::total_cmp)?;
            Some(if ratio.inverse { other / value } else { value / other })
        };
        Spread::of((0..row.rounds.len()).filter_map(of))
    }
}

/// What was measured of another row in the round of a record. Files that are joined from several
/// runs have a round of the same number more than once.
fn same_round<'rows>(row: &Row, at: usize, other: &'rows Row) -> Option<&'rows Record> {
    let round = row.rounds[at].number("round");
    let is_round = |record: &&Record| record.number("round") == round;
    let before = row.rounds[..at].iter().filter(is_round).count();
    other.rounds.iter().filter(is_round).nth(before)
}
