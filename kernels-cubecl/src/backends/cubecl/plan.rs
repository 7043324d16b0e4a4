//! Which launches a list needs, from sizes alone.
//!
//! Tensors of one kind share launches. A tensor that is larger than a launch may be is cut into parts with a launch each.
//! The host writes a table that tells cubes their share, see `kernel/share.rs`, and one copy of it goes to the device.

use cubecl::{client::Client, ir::features::Plane};

use crate::kernel::share::ENTRY;

/// Tensors that one launch takes at most, where the device allows as many: each has its own code in the kernel.
const MAX_TENSORS: usize = 28;
/// Bindings that are not tensors: inverse, partials, table, and what CubeCL adds for sizes and scalars.
const OTHER_BINDINGS: usize = 4;
/// Numbers of tensors that kernels are compiled for, below the most: a list may have another length every step.
const SLOTS: [usize; 2] = [1, 4];

/// Where shaders run on the CPU, a branch that no unit takes costs time too, and each tensor of a launch has its own. So few
/// tensors share one there, and they are small: values of a launch that several share, at most.
const MAX_TENSORS_IN_SOFTWARE: usize = 4;
const MAX_SHARED_IN_SOFTWARE: usize = 1 << 16;

/// Values of a launch at most, so that places in it, in bytes of 16 bits too, and counts of what is in it fit 32 bits.
pub(super) const MAX_VALUES: usize = 1 << 31;

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// Buffers of a launch's tensors and products.
    pub(super) buffers: usize,
    pub(super) units: u32,
    /// Units of a plane, or 1.
    pub(super) plane: u32,
    pub(super) multiprocessors: usize,
    /// Tensors of a launch.
    pub(super) max_tensors: usize,
    /// Values of a launch.
    pub(super) max_values: usize,
    /// Values of a launch that several tensors share.
    pub(super) max_shared: usize,
}

impl Limits {
    pub(super) fn of(client: &Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let has_planes = properties.features.plane.contains(Plane::Ops)
            && hardware.plane_size_min == hardware.plane_size_max;
        let plane = has_planes.then_some(hardware.plane_size_min);
        let units = units(client, UNITS);
        let multiprocessors = hardware.num_streaming_multiprocessors;
        let (max_tensors, max_shared) = match is_software(client) {
            true => (MAX_TENSORS_IN_SOFTWARE, MAX_SHARED_IN_SOFTWARE),
            false => (MAX_TENSORS, MAX_VALUES),
        };
        Self {
            buffers: (hardware.max_bindings as usize).saturating_sub(OTHER_BINDINGS),
            units,
            plane: plane.unwrap_or(1).clamp(1, units),
            multiprocessors: multiprocessors.map_or(MULTIPROCESSORS, |count| count as usize),
            max_tensors,
            max_values: MAX_VALUES,
            max_shared,
        }
    }

    /// Cubes of a launch.
    pub(super) fn cubes(&self) -> usize {
        CUBES * self.multiprocessors
    }

    /// Tensors of a launch that have so many buffers each. Where the device has not enough for one, it will say so.
    fn tensors(&self, buffers: usize) -> usize {
        (self.buffers / buffers).clamp(1, self.max_tensors)
    }
}

/// As many units as wanted, or as a cube of the device can have: a power of two, as a reduction halves them.
pub(super) fn units(client: &Client, wanted: u32) -> u32 {
    let hardware = &client.properties().hardware;
    // Software runs the units of a plane as one vector, and the planes of a cube in turns from barrier to barrier.
    let most = match is_software(client) {
        true => hardware.max_units_per_cube.min(hardware.plane_size_min),
        false => hardware.max_units_per_cube,
    };
    1 << wanted.min(most.max(1)).ilog2()
}

/// Whether shaders run on the CPU, as with Mesa's lavapipe. CubeCL's own runtime for CPUs has threads for units, and planes of one.
fn is_software(client: &Client) -> bool {
    let properties = client.properties();
    properties.identity.physical.is_none() && properties.hardware.plane_size_min > 1
}

/// The values of a tensor, as they lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    /// Values, with the padding between them.
    pub(super) span: usize,
    /// Values of a vector.
    pub(super) vector: usize,
    /// Values from one row to the next, and values of a row, where rows are padded.
    pub(super) padding: Option<(usize, usize)>,
}

/// What a plan has to know of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    /// Its buffer, and those beside it: its product's, or those of an optimizer's state.
    pub(super) buffers: usize,
    /// A number of their dtypes.
    pub(super) dtypes: u32,
    pub(super) run: Run,
}

impl Extent {
    /// Tensors of one kind share a launch: of the same dtypes and width of vectors, and all padded or none.
    fn kind(&self) -> impl Ord + use<> {
        let run = self.run;
        (self.buffers, self.dtypes, run.vector, run.padding.is_some())
    }
}

/// A run of one tensor's values: all of them, unless there are too many for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) tensor: usize,
    pub(super) first: usize,
    pub(super) values: usize,
}

