//! Records that no release has written, under a checksum that holds. A record is a tree of JSON here, in which a place is a pointer.

use crate::prelude::*;

/// `tensors`, `scalars` and `metadata` by name, and our `index` of states, which are parts of the tree.
pub fn tree(bytes: &Bytes) -> Value {
    let mut pack = pack(bytes.clone());
    let index = pack.take_index();
    let tensors = pack.tensors.into_iter().map(|(name, (id, values))| {
        let (dtype, shape, bytes) = values;
        let values = f32s(dtype, bytes);
        let tensor = json!({"id": id, "dtype": dtype, "shape": shape, "values": values});
        (name, tensor)
    });
    let tensors = tensors.collect::<Value>();
    json!({"tensors": tensors, "scalars": pack.scalars, "metadata": pack.metadata, "index": index})
}

/// The record of a tree, with its old checksum. What a container cannot hold is not in it.
pub fn planted(tree: &Value) -> Pack {
    let all = |part: &str| tree[part].as_object().cloned().unwrap_or_default();
    let tensors = all("tensors").into_iter().filter_map(|(name, tensor)| {
        let shape: Vec<usize> = serde_json::from_value(tensor["shape"].clone()).ok()?;
        let dtype: DType = serde_json::from_value(tensor["dtype"].clone()).ok()?;
        let mut sizes = shape.iter();
        let length = sizes.try_fold(1usize, |length, size| length.checked_mul(*size));
        let length = length.filter(|length| *length < 1000)?;
        let values = tensor["values"].as_array()?.iter();
        let values = values.map(|value| match value {
            Value::String(text) => text.parse().unwrap_or(0.0),
            value => value.as_f64().unwrap_or(0.0) as f32,
        });
        // Integers have no NaN.
        let values = values.map(|value| if dtype.is_float() { value } else { 1.0 });
        let values: Vec<f32> = values.chain([0.0; 1000]).take(length).collect();
        let data = TensorData::new(values, [length]).convert_dtype(dtype);
        let values = (dtype, shape, data.as_bytes().to_vec());
        Some((name, (tensor["id"].as_u64(), values)))
    });
    let scalars = all("scalars").into_iter();
    let scalars =
        scalars.filter_map(|(name, value)| Some((name, serde_json::from_value(value).ok()?)));
    let metadata = all("metadata")
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => (name, text),
            value => (name, value.to_string()),
        });
    let pack = Pack {
        tensors: tensors.collect(),
        scalars: scalars.collect(),
        metadata: metadata.collect(),
    };
    match &tree["index"] {
        Value::Null => pack,
        index => pack.with_index(index),
    }
}

/// The record as bytes, with the checksum that its reader finds: it says so where another is stored.
pub fn sealed(tree: &Value) -> Bytes {
    let mut contents = planted(tree);
    let mut store = |sum| {
        let name = format!("{SECTION}.checksum");
        contents.scalars.insert(name, Scalar::UInt(sum));
        contents.clone().into_bytes()
    };
    let bytes = store(0);
    let error = AmpRecord::from_bytes(bytes.clone()).err();
    let message = error.map_or(String::new(), |error| error.to_string());
    match message.split_once("its checksum is ") {
        Some((_, found)) => store(u64::from_str_radix(&found[..8], 16).unwrap()),
        None => bytes,
    }
}

/// Another value at a place; where that ends with `/`, others in the object there.
pub fn change(tree: &mut Value, place: &str, value: Value) {
    let place: Vec<&str> = place.split('/').skip(1).collect();
    let (last, above) = place.split_last().expect("a place");
    let at = above.iter().fold(tree, |at, name| &mut at[*name]);
    match (*last, value) {
        ("", Value::Object(values)) => at.as_object_mut().expect("an object").extend(values),
        (last, value) => at[last] = value,
    }
}
