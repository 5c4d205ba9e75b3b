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
    let legend = LINE * (subjects.len() + 1);
    let (width, height) = (PANEL.0 * captions.len(), legend + PANEL.1 * view.plotted.len());
    let mut svg = String::new();
    // Writing to a String cannot fail; so for all below.
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>"#
    );
    for (index, name) in subjects.iter().enumerate() {
        let y = (index + 1) * LINE;
        let _ = writeln!(svg, r#"<path d="M20 {y}h20" stroke="{}" stroke-width="3"/>"#, colour(index));
        words(&mut svg, (46.0, y as f64 + 4.0), "start", name);
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
            panel(&mut svg, view.point[along].heading, figure.heading, &points);
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

/// Curves of points, which are subject, x and y. Values of x are spread evenly; y is logarithmic.
fn panel(svg: &mut String, x_name: &str, y_name: &str, points: &[(usize, f64, f64)]) {
    let mut ticks = points.iter().map(|point| point.1).collect::<Vec<_>>();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let heights = points.iter().map(|point| point.2);
    let (from, to) =
        (heights.clone().fold(f64::INFINITY, f64::min) * 0.8, heights.fold(0.0, f64::max) * 1.25);
    let [right, foot] = [PANEL.0 as f64 - 20.0, PANEL.1 as f64 - 50.0];
    let across = |x: f64| {
        let place = ticks.iter().take_while(|tick| **tick < x).count() as f64;
        LEFT + (place + 0.5) / ticks.len() as f64 * (right - LEFT)
    };
    let up = |y: f64| foot - (y / from).ln() / (to / from).ln() * (foot - TOP);
    let _ = writeln!(svg, r#"<path d="M{LEFT} {TOP}V{foot}H{right}" fill="none" stroke="black"/>"#);
    words(svg, ((LEFT + right) / 2.0, foot + 36.0), "middle", x_name);
    words(svg, (8.0, TOP - 8.0), "start", y_name);
    for tick in &ticks {
        words(svg, (across(*tick), foot + 16.0), "middle", &tick.to_string());
    }
    let values = (-9..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    for value in values.filter(|value| (from..to).contains(value)) {
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

/// Neighbours lie a golden angle apart.
fn colour(index: usize) -> String {
    format!("hsl({}, 70%, 45%)", index * 137 % 360)
}

/// Pixels: of a panel, and of a line of the legend.
const PANEL: (usize, usize) = (480, 380);
const LINE: usize = 22;

/// Where the axes of a panel meet, and end.
const LEFT: f64 = 70.0;
const TOP: f64 = 44.0;
