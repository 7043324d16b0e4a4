//! Pages that need nothing but themselves.

use minijinja::{AutoEscape, Environment, Value};
use serde::Serialize;

/// Fills a template.
pub(crate) fn render(name: &'static str, context: impl Serialize) -> String {
    let mut pages = Environment::new();
    pages.set_auto_escape_callback(|_| AutoEscape::Html);
    pages.add_filter("number", number);
    pages.add_filter("power", power);
    pages.add_filter("percent", percent);
    pages.add_filter("words", words);
    pages.add_filter("loss", |loss: f64| format!("{loss:.6}"));
    pages.add_filter("tiny", |value: Option<f64>| {
        value.map_or("-".to_string(), tiny)
    });
    for (name, text) in [
        ("base.html", include_str!("templates/base.html")),
        ("audit.html", include_str!("templates/audit.html")),
        ("flight.html", include_str!("templates/flight.html")),
        ("run.html", include_str!("templates/run.html")),
    ] {
        let added = pages.add_template(name, text);
        added.expect("templates are tested");
    }
    let page = pages.get_template(name).expect("it is one of those above");
    page.render(context).expect("templates are tested")
}

/// A number; a dash for none.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    match value {
        None => "-".to_string(),
        Some(value) if value.abs() >= 1e5 => format!("{value:.1e}"),
        Some(value) => format!("{value:.digits$}"),
    }
}

/// A power of two, which loss scales are.
pub(crate) fn power(scale: f64) -> String {
    let exponent = scale.log2();
    match exponent.fract() == 0.0 {
        true => format!("2^{exponent}"),
        false => format!("{scale}"),
    }
}

/// A text in which what stands between backticks is code.
fn words(text: String) -> Value {
    let escaped = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let parts = escaped.split('`').enumerate();
    let html = parts.map(|(index, part)| match index % 2 {
        1 => format!("<code>{part}</code>"),
        _ => part.to_string(),
    });
    Value::from_safe_string(html.collect())
}

/// A share from 0 to 1.
fn percent(share: f64) -> String {
    match share {
        0.0 => "0 %".to_string(),
        share if share < 1e-4 => "< 0.01 %".to_string(),
        share => format!("{:.2} %", 100.0 * share),
    }
}

/// A number of any size in few characters.
pub(crate) fn tiny(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        size if (1e-3..1e5).contains(&size) => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}
