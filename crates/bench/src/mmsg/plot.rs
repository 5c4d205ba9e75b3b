//! The figures of a run as a picture: one panel for each traffic, the time for a message over the
//! number of ready sockets; dashed, what the proposal had with its patch, from its ratios.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::record::Record;
use super::summary::{self, Row};
use super::{Call, Traffic};
use crate::plot::PlotError;

/// Draws the plot into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), PlotError> {
    let rows = summary::rows(records);
    let panels: Vec<&[Row]> = rows.chunk_by(|one, next| one.traffic == next.traffic).collect();
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
    let names = Call::ALL.iter().map(|&call| (call.name(), colour(call))).chain([("paper", PAPER.to_rgba())]);
    for (index, (name, colour)) in names.enumerate() {
        let (x, y) = (index as i32 * LEGEND_STEP + 20, 20);
        let line = PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3));
        let name = Text::new(name, (x + 26, y - 6), ("sans-serif", 13));
        legend.draw(&line).and_then(|()| legend.draw(&name)).map_err(|error| failed(&error))?;
    }
    for (area, rows) in figures.split_evenly((1, panels.len())).iter().zip(panels) {
        panel(area, rows).map_err(|error| failed(&error))?;
    }
    root.present().map_err(|error| failed(&error))
}

fn panel<'area>(
    area: &DrawingArea<SVGBackend<'area>, Shift>,
    rows: &[Row],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'area> as DrawingBackend>::ErrorType>> {
    let Some(Row { traffic, .. }) = rows.first() else { return Ok(()) };
    let area = area.titled(traffic.name(), ("sans-serif", 18))?;
    let mut ready: Vec<f64> = rows.iter().map(|row| row.ready as f64).collect();
    ready.dedup();
    let mut chart =
        ChartBuilder::on(&area).margin(10).x_label_area_size(40).y_label_area_size(60).build_cartesian_2d(
            extent(ready.iter().copied()).log_scale().with_key_points(ready),
            0.0..rows.iter().map(|row| row.cpu_ns[2]).fold(0.0, f64::max) * 1.1,
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("sockets ready at a time")
        .y_desc("server time per message, ns")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for &call in Call::ALL {
        let of_call = rows.iter().filter(|row| row.call == call);
        let points: Vec<_> = of_call.clone().map(|row| (row.ready as f64, row.cpu_ns[0])).collect();
        let colour = colour(call);
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
        chart.draw_series(of_call.map(|row| {
            let [_, least, most] = row.cpu_ns;
            PathElement::new([(row.ready as f64, least), (row.ready as f64, most)], colour)
        }))?;
    }
    let baseline = |ready| rows.iter().find(|row| row.call == Call::Recvmsg && row.ready == ready);
    let paper: Vec<_> = PAPER_RATIOS
        .iter()
        .filter(|_| *traffic == Traffic::Udp)
        .filter_map(|&(ready, ratio)| Some((ready as f64, baseline(ready)?.cpu_ns[0] * ratio)))
        .collect();
    chart.draw_series(DashedLineSeries::new(paper, 6, 4, PAPER.stroke_width(2)))?;
    Ok(())
}

/// The same in every plot.
fn colour(call: Call) -> RGBAColor {
    let place = Call::ALL.iter().position(|&other| other == call);
    Palette99::pick(place.unwrap_or_default()).to_rgba()
}

/// From a little below the least to a little above the most of some values above 0.
fn extent(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), one| (least.min(one), most.max(one)));
    least * 0.7..most * 1.4
}

/// recvmmmsg in the proposal: cycles against recvmsg, at about so many ready sockets.
const PAPER_RATIOS: [(usize, f64); 2] = [(8, 0.927), (30, 0.853)];
const PAPER: RGBColor = RGBColor(120, 120, 120);
const PANEL_WIDTH: u32 = 480;
const PANEL_HEIGHT: u32 = 380;
const LEGEND_HEIGHT: u32 = 36;
const LEGEND_STEP: i32 = 110;

#[cfg(test)]
mod tests {
    use super::super::summary::tests::measured;
    use super::*;

    #[test]
    fn what_was_measured_is_drawn_and_named() {
        let file = std::env::temp_dir().join(format!("mmsg-{}.svg", std::process::id()));
        let records = [
            measured(Call::Recvmsg, 8, 1, 300, 600.0),
            measured(Call::Recvmsg, 30, 1, 300, 600.0),
            measured(Call::Stateful, 30, 1, 30, 300.0),
        ];
        draw(&records, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.contains("stateful") && svg.contains("paper") && svg.contains("udp"), "{svg}");
    }

    #[test]
    fn without_measurements_there_is_none() {
        assert!(matches!(draw(&[], Path::new("/nonexistent/plot.svg")), Err(PlotError::Empty)));
    }
}
