#pragma once

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>

#include "core/api/result.h"
#include "core/api/session.h"
#include "kernels/ops/attention.h"

// Wrong arguments of the ops that read or write slots: one list for all backends. Nothing runs, so
// buffers are made-up addresses.

namespace ebb::test {

inline constexpr std::int32_t kRowWidth = 128;

/// A buffer by its number.
template <class T = float>
T* made_up(std::intptr_t number) {
  return reinterpret_cast<T*>(number << 20);
}

inline StepView made_up_step(std::int32_t max_rows = 2) {
  StepView step;
  step.n_rows = made_up<std::int32_t>(1000);
  step.pos = made_up<std::int32_t>(1001);
  step.seq = made_up<std::int32_t>(1002);
  step.run_start = made_up<std::int32_t>(1003);
  step.max_rows = max_rows;
  return step;
}

/// f32 rows of kRowWidth values.
inline RowStore made_up_rows(std::intptr_t number) {
  RowStore rows;
  rows.data = made_up<std::byte>(number);
  rows.row_bytes = kRowWidth * 4;
  rows.n_rows = 4096;
  rows.sequence_bytes = rows.n_rows * rows.row_bytes;
  return rows;
}

/// Room for one row in each sequence, the least there can be.
inline SlotStore made_up_slots() {
  return {made_up<std::int32_t>(5), made_up<std::byte>(6), kRowWidth * 4};
}

inline CompressArgs made_up_compress() {
  CompressArgs a;
  a.step = made_up_step();
  a.kv = made_up(10);
  a.gate = made_up(11);
  a.ape = made_up(12);
  a.state_kv = made_up(13);
  a.state_gate = made_up(14);
  a.ratio = 4;
  a.d = kRowWidth;
  a.overlap = 1;
  a.norm_weight = made_up(15);
  a.cos_sin = made_up(16);
  a.n_pairs = 32;
  a.rows = made_up_rows(17);
  a.slots = made_up_slots();
  return a;
}

inline AttendArgs made_up_attend() {
  AttendArgs a;
  a.step = made_up_step();
  a.q = made_up(10);
  a.ring = made_up_rows(11);
  a.chunks = made_up_rows(12);
  a.slots = made_up_slots();
  a.ids = made_up<std::int32_t>(13);
  a.count = made_up<std::int32_t>(14);
  a.top_k = 8;
  a.ratio = 4;
  a.window = 16;
  a.sink = made_up(15);
  a.cos_sin = made_up(16);
  a.n_pairs = 32;
  a.n_heads = 4;
  a.d = kRowWidth;
  a.out = made_up(17);
  return a;
}

/// Gives the message of an op that is recorded alone, once `spoil` has been at a copy of its
/// arguments; "" if it is not refused.
template <class Args, class Record>
struct Refusals {
  const Args args;
  const Record record;  ///< Status record(const Args&)

  template <class Spoil>
  std::string operator()(Spoil spoil) const {
    Args wrong = args;
    spoil(wrong);
    const Status status = record(wrong);
    return status ? "" : status.error().message;
  }
};

/// `max_d`: the widest rows that the backend compresses.
template <class Record>
void check_compress_refusals(Record record, std::int64_t max_d) {
  using Args = CompressArgs;
  const Refusals<Args, Record> said{made_up_compress(), record};
  BOOST_TEST(said([](Args&) {}) == "");
  BOOST_TEST(said([](Args& a) { a.slots = {}; }) == "");
  BOOST_TEST(said([](Args& a) { a.step.pos = nullptr; }) == "compress: step.pos is null");
  BOOST_TEST(said([](Args& a) { a.kv = nullptr; }) == "compress: kv is null");
  BOOST_TEST(said([](Args& a) { a.gate = nullptr; }) == "compress: gate is null");
  BOOST_TEST(said([](Args& a) { a.ape = nullptr; }) == "compress: ape is null");
  BOOST_TEST(said([](Args& a) { a.state_kv = nullptr; }) == "compress: state_kv is null");
  BOOST_TEST(said([](Args& a) { a.state_gate = nullptr; }) == "compress: state_gate is null");
  BOOST_TEST(said([](Args& a) { a.norm_weight = nullptr; }) == "compress: norm_weight is null");
  BOOST_TEST(said([](Args& a) { a.cos_sin = nullptr; }) == "compress: cos_sin is null");
  BOOST_TEST(said([](Args& a) { a.ratio = 0; }) == "compress: ratio = 0, want 1..65536");
  BOOST_TEST(said([=](Args& a) { a.d = static_cast<std::int32_t>(max_d + 1); }) ==
             "compress: d = " + std::to_string(max_d + 1) + ", want 1.." + std::to_string(max_d));
  BOOST_TEST(said([](Args& a) { a.overlap = 2; }) == "compress: overlap = 2, want 0..1");
  BOOST_TEST(said([](Args& a) { a.n_pairs = 65; }) == "compress: n_pairs = 65, want 0..64");
  BOOST_TEST(said([](Args& a) { a.rows.row_bytes = 508; }) ==
             "compress: rows has rows of 508 bytes, want 512");
  BOOST_TEST(said([](Args& a) { a.slots.slots = nullptr; }) == "compress: slots is null");
  BOOST_TEST(said([](Args& a) {
               --a.slots.sequence_bytes;
             }).starts_with("compress: bytes of a sequence's slots = 511, want 512.."));
}

template <class Record>
void check_attend_refusals(Record record) {
  using Args = AttendArgs;
  const Refusals<Args, Record> said{made_up_attend(), record};
  BOOST_TEST(said([](Args&) {}) == "");
  BOOST_TEST(said([](Args& a) { a.slots = {}; }) == "");
  BOOST_TEST(said([](Args& a) { a.q = nullptr; }) == "attend: q is null");
  BOOST_TEST(said([](Args& a) { a.out = nullptr; }) == "attend: out is null");
  BOOST_TEST(said([](Args& a) { a.d = 0; }).starts_with("attend: d = 0, want 1.."));
  BOOST_TEST(said([](Args& a) { a.n_pairs = 65; }) == "attend: n_pairs = 65, want 0..64");
  BOOST_TEST(said([](Args& a) {
               a.window = 4096;
             }).starts_with("attend: rows of the ring = 4096, want 4097.."));
  BOOST_TEST(said([](Args& a) { a.count = nullptr; }) == "attend: count is null");
  BOOST_TEST(said([](Args& a) { a.top_k = 0; }).starts_with("attend: top_k = 0, want 1.."));
  BOOST_TEST(said([](Args& a) { a.ratio = 0; }) == "attend: ratio = 0, want 1..65536");
  BOOST_TEST(said([](Args& a) { a.chunks.row_bytes = 508; }) ==
             "attend: chunks has rows of 508 bytes, want 512");
  BOOST_TEST(said([](Args& a) { a.slots.slots = nullptr; }) == "attend: slots is null");
  BOOST_TEST(said([](Args& a) {
               --a.slots.sequence_bytes;
             }).starts_with("attend: bytes of a sequence's slots = 511, want 512.."));
  // Without chunks there is nothing that slots could hold.
  BOOST_TEST(said([](Args& a) {
               a.chunks = {};
               a.slots.slots = nullptr;
             }) == "");
}

}  // namespace ebb::test
