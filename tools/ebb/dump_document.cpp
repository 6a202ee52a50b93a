#include "tools/ebb/dump_document.h"

#include <algorithm>
#include <optional>

#include "kernels/numeric.h"
#include "kernels/row_format.h"
#include "tools/ebb/tensor_file.h"

namespace ebb::cli {
namespace {

constexpr std::int64_t kKeysAtOnce = 1024;

/// One document on its way into its file.
class DocumentDump {
 public:
  DocumentDump(Engine& engine, std::span<const DumpLayer> layers, const DumpSettings& settings,
               std::span<const std::int32_t> tokens)
      : engine_(engine), layers_(layers), settings_(settings), tokens_(tokens) {
    out_.n_tokens = static_cast<std::int64_t>(tokens.size());
    out_.n_chunks = out_.n_tokens / layers.front().view.ratio;
    for (std::int64_t pos = 0; pos < out_.n_tokens; ++pos) {
      if (settings.takes(pos, out_.n_tokens)) positions_.push_back(pos);
    }
    out_.n_rows = static_cast<std::int64_t>(positions_.size());
  }

  Result<DumpedDocument> write(const std::string& id, const std::string& path,
                               const std::function<bool(std::int64_t)>& progress) {
    EBB_ASSIGN(TensorFile file, TensorFile::create(path, plan(), {{"id", id}}));
    file_.emplace(std::move(file));
    EBB_TRY(file_->write(0, 0, std::as_bytes(std::span(positions_))));
    EBB_TRY(file_->write(1, 0, std::as_bytes(tokens_)));
    EBB_ASSIGN(const std::int32_t sequence, engine_.open_sequence());
    Result<bool> through = feed(sequence, progress);
    if (through && *through) {
      for (std::size_t i = 0; i < layers_.size() && through; ++i) {
        if (const Status status = write_keys(i, sequence); !status) through = status.error();
      }
    }
    engine_.close_sequence(sequence);
    if (!through) return through.error();
    out_.is_whole = *through;
    if (out_.is_whole) EBB_TRY(file_->commit());
    return out_;
  }

 private:
  static constexpr std::size_t kPerLayer = 4;
  enum Part : std::size_t { hidden, queries, weights, keys };
  static std::size_t tensor(std::size_t layer, Part part) { return 2 + kPerLayer * layer + part; }

  std::vector<TensorPlan> plan() const {
    const char* const type = settings_.bf16 ? "BF16" : "F32";
    std::vector<TensorPlan> tensors{{"positions", "I64", {out_.n_rows}},
                                    {"tokens", "I32", {out_.n_tokens}}};
    for (const DumpLayer& layer : layers_) {
      const ScoredLayer& view = layer.view;
      const std::string suffix = "_layer_" + std::to_string(layer.layer);
      tensors.push_back({"hidden" + suffix, type, {out_.n_rows, view.d_model}});
      tensors.push_back({"index_q" + suffix, type, {out_.n_rows, view.n_heads, view.d}});
      tensors.push_back({"index_weight" + suffix, "F32", {out_.n_rows, view.n_heads}});
      tensors.push_back({"keys" + suffix, "F32", {out_.n_chunks, view.d}});
    }
    return tensors;
  }

  Result<bool> feed(std::int32_t sequence, const std::function<bool(std::int64_t)>& progress) {
    std::vector<StepRow> rows;
    for (std::int64_t fed = 0; fed < out_.n_tokens;) {
      const std::int64_t n = std::min<std::int64_t>(out_.n_tokens - fed, engine_.max_rows());
      rows.clear();
      taken_.clear();
      for (std::int64_t i = 0; i < n; ++i) {
        rows.push_back({sequence, tokens_[static_cast<std::size_t>(fed + i)], false});
        if (settings_.takes(fed + i, out_.n_tokens)) taken_.push_back(i);
      }
      EBB_TRY(engine_.step(rows));
      for (std::size_t i = 0; i < layers_.size(); ++i) EBB_TRY(write_rows(i, n));
      n_written_ += static_cast<std::int64_t>(taken_.size());
      fed += n;
      if (!progress(fed)) return false;
    }
    return true;
  }

  Status write_rows(std::size_t i, std::int64_t n_rows) {
    const ScoredLayer& view = layers_[i].view;
    const std::int64_t n_query = std::int64_t{view.n_heads} * view.d;
    EBB_TRY(write_part(tensor(i, hidden), view.hidden, n_rows, view.d_model, settings_.bf16));
    EBB_TRY(write_part(tensor(i, queries), view.index_q, n_rows, n_query, settings_.bf16));
    return write_part(tensor(i, weights), view.index_weight, n_rows, view.n_heads, false);
  }

  /// The taken rows of the `n_rows` x `width` values at `source` in compute memory.
  Status write_part(std::size_t tensor, const float* source, std::int64_t n_rows,
                    std::int64_t width, bool bf16) {
    if (taken_.empty()) return ok_status();
    const auto size = [width](std::int64_t n) { return static_cast<std::size_t>(n * width); };
    read_.resize(size(n_rows));
    EBB_TRY(engine_.read(read_.data(), source, read_.size() * sizeof(float)));
    const auto n_taken = static_cast<std::int64_t>(taken_.size());
    for (std::int64_t i = 0; i < n_taken; ++i) {  // ascending: a row only moves to the front
      const std::int64_t row = taken_[static_cast<std::size_t>(i)];
      std::copy_n(read_.begin() + row * width, width, read_.begin() + i * width);
    }
    read_.resize(size(n_taken));
    const std::int64_t first = n_written_ * width;
    if (!bf16) return file_->write(tensor, first * 4, std::as_bytes(std::span(read_)));
    halves_.resize(read_.size());
    std::transform(read_.begin(), read_.end(), halves_.begin(), float_to_bf16);
    return file_->write(tensor, first * 2, std::as_bytes(std::span(halves_)));
  }

  Status write_keys(std::size_t i, std::int32_t sequence) {
    const ScoredLayer& view = layers_[i].view;
    std::vector<std::byte> stored;
    for (std::int64_t first = 0; first < out_.n_chunks; first += kKeysAtOnce) {
      const std::int64_t n = std::min(out_.n_chunks - first, kKeysAtOnce);
      stored.resize(static_cast<std::size_t>(n * view.keys.row_bytes));
      EBB_TRY(engine_.read(stored.data(), row_at(view.keys, sequence, first), stored.size()));
      read_.resize(static_cast<std::size_t>(n * view.d));
      for (std::int64_t row = 0; row < n; ++row) {
        decode_row(view.keys.format, view.d, 0, stored.data() + row * view.keys.row_bytes,
                   read_.data() + row * view.d);
      }
      EBB_TRY(file_->write(tensor(i, keys), first * view.d * 4, std::as_bytes(std::span(read_))));
    }
    return ok_status();
  }

  Engine& engine_;
  std::span<const DumpLayer> layers_;
  const DumpSettings& settings_;
  std::span<const std::int32_t> tokens_;
  DumpedDocument out_;
  std::optional<TensorFile> file_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int64_t> taken_;  // rows of the last step
  std::int64_t n_written_ = 0;       // rows of the file
  std::vector<float> read_;
  std::vector<std::uint16_t> halves_;
};

}  // namespace

Result<DumpedDocument> dump_document(Engine& engine, std::span<const DumpLayer> layers,
                                     const DumpSettings& settings, const std::string& id,
                                     std::span<const std::int32_t> tokens, const std::string& path,
                                     const std::function<bool(std::int64_t)>& progress) {
  DocumentDump dump(engine, layers, settings, tokens);
  return dump.write(id, path, progress);
}

}  // namespace ebb::cli
