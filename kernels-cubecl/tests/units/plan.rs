use super::*;
use crate::kernel::update;

const LIMITS: Limits = Limits {
    buffers: 56,
    units: 256,
    plane: 32,
    multiprocessors: 132,
    max_tensors: MAX_TENSORS,
    max_values: MAX_VALUES,
    max_shared: MAX_VALUES,
};
/// lavapipe's.
const SOFTWARE: Limits = Limits {
    buffers: 27,
    units: 8,
    plane: 1,
    multiprocessors: MULTIPROCESSORS,
    max_tensors: MAX_TENSORS_IN_SOFTWARE,
    max_shared: MAX_SHARED_IN_SOFTWARE,
    ..LIMITS
};

/// Limits of a device with so many bindings: WebGPU's minimum has 7 beside the one that CubeCL keeps for itself, Metal 31, CUDA 1024.
fn with_bindings(bindings: usize) -> Limits {
    let buffers = bindings - OTHER_BINDINGS;
    Limits { buffers, ..LIMITS }
}

/// Tensors of these sizes, with so many buffers each.
fn extents(sizes: &[usize], buffers: usize) -> Vec<Extent> {
    let extent = |span: &usize| Extent {
        buffers,
        dtypes: 0,
        run: Run {
            span: *span,
            vector: if span.is_multiple_of(4) { 4 } else { 1 },
            padding: None,
        },
    };
    sizes.iter().map(extent).collect()
}

/// Every value is in one part, launches are as large as they may be and no larger, no numbers leave their words, no rows overlap.
fn check(limits: &Limits, extents: &[Extent]) -> Plan {
    let plan = Plan::new(extents, limits, true, 0);
    let mut values = vec![0; extents.len()];
    let mut rows = Vec::new();
    for launch in &plan.launches {
        let (parts, slots) = (&launch.parts, launch.slots);
        let total: usize = parts.iter().map(|part| part.values).sum();
        assert!(total <= MAX_VALUES && parts.len() <= slots);
        assert!(parts.len() == 1 || total <= limits.max_shared);
        // Kernels are compiled for a few numbers of tensors.
        let most = limits.tensors(extents[0].buffers);
        assert!([1, 4, most].contains(&slots) && slots <= most, "{slots}");
        assert!((1..=limits.cubes()).contains(&launch.cubes));
        let mut start = 0;
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(part.first, values[part.tensor]);
            values[part.tensor] += part.values;
            let entry = &plan.table[launch.from as usize + index * ENTRY..];
            let vector = extents[part.tensor].run.vector;
            assert_eq!(entry[1] as usize * vector, part.values);
            let chunks = (entry[1] as usize).div_ceil(1 << launch.shift);
            assert_eq!(entry[0] as usize, start);
            start += chunks;
            rows.push((entry[2] as usize, chunks.min(launch.cubes)));
        }
    }
    let later = plan.launches.iter().skip(1);
    for (first, second) in plan.launches.iter().zip(later) {
        let kind = |launch: &Launch| extents[launch.parts[0].tensor].kind();
        let together = first.parts.iter().chain(&second.parts[..1]);
        let values: usize = together.map(|part| part.values).sum();
        let fits = values <= limits.max_values.min(limits.max_shared);
        let is_full = first.parts.len() == limits.tensors(extents[0].buffers);
        assert!(is_full || !fits || kind(first) != kind(second));
    }
    let spans = extents.iter().map(|extent| extent.run.span);
    assert!(spans.eq(values));
    rows.sort_unstable();
    let mut next = 0;
    for (first, count) in rows {
        assert_eq!(first, next);
        next += count;
    }
    assert_eq!(next, plan.rows);
    plan
}

/// Sizes are around powers of two up to what takes eight launches, and tensors of one size or of several.
#[test]
fn any_list_under_any_limits() {
    let [few, some, many] = [7, 31, 1024].map(with_bindings);
    let limits = [LIMITS, SOFTWARE, few, some, many];
    let mut state = 1u64;
    // D. Knuth's multiplier.
    let mut below = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (state >> 33) as usize % count
    };
    for _ in 0..2000 {
        let (from, to) = (below(35), 1 + below(5));
        let mut size = |_| match below(10) {
            0 => 0,
            _ => (1 << (from + below(to)).min(34)) + [0, 0, 1, 4][below(4)],
        };
        let mut sizes: Vec<usize> = (0..90).map(&mut size).collect();
        sizes.truncate(below(90));
        check(&limits[below(limits.len())], &extents(&sizes, 1 + below(4)));
    }
    assert!(check(&LIMITS, &extents(&[0], 2)).launches.is_empty());
}

/// Alone, and with products beside them.
#[test]
fn bindings_decide_how_many_tensors_a_launch_takes() {
    for (bindings, expected) in [(7, [3, 1]), (31, [27, 13]), (1024, [28, 28])] {
        let limits = with_bindings(bindings);
        assert_eq!([1, 2].map(|each| limits.tensors(each)), expected);
    }
}

/// A cube's chunk is small, so that there is one for each thread of the CPU.
#[test]
fn in_software_chunks_are_small() {
    let plan = check(&SOFTWARE, &extents(&[1 << 24], 2));
    assert_eq!((plan.launches[0].cubes, plan.launches[0].shift), (512, 10));
}

/// Adam's, where CUDA has bindings for all: gradient, parameter and two states each. The row of a parameter is its own.
#[test]
fn a_step_over_gpt2_is_six_launches_of_cubes_that_do_not_spill() {
    let plan = Plan::new(&extents(&[768; 148], 4), &with_bindings(1024), false, 0);
    assert_eq!(plan.launches.len(), 6);
    // CUDA's compilers keep the addresses of all buffers in registers, of which 65,536 are a cube's.
    let cubes = [4, 6].map(|buffers| update::units(plan.launches[0].slots * buffers));
    assert_eq!(cubes, [512, 256]);
    let rows = plan.launches.iter().flat_map(|launch| {
        let entries = plan.table[launch.from as usize..].chunks_exact(ENTRY);
        entries.take(launch.parts.len()).map(|entry| entry[2])
    });
    assert!(rows.eq(0..148));
}
