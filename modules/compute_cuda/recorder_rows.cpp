// Ops of attention and its rows, and those that move bytes.

#include "kernels/cuda/attend.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scoring.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/staging.h"
#include "modules/compute_cuda/recorder.h"
#include "modules/compute_cuda/recorder_common.h"

namespace ebb::cuda {

using cpu::check_pointers;
using cpu::check_range;

Status Recorder::rope_table(const RopeTableArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_TRY(cpu::check_rope_table(args));
    EBB_TRY(check_rows("rope_table", args.step.max_rows));
    const bool fits = tables_.n > 0 && tables_.n < kMaxRopeTables &&
                      tables_.tables[0].step.n_rows == args.step.n_rows &&
                      tables_.tables[0].step.max_rows == args.step.max_rows;
    if (!fits) flush();
    tables_.tables[static_cast<std::size_t>(tables_.n++)] = args;
    return ok_status();
  });
}

Status Recorder::heads(const HeadsArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_TRY(cpu::check_heads(args, max_d()));
    EBB_TRY(check_rows("heads", args.step.max_rows));
    flush_tables();
    flush_post();
    // The first is taken for an attend's queries, which it may turn out to be.
    if (!queries_ && !group_.has_heads && args.rounding == Rounding::none) {
      if (group_touches(args.x)) flush_group();
      queries_ = args;
      return ok_status();
    }
    if (queries_ && queries_->x == args.x) flush_queries();
    if (group_.has_heads || group_touches(args.x)) flush_group();
    group_.has_heads = true;
    group_.heads = args;
    return ok_status();
  });
}

Status Recorder::append(const AppendArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_ASSIGN(const std::int32_t n_rot, cpu::check_append(args, max_d()));
    flush_tables();
    flush_post();
    if (queries_ && queries_->x == args.kv) flush_queries();
    if (group_.has_append || group_touches(args.kv) || group_touches(args.ring.data)) flush_group();
    group_.has_append = true;
    group_.append = args;
    group_.append_rot = n_rot;
    return ok_status();
  });
}

Status Recorder::compress(const CompressArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_ASSIGN(const std::int32_t n_rot, cpu::check_compress(args, max_d()));
    flush_tables();
    flush_post();
    if (queries_ && (queries_->x == args.kv || queries_->x == args.gate)) flush_queries();
    const bool same_step =
        group_.n_compressions == 0 || (group_.compress[0].step.n_rows == args.step.n_rows &&
                                       group_.compress[0].step.max_rows == args.step.max_rows);
    if (group_.n_compressions == 2 || !same_step || group_touches(args.kv) ||
        group_touches(args.gate) || group_touches(args.state_kv) ||
        group_touches(args.state_gate) || group_touches(args.rows.data)) {
      flush_group();
    }
    const auto at = static_cast<std::size_t>(group_.n_compressions++);
    group_.compress[at] = args;
    group_.compress_rot[at] = n_rot;
    return ok_status();
  });
}

Status Recorder::select(const SelectArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_ASSIGN(const std::int32_t n_rot, cpu::check_select(args));
    EBB_TRY(check_range("select", "d", args.d, 1, kMaxIndexWidth));
    EBB_TRY(check_range("select", "n_heads", args.n_heads, 1,
                        max_index_heads(args.d, largest_shared_)));
    flush_all_but_queries();
    if (queries_ && (queries_->x == args.q || queries_->x == args.weight)) flush_queries();
    push_beside("select", select_workspace(args),
                {args.q, args.weight, args.keys.data, args.ids, args.count, args.allowed},
                [args, n_rot](const Launch& l) { return cuda::select(l, args, n_rot); });
    return ok_status();
  });
}

Status Recorder::attend(const AttendArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_ASSIGN(const cpu::AttendStores stores, cpu::check_attend(args));
    EBB_TRY(check_range("attend", "d", args.d, 2, kMaxHeadWidth));
    if (args.d % 2 != 0) {
      return make_error(Errc::incompatible, "compute_cuda: attend: d = %d, want an even number",
                        args.d);
    }
    EBB_TRY(check_rows("attend", args.step.max_rows));
    if (const std::uint64_t landing = attend_landing(args)) {
      // Behind the choice, beside a product if that is.
      plan_.landing_bytes = std::max(plan_.landing_bytes, landing);
      flush_all_but_queries();
      push_beside("fetch", 0, {args.ids, args.count, args.chunks.data, args.slots.slots},
                  [args](const Launch& l) { return cuda::attend_fetch(l, args); });
    }
    std::optional<HeadsArgs> queries;
    if (queries_ && attend_can_finish(*queries_, args)) std::swap(queries, queries_);
    return add("attend", attend_workspace(args), [args, stores, queries](const Launch& l) {
      return cuda::attend(l, args, stores.ring_rot, stores.chunk_rot, address(queries));
    });
  });
}

Status Recorder::keep_rows(const KeepRowsArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_TRY(cpu::check_keep_rows(args));
    EBB_TRY(check_rows("keep_rows", args.step.max_rows));
    push_before_held("keep_rows", 0, {args.x, args.y},
                     [args](const Launch& l) { return cuda::keep_rows(l, args); });
    return ok_status();
  });
}

Status Recorder::pick_rows(const PickRowsArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_TRY(cpu::check_pick_rows(args));
    EBB_TRY(check_rows("pick_rows", args.step.max_rows));
    flush_all_but_queries();
    if (queries_ && queries_->x == reinterpret_cast<const float*>(args.y)) flush_queries();
    push_beside("pick_rows", 0, {args.table, args.y},
                [args](const Launch& l) { return cuda::pick_rows(l, args); });
    return ok_status();
  });
}

Status Recorder::score(const ScoreArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_ASSIGN(const std::int32_t n_rot, cpu::check_score(args));
    EBB_TRY(check_range("score", "d", args.d, 1, kMaxIndexWidth));
    EBB_TRY(
        check_range("score", "n_heads", args.n_heads, 1, max_index_heads(args.d, largest_shared_)));
    EBB_TRY(check_rows("score", args.step.max_rows));
    return add("score", 0, [args, n_rot](const Launch& l) { return cuda::score(l, args, n_rot); });
  });
}

Status Recorder::move_rows(const MoveRowsArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_TRY(
        check_pointers("move_rows", {{"count", args.moves.count}, {"moves", args.moves.moves}}));
    EBB_TRY(check_range("move_rows", "max_moves", args.moves.max_moves, 1, INT32_MAX / 64));
    return add("move_rows", 0, [args](const Launch& l) { return cuda::move_rows(l, args); });
  });
}

Status Recorder::copy(const CopyArgs& args) noexcept {
  return record([&]() -> Status {
    EBB_TRY(check_pointers("copy", {{"to", args.to}, {"from", args.from}}));
    return add("copy", 0, [args](const Launch& l) {
      return cudaMemcpyAsync(args.to, args.from, args.bytes, cudaMemcpyDefault, l.stream);
    });
  });
}

Status Recorder::host_call(const HostCallArgs& args) noexcept {
  return record([&]() -> Status {
    if (args.function == nullptr) {
      return make_error(Errc::invalid_argument, "host_call: function is null");
    }
    HostCallArgs* const call = &plan_.calls.emplace_back(args);
    return add("host_call", 0, [call](const Launch& l) {
      return cudaLaunchHostFunc(
          l.stream,
          [](void* data) {
            const auto* made = static_cast<const HostCallArgs*>(data);
            made->function(made->context, made->index);
          },
          call);
    });
  });
}

}  // namespace ebb::cuda
