#define BOOST_TEST_MODULE gguf_file
#define BOOST_TEST_DYN_LINK
#include "modules/loader_gguf/gguf_file.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "modules/mapped_files/text.h"
#include "tests/loader/gguf_bytes.h"

namespace ebb::gguf {
namespace {

using files::is_plain_text;
using files::printable;
using test::as_bytes;
using test::error_of;
using test::GgufBytes;

GgufBytes small_file() {
  GgufBytes file;
  file.text("general.architecture", "any")
      .scalar("a.u32", test::kU32, std::uint32_t{7})
      .array<std::string>("a.names", test::kString, {"x", "", "a longer string than fits in place"})
      .array<std::int32_t>("a.numbers", test::kI32, {-1, 2, 3})
      .tensor("f32", {4, 3}, 0, 48)
      .tensor("q8", {64}, 8, 68)
      .tensor("cube", {2, 3, 4}, 1, 48);
  return file;
}

void refuses(const GgufBytes& file, std::string_view text) {
  const std::string bytes = file.bytes();
  const Result<Contents> contents = parse("m.gguf", as_bytes(bytes));
  BOOST_REQUIRE_MESSAGE(!contents, "accepted, want an error with: " << text);
  const std::string& message = contents.error().message;
  BOOST_TEST(message.find(text) != std::string::npos, message << "\n  lacks: " << text);
  BOOST_TEST(message.starts_with("m.gguf: "), message);
}

template <class T>
void holds(const Contents& contents, std::string_view name, const T& want) {
  const Key* key = contents.find(name);
  BOOST_REQUIRE_MESSAGE(key != nullptr, name);
  const T* value = std::get_if<T>(&key->value);
  BOOST_REQUIRE_MESSAGE(value != nullptr, name << " has alternative " << key->value.index());
  BOOST_TEST((*value == want), name);
}

BOOST_AUTO_TEST_CASE(reads_every_value_type) {
  GgufBytes file;
  file.scalar("u8", test::kU8, std::uint8_t{200})
      .scalar("i8", test::kI8, std::int8_t{-3})
      .scalar("u16", test::kU16, std::uint16_t{65535})
      .scalar("i16", test::kI16, std::int16_t{-300})
      .scalar("u32", test::kU32, std::uint32_t{4000000000u})
      .scalar("i32", test::kI32, std::int32_t{-5})
      .scalar("u64", test::kU64, std::uint64_t{9})
      .scalar("u64.max", test::kU64, std::numeric_limits<std::uint64_t>::max())
      .scalar("i64", test::kI64, std::int64_t{-9})
      .scalar("f32", test::kF32, 0.5f)
      .scalar("f64", test::kF64, -0.25)
      .scalar("bool", test::kBool, std::uint8_t{1})
      .text("text", "a\nb")
      .array<std::uint8_t>("bytes", test::kU8, {0, 255})
      .array<std::int64_t>("longs", test::kI64, {-1, 1})
      .array<float>("floats", test::kF32, {1.5f, -2.0f})
      .array<std::uint8_t>("bools", test::kBool, {1, 0, 1})
      .array<std::string>("texts", test::kString, {"", "b"})
      .array<std::string>("none", test::kString, {});
  const std::string bytes = file.bytes();
  const Result<Contents> contents = parse("m.gguf", as_bytes(bytes));
  BOOST_REQUIRE_MESSAGE(contents, error_of(contents));
  holds<std::int64_t>(*contents, "u8", 200);
  holds<std::int64_t>(*contents, "i8", -3);
  holds<std::int64_t>(*contents, "u16", 65535);
  holds<std::int64_t>(*contents, "i16", -300);
  holds<std::int64_t>(*contents, "u32", 4000000000);
  holds<std::int64_t>(*contents, "i32", -5);
  holds<std::int64_t>(*contents, "u64", 9);
  holds<std::uint64_t>(*contents, "u64.max", std::numeric_limits<std::uint64_t>::max());
  holds<std::int64_t>(*contents, "i64", -9);
  holds<double>(*contents, "f32", 0.5);
  holds<double>(*contents, "f64", -0.25);
  holds<bool>(*contents, "bool", true);
  holds<std::string>(*contents, "text", "a\nb");
  holds<std::vector<std::int64_t>>(*contents, "bytes", {0, 255});
  holds<std::vector<std::int64_t>>(*contents, "longs", {-1, 1});
  holds<std::vector<double>>(*contents, "floats", {1.5, -2.0});
  holds<std::vector<bool>>(*contents, "bools", {true, false, true});
  holds<std::vector<std::string>>(*contents, "texts", {"", "b"});
  holds<std::vector<std::string>>(*contents, "none", {});
  BOOST_TEST(contents->find("absent") == nullptr);
}

BOOST_AUTO_TEST_CASE(places_tensors_in_the_data_section) {
  const std::string bytes = small_file().bytes();
  const Result<Contents> contents = parse("m.gguf", as_bytes(bytes));
  BOOST_REQUIRE_MESSAGE(contents, error_of(contents));
  BOOST_REQUIRE_EQUAL(contents->tensors.size(), 3u);
  const Tensor& quantised = contents->tensors[1];
  BOOST_TEST(quantised.view.name == "q8");
  BOOST_TEST((quantised.view.type == DType::q8_0));
  BOOST_TEST(quantised.view.n_bytes == 68u);
  const Tensor& cube = contents->tensors[2];
  BOOST_TEST(cube.view.n_dims == 3);
  BOOST_TEST((cube.view.ne == std::array<std::int64_t, 4>{2, 3, 4, 1}));
  BOOST_TEST(cube.data_offset - contents->tensors[0].data_offset == 64u + 96u);
  BOOST_TEST(cube.view.data == as_bytes(bytes).data() + cube.data_offset);
  BOOST_TEST(contents->data_bytes == 48u + 68u + 48u);
  BOOST_TEST(bytes.substr(quantised.offset + 8, 2) == "q8");
}

BOOST_AUTO_TEST_CASE(refuses_a_file_cut_at_any_byte) {
  const std::string whole = small_file().bytes();
  const Result<Contents> contents = parse("m.gguf", as_bytes(whole));
  BOOST_REQUIRE(contents);
  const Tensor& last = contents->tensors.back();
  const std::size_t needed = last.data_offset + last.view.n_bytes;
  BOOST_TEST(parse("m.gguf", as_bytes(whole).first(needed)).has_value());
  for (std::size_t size = 1; size < needed; ++size) {
    // A copy of the exact size lets a sanitizer see a read behind the end.
    const std::string cut = whole.substr(0, size);
    const Result<Contents> part = parse("m.gguf", as_bytes(cut));
    BOOST_REQUIRE_MESSAGE(!part, "accepted " << size << " bytes");
    const std::string& message = part.error().message;
    BOOST_TEST((message.find("truncated") != std::string::npos ||
                message.find("beyond the end of the file") != std::string::npos ||
                message.find("left in the file") != std::string::npos),
               size << " bytes: " << message);
  }
}

BOOST_AUTO_TEST_CASE(survives_mutations) {
  const std::string whole = small_file().bytes();
  const std::uint64_t directory_bytes = parse("m.gguf", as_bytes(whole))->directory_bytes;
  constexpr std::uint32_t kSeed = 20240607;
  BOOST_TEST_MESSAGE("seed " << kSeed);
  std::mt19937 random(kSeed);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutant = whole;
    for (std::uint32_t change = random() % 3; change < 3; ++change) {
      const std::size_t at = random() % directory_bytes;
      constexpr unsigned char kEdges[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
      mutant[at] = static_cast<char>(random() % 2 == 0 ? kEdges[random() % 5] : random() % 256);
    }
    const Result<Contents> contents = parse("m.gguf", as_bytes(mutant));
    if (!contents) {
      ++refused;
      BOOST_TEST(is_plain_text(contents.error().message), error_of(contents));
      continue;
    }
    for (const Tensor& tensor : contents->tensors) {
      BOOST_REQUIRE_LE(tensor.view.n_bytes, mutant.size() - tensor.data_offset);
    }
  }
  BOOST_TEST(refused > 10000);
}

BOOST_AUTO_TEST_CASE(refuses_values_that_are_not_of_their_type) {
  refuses(GgufBytes().scalar("flag", test::kBool, std::uint8_t{2}), "key flag at offset 24: bool");
  refuses(GgufBytes().array<std::uint8_t>("flags", test::kBool, {0, 3}), "element 1: bool value 3");
  refuses(GgufBytes().scalar("x", static_cast<test::GgufType>(13), 0), "value type 13");
  refuses(GgufBytes().array<int>("x", static_cast<test::GgufType>(77), {}), "element type 77");
  refuses(GgufBytes().array<int>("x", test::kArray, {1, 2, 3}), "array of arrays");
}

BOOST_AUTO_TEST_CASE(refuses_bad_names) {
  refuses(GgufBytes().text("", "x"), "the name is empty");
  refuses(GgufBytes().text("a\nb", "x"), "the name a\\x0ab holds a control character");
  refuses(GgufBytes().text("\xff", "x"), "not UTF-8");
  refuses(GgufBytes().text("twice", "x").text("twice", "x"), "key twice at offset 50: duplicate");
  refuses(GgufBytes().tensor(std::string(64, 'x'), {1}, 0, 4), "name length 64 exceeds 63");
  refuses(GgufBytes().tensor("t", {1}, 0, 4).tensor("t", {1}, 0, 4), "duplicate tensor");
  BOOST_TEST(parse("m.gguf", as_bytes(GgufBytes().tensor(std::string(63, 'x'), {1}, 0, 4).bytes()))
                 .has_value());
}

BOOST_AUTO_TEST_CASE(refuses_shapes_and_types_without_overflow) {
  constexpr std::uint64_t k2p32 = std::uint64_t{1} << 32;
  refuses(GgufBytes().tensor("t", {}, 0, 4), "0 dimensions");
  refuses(GgufBytes().tensor("t", {1, 1, 1, 1, 1}, 0, 4), "5 dimensions");
  refuses(GgufBytes().tensor("t", {0}, 0, 4), "dimension 0 is 0");
  refuses(GgufBytes().tensor("t", {k2p32, k2p32}, 0, 4), "overflows");
  refuses(GgufBytes().tensor("t", {k2p32 / 4, k2p32}, 0, 4), "overflows");  // bytes, not values
  refuses(GgufBytes().tensor("t", {k2p32, 1, 2}, 0, 4), "beyond the end of the file");
  refuses(GgufBytes().tensor("t", {33}, 8, 68), "not a multiple of the Q8_0 block");
  refuses(GgufBytes().tensor("t", {256}, 15, 292), "type 15 (Q8_K");
  refuses(GgufBytes().tensor("t", {32}, 2, 18), "type 2 (Q4_0)");
  refuses(GgufBytes().tensor("t", {32}, 0xFFFFFFFF, 18), "type 4294967295 is not supported");
}

BOOST_AUTO_TEST_CASE(refuses_data_that_is_misplaced) {
  refuses(GgufBytes().tensor_at("t", {1}, 0, 4, 4), "not a multiple of the alignment 32");
  refuses(GgufBytes().tensor_at("a", {16}, 0, 0, 64).tensor_at("b", {1}, 0, 32, 4),
          "tensor b at offset 57, data at 128: its data overlaps that of tensor a");
  refuses(GgufBytes().tensor_at("t", {1}, 0, std::uint64_t(0) - 32, 0), "beyond the end");
}

BOOST_AUTO_TEST_CASE(checks_the_alignment) {
  const auto aligned = [](auto value, test::GgufType type) {
    GgufBytes file;
    file.scalar("general.alignment", type, value);
    return file;
  };
  BOOST_TEST(parse("m.gguf", as_bytes(aligned(std::uint64_t{64}, test::kU64).bytes())).has_value());
  refuses(aligned(std::uint32_t{0}, test::kU32), "power of two");
  refuses(aligned(std::uint32_t{48}, test::kU32), "power of two");
  refuses(aligned(std::int32_t{-32}, test::kI32), "power of two");
  refuses(aligned(32.0f, test::kF32), "wrong type");
}

BOOST_AUTO_TEST_CASE(does_not_copy_metadata_without_bound) {
  // 1 MiB more than the budget: 8 bytes in memory for each byte of the file.
  const std::vector<std::uint8_t> large((64 << 20) / 8 + (1 << 20));
  refuses(GgufBytes().array("large", test::kU8, large), "the metadata is too large");
  const std::vector<std::string> many((64 << 20) / sizeof(std::string) + 1);
  refuses(GgufBytes().array("many", test::kString, many), "the metadata is too large");
}

BOOST_AUTO_TEST_CASE(shows_hostile_text_on_one_line) {
  BOOST_TEST(printable("plain \xc3\xa4 \xef\xbd\x9c") == "plain \xc3\xa4 \xef\xbd\x9c");
  BOOST_TEST(printable(std::string_view("a\0b\n\x1b[1m\x7f", 9)) == "a\\x00b\\x0a\\x1b[1m\\x7f");
  BOOST_TEST(printable("\xc2\x9b|\xe2\x80\xae|\xff|\xc0\x80") ==
             "\\xc2\\x9b|\\xe2\\x80\\xae|\\xff|\\xc0\\x80");
  BOOST_TEST(printable("abcdef", 4) == "abcd... (6 bytes)");
  BOOST_TEST(printable("abc\xc3\xa4", 4) == "abc... (5 bytes)");
  BOOST_TEST(!is_plain_text("\xed\xa0\x80"));  // a surrogate
  BOOST_TEST(is_plain_text("blk.0.attn_kv.weight"));
}

}  // namespace
}  // namespace ebb::gguf
