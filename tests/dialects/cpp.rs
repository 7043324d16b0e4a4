//! CUDA, HIP and MSL: one compiler of CubeCL's writes all three.

use cubecl::Compiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::{ComputeKernel, target::CppTarget};

use crate::facts::{Facts, Op, type_name};
use crate::{SHARED_MEMORY, keep, shapes::Shape};

/// Of a file with this extension.
pub(crate) fn facts<T: CppTarget>(shape: &Shape, extension: &str) -> Facts
where
    CppCompiler<T>:
        Compiler<Representation = ComputeKernel, CompilationOptions = CompilationOptions>,
{
    // As CubeCL's runtimes have them on all but the oldest devices.
    let options = CompilationOptions {
        warp_size: if extension == "hip" { 64 } else { 32 },
        supports_features: CppSupportedFeatures {
            grid_constants: extension == "cu",
            fast_math: extension != "metal",
            ..Default::default()
        },
        ..Default::default()
    };
    let kernel = CppCompiler::<T>::default()
        .compile(shape.kernel().define(), &options)
        .unwrap_or_else(|error| panic!("{shape}: {error:?}"));
    assert!(kernel.shared_memory_size <= SHARED_MEMORY, "{shape}");
    let (source, shared) = (&kernel.source, kernel.shared_memory_size);
    let kept = format!("// {shared} bytes of shared memory\n{source}");
    keep(shape, &kept, extension);
    check_vectors(source);
    let statements: Vec<_> = (source.split([';', '\n']))
        .filter_map(|text| statement(text.trim()))
        .collect();
    Facts::new(source, &statements)
}

/// Of `float_4 const* const v2 = &v1[v0]`, `float_4 const v3 = *v2`, `*v2 = v3` and others.
fn statement(text: &str) -> Option<(&str, Op<'_>)> {
    let (left, right) = text.split_once(" = ")?;
    if let Some(pointer) = left.strip_prefix('*') {
        return Some(("", Op::Store(pointer)));
    }
    let (class, name) = left.rsplit_once(' ')?;
    let op = match right.strip_prefix('*') {
        Some(pointer) => Op::Load(pointer),
        None if right.starts_with("&v") && right.contains('[') => Op::Element(type_of(class)),
        None if right.starts_with("reinterpret_cast<const ") && right.contains("uint32_t&>(") => {
            Op::Bits
        }
        None => match right.split_once(" & ") {
            Some((left, right)) => Op::And(left, right),
            None => Op::Constant(right.parse().ok()?),
        },
    };
    Some((name, op))
}

/// `f16x4` for `device half_4 const* const`.
fn type_of(declaration: &str) -> String {
    let mut words = declaration.split(' ');
    let name = words.find(|word| !["device", "constant", "const"].contains(word));
    let name = name.unwrap_or_default();
    let vector = name.rsplit_once('_');
    let vector = vector.and_then(|(scalar, width)| Some((scalar, width.parse().ok()?)));
    let (scalar, width) = vector.unwrap_or((name, 1));
    let scalar = match scalar {
        "float" => "f32",
        "__half" | "half" => "f16",
        "__nv_bfloat16" | "__hip_bfloat16" | "bfloat" => "bf16",
        "uint32_t" => "u32",
        other => other,
    };
    type_name(scalar, width)
}

/// Vectors are structs: compilers load one at once if it is aligned to all of itself.
fn check_vectors(source: &str) {
    let structs = source.lines().filter(|line| line.starts_with("struct "));
    for line in structs.filter(|line| line.contains(" i_0;")) {
        let values = line.matches(" i_").count();
        let words = line.contains(" float i_") || line.contains(" uint32_t i_");
        let size = if words { 4 } else { 2 };
        let aligned = format!("struct alignas({}) ", values * size);
        assert!(line.starts_with(&aligned), "{line}");
    }
}
