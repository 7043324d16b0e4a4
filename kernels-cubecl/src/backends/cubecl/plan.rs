//! Which launches a list needs, from sizes alone.
//!
//! Tensors of one kind share launches. A tensor that is larger than a launch may be is cut into parts with a launch each.
//! The host writes a table that tells cubes their share, see `kernel/share.rs`, and one copy of it goes to the device.

use cubecl::{client::Client, ir::features::Plane};

use crate::kernel::ENTRY;

/// Tensors that one launch takes at most, where the device allows as many: each has its own code in the kernel.
const MAX_TENSORS: usize = 28;
/// Bindings that are not tensors: inverse, partials, table, a shared output, and what CubeCL adds for sizes and scalars.
const OTHER_BINDINGS: usize = 5;
/// Numbers of tensors that kernels are compiled for, below the most: a list may have another length every step.
const SLOTS: [usize; 2] = [1, 4];

/// Values of a launch at most, so that places in it, in bytes of 16 bits too, and counts of what is in it fit 32 bits.
pub(super) const MOST: usize = 1 << 31;

/// Units of a cube, where the device allows as many.
const UNITS: u32 = 256;
/// Values of a chunk, as powers of two: so few that every multiprocessor gets one, within these bounds.
const CHUNK: std::ops::RangeInclusive<u32> = 12..=16;
/// Multiprocessors of a device that does not say.
const MULTIPROCESSORS: usize = 64;
/// Cubes for each of them at most, and chunks at least.
const CUBES: usize = 8;
const CHUNKS: usize = 2;

/// What a device allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Tensors of a launch.
    pub(super) tensors: usize,
    /// Whether each product has a buffer of its own, or all of a launch share one.
    pub(super) own: bool,
    pub(super) units: u32,
    /// Units of a plane, or 1.
    pub(super) plane: u32,
    pub(super) multiprocessors: usize,
    pub(super) cubes: usize,
    /// Values of a launch.
    pub(super) most: usize,
    /// Bytes of a buffer.
    pub(super) page: usize,
    /// Bytes that buffers' parts begin at multiples of.
    pub(super) alignment: usize,
}

impl Limits {
    pub(super) fn of(client: &Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let has_planes = properties.features.plane.contains(Plane::Ops)
            && hardware.plane_size_min == hardware.plane_size_max;
        let units = units(client, UNITS);
        let (tensors, own) = tensors_for(hardware.max_bindings);
        let multiprocessors = hardware.num_streaming_multiprocessors;
        let multiprocessors = multiprocessors.map_or(MULTIPROCESSORS, |count| count as usize);
        Self {
            tensors,
            own,
            units,
            plane: match has_planes {
                true => hardware.plane_size_min.clamp(1, units),
                false => 1,
            },
            multiprocessors,
            cubes: CUBES * multiprocessors,
            most: MOST,
            page: usize::try_from(properties.memory.max_page_size).unwrap_or(usize::MAX),
            alignment: properties.memory.alignment.max(u64::from(LOAD_BYTES)) as usize,
        }
    }
}

const LOAD_BYTES: u32 = 16;

/// As many units as wanted, or as a cube of the device can have: a power of two, as a reduction halves them.
pub(super) fn units(client: &Client, wanted: u32) -> u32 {
    let most = client.properties().hardware.max_units_per_cube.max(1);
    1 << wanted.min(most).ilog2()
}

/// Tensors of a launch, and whether there are bindings for as many products.
fn tensors_for(bindings: u32) -> (usize, bool) {
    let free = (bindings as usize).saturating_sub(OTHER_BINDINGS);
    (free.clamp(1, MAX_TENSORS), free >= 2 * MAX_TENSORS)
}

/// What a plan has to know of a tensor. Tensors of one kind `K` may share a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent<K> {
    pub(super) kind: K,
    /// Values, with padding.
    pub(super) span: usize,
    pub(super) vector: usize,
    pub(super) padding: Option<(usize, usize)>,
    /// Values of its product's buffer, and bytes of each, or 0 where it needs no part of a shared one.
    pub(super) buffer: usize,
    pub(super) size: usize,
}

impl<K> Extent<K> {
    fn bytes(&self) -> usize {
        self.buffer * self.size
    }
}

/// A run of one tensor's values: all of them, unless there are too many for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) tensor: usize,
    pub(super) first: usize,
    pub(super) values: usize,
    /// Where the product begins in the shared buffer, in bytes.
    pub(super) offset: usize,
}

#[derive(Debug)]
pub(super) struct Launch {
    pub(super) parts: Vec<Part>,
    /// Tensors that its kernel is compiled for.
    pub(super) slots: usize,
    /// Bytes of the buffer that products share.
    pub(super) bytes: usize,
    /// Vectors of a chunk, as a power of two.
    pub(super) shift: u32,
    pub(super) cubes: usize,
    /// Where its part of the table begins.
    pub(super) from: usize,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) launches: Vec<Launch>,
    pub(super) table: Vec<u32>,
    /// Where the table of the last reduction begins.
    pub(super) last: usize,
    /// Rows of partial results.
    pub(super) rows: usize,
}

