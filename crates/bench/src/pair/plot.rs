//! The figures of a run as a picture: one panel per placement, the round trip or the rate over the
//! size of messages, both on logarithmic axes.

use std::path::Path;

use plotters::prelude::*;

use super::record::Record;
use super::summary::{self, Row};
use super::transport::Transport;
use super::{Placement, Scenario};
use crate::plot::PlotError;
use crate::sheet::{Area, Drawn, Sheet, colour, extent, line};

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
    let drawn = Transport::ALL.iter().filter(|&&one| rows.iter().any(|row| row.transport == one));
    let legend = drawn.map(|one| (one.name(), colour(Transport::ALL, one))).collect::<Vec<_>>();
    let columns = panels.len();
    let sheet = Sheet { columns, lines: 1, panel_width: 560, panel_height: 480, entry_width: 90 };
    sheet.draw(file, &legend, &panels, |area, panel| panel.draw(area))
}

/// One placement.
struct Panel<'run> {
    scenario: Scenario,
    placement: Placement,
    rows: Vec<&'run Row>,
}

impl Panel<'_> {
    fn draw<'file>(&self, area: &Area<'file>) -> Drawn<'file> {
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
                extent(self.rows.iter().map(|row| row.bytes as f64), 0.8, 1.25)
                    .log_scale()
                    .with_key_points(sizes),
                extent(self.rows.iter().map(|row| self.value(row)), 0.8, 1.25).log_scale(),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("bytes per message")
            .y_desc(label)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        for transport in Transport::ALL {
            let rows = self.rows.iter().filter(|row| row.transport == *transport);
            let points = rows.map(|row| (row.bytes as f64, self.value(row))).collect::<Vec<_>>();
            line(&mut chart, points, colour(Transport::ALL, transport))?;
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
