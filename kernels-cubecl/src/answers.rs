//! What devices have answered, each asked once in a process.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Answers, by what was asked.
pub(crate) struct Answers<K, V>(Mutex<Vec<(K, Arc<OnceLock<V>>)>>);

impl<K: PartialEq, V: Clone> Answers<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The answer, which `ask` gives the first time. Who asks the same waits meanwhile, and others do not.
    pub(crate) fn of(&self, key: K, ask: impl FnOnce() -> V) -> V {
        self.place(key).get_or_init(ask).clone()
    }

    /// The answer, if it was asked for.
    #[cfg(feature = "remote")]
    pub(crate) fn answered(&self, key: K) -> Option<V> {
        self.place(key).get().cloned()
    }

    fn place(&self, key: K) -> Arc<OnceLock<V>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|(other, _)| *other == key);
        if let Some((_, place)) = known {
            return place.clone();
        }
        let place = Arc::default();
        all.push((key, Arc::clone(&place)));
        place
    }
}
