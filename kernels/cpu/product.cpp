#include "kernels/cpu/product.h"

namespace ebb::cpu {

std::int64_t rows_per_task(std::int64_t n_in, std::int32_t n_acts) {
  // Reading a value costs about as much as multiplying it four times. 64K values read are some
  // microseconds: worth a task, and small enough to spread over the workers.
  constexpr std::int64_t kWork = 65536 + 65536 / 4;
  constexpr std::int64_t kLeast = 16;
  constexpr std::int64_t kMost = 1024;
  const std::int64_t work = n_in + n_in * n_acts / 4;
  const std::int64_t rows = (kWork / (work > 0 ? work : 1) + kLeast - 1) / kLeast * kLeast;
  return rows < kLeast ? kLeast : rows > kMost ? kMost : rows;
}

ProductWeight::ProductWeight(const Weight& weight, Precision precision)
    : data(weight.data),
      type(weight.type),
      n_in(weight.n_in),
      n_out(weight.n_out),
      bytes_per_row(row_bytes(weight.type, weight.n_in)),
      unpacker(find_unpacker(weight.type)),
      integer(precision == Precision::fast && unpacker.tiles != nullptr) {}

Status check_weight(const char* op, const char* what, const Weight& weight) {
  const DTypeTraits* const traits = dtype_traits(weight.type);
  if (traits == nullptr || find_unpacker(weight.type).floats == nullptr) {
    return make_error(Errc::invalid_argument, "%s: %s has type %s (%d), which holds no weights", op,
                      what, traits == nullptr ? "unknown" : traits->name,
                      static_cast<int>(weight.type));
  }
  if (weight.n_in <= 0 || weight.n_in % traits->block_values != 0) {
    return make_error(Errc::invalid_argument, "%s: %s has %lld inputs; %s wants a multiple of %d",
                      op, what, static_cast<long long>(weight.n_in), traits->name,
                      traits->block_values);
  }
  if (weight.n_out <= 0 || weight.n_mats <= 0 || weight.data == nullptr) {
    return make_error(Errc::invalid_argument, "%s: %s is empty (%lld outputs, %lld matrices%s)", op,
                      what, static_cast<long long>(weight.n_out),
                      static_cast<long long>(weight.n_mats),
                      weight.data == nullptr ? ", no data" : "");
  }
  return ok_status();
}

}  // namespace ebb::cpu
