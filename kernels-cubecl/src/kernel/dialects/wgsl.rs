//! WGSL, checked by naga.

use std::collections::HashMap;

use burn::tensor::DType;
use cubecl::Compiler;
use cubecl_wgpu::WgslCompiler;
use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::{
    SHARED_MEMORY,
    facts::{Accesses, Facts, Value, add, type_name},
    kernels::Case,
};

pub(super) fn facts(case: &Case) -> Facts {
    let shader = WgslCompiler
        .compile(case.kernel().define(), &Default::default())
        .unwrap_or_else(|error| panic!("{case}: {error:?}"));
    assert!(shader.shared_memory_size <= SHARED_MEMORY, "{case}");
    let source = shader.to_string();
    validate(case, &source);
    read(&source)
}

/// As a WebGPU device would, which may know `shader-f16` and nothing beyond it.
fn validate(case: &Case, source: &str) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{case}: {}", error.emit_to_string(source)));
    let capabilities = match case.has(DType::F16) {
        true => Capabilities::SHADER_FLOAT16,
        false => Capabilities::empty(),
    };
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|error| panic!("{case}: {}", error.emit_to_string(source)));
}

fn read(source: &str) -> Facts {
    let statements = || source.split([';', '\n']).map(str::trim);
    let buffers: HashMap<&str, String> = statements().filter_map(buffer).collect();
    let pairs: Vec<(&str, &str)> = statements().filter_map(|s| s.split_once(" = ")).collect();
    let definitions: HashMap<&str, &str> = (pairs.iter())
        .filter_map(|(left, right)| Some((left.strip_prefix("let ")?, *right)))
        .collect();
    // What a pointer points to, if it is an element of a buffer: `&(*v2)[v1]`, where v2 is `&buffer`.
    let element = |pointer: &str| {
        let array = definitions.get(pointer)?.strip_prefix("&(*")?;
        let array = definitions.get(array.split(')').next()?)?;
        buffers.get(array.strip_prefix('&')?)
    };

    let mut loads = Accesses::new();
    let mut stores = Accesses::new();
    for (left, right) in &pairs {
        if let Some(class) = left.strip_prefix('*').and_then(element) {
            add(&mut stores, class, 1);
        }
        if let Some(class) = right.strip_prefix('*').and_then(element) {
            add(&mut loads, class, 1);
        }
    }
    let values = (definitions.iter())
        .filter_map(|(name, text)| Some((*name, value(text)?)))
        .collect();
    Facts::new(source, loads, stores, &values)
}

/// Name and element type of `@group(0) @binding(0) var<storage, read_write> v1: array<vec4<f16>>`.
fn buffer(statement: &str) -> Option<(&str, String)> {
    let (_, variable) = statement.split_once("var<storage, read_write> ")?;
    let (name, array) = variable.split_once(": array<")?;
    let element = array.strip_suffix('>')?;
    let vector = element.strip_prefix("vec").and_then(|vector| {
        let (width, scalar) = vector.strip_suffix('>')?.split_once('<')?;
        Some(type_name(scalar, width.parse().ok()?))
    });
    Some((name, vector.unwrap_or_else(|| element.to_string())))
}

fn value(text: &str) -> Option<Value<'_>> {
    if let Some(constant) = text.strip_prefix("u32(") {
        return (constant.strip_suffix(')')?.parse().ok()).map(Value::Constant);
    }
    if text.starts_with("bitcast<u32>(") {
        return Some(Value::Bits);
    }
    if let Some((left, right)) = text.split_once(" & ") {
        return Some(Value::And(left, right));
    }
    (text.split_once(" >= ")).map(|(left, right)| Value::AtLeast(left, right))
}
