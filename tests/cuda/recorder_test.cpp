// Which ops of a plan go together, in which order, and what runs beside what; and what is refused.
// Nothing is launched: these need no GPU. Buffers are made-up addresses.

#define BOOST_TEST_MODULE cuda_recorder
#define BOOST_TEST_DYN_LINK
#include "modules/compute_cuda/recorder.h"

#include <boost/test/unit_test.hpp>
#include <string>

#include "tests/kernels/refusal_cases.h"

using namespace ebb;
using cuda::Precision;
using cuda::Recorder;
using test::kRowWidth;
using test::made_up;
using test::made_up_rows;
using test::made_up_step;

namespace {

constexpr std::int32_t kLatent = 1024;
constexpr std::uint64_t kLargestShared = 232448;

/// Records ops on buffers that have these numbers.
class Plan {
 public:
  explicit Plan(std::int32_t max_rows = 1) : step_(made_up_step(max_rows)) {}

  Plan& product(std::intptr_t x, std::intptr_t y, DType type = DType::q8_0) {
    MatmulArgs args{};
    args.n_rows = step_.n_rows;
    args.max_rows = step_.max_rows;
    args.x = made_up(x);
    args.n_parts = 1;
    args.parts[0] = {Weight{made_up<std::byte>(2000), type, kLatent, 512, 1}, made_up(y)};
    return check(recorder_.matmul(args));
  }
  Plan& norm(std::intptr_t x, std::intptr_t y) {
    return check(recorder_.rms_norm(
        {step_.n_rows, step_.max_rows, made_up(x), made_up(2001), made_up(y), kLatent, 1e-6f}));
  }
  Plan& append(std::intptr_t kv, std::intptr_t ring) {
    AppendArgs args;
    args.step = step_;
    args.kv = made_up(kv);
    args.norm_weight = made_up(2002);
    args.cos_sin = made_up(2003);
    args.d = kRowWidth;
    args.ring = made_up_rows(ring);
    return check(recorder_.append(args));
  }
  /// Index queries, which are rounded: an attend's are not.
  Plan& heads(std::intptr_t x) {
    return check(recorder_.heads(
        {step_, made_up(x), 64, kRowWidth, false, 0, made_up(2003), 32, Rounding::hadamard}));
  }
  Plan& select(std::intptr_t q, std::intptr_t keys) {
    SelectArgs args;
    args.step = step_;
    args.q = made_up(q);
    args.weight = made_up(2004);
    args.keys = made_up_rows(keys);
    args.n_heads = 64;
    args.d = kRowWidth;
    args.ratio = 4;
    args.top_k = 512;
    args.ids = made_up<std::int32_t>(2005);
    args.count = made_up<std::int32_t>(2006);
    return check(recorder_.select(args));
  }
  /// Others in place of what was selected, as recorded selections are.
  Plan& pick() {
    return check(recorder_.pick_rows(
        {step_, made_up<std::int32_t>(2009), 16, 512, made_up<std::int32_t>(2005)}));
  }
  /// Over window and chosen chunks, which have slots.
  Plan& attend(std::intptr_t q, std::int32_t top_k = 512) {
    AttendArgs args = test::made_up_attend();
    args.step = step_;
    args.q = made_up(q);
    args.ids = made_up<std::int32_t>(2005);
    args.count = made_up<std::int32_t>(2006);
    args.top_k = top_k;
    return check(recorder_.attend(args));
  }
  Plan& move() {
    return check(recorder_.move_rows({{made_up<std::int32_t>(2010), made_up<SlotMove>(2011), 64}}));
  }
  /// An op that waits for all.
  Plan& copy() {
    return check(recorder_.copy({made_up<std::byte>(2007), made_up<std::byte>(2008), 4}));
  }

  /// Names in order; | stands before an op beside, * behind one that does not join.
  std::string ops() {
    const cuda::RecordedPlan plan = std::move(*recorder_.take());
    workspace = plan.workspace_bytes;
    beside_workspace = plan.beside_workspace_bytes;
    landing = plan.landing_bytes;
    BOOST_TEST(plan.beside_workspace() >= workspace);
    BOOST_TEST(plan.landing() >= plan.beside_workspace() + beside_workspace);
    BOOST_TEST(plan.all_workspace() == plan.landing() + landing);
    std::string all;
    for (const cuda::RecordedOp& op : plan.ops) {
      all += (all.empty() ? "" : " ") + std::string(op.beside ? "|" : "") + op.name +
             (op.joins || op.beside ? "" : "*");
    }
    return all;
  }

  std::uint64_t workspace = 0, beside_workspace = 0, landing = 0;

 private:
  Plan& check(const Status& status) {
    const std::string message = status ? "" : status.error().message;
    BOOST_REQUIRE_MESSAGE(status.has_value(), message);
    return *this;
  }

