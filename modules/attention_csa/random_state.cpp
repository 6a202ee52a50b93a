// A pool of encoded rows is made once for each shape of row; a store gets pieces of it, each from
// another place, so that layers and sequences differ. There are more rows in a pool than an index
// selects, and few equal ones among those that it scores.

#include "modules/attention_csa/random_state.h"

#include <algorithm>

#include "kernels/row_format.h"

namespace ebb {
namespace {

constexpr std::int64_t kPoolValues = std::int64_t{1} << 21;

}  // namespace

float RandomState::normal() {
  // The sum of four uniform values: each has mean 32767.5 and standard deviation 18918.6.
  const std::uint64_t bits = random_();
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xFFFF);
  return (sum - 4 * 32767.5F) / (2 * 18918.6F);
}

const RandomState::Pool& RandomState::pool_of(RowFormat format, std::int32_t d,
                                              std::int32_t n_rot) {
  const auto found = std::find_if(pools_.begin(), pools_.end(), [&](const Pool& pool) {
    return pool.format == format && pool.d == d && pool.n_rot == n_rot;
  });
  if (found != pools_.end()) return *found;
  const std::int64_t n_rows = std::max<std::int64_t>(kPoolValues / d, 1);
  const std::int64_t bytes = row_bytes(format, d, n_rot);
  Pool pool{format, d, n_rot, std::vector<std::byte>(static_cast<std::size_t>(n_rows * bytes))};
  std::vector<float> row(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < n_rows; ++i) {
    for (float& value : row) value = normal();
    encode_row(format, d, n_rot, row.data(), pool.rows.data() + i * bytes);
  }
  return pools_.emplace_back(std::move(pool));
}

Status RandomState::fill(const RowStore& store, std::int32_t sequence, std::int64_t n_rows,
                         std::int32_t d, std::int32_t n_rot) {
  const Pool& pool = pool_of(store.format, d, n_rot);
  const std::int64_t in_pool = static_cast<std::int64_t>(pool.rows.size()) / store.row_bytes;
  for (std::int64_t at = 0; at < n_rows;) {
    const auto from = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(in_pool));
    const std::int64_t n = std::min(in_pool - from, n_rows - at);
    EBB_TRY(compute_.write(row_at(store, sequence, at), pool.rows.data() + from * store.row_bytes,
                           static_cast<std::uint64_t>(n * store.row_bytes)));
    at += n;
  }
  return ok_status();
}

Status RandomState::fill(float* values, std::int64_t count) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (float& value : made) value = normal();
  return compute_.write(values, made.data(), made.size() * sizeof(float));
}

}  // namespace ebb
