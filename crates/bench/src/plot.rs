//! The figures of a run as a picture (SVG): for each figure a line of panels, one for each value of the
//! dimensions that are not the x axis, with a curve for each subject.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::record::Record;
use crate::summary::{Row, Summary};
use crate::views::VIEWS;
use crate::{Reason, failed};

/// Draws the first view that has a plot and records into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), Reason> {
    let plotted = VIEWS.iter().filter(|view| !view.plotted.is_empty());
    let mut summaries = plotted.map(|view| Summary::of(view, records));
    let summary = summaries
        .find(|summary| !summary.rows.is_empty())
        .ok_or("nothing was measured that has a plot; some scenarios have tables alone")?;
    fs::write(file, svg(&summary)).map_err(failed(format!("cannot draw the plot into {}", file.display())))
}

fn svg(summary: &Summary) -> String {
    let (view, rows) = (summary.view, &summary.rows);
    let along = along(summary);
    let caption = |row: &Row| {
        let others = row.point.iter().zip(view.point).enumerate();
        let others = others.filter(|(place, (value, _))| *place != along && !value.is_empty());
        others.map(|(_, (value, key))| format!("{} {value}", key.heading)).collect::<Vec<_>>().join(", ")
    };
    let captions = distinct(rows.iter().map(caption));
    // Subjects have the order of the table, and with it their colours.
    let subjects = distinct(rows.iter().map(|row| row.subject.clone()));
    let width = PANEL.0 * captions.len();
    let in_line = (width / ENTRY.0).max(1);
    let legend = ENTRY.1 * (subjects.len().div_ceil(in_line) + 1);
    let mut svg = String::new();
    let height = legend + PANEL.1 * view.plotted.len();
    let font = r#"font-family="sans-serif" font-size="12""#;
    // Writing to a String cannot fail; so for all below.
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {font}>
<rect width="100%" height="100%" fill="white"/>"#
    );
    for (index, name) in subjects.iter().enumerate() {
        let (x, y) = (index % in_line * ENTRY.0 + 20, (index / in_line + 1) * ENTRY.1);
        let _ = writeln!(svg, r#"<path d="M{x} {y}h20" stroke="{}" stroke-width="3"/>"#, colour(index));
        words(&mut svg, (x as f64 + 26.0, y as f64 + 4.0), "start", name);
    }
    let figures = view.plotted.iter();
    let figures = figures.filter_map(|name| view.figures.iter().find(|figure| figure.heading == *name));
    for (line, figure) in figures.enumerate() {
        for (column, name) in captions.iter().enumerate() {
            let (x, y) = (column * PANEL.0, legend + line * PANEL.1);
            let _ = writeln!(svg, r#"<g transform="translate({x}, {y})">"#);
            words(&mut svg, (PANEL.0 as f64 / 2.0, 16.0), "middle", name);
            let of_panel = rows.iter().filter(|row| caption(row) == *name);
            let point = |row: &Row| {
                let subject = subjects.iter().position(|subject| *subject == row.subject)?;
                Some((subject, number(&row.point[along])?, row.figure(figure)?.median))
            };
            let mut points = of_panel.filter_map(point).filter(|point| point.2 > 0.0).collect::<Vec<_>>();
            points.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
            if !points.is_empty() {
                panel(&mut svg, view.point[along].heading, figure.heading, &points);
            }
            svg.push_str("</g>\n");
        }
    }
    svg + "</svg>\n"
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The dimension of numbers that has most values; of equal ones the first.
fn along(summary: &Summary) -> usize {
    let values = |place: &usize| distinct(summary.rows.iter().map(|row| row.point[*place].clone()));
    let places = 0..summary.view.point.len();
    let places = places.filter(|place| values(place).iter().all(|value| number(value).is_some()));
    places.rev().max_by_key(|place| values(place).len()).unwrap_or_default()
}

/// A value of a dimension; of a list, how many it has.
fn number(value: &str) -> Option<f64> {
    let numbers = value.split(',').map(|one| one.parse::<f64>().ok()).collect::<Option<Vec<_>>>()?;
    Some(if let [number] = numbers[..] { number } else { numbers.len() as f64 })
}

/// Curves of points, which are subject, x and y.
fn panel(svg: &mut String, x_name: &str, y_name: &str, points: &[(usize, f64, f64)]) {
    let x = Axis::of(points.iter().map(|point| point.1), true);
    let y = Axis::of(points.iter().map(|point| point.2), false);
    let [right, foot] = [PANEL.0 as f64 - 20.0, PANEL.1 as f64 - 50.0];
    let across = |value: f64| LEFT + x.share(value) * (right - LEFT);
    let up = |value: f64| foot - y.share(value) * (foot - TOP);
    let _ = writeln!(svg, r#"<path d="M{LEFT} {TOP}V{foot}H{right}" fill="none" stroke="black"/>"#);
    words(svg, ((LEFT + right) / 2.0, foot + 36.0), "middle", x_name);
    words(svg, (8.0, TOP - 8.0), "start", y_name);
    let mut ticks = points.iter().map(|point| point.1).collect::<Vec<_>>();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for value in ticks {
        words(svg, (across(value), foot + 16.0), "middle", &value.to_string());
    }
    for value in y.ticks() {
        words(svg, (LEFT - 6.0, up(value) + 4.0), "end", &value.to_string());
        let _ = writeln!(svg, r#"<path d="M{LEFT} {:.1}H{right}" stroke="lightgrey"/>"#, up(value));
    }
    for curve in points.chunk_by(|one, other| one.0 == other.0) {
        let colour = colour(curve[0].0);
        let at = |point: &(usize, f64, f64)| (across(point.1), up(point.2));
        let line = curve.iter().map(at).map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        let _ =
            writeln!(svg, r#"<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>"#);
        for (x, y) in curve.iter().map(at) {
            let _ = writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
        }
    }
}

fn words(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#);
}

/// What an axis shows of values above 0. Those of one magnitude begin at nought, unless they are to be spread, so
/// that lengths can be compared.
struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, is_spread: bool) -> Axis {
        let ends = values.fold((f64::INFINITY, 0.0_f64), |ends, one| (ends.0.min(one), ends.1.max(one)));
        let (from, to) = (ends.0 * 0.8, ends.1 * 1.25);
        let is_logarithmic = is_spread || to > from * MAGNITUDES;
        Axis { from: if is_logarithmic { from } else { 0.0 }, to, is_logarithmic }
    }

    /// How far along the axis a value lies, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match self.is_logarithmic {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => value / self.to,
        }
    }

    /// Powers of ten, or some multiples of one.
    fn ticks(&self) -> Vec<f64> {
        let power = |value: f64| 10_f64.powf(value.log10().floor());
        if self.is_logarithmic {
            let powers = std::iter::successors(Some(power(self.from) * 10.0), |last| Some(last * 10.0));
            return powers.take_while(|value| *value < self.to).collect();
        }
        let step = power(self.to);
        let step = [0.1, 0.2, 0.5, 1.0].map(|part| part * step).into_iter().find(|step| self.to / step < 8.0);
        let step = step.unwrap_or(self.to);
        // Without what computing them added.
        let digits = (1.0 - step.log10().floor()).max(0.0) as usize;
        let ticks = (0..).map(|count| f64::from(count) * step).take_while(|value| *value < self.to);
        ticks.filter_map(|value| format!("{value:.digits$}").parse().ok()).collect()
    }
}

/// Neighbours lie a golden angle apart.
fn colour(index: usize) -> String {
    format!("hsl({}, 70%, 45%)", index * 137 % 360)
}

/// From this ratio of the largest to the smallest value on, the axis is logarithmic.
const MAGNITUDES: f64 = 30.0;

/// Pixels: of a panel, and of an entry of the legend.
const PANEL: (usize, usize) = (480, 380);
const ENTRY: (usize, usize) = (145, 22);

/// Where the axes of a panel meet, and end.
const LEFT: f64 = 70.0;
const TOP: f64 = 44.0;
