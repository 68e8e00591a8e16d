//! Curves of a run as an SVG image.

use crate::rundir::write_whole;
use crate::{ObserveError, Row, read_metrics};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;
use std::path::Path;

/// One diagram of the image.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    /// Label in the legend, and name of the metric.
    pub series: Vec<(String, String)>,
}

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 320;
/// Up to this many points of a curve are marked one by one.
const MARKED: usize = 60;

/// Blue, vermilion, green, orange: told apart by colour-blind people (Okabe and Ito's palette).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(230, 159, 0)];

/// Steps and values of one metric.
type Points = Vec<(f64, f64)>;

/// Draws `panels` one below the other from a run's `metrics.jsonl`. A metric that is not there is left out, and so
/// is a panel without any.
///
/// # Errors
/// Metrics that cannot be read, or an image that cannot be written.
pub fn draw_curves(metrics_jsonl: &Path, svg: &Path, panels: &[Panel]) -> Result<(), ObserveError> {
    let rows = read_metrics(metrics_jsonl)?;
    let image = render(&rows, panels)
        .map_err(|error| ObserveError::Draw { path: svg.to_owned(), detail: error.to_string() })?;
    write_whole(svg, image.as_bytes()).map_err(ObserveError::write(svg))
}

fn render(rows: &[Row], panels: &[Panel]) -> Result<String, Box<dyn std::error::Error>> {
    let drawn: Vec<_> = panels.iter().map(|panel| (panel, curves(rows, panel))).collect();
    let drawn: Vec<_> = drawn.into_iter().filter(|(_, curves)| !curves.is_empty()).collect();
    let mut image = String::new();
    {
        let height = PANEL_HEIGHT * drawn.len().max(1) as u32;
        let root = SVGBackend::with_string(&mut image, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        if drawn.is_empty() {
            let centred =
                ("sans-serif", 20).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Center));
            root.draw(&Text::new("no metrics yet", (WIDTH as i32 / 2, height as i32 / 2), centred))?;
        }
        // One range of steps for all panels, so that they can be compared by eye.
        let steps = drawn.iter().flat_map(|(_, curves)| curves).flat_map(|(_, points)| points);
        let x = range(steps.map(|p| p.0), 0.0);
        for (area, (panel, curves)) in root.split_evenly((drawn.len().max(1), 1)).iter().zip(&drawn) {
            let values = curves.iter().flat_map(|(_, points)| points);
            let y = range(values.map(|p| p.1), 0.06);
            let mut chart = ChartBuilder::on(area)
                .caption(&panel.title, ("sans-serif", 20))
                .margin(12)
                .margin_right(28)
                .x_label_area_size(42)
                .y_label_area_size(72)
                .build_cartesian_2d(x.clone(), y)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(BLACK.mix(0.12))
                .axis_style(BLACK.mix(0.6))
                .label_style(("sans-serif", 15))
                .axis_desc_style(("sans-serif", 16))
                .x_desc("step")
                .y_desc(if let [(label, _)] = curves.as_slice() { label.as_str() } else { "value" })
                .x_labels(10)
                .y_labels(6)
                .x_label_formatter(&|x| short(*x))
                .y_label_formatter(&|y| short(*y))
                .draw()?;
            for ((label, points), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
                let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
                chart
                    .draw_series(line)?
                    .label(label)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
                if points.len() <= MARKED {
                    chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
                }
            }
            if curves.len() > 1 {
                chart
                    .configure_series_labels()
                    .position(SeriesLabelPosition::LowerRight)
                    .background_style(WHITE.mix(0.85))
                    .border_style(BLACK.mix(0.3))
                    .label_font(("sans-serif", 15))
                    .draw()?;
            }
        }
        root.present()?;
    }
    Ok(image)
}

