#pragma once

#include "tests/kernels/rounding_cases.h"
#include "tests/kernels/scoring_cases.h"

// The cases of the scorers' ops, for a test program that has said before how its backend runs each:
// run_keep, run_score, run_angles, run_heads and run_rows.

BOOST_AUTO_TEST_CASE(keeps_rows) { kept_rows_are_copies_and_nothing_else_is_written(run_keep); }

BOOST_AUTO_TEST_CASE(scores) { scores_equal_the_reference(run_score); }
BOOST_AUTO_TEST_CASE(scores_many_rows) { scores_of_many_rows_equal_the_reference(run_score); }
BOOST_AUTO_TEST_CASE(scores_alike_in_every_batch) {
  a_row_has_the_same_scores_in_every_batch(run_score);
}

BOOST_AUTO_TEST_CASE(makes_single_angles) { single_angles_are_products_rounded_to_f32(run_angles); }
BOOST_AUTO_TEST_CASE(rounds_heads_to_bf16) { bf16_heads_equal_the_reference(run_heads); }
BOOST_AUTO_TEST_CASE(rounds_rows_to_bf16) { bf16_rows_equal_the_reference(run_rows); }
