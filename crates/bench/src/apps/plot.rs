//! The figures of a run as a picture: one panel per placement, server and operation, the requests
//! per second over the connections, both on logarithmic axes.

use std::path::Path;

use plotters::prelude::*;

use super::app::{Case, Pacing, Transport};
use super::record::Record;
use super::summary::{self, Row};
use crate::plot::PlotError;
use crate::sheet::{Area, Drawn, Sheet, colour, extent, line};

/// Draws the plot into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), PlotError> {
    let rows = summary::rows(records)
        .into_iter()
        .filter(|row| row.case.pacing == Pacing::Closed)
        .collect::<Vec<_>>();
    let panels = rows.chunk_by(|one, next| of_panel(&one.case) == of_panel(&next.case)).collect::<Vec<_>>();
    if panels.is_empty() {
        return Err(PlotError::Empty);
    }
    let columns = panels.len().min(MOST_COLUMNS);
    let lines = panels.len().div_ceil(columns);
    let drawn = Transport::ALL.iter().filter(|&&one| rows.iter().any(|row| row.transport == one));
    let legend = drawn.map(|one| (one.name(), colour(Transport::ALL, one))).collect::<Vec<_>>();
    let sheet = Sheet { columns, lines, panel_width: 420, panel_height: 340, entry_width: 100 };
    sheet.draw(file, &legend, panels, panel)
}

fn of_panel(case: &Case) -> impl PartialEq {
    (case.placement, case.app, case.operation)
}

fn panel<'file>(area: &Area<'file>, rows: &[Row]) -> Drawn<'file> {
    let Some(Row { case, .. }) = rows.first() else { return Ok(()) };
    let caption = format!("{} {}, {}", case.app.name(), case.operation.name(), case.placement.name());
    let area = area.titled(&caption, ("sans-serif", 16))?;
    let place = |row: &Row| (f64::from(row.case.connections), row.requests_per_s.median / 1e3);
    let mut connections = rows.iter().map(|row| f64::from(row.case.connections)).collect::<Vec<_>>();
    connections.dedup();
    let mut chart =
        ChartBuilder::on(&area).margin(10).x_label_area_size(40).y_label_area_size(60).build_cartesian_2d(
            extent(rows.iter().map(|row| place(row).0), 0.7, 1.4).log_scale().with_key_points(connections),
            extent(rows.iter().map(|row| place(row).1), 0.7, 1.4).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("connections")
        .y_desc("thousand requests per second")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y}"))
        .draw()?;
    for transport in Transport::ALL {
        let points = rows.iter().filter(|row| row.transport == *transport).map(place).collect::<Vec<_>>();
        line(&mut chart, points, colour(Transport::ALL, transport))?;
    }
    Ok(())
}

const MOST_COLUMNS: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::app::Operation;
    use super::super::summary::tests::{header, measurement};
    use super::*;

    #[test]
    fn what_was_measured_is_drawn_and_named() {
        let file = std::env::temp_dir().join(format!("apps-{}.svg", std::process::id()));
        let records = [
            header(),
            measurement(Operation::Get, Transport::Tcp, 1, 20_000.0, None),
            measurement(Operation::Get, Transport::Megapipe, 1, 250_000.0, Some(1)),
            measurement(Operation::Set, Transport::Tcp, 1, 20_000.0, None),
        ];
        draw(&records, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.contains("redis get, two-cores") && svg.contains("redis set, two-cores"), "{svg}");
        assert!(svg.contains("megapipe") && !svg.contains("unix"), "{svg}");
    }

    #[test]
    fn without_measurements_there_is_none() {
        let file = Path::new("/nonexistent/plot.svg");
        assert!(matches!(draw(&[header()], file), Err(PlotError::Empty)));
    }
}
