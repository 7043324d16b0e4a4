//! Numbers in JSON, which has no infinity and no NaN: those are stored as text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes one number.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Number(*value).serialize(serializer)
}

/// Reads one number.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Number::deserialize(deserializer)?.0)
}

/// Returns true for a value that is left out of a record because it says nothing.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Deserialize)]
#[serde(try_from = "Written")]
struct Number(f64);

#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be a number or \"inf\"")]
enum Written {
    Finite(f64),
    Text(String),
}

impl TryFrom<Written> for Number {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Finite(value) => Ok(Self(value)),
            Written::Text(text) => (text.parse().map(Self))
                .map_err(|_| format!("it is {text:?}, but must be a number or \"inf\"")),
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_finite() {
            true => serializer.serialize_f64(self.0),
            false => serializer.collect_str(&self.0),
        }
    }
}

/// The same, for settings that may be left out.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Number, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Number).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        let number = Option::<Number>::deserialize(deserializer)?;
        Ok(number.map(|number| number.0))
    }
}

/// The same, for an f32.
pub(crate) mod single {
    use super::{Deserialize, Deserializer, Number};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
        Ok(Number::deserialize(deserializer)?.0 as f32)
    }
}
