//! CUDA, HIP and MSL: one compiler of CubeCL's writes all three.

use std::collections::HashMap;

use cubecl::Compiler;
use cubecl_cpp::{shared::CppCompiler, target::CppTarget};

use super::{
    SHARED_MEMORY,
    facts::{Accesses, Facts, Value, add, type_name},
    kernels::Case,
};

pub(super) fn facts<T: CppTarget>(case: &Case) -> Facts
where
    CppCompiler<T>: Compiler<
            Representation = cubecl_cpp::ComputeKernel,
            CompilationOptions = cubecl_cpp::shared::CompilationOptions,
        >,
{
    let options = cubecl_cpp::shared::CompilationOptions::default();
    let kernel = CppCompiler::<T>::default()
        .compile(case.kernel().define(), &options)
        .unwrap_or_else(|error| panic!("{case}: {error:?}"));
    assert!(kernel.shared_memory_size <= SHARED_MEMORY, "{case}");
    read(&kernel.source)
}

/// A definition such as `float const v2 = *v1`.
struct Definition<'a> {
    class: &'a str,
    value: &'a str,
}

fn read(source: &str) -> Facts {
    let statements = source.split([';', '\n']).map(str::trim);
    let pairs: Vec<(&str, &str)> = statements.filter_map(|s| s.split_once(" = ")).collect();
    let definitions: HashMap<&str, Definition<'_>> = (pairs.iter())
        .filter_map(|(left, value)| {
            let (class, name) = left.rsplit_once(' ')?;
            Some((name, Definition { class, value }))
        })
        .collect();
    // What a pointer points to, if it is an element of an argument: `float_4 const* const v2 = &v1[v0]`.
    let element = |pointer: &str| {
        let definition = definitions.get(pointer)?;
        let argument = definition.value.strip_prefix("&v")?;
        argument.contains('[').then(|| class(definition.class))
    };

    let mut loads = Accesses::new();
    let mut stores = Accesses::new();
    for (left, right) in &pairs {
        if let Some(class) = left.strip_prefix('*').and_then(element) {
            add(&mut stores, &class, 1);
        }
        if let Some(class) = right.strip_prefix('*').and_then(element) {
            add(&mut loads, &class, 1);
        }
    }
    let values = (definitions.iter())
        .filter_map(|(name, definition)| Some((*name, value(definition.value)?)))
        .collect();
    check_vectors(source);
    Facts::new(source, loads, stores, &values)
}

/// The type of a declaration: `f16x4` for `device half_4 const* const`.
fn class(declaration: &str) -> String {
    let qualifiers = ["device", "constant", "const"];
    let name = declaration
        .split(' ')
        .find(|word| !qualifiers.contains(word))
        .unwrap_or_default();
    let (scalar, width) = match name.rsplit_once('_') {
        Some((scalar, width)) if width.parse::<usize>().is_ok() => (scalar, width.parse().unwrap()),
        _ => (name, 1),
    };
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
        let size = if line.contains(" float i_") { 4 } else { 2 };
        let aligned = format!("struct alignas({}) ", values * size);
        assert!(line.starts_with(&aligned), "{line}");
    }
}

fn value(text: &str) -> Option<Value<'_>> {
    if let Ok(constant) = text.parse() {
        return Some(Value::Constant(constant));
    }
    if text.starts_with("reinterpret_cast<const ") && text.contains("uint32_t&>(") {
        return Some(Value::Bits);
    }
    if let Some((left, right)) = text.split_once(" & ") {
        return Some(Value::And(left, right));
    }
    (text.split_once(" >= ")).map(|(left, right)| Value::AtLeast(left, right))
}
