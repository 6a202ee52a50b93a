#include "kernels/cpu/rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/chunks.h"
#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/vector.h"
#include "kernels/row_format.h"

// Highway wants this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cpp"
#include "kernels/cpu/simd_targets.h"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ebb::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX2

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, 16>;
constexpr std::int32_t kLanes = hn::MaxLanes(Tag());

/// e4m3_to_float of kLanes bytes, times scale.
HWY_INLINE hn::Vec<Tag> DecodeE4m3(const std::uint8_t* codes, hn::Vec<Tag> scale) {
  const Tag tag;
  const hn::RebindToUnsigned<Tag> bits;
  const hn::Rebind<std::uint8_t, Tag> bytes;
  const auto code = hn::PromoteTo(bits, hn::LoadU(bytes, codes));
  const auto low = hn::And(code, hn::Set(bits, 0x7fu));
  const auto magnitude = hn::ShiftLeft<20>(low);
  const auto normal = hn::BitCast(tag, hn::Add(magnitude, hn::Set(bits, 120u << 23)));
  // Without the hidden bit: give it one, and take it away again.
  const auto small = hn::Sub(hn::BitCast(tag, hn::Add(magnitude, hn::Set(bits, 121u << 23))),
                             hn::Set(tag, 0.015625f));
  auto value = hn::IfThenElse(hn::RebindMask(tag, hn::Lt(magnitude, hn::Set(bits, 1u << 23))),
                              small, normal);
  value =
      hn::IfThenElse(hn::RebindMask(tag, hn::Eq(low, hn::Set(bits, 0x7fu))), hn::NaN(tag), value);
  const auto sign = hn::ShiftLeft<24>(hn::AndNot(hn::Set(bits, 0x7fu), code));
  return hn::Mul(scale, hn::Or(value, hn::BitCast(tag, sign)));
}

void DecodeE4m3Run(const std::uint8_t* codes, float scale, std::int32_t n, float* x) {
  const Tag tag;
  std::int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(DecodeE4m3(codes + i, hn::Set(tag, scale)), tag, x + i);
  }
  for (; i < n; ++i) x[i] = scale * e4m3_to_float(codes[i]);
}

void DecodeF16(const std::byte* row, std::int32_t n, float* x) {
  const Tag tag;
  const hn::Rebind<hwy::float16_t, Tag> halves;
  const auto* const from = reinterpret_cast<const hwy::float16_t*>(row);
  std::int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::PromoteTo(tag, hn::LoadU(halves, from + i)), tag, x + i);
  }
  for (; i < n; ++i) x[i] = decode_value(RowFormat::f16, n, 0, row, i);
}

void DecodeFp8Row(std::int32_t d, std::int32_t n_rot, const std::byte* row, float* x) {
  const Tag tag;
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(row);
  const std::int32_t n_still = d - n_rot;
  const std::uint8_t* const scales = bytes + n_still + 2 * n_rot;
  for (std::int32_t i = 0; i < n_still; i += kFp8Block) {
    DecodeE4m3Run(bytes + i, e8m0_to_float(scales[i / kFp8Block]),
                  std::min<std::int32_t>(kFp8Block, n_still - i), x + i);
  }
  const hn::RebindToUnsigned<Tag> bits;
  const hn::Rebind<std::uint16_t, Tag> halves;
  const auto* const rotated = reinterpret_cast<const std::uint16_t*>(bytes + n_still);
  std::int32_t i = 0;
  for (; i + kLanes <= n_rot; i += kLanes) {
    const auto v = hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(halves, rotated + i)));
    hn::StoreU(hn::BitCast(tag, v), tag, x + n_still + i);
  }
  for (; i < n_rot; ++i) {
    x[n_still + i] = decode_value(RowFormat::fp8, d, n_rot, row, n_still + i);
  }
}