/// The curves of a panel that have at least one point, with their labels.
fn curves(rows: &[Row], panel: &Panel) -> Vec<(String, Points)> {
    let points = |metric: &str| -> Points {
        rows.iter().filter_map(|row| Some((row.step as f64, *row.values.get(metric)?))).collect()
    };
    let all = panel.series.iter().map(|(label, metric)| (label.clone(), points(metric)));
    all.filter(|(_, points)| !points.is_empty()).collect()
}

/// From the least to the greatest value, widened by `margin` of the span, and never empty.
fn range(values: impl Iterator<Item = f64>, margin: f64) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low == high {
        let room = if low == 0.0 { 1.0 } else { low.abs() * 0.5 };
        return low - room..high + room;
    }
    let room = (high - low) * margin;
    low - room..high + room
}

/// A number in few characters, for an axis.
fn short(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;

    fn panel(title: &str, series: &[(&str, &str)]) -> Panel {
        let series = series.iter().map(|(l, m)| (l.to_string(), m.to_string())).collect();
        Panel { title: title.into(), series }
    }

    fn rows(steps: u64) -> Vec<Row> {
        let row = |step| {
            let x = step as f64;
            let mut values = BTreeMap::from([("reward".to_owned(), 1.0 - 1.0 / (1.0 + 0.1 * x))]);
            if step % 10 == 0 {
                values.insert("eval/pass@1".into(), (0.4 + x / 100.0).min(0.95));
            }
            Row { step, values }
        };
        (0..=steps).map(row).collect()
    }

    /// Every tag that is opened is closed, in order: enough to catch text that was not escaped.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        let mut rest = svg;
        while let Some(start) = rest.find('<') {
            let end = start + rest[start..].find('>').expect("a tag ends");
            let tag = &rest[start + 1..end];
            assert!(!tag.contains('<'), "tag in a tag: {tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "closing tag");
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(tag.split_whitespace().next().expect("a name").to_owned());
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "left open: {open:?}");
    }

    #[test]
    fn panels_are_drawn_with_their_labels_and_missing_metrics_left_out() {
        let panels = [
            panel("Reward & <friends>", &[("mean reward", "reward"), ("gone", "nothing")]),
            panel("Accuracy", &[("held-out", "eval/pass@1"), ("training", "reward")]),
            panel("Empty", &[("gone", "nothing")]),
        ];
        let svg = render(&rows(100), &panels).expect("draws");
        assert_well_formed(&svg);
        assert!(svg.contains("width=\"900\" height=\"640\""), "the empty panel takes no room");
        for text in ["Reward &amp; &lt;friends&gt;", "held-out", "step", "Accuracy"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("gone"));
    }

    #[test]
    fn one_point_or_none_can_be_drawn() {
        for steps in [0, 1] {
            assert_well_formed(&render(&rows(steps), &[panel("R", &[("r", "reward")])]).expect("draws"));
        }
        let svg = render(&[], &[panel("R", &[("r", "reward")])]).expect("draws");
        assert!(svg.contains("no metrics yet"));
    }

    #[test]
    fn a_file_of_metrics_becomes_a_file_of_curves() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (metrics, svg) = (dir.path().join("metrics.jsonl"), dir.path().join("curves.svg"));
        fs::write(&metrics, "{\"step\":1,\"reward\":0.5}\n{\"step\":2,\"reward\":null}\n{\"st")
            .expect("writes");
        draw_curves(&metrics, &svg, &[panel("R", &[("r", "reward")])]).expect("draws");
        assert_well_formed(&fs::read_to_string(&svg).expect("reads"));
        let error = draw_curves(&dir.path().join("none"), &svg, &[]).expect_err("must fail").to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }

    #[test]
    fn axis_numbers_are_short() {
        let texts: Vec<_> = [0.0, -0.0, 0.25, 100.0, 1e-5, 2e7, -1.5].map(short).into();
        assert_eq!(texts, ["0", "0", "0.25", "100", "1.0e-5", "2.0e7", "-1.5"]);
    }
}
