#include "modules/compute_cpu/recorder.h"

#include <new>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/compress.h"
#include "kernels/cpu/embed.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/hyper.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/scoring.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/staging.h"

namespace ebb::cpu {
namespace {

/// Phases own scratch that is sized from the arguments: running out of memory is an answer here.
template <class Add>
Status guarded(Add add) noexcept {
  try {
    return add();
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory, "compute_cpu: no memory for an op's scratch");
  }
}

}  // namespace

Status Recorder::embed(const EmbedArgs& args) noexcept {
  return guarded([&] { return add_embed(phases_, args); });
}
Status Recorder::matmul(const MatmulArgs& args) noexcept {
  return guarded([&] { return add_matmul(phases_, args, precision_, room_); });
}
Status Recorder::rms_norm(const RmsNormArgs& args) noexcept {
  return guarded([&] { return add_rms_norm(phases_, args); });
}
Status Recorder::hc_pre(const HcPreArgs& args) noexcept {
  return guarded([&] { return add_hc_pre(phases_, args); });
}
Status Recorder::hc_post(const HcPostArgs& args) noexcept {
  return guarded([&] { return add_hc_post(phases_, args); });
}
Status Recorder::hc_head(const HcHeadArgs& args) noexcept {
  return guarded([&] { return add_hc_head(phases_, args); });
}
Status Recorder::argmax(const ArgmaxArgs& args) noexcept {
  return guarded([&] { return add_argmax(phases_, args); });
}
Status Recorder::route(const RouteArgs& args) noexcept {
  return guarded([&] { return add_route(phases_, args); });
}
Status Recorder::experts(const ExpertsArgs& args) noexcept {
  return guarded([&] { return add_experts(phases_, args, precision_, room_); });
}
Status Recorder::rope_table(const RopeTableArgs& args) noexcept {
  return guarded([&] { return add_rope_table(phases_, args); });
}
Status Recorder::heads(const HeadsArgs& args) noexcept {
  return guarded([&] { return add_heads(phases_, args); });
}
Status Recorder::append(const AppendArgs& args) noexcept {
  return guarded([&] { return add_append(phases_, args); });
}
Status Recorder::compress(const CompressArgs& args) noexcept {
  return guarded([&] { return add_compress(phases_, args); });
}
Status Recorder::select(const SelectArgs& args) noexcept {
  return guarded([&] { return add_select(phases_, args); });
}
Status Recorder::attend(const AttendArgs& args) noexcept {
  return guarded([&] { return add_attend(phases_, args); });
}

Status Recorder::keep_rows(const KeepRowsArgs& args) noexcept {
  return guarded([&] { return add_keep_rows(phases_, args); });
}
Status Recorder::pick_rows(const PickRowsArgs& args) noexcept {
  return guarded([&] { return add_pick_rows(phases_, args); });
}
Status Recorder::score(const ScoreArgs& args) noexcept {
  return guarded([&] { return add_score(phases_, args); });
}
Status Recorder::move_rows(const MoveRowsArgs& args) noexcept {
  return guarded([&] { return add_move_rows(phases_, args); });
}
Status Recorder::copy(const CopyArgs& args) noexcept {
  return guarded([&] { return add_copy(phases_, args); });
}
Status Recorder::host_call(const HostCallArgs& args) noexcept {
  return guarded([&] { return add_host_call(phases_, args); });
}

}  // namespace ebb::cpu
