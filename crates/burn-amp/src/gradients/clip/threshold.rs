//! Thresholds in JSON, which has no infinity: what is not finite is written as a text.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(super) fn serialize<S: Serializer>(threshold: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match threshold.is_finite() {
        true => serializer.serialize_f64(*threshold),
        false => serializer.collect_str(threshold),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Threshold::deserialize(deserializer)? {
        Threshold::Number(threshold) => Ok(threshold),
        Threshold::Text(text) => text.parse().map_err(|_| {
            D::Error::custom(format!(
                "threshold is {text:?}, but must be a number or \"inf\""
            ))
        }),
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a threshold must be a number or \"inf\"")]
enum Threshold {
    Number(f64),
    Text(String),
}