impl Plan {
    /// `rows` are those that a cube writes; values from `edge` on, in bits, are counted.
    pub(super) fn new<K: Ord + Copy>(
        extents: &[Extent<K>],
        limits: &Limits,
        rows: usize,
        edge: u32,
    ) -> Self {
        let mut launches: Vec<Launch> = groups(extents, limits)
            .into_iter()
            .map(|parts| Launch::new(parts, extents, limits))
            .collect();
        let rows_of = |launch: &Launch, part: &Part| {
            rows * launch
                .chunks(part, extents[part.tensor].vector)
                .min(launch.cubes)
        };
        // The rows of a tensor follow one another, whichever launches write them.
        let mut counts = vec![0; extents.len()];
        for launch in &launches {
            for part in &launch.parts {
                counts[part.tensor] += rows_of(launch, part);
            }
        }
        let mut next = vec![0; extents.len()];
        let mut total = 0;
        for (next, count) in next.iter_mut().zip(&counts) {
            *next = total;
            total += count;
        }
        let firsts = next.clone();

        let mut table = Vec::new();
        for launch in &mut launches {
            launch.from = align(&mut table, limits);
            let mut chunk = 0;
            for part in &launch.parts {
                let extent = &extents[part.tensor];
                let (pitch, columns) = extent.padding.unwrap_or((extent.vector, 0));
                let width = extent.size * extent.vector;
                table.extend::<[usize; ENTRY]>([
                    chunk,
                    part.values / extent.vector,
                    part.offset.checked_div(width).unwrap_or(0),
                    next[part.tensor],
                    pitch / extent.vector,
                    columns,
                ]);
                chunk += launch.chunks(part, extent.vector);
                next[part.tensor] += rows_of(launch, part);
            }
            for _ in launch.parts.len()..launch.slots {
                table.extend::<[usize; ENTRY]>([chunk, 0, 0, 0, 1, 0]);
            }
            table.push(edge as usize);
        }
        let last = align(&mut table, limits);
        table.extend(
            firsts
                .into_iter()
                .zip(counts)
                .flat_map(|(first, count)| [first, count]),
        );
        let word = |word| u32::try_from(word).expect("a launch fits 32 bits");
        Self {
            launches,
            table: table.into_iter().map(word).collect(),
            last,
            rows: total,
        }
    }
}

/// Fills up the table, so that a binding can begin behind it.
fn align(table: &mut Vec<usize>, limits: &Limits) -> usize {
    table.resize(
        table
            .len()
            .next_multiple_of(limits.alignment / size_of::<u32>()),
        0,
    );
    table.len()
}

impl Launch {
    fn new<K>(parts: Vec<Part>, extents: &[Extent<K>], limits: &Limits) -> Self {
        let slots = SLOTS.into_iter().find(|slots| parts.len() <= *slots);
        let total: usize = parts.iter().map(|part| part.values).sum();
        let values = total
            .div_ceil(CHUNKS * limits.multiprocessors)
            .next_power_of_two();
        // Few units add up fewer values each before they begin anew.
        let most = (limits.units.ilog2() + 8).clamp(*CHUNK.start(), *CHUNK.end());
        let values = values.ilog2().clamp(*CHUNK.start(), most);
        let end = |part: &Part| part.offset + extents[part.tensor].bytes();
        let mut launch = Self {
            slots: slots
                .unwrap_or(limits.tensors)
                .min(limits.tensors)
                .max(parts.len()),
            bytes: parts.iter().map(end).max().unwrap_or(0),
            shift: values - extents[parts[0].tensor].vector.ilog2(),
            cubes: 0,
            from: 0,
            parts,
        };
        let chunks = |part: &Part| launch.chunks(part, extents[part.tensor].vector);
        launch.cubes = launch
            .parts
            .iter()
            .map(chunks)
            .sum::<usize>()
            .min(limits.cubes);
        launch
    }

    fn chunks(&self, part: &Part, vector: usize) -> usize {
        (part.values / vector).div_ceil(1 << self.shift)
    }
}

