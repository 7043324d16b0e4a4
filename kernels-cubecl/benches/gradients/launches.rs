//! Kernel launches, as CubeCL reports them.

/// Runs `work` and counts the launches in it; none on a device whose operations are not launches.
#[cfg(feature = "cubecl")]
pub fn count<R>(on_cube: bool, work: impl FnOnce() -> R) -> (R, Option<u32>) {
    use cubecl::logging::{LaunchObservation, LaunchObserver};
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    #[derive(Default)]
    struct Count(AtomicU32);

    impl LaunchObserver for Count {
        fn launched(&self, _kernel: &'static str) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let count = Arc::new(Count::default());
    let watching = LaunchObservation::new(count.clone());
    let result = work();
    drop(watching);
    (result, on_cube.then(|| count.0.load(Ordering::Relaxed)))
}

/// Runs `work`. Nothing is launched without CubeCL.
#[cfg(not(feature = "cubecl"))]
pub fn count<R>(_on_cube: bool, work: impl FnOnce() -> R) -> (R, Option<u32>) {
    (work(), None)
}
