//! Kernel launches, as CubeCL reports them: for benches and tests.
//!
//! It reports those of the whole process: whoever counts is alone.

/// What `work` gives, and the names of the kernels that were launched in it, in their order: none without CubeCL.
pub fn observe<R>(work: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    #[cfg(feature = "cubecl")]
    {
        use cubecl::logging::{LaunchObservation, LaunchObserver};
        use std::sync::{Arc, Mutex};

        #[derive(Default)]
        struct Names(Mutex<Vec<&'static str>>);

        impl LaunchObserver for Names {
            fn launched(&self, kernel: &'static str) {
                self.0.lock().unwrap().push(kernel);
            }
        }

        let names = Arc::new(Names::default());
        let watching = LaunchObservation::new(names.clone());
        let result = work();
        drop(watching);
        let names = std::mem::take(&mut *names.0.lock().unwrap());
        (result, names)
    }
    #[cfg(not(feature = "cubecl"))]
    (work(), Vec::new())
}

/// What `work` gives, and the number of launches in it; none on a device whose operations are not launches.
#[allow(dead_code)] // of some who count
pub fn count<R>(on_cube: bool, work: impl FnOnce() -> R) -> (R, Option<u32>) {
    let (result, names) = observe(work);
    (result, on_cube.then_some(names.len() as u32))
}
