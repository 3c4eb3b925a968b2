//! Figures as a table, as JSON and as a page.

use std::fmt::Write;

use descant_decision::Value;
use descant_decision::json::{Object, to_json};

use super::Row;
use super::metrics::{BINS, Bin, Figures, float};

/// The figures as JSON, all digits.
pub(super) fn json(rows: &[Row], refused: usize, target: f64) -> String {
    let rows: Value = rows.iter().map(|row| Value::from(object(row))).collect();
    let all = Object::new()
        .with("target_precision", Value::float(target))
        .with("refused_records", refused)
        .with("rows", rows);
    to_json(&all.into())
}

fn object(row: &Row) -> Object {
    let figures = &row.figures;
    let bins = figures.bins.iter().map(|bin| {
        Value::from(
            Object::new()
                .with("cases", bin.cases)
                .with("confidence", Value::float(bin.confidence))
                .with("accuracy", Value::float(bin.accuracy)),
        )
    });
    Object::new()
        .with("by", row.by)
        .with("name", row.name.as_str())
        .with("cases", figures.cases)
        .with("accuracy", Value::float(figures.accuracy))
        .with("macro_f1", Value::float(figures.macro_f1))
        .with("nll", Value::float(figures.nll))
        .with("brier", Value::float(figures.brier))
        .with("ece", Value::float(figures.ece))
        .with("coverage", Value::float(figures.coverage))
        .with("threshold", figures.threshold.map(Value::float))
        .with("score_mae", figures.score_mae.map(Value::float))
        .with("bins", bins.collect::<Value>())
}

/// The names of the columns.
const COLUMNS: [&str; 10] = [
    "",
    "cases",
    "accuracy",
    "macro-F1",
    "NLL",
    "Brier",
    "ECE",
    "coverage",
    "threshold",
    "MAE",
];

fn cells(row: &Row) -> [String; 10] {
    let Figures {
        cases,
        accuracy,
        macro_f1,
        nll,
        brier,
        ece,
        coverage,
        threshold,
        score_mae,
        ..
    } = &row.figures;
    let number = |x: &f64| format!("{x:.4}");
    let maybe = |x: &Option<f64>| x.as_ref().map_or("-".to_owned(), number);
    [
        row.name.clone(),
        cases.to_string(),
        number(accuracy),
        number(macro_f1),
        number(nll),
        number(brier),
        number(ece),
        number(coverage),
        maybe(threshold),
        maybe(score_mae),
    ]
}

/// The figures for people.
pub(super) fn table(rows: &[Row], target: f64) -> String {
    let width = rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut lines = vec![line(&COLUMNS.map(str::to_owned), width)];
    lines.extend(rows.iter().map(|row| line(&cells(row), width)));
    lines.push(format!(
        "coverage is at a precision of {target}, answering from the threshold up"
    ));
    lines.join("\n")
}

fn line(cells: &[String; 10], width: usize) -> String {
    let mut text = format!("{:width$}", cells[0]);
    for cell in &cells[1..] {
        write!(text, "  {cell:>9}").expect("a String takes all text");
    }
    text
}

/// The figures as a page that needs nothing else.
pub(super) fn html(rows: &[Row], target: f64) -> String {
    let heads: String = COLUMNS
        .iter()
        .map(|name| format!("<th>{name}</th>"))
        .collect();
    let body: String = rows
        .iter()
        .map(|row| {
            let cells: String = cells(row)
                .iter()
                .map(|cell| format!("<td>{}</td>", escaped(cell)))
                .collect();
            format!("<tr>{cells}</tr>\n")
        })
        .collect();
    let drawings: String = rows
        .iter()
        .filter(|row| row.by != "group")
        .map(drawing)
        .collect();
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>descant eval</title>\n\
         <style>body{{font:15px system-ui,sans-serif;margin:2rem;max-width:70rem}}td,th{{text-align:right;\
         padding:.2rem .6rem}}td:first-child{{text-align:left}}tr:nth-child(even){{background:#f2f2f2}}\
         figure{{display:inline-block;margin:1rem}}</style>\n<h1>Answers against labels</h1>\n\
         <p>Coverage is at a precision of {target}, answering from the threshold up.</p>\n\
         <table><tr>{heads}</tr>\n{body}</table>\n<h2>Reliability</h2>\n\
         <p>Bars: share of right answers by confidence. On the diagonal, confidence means what it says. The lower strip \
         shows where the cases are.</p>\n{drawings}</html>\n"
    )
}

/// A reliability diagram, 300 by 360 without its axes.
fn drawing(row: &Row) -> String {
    let most = row
        .figures
        .bins
        .iter()
        .map(|bin| bin.cases)
        .max()
        .unwrap_or(0)
        .max(1);
    let bars: String = row
        .figures
        .bins
        .iter()
        .enumerate()
        .map(|(at, bin)| bar(at, bin, most))
        .collect();
    let (name, axes) = (escaped(&row.name), axes());
    format!(
        "<figure><svg width=\"360\" height=\"410\" viewBox=\"-45 -10 360 410\" font-size=\"12\" role=\"img\" \
         aria-label=\"Reliability of {name}\">{axes}\
         <rect x=\"0\" y=\"0\" width=\"300\" height=\"300\" fill=\"none\" stroke=\"#888\"/>{bars}\
         <line x1=\"0\" y1=\"300\" x2=\"300\" y2=\"0\" stroke=\"#888\" stroke-dasharray=\"4\"/></svg>\
         <figcaption>{name}: {} cases, ECE {:.4}</figcaption></figure>\n",
        row.figures.cases, row.figures.ece
    )
}

/// The numbers along both axes, and what they are.
fn axes() -> String {
    let numbers: String = [0.0, 0.25, 0.5, 0.75, 1.0]
        .iter()
        .map(|at| {
            let (x, y) = (300.0 * at, 304.0 - 300.0 * at);
            format!(
                "<text x=\"{x}\" y=\"374\" text-anchor=\"middle\">{at}</text>\
                 <text x=\"-5\" y=\"{y}\" text-anchor=\"end\">{at}</text>"
            )
        })
        .collect();
    format!(
        "{numbers}<text x=\"150\" y=\"392\" text-anchor=\"middle\">confidence</text>\
         <text transform=\"translate(-34 150) rotate(-90)\" text-anchor=\"middle\">share of right answers</text>"
    )
}

fn bar(at: usize, bin: &Bin, most: usize) -> String {
    let width = 300.0 / float(BINS);
    let (x, tall) = (float(at) * width + 1.0, 300.0 * bin.accuracy);
    let share = 50.0 * float(bin.cases) / float(most);
    format!(
        "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"#3b6fb5\"><title>{} cases, \
         confidence {:.3}, accuracy {:.3}</title></rect><rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
         height=\"{share:.1}\" fill=\"#999\"/>",
        300.0 - tall,
        width - 2.0,
        bin.cases,
        bin.confidence,
        bin.accuracy,
        360.0 - share,
        width - 2.0
    )
}

/// Text as it may stand in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_write_into_the_page() {
        assert_eq!(
            escaped("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }
}
