//! Programs that failed once. Each is named after what was right.

use crate::differs;
use crate::program::{Action, Clip, Pass, Program, Setting, Shape, Slope};
use Action::{Flush, Set, Train, Unscale, Untested};

const GOOD: Pass = Pass {
    slope: Slope::Power(0),
    shape: Shape::One,
};
const NAN: Pass = Pass {
    slope: Slope::Nan,
    ..GOOD
};
const ZEROS: Action = Train(Pass {
    slope: Slope::Zero,
    shape: Shape::One,
});
/// Multiplies the scale by 2^9: from 2^8, where programs begin unless they say otherwise, to 2^17.
const GROWN: [Action; 4] = [Set(Setting::Growth(3)), ZEROS, ZEROS, ZEROS];
/// At a scale of 2^8 and more.
const OVERFLOW: Pass = of_slope(12);

/// Two to this.
const fn of_slope(exponent: i32) -> Pass {
    Pass {
        slope: Slope::Power(exponent),
        ..GOOD
    }
}

fn holds(micro_batches: u32, actions: &[Action]) {
    differs(&Program::new(micro_batches, actions)).unwrap();
}

/// With all that stands around a step, by those that have it, and without hooks and averages, by all.
#[test]
fn a_run_goes_on_from_the_middle_of_a_window() {
    let stopped = [Train(GOOD), Action::Save, Train(OVERFLOW), Action::Load];
    let ends = [Train(GOOD), Flush, Train(GOOD), Train(GOOD), Flush];
    let bare = Program {
        clip: Some(Clip::GlobalNorm),
        ..Program::new(4, &[&stopped[..], &ends].concat())
    };
    let around = Program {
        rejects: Some(2),
        halves: Some(1),
        averages: true,
        ..bare.clone()
    };
    differs(&bare).unwrap();
    differs(&around).unwrap();
}

/// Its sum holds a NaN, which later passes do not explain.
#[test]
fn a_record_says_why_its_window_has_overflowed() {
    let pass = of_slope(8);
    let stopped = [shaped(pass, Shape::Chained), Action::Save, Action::Load];
    let ends = [ZEROS, Train(GOOD)];
    holds(4, &[&[Train(pass)], &stopped[..], &ends].concat());
    // And that of a region, or of a loss.
    let bad_loss = [Train(NAN), Action::Save, Action::Load, Train(pass), ZEROS];
    holds(3, &bad_loss);
    let overflow = [Train(pass), Action::Save, Action::Load, Train(NAN), ZEROS];
    holds(3, &overflow);
    let region = shaped(of_slope(12), Shape::Region);
    holds(2, &[region, Action::Save, Action::Load, Train(GOOD)]);
}

#[test]
fn a_good_loss_beside_a_bad_one_overflows_at_a_high_scale() {
    for shape in [Shape::First, Shape::Last] {
        for pass in [
            NAN,
            Pass {
                slope: Slope::Zero,
                ..GOOD
            },
        ] {
            holds(1, &[&GROWN[..], &[shaped(pass, shape)]].concat());
        }
    }
}

fn shaped(pass: Pass, shape: Shape) -> Action {
    Train(Pass { shape, ..pass })
}

/// Both come to their scopes before either goes on.
#[test]
fn a_bad_loss_comes_before_what_overflows_behind_the_border_beside_it() {
    let program = Program::new(1, &[&GROWN[..], &[shaped(NAN, Shape::First)]].concat());
    differs(&Program {
        scale: 10,
        ..program
    })
    .unwrap();
}

#[test]
fn a_bad_loss_beside_a_good_one_spares_the_scale() {
    holds(1, &[shaped(NAN, Shape::First)]);
    holds(1, &[shaped(NAN, Shape::Last)]);
}

#[test]
fn gradients_that_were_looked_at_leave_the_next_cause_alone() {
    holds(1, &[Unscale(GOOD), Train(NAN)]);
}

#[test]
fn an_overflow_that_nobody_tested_comes_first() {
    holds(1, &[Untested(OVERFLOW), Train(NAN)]);
    holds(1, &[Untested(NAN), Train(OVERFLOW)]);
}

#[test]
fn what_came_before_a_finite_step_explains_nothing() {
    holds(1, &[Untested(NAN), Train(GOOD), Train(OVERFLOW)]);
    let frozen = shaped(GOOD, Shape::Frozen);
    let dropping = Program::new(2, &[Untested(NAN), frozen, Train(OVERFLOW)]);
    let drops = true;
    differs(&Program { drops, ..dropping }).unwrap();
    // The other optimizer has not stepped: the iteration goes on.
    holds(1, &[Train(GOOD), Action::Swap, Train(NAN), Train(OVERFLOW)]);
    holds(1, &[Action::Swap, Unscale(NAN), Train(OVERFLOW)]);
    holds(1, &[Untested(NAN), Unscale(GOOD), Train(OVERFLOW)]);
    let looked_at = [Untested(NAN), Unscale(GOOD), Train(OVERFLOW), Train(GOOD)];
    holds(2, &looked_at);
    // One of two optimizers, too.
    let other = [Action::Swap, Train(GOOD), Train(GOOD)];
    holds(2, &[&other[..], &[Action::Swap], &looked_at].concat());
    holds(2, &[&looked_at[..], &other].concat());
    let micro_batches = [Train(GOOD), Train(NAN), Train(GOOD), Train(GOOD)];
    let flushed = [Train(GOOD), Untested(OVERFLOW), Flush];
    holds(4, &[&flushed[..], &micro_batches].concat());
}

