//! The figures of a run as a picture: one panel per placement, the round trip or the rate over the
//! size of messages, both on logarithmic axes.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::record::Record;
use super::summary::{self, Row};
use super::transport::Transport;
use super::{Placement, Scenario};
use crate::plot::PlotError;

/// Draws the plot into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), PlotError> {
    let rows = summary::rows(records);
    let scenario = summary::scenario(records).ok_or(PlotError::Empty)?;
    let of = |&placement: &Placement| {
        let rows = rows.iter().filter(|row| row.placement == placement).collect::<Vec<_>>();
        (!rows.is_empty()).then_some(Panel { scenario, placement, rows })
    };
    let panels = Placement::ALL.iter().filter_map(of).collect::<Vec<_>>();
    if panels.is_empty() {
        return Err(PlotError::Empty);
    }
    let size = (PANEL_WIDTH * panels.len() as u32, LEGEND_HEIGHT + PANEL_HEIGHT);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| PlotError::Draw {
        file: file.display().to_string(),
        reason: error.to_string(),
    };
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let (legend, figures) = root.split_vertically(LEGEND_HEIGHT);
    let drawn = Transport::ALL.iter().filter(|&&one| rows.iter().any(|row| row.transport == one));
    for (index, &transport) in drawn.enumerate() {
        let (x, y) = (index as i32 * LEGEND_STEP + 20, 20);
        let line = PathElement::new([(x, y), (x + 20, y)], colour(transport).stroke_width(3));
        let name = Text::new(transport.name(), (x + 26, y - 6), ("sans-serif", 13));
        legend.draw(&line).and_then(|()| legend.draw(&name)).map_err(|error| failed(&error))?;
    }
    for (area, panel) in figures.split_evenly((1, panels.len())).iter().zip(&panels) {
        panel.draw(area).map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
}

/// The same in every plot.
fn colour(transport: Transport) -> RGBAColor {
    let place = Transport::ALL.iter().position(|&other| other == transport);
    Palette99::pick(place.unwrap_or_default()).to_rgba()
}

/// One placement.
struct Panel<'run> {
    scenario: Scenario,
    placement: Placement,
    rows: Vec<&'run Row>,
}

impl Panel<'_> {
    fn draw<'area>(
        &self,
        area: &DrawingArea<SVGBackend<'area>, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'area> as DrawingBackend>::ErrorType>> {
        let area = area.titled(self.placement.name(), ("sans-serif", 18))?;
        let label = match self.scenario {
            Scenario::Pingpong => "median round trip, us",
            Scenario::Stream => "bytes per second, millions",
        };
        let mut sizes = self.rows.iter().map(|row| row.bytes as f64).collect::<Vec<_>>();
        sizes.dedup();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                extent(self.rows.iter().map(|row| row.bytes as f64)).log_scale().with_key_points(sizes),
                extent(self.rows.iter().map(|row| self.value(row))).log_scale(),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("bytes per message")
            .y_desc(label)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        for &transport in Transport::ALL {
            let rows = self.rows.iter().filter(|row| row.transport == transport);
            let points = rows.map(|row| (row.bytes as f64, self.value(row))).collect::<Vec<_>>();
            let colour = colour(transport);
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        Ok(())
    }

    /// Microseconds, or millions of bytes per second.
    fn value(&self, row: &Row) -> f64 {
        match self.scenario {
            Scenario::Pingpong => row.figure.median / 1e3,
            Scenario::Stream => row.figure.median / 1e6,
        }
    }
}

/// From a little below the least to a little above the most of some values above 0.
fn extent(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), one| (least.min(one), most.max(one)));
    least * 0.8..most * 1.25
}

const PANEL_WIDTH: u32 = 560;
const PANEL_HEIGHT: u32 = 480;
const LEGEND_HEIGHT: u32 = 36;
const LEGEND_STEP: i32 = 90;

#[cfg(test)]
mod tests {
    use super::super::summary::tests::{header, round_trip, stream};
    use super::*;

    fn drawn(name: &str, records: &[Record]) -> String {
        let file = std::env::temp_dir().join(format!("pair-{name}-{}.svg", std::process::id()));
        draw(records, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        svg
    }

    #[test]
    fn what_was_measured_is_drawn_and_named() {
        let svg = drawn(
            "trips",
            &[
                header(Scenario::Pingpong),
                round_trip(Transport::Tcp, 8, 1, 9000.0),
                round_trip(Transport::Tcp, 1 << 20, 1, 90_000.0),
                round_trip(Transport::Unix, 8, 1, 9000.0),
            ],
        );
        assert!(svg.contains("two-cores") && svg.contains("median round trip, us"), "{svg}");
        assert!(svg.contains("unix") && !svg.contains("memcpy"), "{svg}");
        let svg = drawn("stream", &[header(Scenario::Stream), stream(Transport::Memcpy, 64, 1e9)]);
        assert!(svg.contains("memcpy") && svg.contains("bytes per second"), "{svg}");
    }

    #[test]
    fn without_measurements_there_is_none() {
        let file = Path::new("/nonexistent/plot.svg");
        assert!(matches!(draw(&[header(Scenario::Stream)], file), Err(PlotError::Empty)));
    }
}
