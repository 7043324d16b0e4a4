//! Numbers in JSON, which has no infinity and no NaN: those are stored as text.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_finite() {
        true => serializer.serialize_f64(*value),
        false => serializer.collect_str(value),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Number::deserialize(deserializer)?.value()
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be a number or \"inf\"")]
enum Number {
    Finite(f64),
    Text(String),
}

impl Number {
    fn value<E: Error>(self) -> Result<f64, E> {
        match self {
            Self::Finite(value) => Ok(value),
            Self::Text(text) => (text.parse())
                .map_err(|_| E::custom(format!("it is {text:?}, but must be a number or \"inf\""))),
        }
    }
}

/// The same, for settings that may be left out.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Number, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        let number = Option::<Number>::deserialize(deserializer)?;
        number.map(Number::value).transpose()
    }
}
