//! WGSL, checked by naga.

use std::collections::HashMap;

use burn::tensor::DType;
use cubecl::Compiler;
use cubecl_wgpu::WgslCompiler;
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::facts::{Facts, Op, type_name};
use crate::{SHARED_MEMORY, keep, shapes::Shape};

pub(crate) fn facts(shape: &Shape) -> Facts {
    let shader = WgslCompiler
        .compile(shape.kernel().define(), &Default::default())
        .unwrap_or_else(|error| panic!("{shape}: {error:?}"));
    assert!(shader.shared_memory_size <= SHARED_MEMORY, "{shape}");
    let source = shader.to_string();
    keep(shape, &source, "wgsl");
    validate(shape, &source);
    let mut buffers = HashMap::new();
    let statements: Vec<_> = (source.split([';', '\n']))
        .filter_map(|text| statement(text.trim(), &mut buffers))
        .collect();
    Facts::new(&source, &statements)
}

/// As a WebGPU device would, which may know `shader-f16` and nothing beyond it.
fn validate(shape: &Shape, source: &str) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{shape}: {}", error.emit_to_string(source)));
    let mut capabilities = Capabilities::empty();
    capabilities.set(Capabilities::SHADER_FLOAT16, shape.has(DType::F16));
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|error| panic!("{shape}: {}", error.emit_to_string(source)));
}

/// Of `let v2 = &(*v1)[v0]`, where v1 is `&buffer`, `let v3 = *v2`, `*v2 = v3` and others. Notes what buffers hold.
fn statement<'a>(
    text: &'a str,
    buffers: &mut HashMap<&'a str, String>,
) -> Option<(&'a str, Op<'a>)> {
    if let Some((_, variable)) = text.split_once("var<storage, read_write> ") {
        let (name, array) = variable.split_once(": array<")?;
        buffers.insert(name, type_of(array.strip_suffix('>')?));
    }
    let (left, right) = text.split_once(" = ")?;
    if let Some(pointer) = left.strip_prefix('*') {
        return Some(("", Op::Store(pointer)));
    }
    let name = left.strip_prefix("let ")?;
    let op = if let Some(array) = right.strip_prefix("&(*") {
        Op::Element(buffers.get(array.split(')').next()?)?.clone())
    } else if let Some(buffer) = right.strip_prefix('&') {
        let class = buffers.get(buffer)?.clone();
        buffers.insert(name, class);
        return None;
    } else if let Some(pointer) = right.strip_prefix('*') {
        Op::Load(pointer)
    } else if let Some(constant) = right.strip_prefix("u32(") {
        Op::Constant(constant.strip_suffix(')')?.parse().ok()?)
    } else if right.starts_with("bitcast<u32>(") {
        Op::Bits
    } else {
        let (left, right) = right.split_once(" & ")?;
        Op::And(left, right)
    };
    Some((name, op))
}

/// `f16x4` for `vec4<f16>`.
fn type_of(element: &str) -> String {
    let vector = element.strip_prefix("vec").and_then(|vector| {
        let (width, scalar) = vector.strip_suffix('>')?.split_once('<')?;
        Some(type_name(scalar, width.parse().ok()?))
    });
    vector.unwrap_or_else(|| element.to_string())
}
