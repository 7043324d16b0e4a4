//! Kernel launches, as CubeCL reports them: for benches and tests.
//!
//! It reports those of the whole process: whoever counts is alone.

/// What `work` gives, and what `see` makes of the name of each kernel that was launched in it, in their order: none without CubeCL.
#[cfg_attr(not(feature = "cubecl"), allow(unused_variables))]
pub fn observe<R, T: Send + 'static>(
    see: impl Fn(&'static str) -> T + Send + Sync + 'static,
    work: impl FnOnce() -> R,
) -> (R, Vec<T>) {
    #[cfg(feature = "cubecl")]
    {
        use cubecl::logging::{LaunchObservation, LaunchObserver};
        use std::sync::{Arc, Mutex};

        struct Observer<F, T>(F, Mutex<Vec<T>>);

        impl<F: Fn(&'static str) -> T + Send + Sync, T: Send> LaunchObserver for Observer<F, T> {
            fn launched(&self, kernel: &'static str) {
                let seen = self.0(kernel);
                self.1.lock().unwrap().push(seen);
            }
        }

        let observer = Arc::new(Observer(see, Mutex::default()));
        let watching = LaunchObservation::new(observer.clone());
        let result = work();
        drop(watching);
        let seen = std::mem::take(&mut *observer.1.lock().unwrap());
        (result, seen)
    }
    #[cfg(not(feature = "cubecl"))]
    (work(), Vec::new())
}

/// What `work` gives, and the names of the kernels that were launched in it.
pub fn names<R>(work: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    observe(|name| name, work)
}

/// What `work` gives, and the number of launches in it; none on a device whose operations are not launches.
#[allow(dead_code)] // of some who count
pub fn count<R>(on_cube: bool, work: impl FnOnce() -> R) -> (R, Option<u32>) {
    let (result, names) = names(work);
    (result, on_cube.then_some(names.len() as u32))
}
