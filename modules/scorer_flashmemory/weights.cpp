#include "modules/scorer_flashmemory/weights.h"

#include <array>

#include "modules/mapped_files/text.h"

namespace ebb::flashmemory {
namespace {

constexpr std::string_view kLatent = "wq_a.weight";
constexpr std::int64_t kMaxRank = 1 << 16;  // released: 2,048
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::size_t kMaxListed = 8;

/// The prefixes under which the file has scorers, for whoever asked for another one.
std::string prefixes(const safetensors::File& file) {
  std::string all;
  std::size_t n = 0;
  for (const safetensors::Tensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kLatent)) continue;
    if (n++ == kMaxListed) return all + ", ...";
    const std::string_view prefix =
        std::string_view(tensor.name).substr(0, tensor.name.size() - kLatent.size());
    all += (n > 1 ? ", \"" : "\"") + files::printable(prefix) + "\"";
  }
  return n == 0 ? "no scorer" : "scorers under " + all;
}

/// Rows of a matrix whose row count is for the file to say.
Result<std::int64_t> rows_of(const safetensors::File& file, const std::string& name,
                             const char* wanted, std::int64_t most) {
  const safetensors::Tensor* const tensor = file.find(name);
  if (tensor == nullptr) {
    return Error{Errc::not_found,
                 file.where(name) + ": not in the file, which holds " + prefixes(file)};
  }
  if (tensor->shape.size() != 2 || tensor->shape[0] < 1 || tensor->shape[0] > most) {
    return Error{Errc::incompatible, file.where(name) + ": shape " +
                                         safetensors::show_shape(tensor->shape) + ", want " +
                                         wanted + " of 1.." + std::to_string(most) + " rows"};
  }
  return tensor->shape[0];
}

}  // namespace

Result<StoredWeights> find_weights(const safetensors::File& file, const std::string& prefix,
                                   std::int64_t d_model, std::int32_t d) {
  const std::string latent = prefix + std::string(kLatent);
  const std::string weights = prefix + "weights_proj.weight";
  StoredWeights stored;
  EBB_ASSIGN(stored.rank, rows_of(file, latent, "[rank, d_model]", kMaxRank));
  EBB_ASSIGN(const std::int64_t n_heads, rows_of(file, weights, "[heads, d_model]", kMaxHeads));
  stored.n_heads = static_cast<std::int32_t>(n_heads);
  EBB_ASSIGN(stored.latent, file.view(latent, std::array{stored.rank, d_model}));
  EBB_ASSIGN(stored.norm, file.view(prefix + "q_norm_weight", std::array{stored.rank}));
  EBB_ASSIGN(stored.query, file.view(prefix + "wq_b.weight", std::array{n_heads * d, stored.rank}));
  EBB_ASSIGN(stored.weights, file.view(weights, std::array{n_heads, d_model}));
  return stored;
}

}  // namespace ebb::flashmemory
