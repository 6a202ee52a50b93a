#include "kernels/cpu/embed.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/product.h"

namespace ebb::cpu {
namespace {

/// One task per row: dequantises into the first stream and copies to the others.
class EmbedPhase final : public Phase {
 public:
  explicit EmbedPhase(const EmbedArgs& args) : args_(args), table_(args.table, Precision::exact) {}

  std::int64_t n_tasks() const noexcept override { return *args_.step.n_rows; }

  void run(std::int64_t task, std::byte*) const noexcept override {
    const std::int64_t d = table_.n_in;
    float* const out = args_.streams + task * args_.n_streams * d;
    const std::int32_t token = args_.step.token[task];
    if (token >= 0 && token < table_.n_out) {
      table_.unpacker.floats(table_.row(0, token), d, out);
    } else {
      std::fill_n(out, d, std::numeric_limits<float>::quiet_NaN());
    }
    for (std::int32_t s = 1; s < args_.n_streams; ++s) {
      std::memcpy(out + s * d, out, static_cast<std::size_t>(d) * sizeof(float));
    }
  }

  const char* name() const noexcept override { return "embed"; }

 private:
  EmbedArgs args_;
  ProductWeight table_;
};

}  // namespace

Status add_embed(PhaseList& phases, const EmbedArgs& args) {
  EBB_TRY(check_weight("embed", "the table", args.table));
  if (args.step.n_rows == nullptr || args.step.token == nullptr || args.streams == nullptr ||
      args.n_streams < 1) {
    return make_error(Errc::invalid_argument,
                      "embed: want n_rows, tokens, a place for the streams, and at least one (%d)",
                      args.n_streams);
  }
  phases.push_back(std::make_unique<EmbedPhase>(args));
  return ok_status();
}

}  // namespace ebb::cpu