  const StepView step_;
  Recorder recorder_{kLargestShared, true, Precision::exact};
};

BOOST_AUTO_TEST_CASE(a_product_of_one_row_does_the_norm_of_its_input) {
  BOOST_TEST(Plan().norm(1, 2).product(2, 3).copy().ops() == "matmul copy");
  BOOST_TEST(Plan().norm(1, 1).product(1, 3).copy().ops() == "rms_norm matmul copy");
  BOOST_TEST(Plan().norm(1, 2).product(4, 3).copy().ops() == "rms_norm matmul copy");
  BOOST_TEST(Plan().norm(1, 2).copy().product(2, 3).ops() == "rms_norm copy matmul");
  BOOST_TEST(Plan().norm(1, 2).product(2, 3, DType::iq2_xxs).ops() == "rms_norm matmul");
  BOOST_TEST(Plan(2).norm(1, 2).product(2, 3).copy().ops() == "rms_norm matmul copy");
  BOOST_TEST(Plan().norm(1, 2).ops() == "rms_norm");
}

BOOST_AUTO_TEST_CASE(rows_run_beside_the_product_that_comes_before_them) {
  Plan plan;
  plan.product(1, 2).norm(2, 3).product(3, 4).append(5, 6).copy();
  BOOST_TEST(plan.ops() == "matmul |rows matmul* copy");
  // Up to sixteen rows; a norm is an op of its own then, in front of the product.
  BOOST_TEST(Plan(16).product(1, 2).product(3, 4).append(5, 6).copy().ops() ==
             "matmul |rows matmul* copy");
  BOOST_TEST(Plan(17).product(1, 2).product(3, 4).append(5, 6).copy().ops() ==
             "matmul matmul rows copy");
}

BOOST_AUTO_TEST_CASE(rows_that_touch_what_the_product_does_follow_it) {
  const auto ops_with = [](std::intptr_t kv, std::intptr_t ring) {
    return Plan().product(1, 2).norm(2, 3).product(3, 4).append(kv, ring).copy().ops();
  };
  BOOST_TEST(ops_with(4, 6) == "matmul matmul rows copy");  // read what it writes
  BOOST_TEST(ops_with(5, 2) == "matmul matmul rows copy");  // write what it norms
  BOOST_TEST(ops_with(5, 3) == "matmul matmul rows copy");
  BOOST_TEST(ops_with(2, 6) == "matmul matmul rows copy");  // both only read: it is not told apart
  BOOST_TEST(Plan().product(3, 4).append(5, 6).copy().ops() == "matmul rows copy");  // the first op
}

BOOST_AUTO_TEST_CASE(
    a_second_product_of_the_normed_input_goes_first_with_what_follows_from_it_beside) {
  Plan plan;
  plan.product(1, 2).norm(2, 3).product(3, 4).append(5, 6).product(3, 7, DType::f16);
  plan.heads(7).select(7, 8).copy();
  BOOST_TEST(plan.ops() == "matmul matmul |rows |select matmul* copy");
  BOOST_TEST(plan.workspace == 0u);
  BOOST_TEST(plan.beside_workspace > 0u);
}

BOOST_AUTO_TEST_CASE(chunks_come_in_behind_the_choice_and_beside_the_product) {
  Plan plan;
  plan.product(1, 2).product(3, 4).heads(7).select(7, 8).attend(4);
  BOOST_TEST(plan.ops() == "matmul |rows |select |fetch matmul* attend");
  BOOST_TEST(plan.landing > 0u);
  // Where nothing is beside, they come between.
  Plan apart;
  apart.product(1, 2).product(3, 4).copy().select(7, 8).attend(4);
  BOOST_TEST(apart.ops() == "matmul matmul copy select fetch attend");
  Plan many(17);
  many.product(1, 2).product(3, 4).heads(7).select(7, 8).attend(4);
  BOOST_TEST(many.ops() == "matmul matmul rows select attend");
  BOOST_TEST(many.landing == 0u);
}

BOOST_AUTO_TEST_CASE(chunks_come_in_behind_recorded_selections_and_moves) {
  Plan recorded;
  recorded.product(1, 2).product(3, 4).heads(7).select(7, 8).pick().attend(4);
  BOOST_TEST(recorded.ops() == "matmul |rows |select |pick_rows |fetch matmul* attend");
  Plan apart;
  apart.product(1, 2).product(3, 4).copy().select(7, 8).pick().attend(4);
  BOOST_TEST(apart.ops() == "matmul matmul copy select pick_rows fetch attend");
  // The host has seen the choice, and given some of it slots.
  Plan demand;
  demand.product(1, 2).product(3, 4).heads(7).select(7, 8).copy().move().attend(4);
  BOOST_TEST(demand.ops() == "matmul |rows |select matmul* copy move_rows fetch attend");
  // The branch begins behind an op that comes after the attend before, which reads where these
  // land.
  Plan layers;
  layers.product(1, 2).product(3, 4).heads(7).select(7, 8).attend(4);
  layers.product(1, 2).product(3, 4).heads(7).select(7, 8).attend(4);
  BOOST_TEST(layers.ops() ==
             "matmul |rows |select |fetch matmul* attend "
             "matmul |rows |select |fetch matmul* attend");
}

BOOST_AUTO_TEST_CASE(there_is_room_for_what_any_attend_of_a_plan_brings_in) {
  const auto landing = [](Plan& plan) {
    plan.ops();
    return plan.landing;
  };
  Plan few(4), many(4), both(4);
  few.attend(4, 8);
  many.attend(4, 512);
  both.attend(4, 512).attend(4, 8);
  BOOST_TEST(landing(few) == std::uint64_t{4} * 8 * kRowWidth * 4);
  BOOST_TEST(landing(many) == std::uint64_t{4} * 512 * kRowWidth * 4);
  BOOST_TEST(landing(both) == many.landing);
}

BOOST_AUTO_TEST_CASE(an_attend_without_chunks_or_slots_brings_nothing_in) {
  const auto brought_with = [](const auto& spoil) {
    AttendArgs args = test::made_up_attend();
    spoil(args);
    Recorder recorder(kLargestShared, true, Precision::exact);
    BOOST_REQUIRE(recorder.attend(args).has_value());
    const cuda::RecordedPlan plan = std::move(*recorder.take());
    return plan.landing_bytes + plan.ops.size() - 1;
  };
  BOOST_TEST(brought_with([](AttendArgs&) {}) > 0u);
  BOOST_TEST(brought_with([](AttendArgs& a) { a.slots = {}; }) == 0u);
  BOOST_TEST(brought_with([](AttendArgs& a) { a.ids = nullptr; }) == 0u);
  BOOST_TEST(brought_with([](AttendArgs& a) { a.chunks.data = nullptr; }) == 0u);
}

BOOST_AUTO_TEST_CASE(products_of_an_input_without_a_norm_are_joined) {
  BOOST_TEST(Plan().product(1, 2).product(1, 3, DType::f16).copy().ops() == "matmul copy");
  BOOST_TEST(Plan(2).product(1, 2).product(1, 3, DType::f16).copy().ops() == "matmul matmul copy");
}

BOOST_AUTO_TEST_CASE(a_product_is_not_joined_past_what_runs_beside_or_behind) {
  // Rows beside the product write the ring that the other would read.
  BOOST_TEST(Plan()
                 .product(9, 10)
                 .product(1, 2)
                 .append(5, 6)
                 .heads(11)
                 .select(11, 8)
                 .product(1, 6, DType::f16)
                 .copy()
                 .ops() == "matmul |rows |select matmul* matmul copy");
}

BOOST_AUTO_TEST_CASE(a_product_that_does_not_join_has_nothing_beside_the_op_before_it) {
  // The second rows could run beside the third product, which would then not wait for the first.
  Plan plan;
  plan.product(1, 2).product(3, 4).append(5, 6).heads(11).select(11, 8);
  plan.product(12, 13).append(14, 15).copy();
  BOOST_TEST(plan.ops() == "matmul |rows |select matmul* matmul rows copy");
}

// One block sorts the entries by expert, in shared memory and in numbers of 20 bits.
BOOST_AUTO_TEST_CASE(more_experts_or_entries_than_are_sorted_are_refused_with_a_reason) {
  const auto said = [](std::int64_t n_experts, std::int32_t n_used, std::int32_t max_rows) {
    const auto weight = [](std::int64_t n_in, std::int64_t n_out, std::int64_t n_mats) {
      return Weight{made_up<std::byte>(3000), DType::q8_0, n_in, n_out, n_mats};
    };
    ExpertsArgs args;
    args.step = made_up_step(max_rows);
    args.x = made_up(1);
    args.ids = made_up<std::int32_t>(2);
    args.weights = made_up(3);
    args.routed = {weight(512, 256, n_experts), weight(512, 256, n_experts),
                   weight(256, 512, n_experts), 1.0f};
    args.shared = {weight(512, 256, 1), weight(512, 256, 1), weight(256, 512, 1), 1.0f};
    args.n_used = n_used;
    args.hidden = made_up(4);
    args.partial = made_up(5);
    args.y = made_up(6);
    const Status status = Recorder(kLargestShared, true, Precision::exact).experts(args);
    return status ? "" : status.error().message;
  };
  BOOST_TEST(said(4096, 6, 2048) == "");
  BOOST_TEST(said(4097, 6, 1) == "experts: n_experts = 4097, want 1..4096");
  BOOST_TEST(said(256, 65, 1) == "experts: n_used = 65, want 1..64");
  BOOST_TEST(said(256, 64, 8159) == "");
  BOOST_TEST(said(256, 64, 8160) == "experts: pieces = 65536, want 1..65535");
}

BOOST_AUTO_TEST_CASE(wrong_arguments_of_ops_on_slots_are_refused_with_a_reason) {
  test::check_compress_refusals(
      [](const CompressArgs& args) {
        return Recorder(kLargestShared, true, Precision::exact).compress(args);
      },
      kLargestShared / sizeof(float));
  const auto attend = [](const AttendArgs& args) {
    return Recorder(kLargestShared, true, Precision::exact).attend(args);
  };
  test::check_attend_refusals(attend);
  // Widths that the other backend takes.
  AttendArgs odd = test::made_up_attend();
  odd.d = 127;
  odd.ring.row_bytes = odd.chunks.row_bytes = 127 * 4;
  BOOST_TEST(attend(odd).error().message == "compute_cuda: attend: d = 127, want an even number");
}

}  // namespace
