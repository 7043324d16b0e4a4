//! The shared scale under a model checker, which tries the orders in which threads come to its locks: two optimizers, whose steps are in flight and are
//! resolved by whoever asks, while a third thread changes settings, opens regions and looks.

use shuttle::thread;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use crate::scale::{account::Account, journal::Caller, place::Place};
use crate::scale::{
    finding::{Finding, Tested},
    in_flight::Pending,
    live_scale::LiveScale,
};
use crate::scale::{loss_scale::GradScalerConfig, loss_scale::LossScale, status::GradientStatus};
use crate::{lock::checked, scale::step_counters::StepCounters};

/// Steps of each optimizer.
const STEPS: usize = 3;

#[test]
fn steps_count_once_in_one_order_and_no_change_is_lost() {
    checked::check(two_optimizers, 400);
}

#[test]
#[ignore = "slow"]
fn sweep_orders() {
    checked::check(two_optimizers, 10_000);
}

/// Which steps were resolved, in their order: whose, and whether they overflow. No lock of the library's.
type Log = Arc<Mutex<Vec<(usize, bool)>>>;

/// A step whose outcome is there when somebody waits for it.
#[derive(Debug)]
struct Step {
    optimizer: usize,
    overflows: bool,
    place: Arc<Place>,
    log: Log,
}

impl Pending for Step {
    fn is_known(&self) -> bool {
        false
    }

    fn resolve(self: Box<Self>) {
        let live = self.place.live().unwrap();
        end(&live, &self.place, self.overflows);
        self.log
            .lock()
            .unwrap()
            .push((self.optimizer, self.overflows));
    }
}

fn end(live: &LiveScale, place: &Place, overflows: bool) {
    let ended = live.end(place.id, &finding(overflows), None, Caller::here());
    ended.unwrap();
}

fn finding(overflows: bool) -> Finding {
    let status = GradientStatus {
        gradients: 1,
        overflow: overflows.then(|| "weight".to_string()),
        ..Default::default()
    };
    Finding {
        tested: Tested::of(&status),
        is_resolved: false,
        measures: status.measures,
    }
}

/// A scale, and two optimizers for which an iteration waits.
fn begun() -> (Arc<LiveScale>, [Arc<Place>; 2]) {
    let config = GradScalerConfig::new().with_growth_interval(2);
    let schedule = config.with_max_consecutive_skips(None).schedule().unwrap();
    let live = Arc::new(LiveScale::new(schedule));
    let places = [0, 1].map(|_| Place::new(&live, Account::default()));
    for place in &places {
        live.expect(place.id, false);
    }
    (live, places)
}

fn two_optimizers() {
    let (live, places) = begun();
    let log = Log::default();
    let mut threads: Vec<_> = (0..2)
        .map(|optimizer| {
            let (live, log) = (live.clone(), log.clone());
            let place = places[optimizer].clone();
            thread::spawn(move || {
                for number in 0..STEPS {
                    live.push(Box::new(Step {
                        optimizer,
                        overflows: (optimizer + number) % STEPS == 0,
                        place: place.clone(),
                        log: log.clone(),
                    }));
                    live.resolve(number % 2 == 0);
                }
                live.resolve(true);
            })
        })
        .collect();
    let other = live.clone();
    threads.push(thread::spawn(move || look(&other)));
    for thread in threads {
        thread.join().unwrap();
    }
    let log = log.lock().unwrap().clone();
    for (optimizer, place) in places.iter().enumerate() {
        let own = log.iter().filter(|step| step.0 == optimizer);
        let own: Vec<_> = own.map(|step| step.1).collect();
        let expected = (0..STEPS).map(|number| (optimizer + number) % STEPS == 0);
        assert!(own.iter().copied().eq(expected), "{log:?}");
        let counters: StepCounters = live.account(place.id, |account| account.counters);
        assert_eq!((counters.steps(), counters.skipped()), (STEPS as u64, 1));
    }
    // As if they had come one after the other.
    let (replayed, places) = begun();
    for (optimizer, overflows) in log {
        end(&replayed, &places[optimizer], overflows);
    }
    assert_eq!(live.schedule(), replayed.schedule());
    assert_eq!(live.is_in_iteration(), replayed.is_in_iteration());
}

/// What a training does between two steps, and what leaves the scale as it is.
fn look(live: &LiveScale) {
    let region = GradScalerConfig::new().with_init_scale(1.0);
    let wanted = region.schedule().unwrap().into();
    for _ in 0..2 {
        let same = |schedule: LossScale| Ok::<_, Infallible>(schedule);
        let Ok([before, after]) = live.change(same);
        assert_eq!(before, after);
        let factor = live.regions.enter("region", &wanted, false);
        assert!((0.25..=4.0).contains(&factor), "{factor}");
        assert!(live.on_device().is_none(), "a region was opened");
        live.resolve(false);
    }
}