#[derive(Debug)]
pub(super) struct Launch {
    pub(super) parts: Vec<Part>,
    /// Tensors that its kernel is compiled for.
    pub(super) slots: usize,
    /// Values of a vector.
    pub(super) vector: usize,
    /// Vectors of a chunk, as a power of two.
    pub(super) shift: u32,
    pub(super) cubes: usize,
    /// Where its part of the table begins.
    pub(super) from: u32,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) launches: Vec<Launch>,
    pub(super) table: Vec<u32>,
    /// Where the table of the last reduction begins.
    pub(super) last: u32,
    /// Rows of partial results.
    pub(super) rows: usize,
    /// The most rows of a tensor.
    pub(super) most_rows: usize,
}

impl Plan {
    /// If it `measures`, each cube writes a row of each of its tensors, and values from `edge` on, in bits, are counted. If not, the row of a
    /// tensor is its number.
    pub(super) fn new(extents: &[Extent], limits: &Limits, measures: bool, edge: u32) -> Self {
        let launch = |parts| Launch::new(parts, extents, limits);
        let mut launches: Vec<Launch> = groups(extents, limits).into_iter().map(launch).collect();
        let (mut table, mut total) = (Vec::new(), 0);
        // The rows of a tensor follow one another, as the launches over it do: the first of them, and how many there are.
        let mut rows_of = vec![[0; 2]; extents.len()];
        for launch in &mut launches {
            launch.from = word(table.len());
            let mut chunk = 0;
            for part in &launch.parts {
                let (vector, chunks) = (launch.vector, launch.chunks(part));
                let (pitch, columns) = extents[part.tensor].run.padding.unwrap_or((vector, 0));
                let row = if measures { total } else { part.tensor };
                let entry = [chunk, part.values / vector, row, pitch / vector, columns];
                table.extend::<[u32; ENTRY]>(entry.map(word));
                let written = usize::from(measures) * chunks.min(launch.cubes);
                let [first, count] = &mut rows_of[part.tensor];
                *first = total - *count;
                *count += written;
                total += written;
                chunk += chunks;
            }
            for _ in launch.parts.len()..launch.slots {
                table.extend::<[u32; ENTRY]>([word(chunk), 0, 0, 1, 0]);
            }
            table.push(edge);
        }
        let last = word(table.len());
        let most_rows = rows_of.iter().map(|[_, count]| *count).max();
        table.extend(rows_of.into_iter().flatten().map(word));
        Self {
            launches,
            table,
            last,
            rows: total,
            most_rows: most_rows.unwrap_or(0),
        }
    }
}

impl Launch {
    fn new(parts: Vec<Part>, extents: &[Extent], limits: &Limits) -> Self {
        let extent = &extents[parts[0].tensor];
        let most = limits.tensors(extent.buffers);
        let slots = SLOTS.into_iter().find(|slots| parts.len() <= *slots);
        let total: usize = parts.iter().map(|part| part.values).sum();
        let chunk = total.div_ceil(CHUNKS * limits.multiprocessors);
        // Few units add up fewer values each before they begin anew.
        let largest = (limits.units.ilog2() + 8).clamp(*CHUNK.start(), *CHUNK.end());
        let chunk = (chunk.next_power_of_two().ilog2()).clamp(*CHUNK.start(), largest);
        let mut launch = Self {
            slots: slots.unwrap_or(most).min(most),
            vector: extent.run.vector,
            shift: chunk - extent.run.vector.ilog2(),
            cubes: limits.cubes(),
            from: 0,
            parts,
        };
        let chunks: usize = launch.parts.iter().map(|part| launch.chunks(part)).sum();
        launch.cubes = launch.cubes.min(chunks);
        launch
    }

    fn chunks(&self, part: &Part) -> usize {
        (part.values / self.vector).div_ceil(1 << self.shift)
    }
}

fn word(word: usize) -> u32 {
    u32::try_from(word).expect("a launch fits 32 bits")
}

/// Neighbours of one kind, as many as fit into a launch. Tensors without values are in none.
fn groups(extents: &[Extent], limits: &Limits) -> Vec<Vec<Part>> {
    let mut order: Vec<usize> = (0..extents.len()).collect();
    // Stable: tensors of one kind stay in the order of the list.
    order.sort_by_key(|tensor| extents[*tensor].kind());
    let parts = order.into_iter().flat_map(|tensor| {
        let span = extents[tensor].run.span;
        (0..span).step_by(limits.max_values).map(move |first| Part {
            tensor,
            first,
            values: (span - first).min(limits.max_values),
        })
    });
    let mut groups: Vec<Vec<Part>> = Vec::new();
    let mut values = 0;
    for part in parts {
        let extent = &extents[part.tensor];
        let fits = groups.last().is_some_and(|group| {
            group.len() < limits.tensors(extent.buffers)
                && extents[group[0].tensor].kind() == extent.kind()
                && values + part.values <= limits.max_values.min(limits.max_shared)
        });
        if !fits {
            values = 0;
            groups.push(Vec::new());
        }
        values += part.values;
        groups.last_mut().expect("a group").push(part);
    }
    groups
}

#[cfg(test)]
#[path = "../../../tests/units/plan.rs"]
mod tests;
