//! The figures of a run as a picture, after Figure 1 of the MegaPipe paper.
//!
//! One column per axis that varies (a: transactions per connection, b: message size, c: server
//! cores); above, throughput; below, server CPU time per transaction. Of an open loop, the median
//! and the 99th percentile of the latency take their places.

use std::collections::BTreeSet;
use std::path::Path;

use plotters::prelude::*;

use crate::engine::Engine;
use crate::record::Record;
use crate::sheet::{Area, Drawn, Sheet, colour, extent, line};
use crate::summary::{self, Group, Row};

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// Nothing was measured.
    #[error("nothing was measured, so there is nothing to plot")]
    Empty,
    /// The file cannot be written.
    #[error("cannot draw the plot into {file}: {reason}")]
    Draw {
        /// The file asked for.
        file: String,
        /// Why, in the words of the plotter.
        reason: String,
    },
    /// The file cannot be made or opened.
    #[error("cannot write the plot to {file}; name a file in a folder that exists and may be written")]
    Open {
        /// The file asked for.
        file: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

/// Makes sure, before anything is measured, that the file can be written at the end.
pub fn check(file: &Path) -> Result<(), PlotError> {
    let opened = std::fs::File::options().create(true).append(true).open(file);
    opened.map(drop).map_err(|source| PlotError::Open { file: file.display().to_string(), source })
}

/// Draws the plot into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), PlotError> {
    let mut groups = summary::groups(records);
    let paced = groups.iter().any(|group| group.rate.is_some());
    groups.retain(|group| group.rate.is_some() == paced);
    let values = if paced { [MEDIAN, P99] } else { [THROUGHPUT, COST] };
    let panels = panels(&groups);
    if panels.is_empty() {
        return Err(PlotError::Empty);
    }
    let engines = engines(&groups);
    let legend =
        engines.iter().map(|engine| (engine.name(), colour(Engine::ALL, engine))).collect::<Vec<_>>();
    let sheet =
        Sheet { columns: panels.len(), lines: 2, panel_width: 560, panel_height: 420, entry_width: 135 };
    let both = values.iter().flat_map(|value| panels.iter().map(move |panel| (panel, value)));
    sheet.draw(file, &legend, both, |area, (panel, value)| panel.draw(area, value))
}

/// Those that were measured, in the order of [`Engine::ALL`].
fn engines(groups: &[Group]) -> Vec<Engine> {
    let measured = |engine: &&Engine| groups.iter().any(|group| group.row(**engine).is_some());
    Engine::ALL.iter().filter(measured).copied().collect()
}

/// One axis of the plan, with everything else held fast.
struct Panel<'run> {
    axis: &'static Axis,
    fixed: String,
    groups: Vec<&'run Group>,
}

struct Axis {
    caption: &'static str,
    label: &'static str,
    of: fn(&Group) -> f64,
}

static AXES: [Axis; 4] = [
    Axis {
        caption: "(a) connection length",
        label: "transactions per connection",
        of: |group| f64::from(group.transactions),
    },
    Axis { caption: "(b) message size", label: "bytes per message", of: |group| group.size as f64 },
    Axis { caption: "(c) cores", label: "server cores", of: |group| group.server_cpus.len() as f64 },
    Axis {
        caption: "(d) concurrency",
        label: "concurrent connections",
        of: |group| group.connections as f64,
    },
];

struct Value {
    label: &'static str,
    of: fn(&Row) -> f64,
}

const THROUGHPUT: Value =
    Value { label: "thousand transactions per second", of: |row| row.transactions_per_s.median / 1e3 };

const COST: Value =
    Value { label: "server CPU per transaction, us", of: |row| row.server_cpu_ns.median / 1e3 };

const MEDIAN: Value = Value { label: "median latency, us", of: |row| row.p50_us.median };

const P99: Value = Value { label: "99th percentile of latency, us", of: |row| row.p99_us.median };

