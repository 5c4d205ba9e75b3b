//! The figures of a run as a picture: one panel for each traffic, the time for a message over the
//! number of ready sockets; dashed, what the proposal had with its patch, from its ratios.

use std::path::Path;

use plotters::prelude::*;

use super::record::Record;
use super::summary::{self, Row};
use super::{Call, Traffic};
use crate::plot::PlotError;
use crate::sheet::{Area, Drawn, Sheet, colour, extent, line};

/// Draws the plot into an SVG file.
pub fn draw(records: &[Record], file: &Path) -> Result<(), PlotError> {
    let rows = summary::rows(records);
    let panels: Vec<&[Row]> = rows.chunk_by(|one, next| one.traffic == next.traffic).collect();
    if panels.is_empty() {
        return Err(PlotError::Empty);
    }
    let calls = Call::ALL.iter().map(|call| (call.name(), colour(Call::ALL, call)));
    let legend = calls.chain([("paper", PAPER.to_rgba())]).collect::<Vec<_>>();
    let columns = panels.len();
    let sheet = Sheet { columns, lines: 1, panel_width: 480, panel_height: 380, entry_width: 110 };
    sheet.draw(file, &legend, panels, panel)
}

fn panel<'file>(area: &Area<'file>, rows: &[Row]) -> Drawn<'file> {
    let Some(Row { traffic, .. }) = rows.first() else { return Ok(()) };
    let area = area.titled(traffic.name(), ("sans-serif", 18))?;
    let mut ready: Vec<f64> = rows.iter().map(|row| row.ready as f64).collect();
    ready.dedup();
    let mut chart =
        ChartBuilder::on(&area).margin(10).x_label_area_size(40).y_label_area_size(60).build_cartesian_2d(
            extent(ready.iter().copied(), 0.7, 1.4).log_scale().with_key_points(ready),
            0.0..rows.iter().map(|row| row.cpu_ns.maximum).fold(0.0, f64::max) * 1.1,
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("sockets ready at a time")
        .y_desc("server time per message, ns")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for call in Call::ALL {
        let of_call = rows.iter().filter(|row| row.call == *call);
        let points: Vec<_> = of_call.clone().map(|row| (row.ready as f64, row.cpu_ns.median)).collect();
        let colour = colour(Call::ALL, call);
        line(&mut chart, points, colour)?;
        chart.draw_series(of_call.map(|row| {
            let place = |value| (row.ready as f64, value);
            PathElement::new([place(row.cpu_ns.minimum), place(row.cpu_ns.maximum)], colour)
        }))?;
    }
    let baseline = |ready| rows.iter().find(|row| row.call == Call::Recvmsg && row.ready == ready);
    let paper: Vec<_> = PAPER_RATIOS
        .iter()
        .filter(|_| *traffic == Traffic::Udp)
        .filter_map(|&(ready, ratio)| Some((ready as f64, baseline(ready)?.cpu_ns.median * ratio)))
        .collect();
    chart.draw_series(DashedLineSeries::new(paper, 6, 4, PAPER.stroke_width(2)))?;
    Ok(())
}

/// recvmmmsg in the proposal: cycles against recvmsg, at about so many ready sockets.
const PAPER_RATIOS: [(usize, f64); 2] = [(8, 0.927), (30, 0.853)];
const PAPER: RGBColor = RGBColor(120, 120, 120);

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