/// Neighbours of one kind, as many as fit into a launch. Tensors without values are in none.
fn groups<K: Ord + Copy>(extents: &[Extent<K>], limits: &Limits) -> Vec<Vec<Part>> {
    let mut order: Vec<usize> = (0..extents.len()).collect();
    order.retain(|tensor| extents[*tensor].span > 0);
    // Stable: tensors of one kind stay in the order of the list.
    order.sort_by_key(|tensor| extents[*tensor].kind);
    let mut groups: Vec<Vec<Part>> = Vec::new();
    let (mut values, mut bytes) = (0, 0);
    for tensor in order {
        let extent = &extents[tensor];
        let fits = groups.last().is_some_and(|group| {
            group.len() < limits.tensors
                && extents[group[0].tensor].kind == extent.kind
                && values + extent.span <= limits.most
                && bytes + extent.bytes() <= limits.page
        });
        if !fits {
            (values, bytes) = (0, 0);
            groups.push(Vec::new());
        }
        for first in (0..extent.span).step_by(limits.most) {
            let part = Part {
                tensor,
                first,
                values: (extent.span - first).min(limits.most),
                offset: bytes,
            };
            if first > 0 {
                groups.push(Vec::new());
            }
            groups.last_mut().expect("a group").push(part);
        }
        // Behind a part there is no room.
        values += extent.span;
        bytes += extent.bytes().next_multiple_of(limits.alignment);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(own: bool) -> Limits {
        Limits {
            tensors: MAX_TENSORS,
            own,
            units: 256,
            plane: 32,
            multiprocessors: 132,
            cubes: CUBES * 132,
            most: MOST,
            page: 1 << 37,
            alignment: 256,
        }
    }

    fn extent(span: usize, vector: usize) -> Extent<usize> {
        Extent {
            kind: vector,
            span,
            vector,
            padding: None,
            buffer: span,
            size: 4,
        }
    }

    /// Every value is in one part, no numbers leave their words, no rows or products overlap.
    fn check(extents: &[Extent<usize>], limits: &Limits) -> Plan {
        let plan = Plan::new(extents, limits, 8, 0);
        let mut values = vec![0; extents.len()];
        let mut rows = Vec::new();
        for launch in &plan.launches {
            let total: usize = launch.parts.iter().map(|part| part.values).sum();
            assert!(total <= MOST && launch.parts.len() <= launch.slots);
            assert!((1..=limits.cubes).contains(&launch.cubes));
            let (mut end, mut start) = (0, 0);
            for (index, part) in launch.parts.iter().enumerate() {
                let extent = &extents[part.tensor];
                assert_eq!(part.first, values[part.tensor]);
                values[part.tensor] += part.values;
                let entry = &plan.table[launch.from + index * ENTRY..];
                assert_eq!(entry[1] as usize * extent.vector, part.values);
                assert_eq!(entry[2] as usize * extent.vector * extent.size, part.offset);
                assert!(
                    part.offset >= end
                        && part.offset + part.values * 4 <= launch.bytes.max(extent.bytes())
                );
                end = part.offset + part.values * 4;
                let chunks = (entry[1] as usize).div_ceil(1 << launch.shift);
                assert_eq!(entry[0] as usize, start);
                start += chunks;
                rows.push((entry[3] as usize, 8 * chunks.min(launch.cubes)));
            }
        }
        assert!(
            values
                .iter()
                .zip(extents)
                .all(|(values, extent)| *values == extent.span)
        );
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
        for own in [true, false] {
            let halves = vec![extent(200_000_001, 1); 28];
            assert_eq!(check(&halves, &limits(own)).launches.len(), 3);
            let plan = check(&[extent((1 << 32) + 1, 1)], &limits(own));
            let parts: Vec<_> = plan
                .launches
                .iter()
                .map(|launch| launch.parts[0].values)
                .collect();
            assert_eq!(parts, [1 << 31, 1 << 31, 1]);
            check(
                &[
                    extent(1 << 33, 4),
                    extent(5, 1),
                    extent(1 << 34, 4),
                    extent(8, 4),
                ],
                &limits(own),
            );
        }
    }

    #[test]
    fn tensors_without_values_are_in_no_launch() {
        let plan = check(&[extent(0, 4), extent(8, 4), extent(0, 4)], &limits(true));
        assert_eq!(plan.launches.len(), 1);
        let last = &plan.table[plan.last..];
        assert_eq!((last[1], last[3], last[5]), (0, 8, 0));
        assert!(check(&[extent(0, 4)], &limits(true)).launches.is_empty());
    }

    #[test]
    fn kernels_are_compiled_for_a_few_numbers_of_tensors() {
        let mut slots: Vec<_> = (1..=60)
            .flat_map(|count| check(&vec![extent(64, 4); count], &limits(true)).launches)
            .map(|launch| launch.slots)
            .collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots, [1, 4, 28]);
    }

    #[test]
    fn bindings_decide_how_many_tensors_a_launch_takes() {
        // WebGPU's minimum, less the one that CubeCL keeps for itself.
        assert_eq!(tensors_for(7), (2, false));
        assert_eq!(tensors_for(32), (27, false));
        assert_eq!(tensors_for(1024), (28, true));
        assert_eq!(tensors_for(u32::MAX), (28, true));
        // Less than a kernel needs: it is launched, and the device says so.
        assert_eq!(tensors_for(0), (1, false));
    }
}
