//! The figures of a run as text.

use std::fmt::Write;

use crate::record::{self, Record};
use crate::summary::{Row, Spread, Summary};
use crate::view::{Figure, Over};
use crate::views::{VIEWS, notes};

/// A table for each view that shows some of the records: medians over the rounds, and medians of the
/// ratios within rounds. Below them, what was absent.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    for view in VIEWS {
        let summary = Summary::of(view, records);
        if summary.rows.is_empty() {
            continue;
        }
        let (constant, table) = table(&summary);
        // Writing to a String cannot fail; so for all below.
        let _ = write!(text, "{}{constant}\n{table}", view.title);
        for note in notes(&summary) {
            let _ = writeln!(text, "{note}");
        }
        text.push('\n');
    }
    for absent in records.iter().filter(|record| record.kind() == "absent") {
        let place = absent.fields().filter(|(name, value)| *name != "reason" && !value.is_null());
        let place = place.map(|(_, value)| record::text(value)).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{place} is absent: {}", absent.text("reason"));
    }
    text
}

/// A column of names or of figures.
struct Column {
    heading: String,
    cells: Vec<String>,
    is_name: bool,
}

/// The table, and before it what is the same in every row.
fn table(summary: &Summary) -> (String, String) {
    let (view, rows) = (summary.view, &summary.rows);
    let mut columns = Vec::new();
    for (place, key) in view.point.iter().enumerate() {
        columns.push(Column::new(key.heading, true, rows.iter().map(|row| row.point[place].clone())));
    }
    let mut constant = String::new();
    columns.retain(|column| {
        let is_constant = rows.len() > 1 && column.cells.iter().all(|cell| *cell == column.cells[0]);
        if is_constant && !column.cells[0].is_empty() {
            let _ = write!(constant, ", {} {}", column.heading, column.cells[0]);
        }
        !is_constant
    });
    if !view.subject.is_empty() {
        columns.push(Column::new(view.subject, true, rows.iter().map(|row| row.subject.clone())));
    }
    for figure in view.figures {
        columns.extend(figures(summary, figure));
    }
    if view.figures.is_empty() {
        columns.extend(numbers(summary));
    }
    columns.retain(|column| column.cells.iter().any(|cell| !cell.is_empty()));
    let mut table = String::new();
    for line in 0..=rows.len() {
        for Column { heading, cells, is_name } in &columns {
            let width =
                cells.iter().chain([heading]).map(|cell| cell.chars().count()).max().unwrap_or_default();
            let cell = if line == 0 { heading } else { &cells[line - 1] };
            let _ = match is_name {
                true => write!(table, " {cell:<width$} "),
                false => write!(table, " {cell:>width$} "),
            };
        }
        table.push('\n');
    }
    (constant, table)
}

impl Column {
    fn new(heading: &str, is_name: bool, cells: impl Iterator<Item = String>) -> Self {
        Self { heading: heading.to_owned(), cells: cells.collect(), is_name }
    }
}

/// The columns of a figure, and of its ratios.
fn figures(summary: &Summary, figure: &Figure) -> Vec<Column> {
    let digits = figure.digits;
    let value = |value| format!("{value:.digits$}");
    let mut columns = spreads(summary, figure.heading, figure.over, value, |row| row.figure(figure));
    for ratio in figure.ratios {
        let of = |row: &Row| summary.ratio(row, figure, ratio);
        columns.extend(spreads(summary, ratio.heading, ratio.over, digits_of, of));
    }
    columns
}

/// The columns of what there is of each row.
fn spreads(
    summary: &Summary,
    heading: &str,
    over: Over,
    value: impl Fn(f64) -> String,
    of: impl Fn(&Row) -> Option<Spread>,
) -> Vec<Column> {
    let column = |heading: &str, cell: &dyn Fn(Spread) -> String| {
        let cells = summary.rows.iter().map(|row| of(row).map(cell).unwrap_or_default());
        Column::new(heading, false, cells)
    };
    let range = |spread: Spread| format!("{}..{}", value(spread.minimum), value(spread.maximum));
    match over {
        Over::Most => vec![column(heading, &|spread| value(spread.maximum))],
        Over::Median => vec![column(heading, &|spread| value(spread.median))],
        Over::Range => vec![column(heading, &|spread| value(spread.median)), column("min..max", &range)],
    }
}

/// A ratio: small ones keep digits.
fn digits_of(ratio: f64) -> String {
    match ratio {
        100.0.. => format!("{ratio:.0}"),
        10.0.. => format!("{ratio:.1}"),
        0.1.. => format!("{ratio:.3}"),
        _ => format!("{ratio:.4}"),
    }
}

/// The medians of all numbers that the records have.
fn numbers(summary: &Summary) -> Vec<Column> {
    let first = summary.rows.iter().flat_map(|row| &row.rounds).next();
    let names = first.into_iter().flat_map(Record::fields).filter(|(name, value)| {
        value.is_number() && *name != "round" && summary.view.point.iter().all(|key| key.heading != *name)
    });
    let columns = |(name, _)| {
        let value = |value| format!("{value:.2}");
        spreads(summary, name, Over::Median, value, |row| {
            Spread::of(row.rounds.iter().filter_map(|one| one.number(name)))
        })
    };
    names.flat_map(columns).collect()
}
