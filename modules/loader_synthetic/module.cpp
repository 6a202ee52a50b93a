// A model of any shape without a file: every tensor is filled with valid random blocks,
// reproducible from the seed. A large tensor repeats a pool of fresh blocks, so that tens of
// gibibytes are written at the speed of a copy, and every tensor has a stream of random numbers of
// its own, so that all cores can write at once.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "core/api/host.h"
#include "core/api/loader.h"
#include "modules/loader_synthetic/blocks.h"
#include "modules/loader_synthetic/shape.h"

namespace ebb::synthetic {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kPoolBytes = std::uint64_t{1} << 20;

/// FNV-1a; gives every tensor a stream of its own and the model its digest.
std::uint64_t hash_text(std::string_view text, std::uint64_t hash = 0xCBF29CE484222325U) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

void fill_table(std::span<std::byte> bytes, const deepseek4::Config& config, Random& random) {
  // Every token names different experts: a random one and those that follow it.
  const auto used = static_cast<std::size_t>(config.n_experts_used);
  const auto n = static_cast<std::uint32_t>(config.n_experts);
  for (std::size_t row = 0; row * used * 4 < bytes.size(); ++row) {
    const std::uint32_t first = random.below(n);
    for (std::size_t i = 0; i < used; ++i) {
      const auto id = static_cast<std::int32_t>((first + i) % n);
      std::memcpy(bytes.data() + (row * used + i) * 4, &id, 4);
    }
  }
}

void fill_tensor(std::span<std::byte> bytes, const Plan& plan, const Shape& shape) {
  Random random(shape.seed ^ hash_text(plan.name));
  if (plan.type == DType::i32) return fill_table(bytes, shape.config, random);
  const auto block = static_cast<std::uint64_t>(dtype_traits(plan.type)->block_bytes);
  const std::uint64_t pool = std::min<std::uint64_t>(bytes.size(), kPoolBytes / block * block);
  fill_blocks(plan.type, plan.rms, random, bytes.first(pool));
  if (plan.base != 0) {  // norm weights and scales, which are F32
    for (std::uint64_t at = 0; at < pool; at += 4) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, 4);
      value += plan.base;
      std::memcpy(bytes.data() + at, &value, 4);
    }
  }
  for (std::uint64_t at = pool; at < bytes.size();) {
    // Start each copy at another block of the pool, so that rows do not repeat in step.
    const std::uint64_t from = random.below(static_cast<std::uint32_t>(pool / block / 2)) * block;
    const std::uint64_t n = std::min<std::uint64_t>(pool - from, bytes.size() - at);
    std::memcpy(bytes.data() + at, bytes.data() + from, n);
    at += n;
  }
}

struct Unmap {
  std::uint64_t bytes;
  void operator()(std::byte* memory) const noexcept { munmap(memory, bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

/// Fills the tensors of `plans` on all cores, each tensor on one.
void fill_all(const std::vector<TensorView>& tensors, const std::vector<Plan>& plans,
              std::byte* memory, const Shape& shape) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < plans.size(); i = next++) {
      fill_tensor({memory + (tensors[i].data - memory), tensors[i].n_bytes}, plans[i], shape);
    }
  };
  const std::size_t n_threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64);
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min(n_threads, plans.size()); ++i) others.emplace_back(work);
  work();
}

class LoaderSynthetic final : public Loader {
 public:
  static Result<std::unique_ptr<LoaderSynthetic>> create(Host& host, Options& options) {
    EBB_ASSIGN(const Shape shape, read_shape(options));
    const std::vector<Plan> plans = plan_tensors(shape);
    std::uint64_t total = 0;
    for (const Plan& plan : plans) total += (tensor_bytes(plan) + kAlign - 1) / kAlign * kAlign;
    const auto physical = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    if (total > physical && !host.is_rehearsal()) {
      return make_error(Errc::out_of_memory,
                        "loader_synthetic: the model takes %llu bytes, this machine has %llu",
                        static_cast<unsigned long long>(total),
                        static_cast<unsigned long long>(physical));
    }
    void* const memory = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return make_error(Errc::out_of_memory, "loader_synthetic: no %llu bytes for the model",
                        static_cast<unsigned long long>(total));
    }
    Mapping mapping(static_cast<std::byte*>(memory), Unmap{total});
    madvise(memory, total, MADV_HUGEPAGE);
    auto loader = std::make_unique<LoaderSynthetic>(shape, plans, std::move(mapping), total);
    // Of a rehearsal nobody asks for more than the zeros that untouched memory has.
    if (!host.is_rehearsal()) fill_all(loader->tensors_, plans, loader->memory_.get(), shape);
    return loader;
  }

  LoaderSynthetic(const Shape& shape, const std::vector<Plan>& plans, Mapping memory,
                  std::uint64_t total)
      : memory_(std::move(memory)), total_(total) {
    std::uint64_t hash = shape.seed;
    for (const auto& [key, value] : make_metadata(shape)) {
      keys_.push_back(key);
      meta_.emplace(key, value);
    }
    tensors_.reserve(plans.size());
    std::uint64_t at = 0;
    for (const Plan& plan : plans) {
      TensorView view;
      view.name = names_.emplace(plan.name, tensors_.size()).first->first;
      view.type = plan.type;
      view.n_dims = static_cast<std::int32_t>(plan.ne.size());
      std::copy(plan.ne.begin(), plan.ne.end(), view.ne.begin());
      view.data = memory_.get() + at;
      view.n_bytes = tensor_bytes(plan);
      tensors_.push_back(view);
      at += (view.n_bytes + kAlign - 1) / kAlign * kAlign;
      hash = hash_text(plan.name + dtype_traits(plan.type)->name, hash);
      for (const std::int64_t ne : plan.ne) hash = hash_text(std::to_string(ne) + ",", hash);
    }
    char digest[17];
    std::snprintf(digest, sizeof(digest), "%016llx", static_cast<unsigned long long>(hash));
    digest_ = digest;
  }

  const MetaValue* meta(std::string_view key) const noexcept override {
    const auto found = meta_.find(key);
    return found == meta_.end() ? nullptr : &found->second;
  }
  std::span<const std::string> keys() const noexcept override { return keys_; }
  const TensorView* tensor(std::string_view name) const noexcept override {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : &tensors_[found->second];
  }
  std::span<const TensorView> tensors() const noexcept override { return tensors_; }
  std::string where_key(std::string_view key) const noexcept override {
    return "loader_synthetic: key " + std::string(key);
  }
  std::string where_tensor(std::string_view name) const noexcept override {
    return "loader_synthetic: tensor " + std::string(name);
  }
  std::string_view source() const noexcept override { return "synthetic"; }
  std::string_view digest() const noexcept override { return digest_; }
  std::uint64_t data_bytes() const noexcept override { return total_; }

 private:
  static std::uint64_t tensor_bytes(const Plan& plan) {
    std::uint64_t bytes = static_cast<std::uint64_t>(row_bytes(plan.type, plan.ne[0]));
    for (std::size_t i = 1; i < plan.ne.size(); ++i) {
      bytes *= static_cast<std::uint64_t>(plan.ne[i]);
    }
    return bytes;
  }

  const Mapping memory_;
  const std::uint64_t total_;
  std::vector<std::string> keys_;
  std::map<std::string, MetaValue, std::less<>> meta_;
  std::map<std::string, std::size_t, std::less<>> names_;
  std::vector<TensorView> tensors_;
  std::string digest_;
};

}  // namespace
}  // namespace ebb::synthetic

EBB_MODULE(ebb::Loader, ebb::synthetic::LoaderSynthetic, "loader_synthetic", EBB_VERSION);
