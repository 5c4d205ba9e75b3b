//! What all plots have in common: a sheet with a legend above its panels, colours, lines and axes.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

use crate::plot::PlotError;

/// Where a panel is drawn.
pub(crate) type Area<'file> = DrawingArea<SVGBackend<'file>, Shift>;

/// What comes of drawing.
pub(crate) type Drawn<'file> =
    Result<(), DrawingAreaErrorKind<<SVGBackend<'file> as DrawingBackend>::ErrorType>>;

/// Panels of one size, in lines from left to right, under a legend.
pub(crate) struct Sheet {
    /// Panels in a line.
    pub(crate) columns: usize,
    pub(crate) lines: usize,
    pub(crate) panel_width: u32,
    pub(crate) panel_height: u32,
    /// Pixels for each entry of the legend.
    pub(crate) entry_width: u32,
}

impl Sheet {
    /// Draws into an SVG file: what each colour stands for, and each panel by `draw`.
    pub(crate) fn draw<'file, Panel>(
        &self,
        file: &'file Path,
        legend: &[(&str, RGBAColor)],
        panels: impl IntoIterator<Item = Panel>,
        draw: impl Fn(&Area<'file>, Panel) -> Drawn<'file>,
    ) -> Result<(), PlotError> {
        let width = self.panel_width * self.columns as u32;
        let in_line = (width / self.entry_width).max(1) as usize;
        let legend_height = LEGEND_FOOT + LEGEND_LINE * legend.len().div_ceil(in_line) as u32;
        let size = (width, legend_height + self.panel_height * self.lines as u32);
        let root = SVGBackend::new(file, size).into_drawing_area();
        let (above, below) = root.split_vertically(legend_height);
        let fill = || {
            root.fill(&WHITE)?;
            for (index, (name, colour)) in legend.iter().enumerate() {
                let x = (index % in_line) as i32 * self.entry_width as i32 + 20;
                let y = (index / in_line) as i32 * LEGEND_LINE as i32 + 20;
                above.draw(&PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)))?;
                above.draw(&Text::new(*name, (x + 26, y - 6), ("sans-serif", 13)))?;
            }
            for (area, panel) in below.split_evenly((self.lines, self.columns)).iter().zip(panels) {
                draw(area, panel)?;
            }
            root.present()
        };
        fill()
            .map_err(|error| PlotError::Draw { file: file.display().to_string(), reason: error.to_string() })
    }
}

/// Of one among all that could be drawn: the same in every plot.
pub(crate) fn colour<T: PartialEq>(all: &[T], one: &T) -> RGBAColor {
    let place = all.iter().position(|other| other == one);
    Palette99::pick(place.unwrap_or_default()).to_rgba()
}

/// A line with its points.
pub(crate) fn line<'file, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut ChartContext<'_, SVGBackend<'file>, Cartesian2d<X, Y>>,
    points: Vec<(f64, f64)>,
    colour: RGBAColor,
) -> Drawn<'file> {
    chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
    chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    Ok(())
}

/// From so many times the least to so many times the most of some values above 0.
pub(crate) fn extent(values: impl Iterator<Item = f64>, least: f64, most: f64) -> Range<f64> {
    let ends = values.fold((f64::INFINITY, 0.0_f64), |ends, one| (ends.0.min(one), ends.1.max(one)));
    ends.0 * least..ends.1 * most
}

/// Pixels.
const LEGEND_LINE: u32 = 22;
const LEGEND_FOOT: u32 = 14;