#[test]
fn a_setting_between_backward_and_step_forgets_no_cause() {
    holds(
        1,
        &[Untested(OVERFLOW), Set(Setting::Interval(3)), Train(NAN)],
    );
    holds(2, &[Train(NAN), Set(Setting::Scale(8)), Train(GOOD)]);
}

#[test]
fn a_handle_counts_what_is_changed_between_two_steps() {
    holds(1, &[Train(OVERFLOW), Action::Clone, Set(Setting::Scale(4))]);
    holds(1, &[Unscale(GOOD), Unscale(GOOD)]);
    holds(1, &[Unscale(OVERFLOW), Unscale(GOOD)]);
}

#[test]
fn a_setting_of_a_pipeline_leaves_the_last_outcome() {
    holds(1, &[Flush, Set(Setting::Interval(1))]);
}

/// Where the device alone knows of it, too.
#[test]
fn a_skipped_step_leaves_the_averages() {
    for skipped in [NAN, OVERFLOW] {
        let steps = [GOOD, GOOD, skipped, GOOD].map(Train);
        let program = Program::new(1, &steps);
        let averages = true;
        differs(&Program {
            averages,
            ..program
        })
        .unwrap();
    }
}

#[test]
fn a_record_after_skipped_steps_alone_holds_no_state() {
    let skips = [Train(OVERFLOW), Train(OVERFLOW), Action::Save];
    holds(1, &[&skips[..], &[Action::Load, Train(GOOD)]].concat());
}

#[test]
fn an_overflow_of_a_parameter_in_a_window_comes_before_a_bad_loss() {
    let steep = of_slope(7);
    holds(2, &[Train(steep), Train(NAN)]);
}

#[test]
fn what_came_before_a_step_without_gradients_explains_nothing() {
    let frozen = shaped(GOOD, Shape::Frozen);
    let skipped = [Train(OVERFLOW), Train(GOOD)];
    holds(2, &[&[frozen, Untested(NAN), Flush], &skipped[..]].concat());
}

#[test]
fn a_region_that_opens_behind_steps_in_flight_counts_its_first_step() {
    holds(1, &[Train(OVERFLOW), shaped(GOOD, Shape::Region)]);
}

#[test]
fn a_window_that_leaves_a_pipeline_still_moves_the_regions_that_it_has_opened() {
    holds(2, &[shaped(GOOD, Shape::Region)]);
}

#[test]
fn of_a_window_the_region_in_which_an_overflow_came_first_is_the_cause() {
    let steep = of_slope(7);
    holds(
        2,
        &[shaped(steep, Shape::Region), shaped(steep, Shape::One)],
    );
}

#[test]
fn a_window_of_a_record_still_moves_the_regions_that_it_has_opened() {
    let region = shaped(GOOD, Shape::Region);
    holds(4, &[region, Action::Save, Action::Load]);
    holds(4, &[region, Action::Save, Action::Load, Flush]);
}

#[test]
fn an_update_to_a_scale_of_the_programs_still_moves_the_regions() {
    let region = shaped(GOOD, Shape::Region);
    let steep = of_slope(7);
    holds(1, &[Action::Replace(8), region, region]);
    holds(1, &[Action::Replace(8), shaped(steep, Shape::Region)]);
}

#[test]
fn a_record_says_which_regions_passes_have_opened_that_nobody_tests() {
    let region = Untested(Pass {
        shape: Shape::Region,
        ..GOOD
    });
    holds(1, &[region, Action::Save, Action::Load, Train(GOOD)]);
}

#[test]
fn gradients_that_are_looked_at_have_one_cause_on_all_ranks() {
    holds(1, &[Unscale(NAN), Train(GOOD)]);
}

#[test]
fn a_rank_without_a_pass_does_not_know_the_cause() {
    let window = [Train(NAN), Action::Save, Action::Load, Train(GOOD), Flush];
    holds(4, &window);
    // Nor is it that of a step before.
    let steep = of_slope(9);
    holds(1, &[Train(GOOD), Action::Swap, Train(NAN), Train(steep)]);
}

#[test]
fn a_bad_loss_of_one_rank_comes_before_an_overflow_of_another() {
    let steep = Pass {
        slope: Slope::Power(9),
        ..GOOD
    };
    holds(2, &[Train(steep), Train(NAN)]);
    holds(2, &[Train(OVERFLOW), Train(NAN)]);
}

#[test]
fn a_rank_without_a_pass_does_not_blame_gradients_that_were_discarded() {
    let steep = of_slope(9);
    holds(1, &[Action::Discard(NAN), Train(steep)]);
}
