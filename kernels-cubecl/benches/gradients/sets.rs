//! The gradient sets: shapes of real models, and four extremes.

pub struct Set {
    pub name: &'static str,
    pub shapes: Vec<Vec<usize>>,
    /// Of so many rows, one has values and the others are zero.
    pub rows_for_one: usize,
}

impl Set {
    pub fn elements(&self) -> usize {
        self.shapes
            .iter()
            .map(|s| s.iter().product::<usize>())
            .sum()
    }
}

/// `large` is the number of elements of the single large tensor.
pub fn all(large: usize) -> Vec<Set> {
    let set = |name, shapes, rows_for_one| Set {
        name,
        shapes,
        rows_for_one,
    };
    vec![
        set("gpt2-124m", gpt2(), 1),
        set("resnet-50", resnet50(), 1),
        set("mlp-1000", vec![vec![64, 64]; 1000], 1),
        set("mlp-10000", vec![vec![64, 64]; 10_000], 1),
        // The tokens of a batch are few of those that there are.
        set("embedding", vec![vec![50257, 768]], 50),
        set("large", vec![vec![large]], 1),
    ]
}

fn gpt2() -> Vec<Vec<usize>> {
    let width = 768;
    let mut shapes = vec![vec![50257, width], vec![1024, width]];
    for _ in 0..12 {
        shapes.extend([vec![width], vec![width]]);
        shapes.extend([vec![width, 3 * width], vec![3 * width]]);
        shapes.extend([vec![width, width], vec![width]]);
        shapes.extend([vec![width], vec![width]]);
        shapes.extend([vec![width, 4 * width], vec![4 * width]]);
        shapes.extend([vec![4 * width, width], vec![width]]);
    }
    shapes.extend([vec![width], vec![width]]);
    shapes
}

fn resnet50() -> Vec<Vec<usize>> {
    let mut shapes = Vec::new();
    let mut convolution = |output: usize, input: usize, size: usize| {
        shapes.extend([vec![output, input, size, size], vec![output], vec![output]]);
    };
    convolution(64, 3, 7);
    let mut input = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            convolution(width, input, 1);
            convolution(width, width, 3);
            convolution(4 * width, width, 1);
            if block == 0 {
                convolution(4 * width, input, 1);
            }
            input = 4 * width;
        }
    }
    shapes.extend([vec![1000, 2048], vec![1000]]);
    shapes
}
