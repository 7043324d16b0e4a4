//! SPIR-V, checked by `spirv-val` if there is one.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use burn::tensor::DType;
use cubecl::{Compiler, VulkanCompilationOptions, WgpuCompilationOptions};
use cubecl_spirv::SpirvCompiler;

use crate::facts::{Facts, Op, type_name};
use crate::{SHARED_MEMORY, shapes::Shape};

/// First word of a module.
const MAGIC: u32 = 0x0723_0203;

pub(crate) fn facts(shape: &Shape) -> Facts {
    let kernel = SpirvCompiler
        .compile(shape.kernel().define(), &options())
        .unwrap_or_else(|error| panic!("{shape}: {error:?}"));
    assert!(kernel.shared_size <= SHARED_MEMORY, "{shape}");
    // Addresses in push constants, or in a uniform buffer where they are too many.
    let has_push_constants = kernel.immediate_size.is_some();
    assert_eq!(has_push_constants, shape.tensors == 1, "{shape}");
    validate(shape, &kernel.assembled_module);
    let source = kernel.to_string();
    let mut types = HashMap::new();
    let statements: Vec<_> = (source.lines())
        .filter_map(|line| statement(line, &mut types))
        .collect();
    Facts::new(&source, &statements)
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

fn validate(shape: &Shape, words: &[u32]) {
    assert_eq!(words[..2], [MAGIC, 0x0001_0500], "{shape}");
    let child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.2"])
        .args(["--uniform-buffer-standard-layout", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("{shape}: not validated, there is no spirv-val");
            return;
        }
        child => child.unwrap(),
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    if shape.has(DType::BF16) && message.contains("Invalid capability operand: 5116") {
        eprintln!("{shape}: not validated, spirv-val does not know bf16");
        return;
    }
    assert!(output.status.success(), "{shape}: {message}");
}

/// Of one instruction. Notes the names of types, and those of pointers to buffers.
fn statement<'a>(line: &'a str, types: &mut HashMap<&'a str, String>) -> Option<(&'a str, Op<'a>)> {
    let (result, text) = line.split_once(" = ").unwrap_or(("", line));
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, operands) = words.split_first()?;
    let class = match (*name, operands) {
        ("OpTypeFloat", ["16", "BFloat16KHR"]) => Some("bf16".to_string()),
        ("OpTypeFloat", [bits]) => Some(format!("f{bits}")),
        ("OpTypeInt", [bits, "0"]) => Some(format!("u{bits}")),
        ("OpTypeVector", [scalar, width]) => {
            (types.get(scalar)).map(|scalar| type_name(scalar, width.parse().unwrap_or_default()))
        }
        ("OpTypePointer", ["PhysicalStorageBuffer", class]) => types.get(class).cloned(),
        _ => None,
    };
    if let Some(class) = class {
        types.insert(result, class);
        return None;
    }
    let op = match (*name, operands) {
        ("OpLoad", [_, pointer, ..]) => Op::Load(pointer),
        ("OpStore", [pointer, ..]) => Op::Store(pointer),
        // An element of a buffer: one index into an array, and not several into the struct of sizes and scalars.
        (_, [class, _, _]) if name.ends_with("AccessChain") => {
            Op::Element(types.get(class)?.clone())
        }
        ("OpConstant", [_, constant]) => Op::Constant(constant.parse().ok()?),
        ("OpBitcast", _) => Op::Bits,
        ("OpBitwiseAnd", [_, left, right]) => Op::And(left, right),
        _ => return None,
    };
    Some((result, op))
}