/// Whole blocks of 32 values by table; e2m1 values are halves of small integers. A code of -0 gives
/// +0, which no sum can tell.
void DecodeFp4Row(std::int32_t d, const std::byte* row, float* x) {
  const Tag tag;
  const hn::FixedTag<std::uint8_t, 16> bytes;
  const hn::RebindToSigned<decltype(bytes)> halves;
  const hn::Rebind<std::int8_t, Tag> part;
  const hn::RebindToSigned<Tag> words;
  HWY_ALIGN static constexpr std::int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                         0, -1, -2, -3, -4, -6, -8, -12};
  const auto table = hn::Load(halves, kDoubled);
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(row);
  std::int32_t i = 0;
  for (; i + kFp4Block <= d; i += kFp4Block) {
    const auto factor = hn::Set(tag, 0.5f * e8m0_to_float(codes[d / 2 + i / kFp4Block]));
    const auto packed = hn::LoadU(bytes, codes + i / 2);
    const auto low = hn::And(packed, hn::Set(bytes, 15));
    const auto high = hn::And(hn::ShiftRight<4>(packed), hn::Set(bytes, 15));
    HWY_ALIGN std::int8_t doubled[kFp4Block];
    hn::Store(hn::TableLookupBytes(table, hn::BitCast(halves, hn::InterleaveLower(low, high))),
              halves, doubled);
    hn::Store(
        hn::TableLookupBytes(table, hn::BitCast(halves, hn::InterleaveUpper(bytes, low, high))),
        halves, doubled + 16);
    for (int k = 0; k < kFp4Block; k += kLanes) {
      const auto v = hn::ConvertTo(tag, hn::PromoteTo(words, hn::LoadU(part, doubled + k)));
      hn::StoreU(hn::Mul(factor, v), tag, x + i + k);
    }
  }
  for (; i < d; ++i) x[i] = decode_value(RowFormat::fp4, d, 0, row, i);
}

#endif  // AVX2 or better

void DecodeRow(RowFormat format, std::int32_t d, std::int32_t n_rot, const std::byte* row,
               float* x) {
#if HWY_TARGET <= HWY_AVX2
  switch (format) {
    case RowFormat::f32:
      std::memcpy(x, row, static_cast<std::size_t>(d) * sizeof(float));
      return;
    case RowFormat::f16:
      return DecodeF16(row, d, x);
    case RowFormat::fp8:
      if (n_rot > 0) return DecodeFp8Row(d, n_rot, row, x);
      float scale;
      std::memcpy(&scale, row + d, sizeof(scale));
      return DecodeE4m3Run(reinterpret_cast<const std::uint8_t*>(row), scale, d, x);
    case RowFormat::fp4:
      return DecodeFp4Row(d, row, x);
  }
#else
  decode_row(format, d, n_rot, row, x);
#endif
}

}  // namespace
}  // namespace ebb::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ebb::cpu {

void finish_row(const RowFinish& finish, const float* x, const float* cos_sin, float* work,
                std::byte* row) {
  rms_norm_vector(x, finish.norm_weight, work, finish.d, finish.eps);
  rope_and_round(work, finish.d, cos_sin, finish.n_pairs, finish.rounding);
  encode_row(finish.format, finish.d, finish.n_rot, work, row);
}

HWY_EXPORT(DecodeRow);

void decode_row_fast(RowFormat format, std::int32_t d, std::int32_t n_rot, const std::byte* row,
                     float* x) {
  HWY_DYNAMIC_DISPATCH(DecodeRow)(format, d, n_rot, row, x);
}

namespace {

struct AppendPlan {
  AppendArgs args;
  std::int32_t n_rot = 0;
};

void append_rows(const AppendPlan& plan, std::int64_t first, std::int64_t last,
                 std::byte* scratch) {
  const AppendArgs& a = plan.args;
  const RowFinish finish{a.norm_weight, a.eps,      a.d,          a.n_pairs,
                         plan.n_rot,    a.rounding, a.ring.format};
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t place = ring_index(a.step.pos[r], a.ring.n_rows);
    finish_row(finish, a.kv + r * a.d, a.cos_sin + r * a.n_pairs * 2,
               reinterpret_cast<float*>(scratch), row_at(a.ring, a.step.seq[r], place));
  }
}

}  // namespace

Status add_append(PhaseList& list, const AppendArgs& args) {
  AppendPlan plan{args, 0};
  EBB_ASSIGN(plan.n_rot, check_append(args, 1 << 16));
  list.push_back(std::make_unique<BlockPhase<AppendPlan>>(
      "append", plan, args.step.n_rows, 1, items_for_values(8 * args.d),
      static_cast<std::size_t>(args.d) * sizeof(float), append_rows));
  return ok_status();
}

}  // namespace ebb::cpu
#endif
