//! `MasterWeights`: f32 copies of half-precision parameters, and the conversion of models to half and back.

mod convert;
mod dtypes;
mod edited;
mod support;
mod trajectory;
mod without_masters;
