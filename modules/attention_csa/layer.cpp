#include "modules/attention_csa/layer.h"

#include <algorithm>

#include "kernels/row_format.h"

namespace ebb {
namespace {

using deepseek4::Config;
using deepseek4::layer_tensor;

RowStore row_store(Arena& arena, const SessionShape& shape, std::int64_t n_rows, std::int32_t d,
                   std::int32_t n_rot, RowFormat format, const char* part) {
  RowStore store;
  store.format = format;
  store.n_rows = n_rows;
  store.row_bytes = row_bytes(format, d, n_rot);
  store.sequence_bytes = n_rows * store.row_bytes;
  store.data = arena.take<std::byte>(store.sequence_bytes * shape.max_open, part);
  return store;
}

}  // namespace

Status Layer::load(Compute& compute, const Loader& loader, std::int32_t number) {
  const auto tensor = [&](const char* suffix) {
    return *loader.tensor(layer_tensor(number, suffix));
  };
  EBB_ASSIGN(kv_norm, compute.import_floats(tensor("attn_kv_a_norm.weight")));
  EBB_ASSIGN(sink, compute.import_floats(tensor("attn_sinks.weight")));
  if (ratio == 0) return ok_status();
  EBB_TRY(chunks.load(compute, loader, number, "attn_compressor_"));
  if (ratio != 4) return ok_status();
  EBB_TRY(index.load(compute, loader, number, "indexer_compressor_"));
  EBB_ASSIGN(index_query, compute.import_matrix(tensor("indexer.attn_q_b.weight")));
  EBB_ASSIGN(index_weight, compute.import_matrix(tensor("indexer.proj.weight")));
  return ok_status();
}

void Layer::carve(Arena& arena, const SessionShape& shape, const Config& config, RowFormats formats,
                  Staging* staging, bool keeps_queries) {
  ring = row_store(arena, shape, config.window - 1 + shape.max_rows, config.d_head, config.n_rot,
                   formats.kv, "window rows");
  if (ratio == 0) return;
  chunks.carve(arena, shape, ratio, config.d_head);
  const std::int64_t n_chunks = (shape.max_context + ratio - 1) / ratio;
  slots = {};
  if (staged >= 0) {
    carve_staged(arena, formats.kv, *staging);
  } else {
    chunks.rows = row_store(arena, shape, n_chunks, config.d_head, config.n_rot, formats.kv,
                            ratio == 4 ? "csa rows" : "hca rows");
  }
  if (ratio != 4) return;
  index.carve(arena, shape, ratio, config.d_index);
  index.rows = row_store(arena, shape, n_chunks, config.d_index, 0, formats.index, "index keys");
  if (is_kept) carve_kept(arena, shape.max_kept, config, keeps_queries);
}

void Layer::carve_staged(Arena& arena, RowFormat format, Staging& staging) {
  RowStore& rows = chunks.rows;
  const StagedRows found = staging.carve_layer(arena, staged);
  rows.format = format;
  rows.row_bytes = found.row_bytes;
  rows.data = found.pool;
  rows.n_rows = found.n_chunks;
  rows.sequence_bytes = found.n_chunks * rows.row_bytes;
  slots = {found.slot_of, found.slots, found.n_slots * rows.row_bytes};
}

void Layer::carve_kept(Arena& arena, std::int64_t n, const Config& config, bool keeps_queries) {
  const std::int64_t heads = config.n_index_heads;
  kept.hidden = arena.take<float>(n * config.d_model, "kept vectors");
  if (!keeps_queries) return;
  kept.index_q = arena.take<float>(n * heads * config.d_index, "kept vectors");
  kept.index_weight = arena.take<float>(n * heads, "kept vectors");
}

Status Layer::fill(RandomState& random, const Config& config, std::int32_t sequence,
                   std::int64_t n_tokens) const {
  EBB_TRY(random.fill(ring, sequence, ring.n_rows, config.d_head, config.n_rot));
  if (ratio == 0) return ok_status();
  const std::int64_t n_chunks = n_tokens / ratio;
  EBB_TRY(random.fill(chunks.rows, sequence, n_chunks, config.d_head, config.n_rot));
  EBB_TRY(chunks.fill(random, sequence));
  if (ratio != 4) return ok_status();
  EBB_TRY(random.fill(index.rows, sequence, n_chunks, config.d_index, 0));
  return index.fill(random, sequence);
}

Status Layer::copy(Compute& compute, std::int32_t from, std::int32_t to,
                   std::int64_t n_tokens) const {
  const std::int64_t n_rows = std::min(n_tokens, ring.n_rows);
  EBB_TRY(compute.copy(row_at(ring, to, 0), row_at(ring, from, 0),
                       static_cast<std::uint64_t>(n_rows * ring.row_bytes)));
  if (ratio > 0) EBB_TRY(chunks.copy(compute, from, to, n_tokens));
  if (ratio == 4) EBB_TRY(index.copy(compute, from, to, n_tokens));
  return ok_status();
}

std::int64_t Layer::bytes_read(std::int64_t pos, std::int64_t window, std::int64_t top_k) const {
  const std::int64_t of_window = std::min(pos + 1, window) * ring.row_bytes;
  if (ratio == 0) return of_window;
  const std::int64_t visible = (pos + 1) / ratio;
  // Keys are not scored where all chunks fit into the selection.
  const bool chooses = ratio == 4 && visible > top_k;
  return of_window + (chooses ? top_k : visible) * chunks.rows.row_bytes +
         (chooses ? visible * index.rows.row_bytes : 0);
}

}  // namespace ebb
