//! The figures of a run as a picture: one panel per placement, server and operation, the requests
//! per second over the connections, both on logarithmic axes.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::app::{Case, Transport};
use super::record::Record;
use super::summary::{self, Row};
use crate::plot::PlotError;

/// Draws the plot into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), PlotError> {
    let rows = summary::rows(records);
    let panels = rows.chunk_by(|one, next| of_panel(&one.case) == of_panel(&next.case)).collect::<Vec<_>>();
    if panels.is_empty() {
        return Err(PlotError::Empty);
    }
    let columns = panels.len().min(MOST_COLUMNS);
    let lines = panels.len().div_ceil(columns);
    let size = (PANEL_WIDTH * columns as u32, LEGEND_HEIGHT + PANEL_HEIGHT * lines as u32);
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
    for (area, rows) in figures.split_evenly((lines, columns)).iter().zip(panels) {
        panel(area, rows).map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
}

fn of_panel(case: &Case) -> impl PartialEq {
    (case.placement, case.app, case.operation)
}

fn panel<'area>(
    area: &DrawingArea<SVGBackend<'area>, Shift>,
    rows: &[Row],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'area> as DrawingBackend>::ErrorType>> {
    let Some(Row { case, .. }) = rows.first() else { return Ok(()) };
    let caption = format!("{} {}, {}", case.app.name(), case.operation.name(), case.placement.name());
    let area = area.titled(&caption, ("sans-serif", 16))?;
    let place = |row: &Row| (f64::from(row.case.connections), row.requests_per_s.median / 1e3);
    let mut connections = rows.iter().map(|row| f64::from(row.case.connections)).collect::<Vec<_>>();
    connections.dedup();
    let mut chart =
        ChartBuilder::on(&area).margin(10).x_label_area_size(40).y_label_area_size(60).build_cartesian_2d(
            extent(rows.iter().map(|row| place(row).0)).log_scale().with_key_points(connections),
            extent(rows.iter().map(|row| place(row).1)).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("connections")
        .y_desc("thousand requests per second")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y}"))
        .draw()?;
    for &transport in Transport::ALL {
        let points = rows.iter().filter(|row| row.transport == transport).map(place).collect::<Vec<_>>();
        let colour = colour(transport);
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    Ok(())
}

/// The same in every plot.
fn colour(transport: Transport) -> RGBAColor {
    let place = Transport::ALL.iter().position(|&other| other == transport);
    Palette99::pick(place.unwrap_or_default()).to_rgba()
}

/// From a little below the least to a little above the most of some values above 0.
fn extent(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), one| (least.min(one), most.max(one)));
    least * 0.7..most * 1.4
}

const MOST_COLUMNS: usize = 4;
const PANEL_WIDTH: u32 = 420;
const PANEL_HEIGHT: u32 = 340;
const LEGEND_HEIGHT: u32 = 36;
const LEGEND_STEP: i32 = 100;

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