/// The panels of all axes that vary; the first axis alone if none does.
fn panels(groups: &[Group]) -> Vec<Panel<'_>> {
    let varying = |axis: &&Axis| {
        let values = groups.iter().map(|group| (axis.of)(group).to_bits());
        values.collect::<BTreeSet<_>>().len() > 1
    };
    let mut axes = AXES.iter().filter(varying).collect::<Vec<_>>();
    if axes.is_empty() {
        axes.push(&AXES[0]);
    }
    let panel = |axis| Panel::along(axis, groups);
    axes.into_iter().filter_map(panel).collect()
}

impl<'run> Panel<'run> {
    /// The groups that differ along `axis` alone. On the other axes the paper's point is taken (10
    /// transactions of 64 B), or where that was not measured, the first one.
    fn along(axis: &'static Axis, groups: &'run [Group]) -> Option<Self> {
        let others = || AXES.iter().filter(|other| other.caption != axis.caption);
        let papers = |group: &&Group| {
            (axis.caption == AXES[0].caption || group.transactions == 10)
                && (axis.caption == AXES[1].caption || group.size == 64)
        };
        let base = groups.iter().find(papers).or_else(|| groups.first())?;
        let alike = |group: &&Group| others().all(|other| (other.of)(group) == (other.of)(base));
        let fixed = others().map(|other| format!("{}: {}", other.label, (other.of)(base)));
        let mut groups = groups.iter().filter(alike).collect::<Vec<_>>();
        groups.sort_by(|a, b| f64::total_cmp(&(axis.of)(a), &(axis.of)(b)));
        Some(Self { axis, fixed: fixed.collect::<Vec<_>>().join(", "), groups })
    }

    fn draw<'file>(&self, area: &Area<'file>, value: &Value) -> Drawn<'file> {
        let area = area.titled(self.axis.caption, ("sans-serif", 18))?;
        let area = area.titled(&self.fixed, ("sans-serif", 11))?;
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(
                extent(self.places(), 0.9, 1.1).log_scale().with_key_points(self.ticks()),
                0.0..self.top(value),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.axis.label)
            .y_desc(value.label)
            .x_label_formatter(&|x| format!("{x}"))
            .draw()?;
        for &engine in Engine::ALL {
            line(&mut chart, self.points(engine, value), colour(Engine::ALL, &engine))?;
        }
        Ok(())
    }

    fn points(&self, engine: Engine, value: &Value) -> Vec<(f64, f64)> {
        let point = |group: &&Group| Some(((self.axis.of)(group), (value.of)(group.row(engine)?)));
        self.groups.iter().filter_map(point).collect()
    }

    /// The values that were measured, in their order.
    fn places(&self) -> impl Iterator<Item = f64> {
        self.groups.iter().map(|group| (self.axis.of)(group))
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = self.places().collect::<Vec<_>>();
        ticks.dedup();
        ticks
    }

    fn top(&self, value: &Value) -> f64 {
        let rows = self.groups.iter().flat_map(|group| &group.rows);
        rows.map(value.of).fold(0.0, f64::max) * 1.15
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::{measurement, paced};

    #[test]
    fn the_picture_names_its_engines() {
        let file = std::env::temp_dir().join(format!("plot-{}.svg", std::process::id()));
        draw(&[measurement(Engine::EpollShared, 1, 4000.0)], &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.contains("epoll-shared"));
        assert!(svg.contains("(a) connection length"));
    }

    #[test]
    fn of_an_open_loop_latencies_are_drawn() {
        let file = std::env::temp_dir().join(format!("plot-paced-{}.svg", std::process::id()));
        let records = [measurement(Engine::EpollShared, 1, 4000.0), paced(Engine::MegapipeEpoll, 90.0, None)];
        draw(&records, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.contains("99th percentile") && svg.contains("megapipe-epoll"), "{svg}");
        assert!(!svg.contains("epoll-shared"), "the closed loop is another figure: {svg}");
    }

    #[test]
    fn without_measurements_there_is_none() {
        let file = Path::new("/nonexistent/plot.svg");
        assert!(matches!(draw(&[], file), Err(PlotError::Empty)));
    }
}
