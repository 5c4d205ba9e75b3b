//! The figures of a run as a picture: for each figure a line of panels, one for each value of the
//! dimensions that are not the x axis, with a curve for each subject.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::record::Record;
use crate::summary::{Row, Summary};
use crate::view::{Figure, View};
use crate::views::VIEWS;
use crate::{Reason, failed};

/// Draws the first view that has a plot and records into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), Reason> {
    let plotted = VIEWS.iter().filter(|view| !view.plot.along.is_empty());
    let mut summaries = plotted.map(|view| Summary::of(view, records));
    let summary = summaries
        .find(|summary| !summary.rows.is_empty())
        .ok_or("nothing was measured that has a plot; some scenarios have tables alone")?;
    let panels = panels(&summary);
    let columns = panels.len() / summary.view.plot.figures.len();
    let lines = summary.view.plot.figures.len();
    let subjects = subjects(&summary);
    let width = PANEL.0 * columns as u32;
    let in_line = (width / ENTRY_WIDTH).max(1) as usize;
    let legend_height = LEGEND_FOOT + LEGEND_LINE * subjects.len().div_ceil(in_line) as u32;
    let root = SVGBackend::new(file, (width, legend_height + PANEL.1 * lines as u32)).into_drawing_area();
    let (above, below) = root.split_vertically(legend_height);
    let fill = || {
        root.fill(&WHITE)?;
        for (index, name) in subjects.iter().enumerate() {
            let x = (index % in_line) as i32 * ENTRY_WIDTH as i32 + 20;
            let y = (index / in_line) as i32 * LEGEND_LINE as i32 + 20;
            above.draw(&PathElement::new([(x, y), (x + 20, y)], colour(index).stroke_width(3)))?;
            above.draw(&Text::new(*name, (x + 26, y - 6), ("sans-serif", 13)))?;
        }
        for (area, panel) in below.split_evenly((lines, columns)).iter().zip(&panels) {
            panel.draw(area, &subjects)?;
        }
        root.present()
    };
    fill().map_err(failed(format!("cannot draw the plot into {}", file.display())))
}

/// Subjects have the order of the table, and with it their colours.
fn subjects(summary: &Summary) -> Vec<&str> {
    let mut subjects: Vec<&str> = Vec::new();
    for row in &summary.rows {
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
    }
    subjects
}

struct Panel<'run> {
    caption: String,
    x: &'static str,
    figure: &'static Figure,
    /// Subject, x, and the median of the figure.
    points: Vec<(&'run str, f64, f64)>,
}

type Area<'file> = DrawingArea<SVGBackend<'file>, Shift>;

type Drawn<'file> = Result<(), DrawingAreaErrorKind<<SVGBackend<'file> as DrawingBackend>::ErrorType>>;

/// As many for each figure, figure by figure.
fn panels(summary: &Summary) -> Vec<Panel<'_>> {
    let (view, rows) = (summary.view, &summary.rows);
    let axis = axis(view, rows);
    let rest = |row: &Row| {
        let others =
            row.point.iter().enumerate().filter(|(place, value)| *place != axis && !value.is_empty());
        let others = others.map(|(place, value)| format!("{} {value}", view.point[place].heading));
        others.collect::<Vec<_>>().join(", ")
    };
    let mut captions: Vec<String> = Vec::new();
    for caption in rows.iter().map(rest) {
        if !captions.contains(&caption) {
            captions.push(caption);
        }
    }
    let panel = |figure: &'static Figure, caption: &String| {
        let of_panel = rows.iter().filter(|row| rest(row) == *caption);
        let point = |row: &'_ Row| Some((number(&row.point[axis]), row.figure(figure)?.median));
        let points = of_panel.filter_map(|row| point(row).map(|(x, y)| (row.subject.as_str(), x, y)));
        let mut points = points.filter(|(_, _, y)| *y > 0.0).collect::<Vec<_>>();
        points.sort_by(|one, other| one.1.total_cmp(&other.1));
        Panel { caption: caption.clone(), x: view.point[axis].heading, figure, points }
    };
    let figures = view.plot.figures.iter();
    let figures = figures.filter_map(|name| view.figures.iter().find(|figure| figure.heading == *name));
    figures.flat_map(|figure| captions.iter().map(move |caption| panel(figure, caption))).collect()
}

