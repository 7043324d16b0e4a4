//! Numbers in JSON, which has no infinity and no NaN: those are stored as text.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

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

/// The same, for a list.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, Number, Serialize, Serializer};
    use std::collections::VecDeque;

    struct Value<'a>(&'a f64);

    impl Serialize for Value<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            super::serialize(self.0, serializer)
        }
    }

    pub(crate) fn serialize<S: Serializer>(
        values: &VecDeque<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(Value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<VecDeque<f64>, D::Error> {
        let numbers = Vec::<Number>::deserialize(deserializer)?;
        numbers.into_iter().map(Number::value).collect()
    }
}
