//! SPIR-V, checked by `spirv-val` if there is one.

use std::{
    collections::HashMap,
    io::{ErrorKind, Write},
    process::{Command, Stdio},
};

use burn::tensor::DType;
use cubecl::{Compiler, VulkanCompilationOptions, WgpuCompilationOptions};
use cubecl_spirv::SpirvCompiler;

use super::{
    SHARED_MEMORY,
    facts::{Accesses, Facts, Value, add, type_name},
    kernels::Case,
};

/// First word of a module.
const MAGIC: u32 = 0x0723_0203;

pub(super) fn facts(case: &Case) -> Facts {
    let kernel = SpirvCompiler
        .compile(case.kernel().define(), &options())
        .unwrap_or_else(|error| panic!("{case}: {error:?}"));
    assert!(kernel.shared_size <= SHARED_MEMORY, "{case}");
    // Addresses in push constants, or in a uniform buffer where they are too many.
    assert_eq!(kernel.immediate_size.is_some(), case.tensors == 1, "{case}");
    validate(case, &kernel.assembled_module);
    read(&kernel.to_string())
}

/// Of a device with Vulkan 1.2 and the least of push constants.
fn options() -> WgpuCompilationOptions {
    WgpuCompilationOptions {
        supports_u64: true,
        supports_vulkan_compiler: true,
        vulkan: VulkanCompilationOptions {
            supports_explicit_smem: true,
            supports_uniform_standard_layout: true,
            max_spirv_version: (1, 5),
            max_vector_size: 4,
            push_constant_size: 128,
            ..Default::default()
        },
        ..Default::default()
    }
}

fn validate(case: &Case, words: &[u32]) {
    let [magic, version, _, bound, schema, ..] = words else {
        panic!("{case}: no header");
    };
    assert_eq!(
        (*magic, *version, *schema),
        (MAGIC, 0x0001_0500, 0),
        "{case}"
    );
    assert!(*bound > 0, "{case}");

    let child = Command::new("spirv-val")
        .args([
            "--target-env",
            "vulkan1.2",
            "--uniform-buffer-standard-layout",
            "-",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("{case}: not validated, there is no spirv-val");
            return;
        }
        child => child.unwrap(),
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    if case.has(DType::BF16) && message.contains("Invalid capability operand: 5116") {
        eprintln!("{case}: not validated, spirv-val does not know bf16");
        return;
    }
    assert!(output.status.success(), "{case}: {message}");
}

/// An instruction's name and operands.
struct Instruction<'a> {
    name: &'a str,
    operands: Vec<&'a str>,
}

fn read(source: &str) -> Facts {
    let mut results: HashMap<&str, Instruction<'_>> = HashMap::new();
    let mut instructions = Vec::new();
    for line in source.lines() {
        let (result, text) = match line.split_once(" = ") {
            Some((result, text)) => (Some(result), text),
            None => (None, line),
        };
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let operands: Vec<&str> = words.collect();
        if let Some(result) = result {
            results.insert(
                result,
                Instruction {
                    name,
                    operands: operands.clone(),
                },
            );
        }
        instructions.push((name, operands));
    }
    // What a pointer points to, if it is an element of a buffer: one index into an array, and not several into the
    // struct of sizes and scalars.
    let element = |pointer: &str| {
        let chain = results.get(pointer)?;
        let [class, _, _] = chain.operands[..] else {
            return None;
        };
        let class = results.get(class)?;
        match class.operands[..] {
            ["PhysicalStorageBuffer", class] => scalar_or_vector(&results, class),
            _ => None,
        }
    };

    let mut loads = Accesses::new();
    let mut stores = Accesses::new();
    for (name, operands) in &instructions {
        let (accesses, pointer) = match *name {
            "OpLoad" => (&mut loads, operands[1]),
            "OpStore" => (&mut stores, operands[0]),
            _ => continue,
        };
        if let Some(class) = element(pointer) {
            add(accesses, &class, 1);
        }
    }
    let values = (results.iter())
        .filter_map(|(name, instruction)| Some((*name, value(instruction)?)))
        .collect();
    Facts::new(source, loads, stores, &values)
}

fn scalar_or_vector(results: &HashMap<&str, Instruction<'_>>, class: &str) -> Option<String> {
    let class = results.get(class)?;
    match (class.name, &class.operands[..]) {
        ("OpTypeVector", [scalar, width]) => {
            let scalar = scalar_or_vector(results, scalar)?;
            Some(type_name(&scalar, width.parse().ok()?))
        }
        ("OpTypeFloat", ["16", "BFloat16KHR"]) => Some("bf16".to_string()),
        ("OpTypeFloat", [bits]) => Some(format!("f{bits}")),
        ("OpTypeInt", [bits, "0"]) => Some(format!("u{bits}")),
        _ => None,
    }
}

fn value<'a>(instruction: &Instruction<'a>) -> Option<Value<'a>> {
    match (instruction.name, &instruction.operands[..]) {
        ("OpConstant", [_, constant]) => constant.parse().ok().map(Value::Constant),
        ("OpBitcast", _) => Some(Value::Bits),
        ("OpBitwiseAnd", [_, left, right]) => Some(Value::And(left, right)),
        ("OpUGreaterThanEqual", [_, left, right]) => Some(Value::AtLeast(left, right)),
        _ => None,
    }
}