/// The place of the dimension that has most values, of those that a plot may go along.
fn axis(view: &View, rows: &[Row]) -> usize {
    let values = |place: usize| {
        let mut values = rows.iter().map(|row| &row.point[place]).collect::<Vec<_>>();
        values.sort();
        values.dedup();
        values.len()
    };
    let along = view.plot.along.iter();
    let places = along.filter_map(|name| view.point.iter().position(|key| key.heading == *name));
    // Of equal ones the first.
    places.rev().max_by_key(|place| values(*place)).unwrap_or_default()
}

/// A value of a dimension; of a list, how many it has.
fn number(value: &str) -> f64 {
    value.parse().unwrap_or_else(|_| value.split(',').count() as f64)
}

impl Panel<'_> {
    fn draw<'file>(&self, area: &Area<'file>, subjects: &[&str]) -> Drawn<'file> {
        let area = area.titled(&self.caption, ("sans-serif", 14))?;
        if self.points.is_empty() {
            return Ok(());
        }
        let mut ticks = self.points.iter().map(|point| point.1).collect::<Vec<_>>();
        ticks.dedup();
        let x = extent(ticks.iter().copied()).log_scale().with_key_points(ticks);
        let y = extent(self.points.iter().map(|point| point.2));
        let mut builder = ChartBuilder::on(&area);
        builder.margin(10).x_label_area_size(40).y_label_area_size(70);
        // Values of one magnitude begin at nought, so that lengths can be compared.
        match y.end > y.start * MAGNITUDES {
            true => self.curves(&mut builder.build_cartesian_2d(x, y.log_scale())?, subjects),
            false => self.curves(&mut builder.build_cartesian_2d(x, 0.0..y.end)?, subjects),
        }
    }

    fn curves<'file, X, Y>(
        &self,
        chart: &mut ChartContext<'_, SVGBackend<'file>, Cartesian2d<X, Y>>,
        subjects: &[&str],
    ) -> Drawn<'file>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x)
            .y_desc(self.figure.heading)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        for (index, subject) in subjects.iter().enumerate() {
            let points = self.points.iter().filter(|point| point.0 == *subject);
            let points = points.map(|&(_, x, y)| (x, y)).collect::<Vec<_>>();
            chart.draw_series(LineSeries::new(points.clone(), colour(index).stroke_width(2)))?;
            chart
                .draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour(index).filled())))?;
        }
        Ok(())
    }
}

fn colour(index: usize) -> RGBAColor {
    Palette99::pick(index).to_rgba()
}

/// A little more than some values above 0 take.
fn extent(values: impl Iterator<Item = f64>) -> Range<f64> {
    let ends = values.fold((f64::INFINITY, 0.0_f64), |ends, one| (ends.0.min(one), ends.1.max(one)));
    ends.0 * 0.8..ends.1 * 1.25
}

/// From this ratio of the largest to the smallest value on, the axis is logarithmic.
const MAGNITUDES: f64 = 30.0;

/// Pixels.
const PANEL: (u32, u32) = (480, 380);
const ENTRY_WIDTH: u32 = 145;
const LEGEND_LINE: u32 = 22;
const LEGEND_FOOT: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trip(transport: &str, placement: &str, bytes: u32, ns: f64) -> Record {
        let point = json!({ "transport": transport, "placement": placement, "bytes": bytes });
        Record::new("pingpong", point).with(json!({ "round": 1, "rtt_ns_p50": ns }))
    }

    #[test]
    fn subjects_and_points_are_drawn_and_named() {
        let file = std::env::temp_dir().join(format!("plot-{}.svg", std::process::id()));
        let records = [
            trip("tcp", "two-cores", 8, 9000.0),
            trip("tcp", "two-cores", 1 << 20, 900_000.0),
            trip("unix", "two-cores", 8, 9000.0),
            trip("tcp", "one-core", 8, 9000.0),
        ];
        draw(&records, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["placement two-cores", "placement one-core", "p50 ns", "bytes", "unix"] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn without_measurements_there_is_none() {
        let error = draw(&[], Path::new("/nonexistent/plot.svg")).unwrap_err();
        assert!(error.to_string().contains("nothing was measured"), "{error}");
    }
}
