use burn::tensor::{Device, Tensor, TensorData};
use flate2::read::GzDecoder;

use crate::Result;

/// Height and width of an image.
pub(crate) const SIZE: usize = 8;
const PIXELS: usize = SIZE * SIZE;

/// One image, its pixels from -1 to 1, and the digit it shows.
#[derive(Clone, Debug)]
pub struct Digit {
    pixels: [f32; PIXELS],
    pub(crate) label: i64,
}

/// The 1797 digits, in the order of the file.
pub(crate) fn load() -> Result<Vec<Digit>> {
    let file = include_bytes!("../../digits/data/digits.csv.gz").as_slice();
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(GzDecoder::new(file));
    let digits = reader.deserialize().map(|row| {
        let row: Vec<f32> = row?;
        let [pixels @ .., label] = row.as_slice() else {
            return Err("an empty line".into());
        };
        Ok(Digit {
            pixels: <[f32; PIXELS]>::try_from(pixels)?.map(|pixel| pixel / 8.0 - 1.0),
            label: *label as i64,
        })
    });
    digits.collect()
}

/// Images `[digits, 1, 8, 8]`.
pub(crate) fn images(digits: &[Digit], device: &Device) -> Tensor<4> {
    let pixels: Vec<f32> = digits.iter().flat_map(|digit| digit.pixels).collect();
    let data = TensorData::new(pixels, [digits.len(), 1, SIZE, SIZE]);
    Tensor::from_data(data, device)
}
