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

fn extent(span: usize, vector: usize) -> Extent {
    let padding = None;
    Extent {
        dtypes: vec!["f32"; 2],
        run: Run {
            span,
            vector,
            padding,
        },
    }
}

/// Every value is in one part, no numbers leave their words, no rows overlap.
fn check(limits: &Limits, extents: &[Extent]) -> Plan {
    let plan = Plan::new(extents, limits, 8, 0);
    let mut values = vec![0; extents.len()];
    let mut rows = Vec::new();
    for launch in &plan.launches {
        let total: usize = launch.parts.iter().map(|part| part.values).sum();
        assert!(total <= MAX_VALUES && launch.parts.len() <= launch.slots);
        assert!((1..=limits.cubes()).contains(&launch.cubes));
        let mut start = 0;
        for (index, part) in launch.parts.iter().enumerate() {
            assert_eq!(part.first, values[part.tensor]);
            values[part.tensor] += part.values;
            let entry = &plan.table[launch.from as usize + index * ENTRY..];
            let vector = extents[part.tensor].run.vector;
            assert_eq!(entry[1] as usize * vector, part.values);
            let chunks = (entry[1] as usize).div_ceil(1 << launch.shift);
            assert_eq!(entry[0] as usize, start);
            start += chunks;
            rows.push((entry[2] as usize, 8 * chunks.min(launch.cubes)));
        }
    }
    let spans: Vec<usize> = extents.iter().map(|extent| extent.run.span).collect();
    assert_eq!(values, spans);
    rows.sort_unstable();
    let mut next = 0;
    for (first, count) in rows {
        assert_eq!(first, next);
        next += count;
    }
    assert_eq!(next, plan.rows);
    plan
}

#[test]
fn large_tensors_are_split_over_launches() {
    let plan = check(&LIMITS, &vec![extent(200_000_001, 1); 28]);
    assert_eq!(plan.launches.len(), 3);
    let plan = check(&LIMITS, &[extent((1 << 32) + 1, 1)]);
    let parts = plan.launches.iter().map(|launch| launch.parts[0].values);
    assert_eq!(parts.collect::<Vec<_>>(), [1 << 31, 1 << 31, 1]);
    let [small, smaller] = [extent(5, 1), extent(8, 4)];
    let [large, larger] = [33, 34].map(|exponent| extent(1 << exponent, 4));
    check(&LIMITS, &[large, small, larger, smaller]);
}

#[test]
fn tensors_without_values_are_in_no_launch() {
    let plan = check(&LIMITS, &[extent(0, 4), extent(8, 4), extent(0, 4)]);
    assert_eq!(plan.launches.len(), 1);
    let last = &plan.table[plan.last as usize..];
    assert_eq!((last[1], last[3], last[5]), (0, 8, 0));
    assert!(check(&LIMITS, &[extent(0, 4)]).launches.is_empty());
}

#[test]
fn kernels_are_compiled_for_a_few_numbers_of_tensors() {
    let launches = (1..=60).flat_map(|count| check(&LIMITS, &vec![extent(64, 4); count]).launches);
    let mut slots: Vec<_> = launches.map(|launch| launch.slots).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots, [1, 4, 28]);
}

/// Where shaders run on the CPU, a branch that no unit takes costs time.
#[test]
fn in_software_few_and_small_tensors_share_a_launch() {
    let tensors = |sizes: &[usize]| {
        let extents: Vec<_> = sizes.iter().map(|size| extent(*size, 4)).collect();
        let plan = check(&SOFTWARE, &extents);
        let launches = plan.launches.iter();
        let tensors = launches.map(|launch| (launch.parts.len(), launch.slots));
        tensors.collect::<Vec<_>>()
    };
    assert_eq!(tensors(&[64; 9]), [(4, 4), (4, 4), (1, 1)]);
    assert_eq!(tensors(&[1 << 16; 3]), [(1, 1); 3]);
    assert_eq!(tensors(&[64, 64, 1 << 16, 64]), [(2, 4), (1, 1), (1, 1)]);
    // A cube's chunk is small, so that there is one for each thread of the CPU.
    let plan = check(&SOFTWARE, &[extent(1 << 24, 4)]);
    assert_eq!((plan.launches[0].cubes, plan.launches[0].shift), (512, 10));
}

/// Adam's step, where CUDA has bindings for all: gradient, parameter and two states each.
#[test]
fn a_step_over_gpt2_is_six_launches_of_cubes_that_do_not_spill() {
    let mut sizes = vec![50_257 * 768, 1024 * 768, 768, 768];
    for _ in 0..12 {
        let (attention, wide) = ([2304 * 768, 2304, 768 * 768, 768], [3072 * 768, 3072]);
        sizes.extend(attention.into_iter().chain(wide));
        sizes.extend([768 * 3072, 768, 768, 768, 768, 768]);
    }
    let mut extents: Vec<_> = sizes.iter().map(|size| extent(*size, 4)).collect();
    extents
        .iter_mut()
        .for_each(|extent| extent.dtypes = vec!["f32"; 4]);
    let buffers = 1024 - OTHER_BINDINGS;
    let limits = Limits { buffers, ..LIMITS };
    let plan = Plan::new(&extents, &limits, 0, 0);
    assert_eq!((extents.len(), plan.launches.len()), (148, 6));
    // CUDA's compilers keep the addresses of all buffers in registers, of which 65,536 are a cube's.
    let cubes = [4, 6].map(|buffers| update::units(plan.launches[0].slots * buffers));
    assert_eq!(cubes, [512, 256]);
    // The row of each is its own.
    let mut rows = Vec::new();
    for launch in &plan.launches {
        let entries = plan.table[launch.from as usize..].chunks_exact(ENTRY);
        rows.extend(entries.take(launch.parts.len()).map(|entry| entry[2]));
    }
    assert_eq!(rows, (0..148).collect::<Vec<_>>());
}

#[test]
fn bindings_decide_how_many_tensors_a_launch_takes() {
    // WebGPU's minimum, less the one that CubeCL keeps for itself; Metal's; CUDA's.
    for (bindings, alone, with_products) in [(7, 3, 1), (31, 27, 13), (1024, 28, 28)] {
        let buffers = bindings - OTHER_BINDINGS;
        let limits = Limits { buffers, ..LIMITS };
        let tensors = [1, 2].map(|each| limits.tensors(each));
        assert_eq!(tensors, [alone, with_products]);
    }
}
