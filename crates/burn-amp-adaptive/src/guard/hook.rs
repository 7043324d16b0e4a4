//! The hook of a guard.

use super::{Guard, GuardState};
use burn_amp_core::hook::{Hook, IntoHook, Proposed, State, Verdict};
use burn_amp_core::{AmpError, warn};

impl Hook for GuardState {
    fn name(&self) -> &str {
        "guard"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        let Some(status) = step.status() else {
            return Verdict::Wait;
        };
        // What a disabled scaler lets through: the norm is that of the finite values.
        let norm = match status.has_overflow() {
            true => f64::INFINITY,
            false => status.norm(),
        };
        GuardState::judge(self, step.loss(), norm)
    }

    fn state(&self) -> Option<State> {
        Some(State::of(self).expect("numbers are plain data"))
    }

    /// Starts again with the state of another guard.
    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        let stored: Option<Self> = state.map(|state| state.values()).transpose()?;
        if let Some(reason) = stored.as_ref().and_then(Self::contradiction) {
            return Err(reason);
        }
        let is_own = |stored: &Self| stored.guard == self.guard;
        if stored.as_ref().is_some_and(|stored| !is_own(stored)) {
            warn!("the stored state is that of another guard: this one starts again");
        }
        let fresh = Self::new(self.guard).map_err(|error| error.to_string())?;
        *self = stored.filter(is_own).unwrap_or(fresh);
        Ok(())
    }
}

impl IntoHook for Guard {
    fn into_hook(self) -> Result<impl Hook + Clone, AmpError> {
        GuardState::new(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Guard, GuardState, Hook, State};

    #[test]
    fn a_guard_knows_no_more_than_its_window_holds() {
        let guard = |values: Vec<f64>, average: serde_json::Value, rule: serde_json::Value| {
            let state = json!({"guard": rule, "losses": [], "norms": values, "average": average});
            let stored = State::of(&state).unwrap();
            let mut here = GuardState::new(Guard::zclip()).unwrap();
            here.restore(Some(stored))
        };
        let skip = |length: u32| json!({"SkipStep": {"rolling_interval_length": length}});
        let none = serde_json::Value::Null;
        assert_eq!(guard(vec![1.0; 5], none.clone(), skip(4)), Ok(()));
        let error = guard(vec![1.0; 6], none.clone(), skip(4)).unwrap_err();
        assert!(error.contains("6 values, and at most 5"), "{error}");
        let error = guard(vec![], none.clone(), skip(1)).unwrap_err();
        assert!(error.contains("`rolling_interval_length` is 1"), "{error}");

        let zclip = || json!({"ZClip": {}});
        let average = |var: f64| json!({"mean": 1.0, "var": var});
        assert_eq!(guard(vec![], average(0.5), zclip()), Ok(()));
        assert!(guard(vec![1.0], average(0.5), zclip()).is_err());
        let error = guard(vec![], average(-1.0), zclip()).unwrap_err();
        assert!(error.contains("not finite"), "{error}");
        let nan = json!({"mean": "NaN", "var": 1.0});
        assert!(guard(vec![], nan, zclip()).is_err());
    }
}
