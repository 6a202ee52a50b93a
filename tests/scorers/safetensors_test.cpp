#define BOOST_TEST_MODULE safetensors
#define BOOST_TEST_DYN_LINK
#include "modules/safetensors/safetensors.h"

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

#include "modules/mapped_files/text.h"
#include "tests/core/support.h"
#include "tests/scorers/safetensors_bytes.h"

namespace ebb::safetensors {
namespace {

using test::message;
using test::safetensors_bytes;
using test::SafetensorsFile;
using test::TempFolder;

std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// A tensor entry with its own name.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[" +
         std::string(shape) + "],\"data_offsets\":[" + std::string(offsets) + "]}";
}

BOOST_AUTO_TEST_CASE(a_file_gives_back_what_was_written) {
  const TempFolder folder;
  const std::string path =
      folder.write("x.safetensors",
                   safetensors_bytes("{\"__metadata__\":{\"format\":\"pt\",\"\\u00e4\":\"\"}," +
                                         entry("late", "BF16", "2", "16, 20") + "," +
                                         entry("b", "F32", "2,2", "0,16") + "," +
                                         entry("none", "I64", "4611686018427387904,9,0", "20,20") +
                                         "," + entry("one", "U8", "", "20,21") + "}   \n",
                                     std::string("0123456789abcdefABCD!")));
  const Result<File> file = File::open(path);
  BOOST_TEST_REQUIRE(message(file, folder) == "");
  BOOST_TEST(file->label() == path);
  BOOST_TEST(file->metadata().size() == 2);
  BOOST_TEST(file->metadata()[0].second == "pt");
  BOOST_TEST(file->metadata()[1].first == "\xc3\xa4");
  // In the order of the data.
  std::string names;
  for (const Tensor& tensor : file->tensors()) names += tensor.name + " ";
  BOOST_TEST(names == "b late none one ");
  BOOST_TEST(file->find("none")->n_values() == 0);
  BOOST_TEST(file->find("one")->n_values() == 1);
  BOOST_TEST(file->find("on") == nullptr);
  BOOST_TEST(file->find("") == nullptr);
  const Tensor& late = *file->find("late");
  BOOST_TEST(std::memcmp(late.bytes.data(), "ABCD", 4) == 0);
  BOOST_TEST(late.type == "BF16");
  std::ifstream again(path, std::ios::binary);
  again.seekg(static_cast<std::streamoff>(late.offset));
  BOOST_TEST(again.get() == 'A');

  const Result<TensorView> view = file->view("b", std::array<std::int64_t, 2>{2, 2});
  BOOST_TEST_REQUIRE(message(view, folder) == "");
  BOOST_TEST(static_cast<int>(view->type) == static_cast<int>(DType::f32));
  BOOST_TEST(view->n_bytes == 16);
  BOOST_TEST(view->name == "b");
}

BOOST_AUTO_TEST_CASE(a_matrix_is_turned_to_the_order_of_views) {
  const TempFolder folder;
  SafetensorsFile bytes;
  bytes.add("m", "F16", {3, 5}, std::string(30, 'x')).add("i", "I32", {1}, "....");
  const Result<File> file = File::open(folder.write("x", bytes.bytes(3)));
  BOOST_TEST_REQUIRE(message(file, folder) == "");
  const auto view = file->view("m", std::array<std::int64_t, 2>{3, 5});
  BOOST_TEST_REQUIRE(message(view, folder) == "");
  BOOST_TEST(view->ne[0] == 5);
  BOOST_TEST(view->ne[1] == 3);
  BOOST_TEST(view->ne[2] == 1);
  BOOST_TEST(view->n_dims == 2);
  BOOST_TEST(message(file->view("m", std::array<std::int64_t, 2>{5, 3}), folder) ==
             "x: tensor m: shape [3, 5], want [5, 3]");
  BOOST_TEST(message(file->view("m", std::array<std::int64_t, 1>{15}), folder) ==
             "x: tensor m: shape [3, 5], want [15]");
  BOOST_TEST(message(file->view("i", std::array<std::int64_t, 1>{1}), folder) ==
             "x: tensor i: type I32, want F32, F16 or BF16");
  BOOST_TEST(message(file->view("j", std::array<std::int64_t, 1>{1}), folder) ==
             "x: tensor j: not in the file");
}

BOOST_AUTO_TEST_CASE(an_empty_file_of_tensors_is_one) {
  const std::string bytes = safetensors_bytes("{}");
  const Result<Contents> contents = parse("x", as_bytes(bytes));
  BOOST_TEST_REQUIRE(bool(contents));
  BOOST_TEST(contents->tensors.empty());
}

struct Bad {
  std::string header;
  std::string data;
  std::string message;
};

BOOST_AUTO_TEST_CASE(malformed_headers_are_refused_with_their_place) {
  const std::string f32 = "{\"a\":{\"dtype\":\"F32\",";
  const std::string tail = "\"data_offsets\":[0,4]}}";
  const std::string good = entry("a", "F32", "1", "0,4");
  const std::string four = "....";
  const Bad table[] = {
      {"", "", "x: not a safetensors file: the header does not begin with {"},
      {"[]", "", "x: not a safetensors file: the header does not begin with {"},
      {" {}", "", "x: not a safetensors file: the header does not begin with {"},
      {"{", "", "x: the header is not JSON from its byte 2 on"},
      {"{}}", "", "x: the header is not JSON from its byte 3 on"},
      {"{} x", "", "x: the header is not JSON from its byte 4 on"},
      {std::string("{}\0", 3), "", "x: the header holds a NUL byte, at 2"},
      {"{\"\xff\":1}", "", "x: the header is not JSON from its byte 3 on"},
      {"{\"a\":1}", "", "x: tensor a: a number, want an object"},
      {"{\"a\":null}", "", "x: tensor a: null, want an object"},
      {"{\"a\":[[[[[[[[]]]]]]]]}", "", "x: tensor a: a list, want an object"},
      {"{\"\":{}}", "", "x: a tensor's name of 0 bytes, want 1..1024"},
      {"{\"" + std::string(1025, 'n') + "\":{}}", "",
       "x: a tensor's name of 1025 bytes, want 1..1024"},
      {"{\"a\":{}}", "", "x: tensor a: dtype is missing"},
      {"{\"a\\u001b[1m\":{}}", "", "x: tensor a\\x1b[1m: dtype is missing"},
      {f32 + "\"shape\":[1]}}", "", "x: tensor a: data_offsets is missing"},
      {f32 + tail, four, "x: tensor a: shape is missing"},
      {f32 + "\"dtype\":\"F32\"," + tail, four, "x: tensor a: dtype comes twice"},
      {f32 + "\"shape\":[1],\"shape\":[1]," + tail, four, "x: tensor a: shape comes twice"},
      {f32 + "\"shape\":[1],\"data_offsets\":[0,4]," + tail, four,
       "x: tensor a: data_offsets comes twice"},
      {f32 + "\"colour\":1," + tail, four,
       "x: tensor a: unknown field colour, want dtype, shape and data_offsets"},
      {"{\"a\":{\"dtype\":1}}", "", "x: tensor a: dtype is a number, want a text"},
      {"{\"a\":{\"dtype\":{}}}", "", "x: tensor a: dtype is an object, want a text"},
      {"{\"a\":{\"dtype\":\"F31\"}}", "", "x: tensor a: unknown type F31"},
      {"{\"a\":{\"dtype\":\"\"}}", "", "x: tensor a: unknown type "},
      {f32 + "\"shape\":1," + tail, four, "x: tensor a: shape is a number, want a list"},
      {f32 + "\"shape\":[-1]," + tail, four,
       "x: tensor a: a negative number in shape, want numbers"},
      {f32 + "\"shape\":[1.0]," + tail, four,
       "x: tensor a: a number that is not a whole one of 64 bits in shape, want numbers"},
      {f32 + "\"shape\":[1e400]," + tail, four, "x: the header is not JSON from its byte 34 on"},
      {f32 + "\"shape\":[true]," + tail, four, "x: tensor a: a truth value in shape, want numbers"},
      {f32 + "\"shape\":[\"1\"]," + tail, four, "x: tensor a: a text in shape, want numbers"},
      {f32 + "\"shape\":[[1]]," + tail, four, "x: tensor a: a list in shape, want numbers"},
      {f32 + "\"shape\":[{}]," + tail, four, "x: tensor a: an object in shape, want numbers"},
      {f32 + "\"shape\":[18446744073709551615]," + tail, four,
       "x: tensor a: a dimension of 18446744073709551615"},
      {f32 + "\"shape\":[18446744073709551616]," + tail, four,
       "x: tensor a: a number that is not a whole one of 64 bits in shape, want numbers"},
      {f32 + "\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]," + tail, four,
       "x: tensor a: more than 16 dimensions"},
      {"{" + entry("a", "F32", "4294967296,4294967296", "0,0") + "}", "",
       "x: tensor a: [4294967296, 4294967296] values of F32 are no whole number of bytes below "
       "2^61"},
      {"{" + entry("a", "F32", "4611686018427387904", "0,0") + "}", "",
       "x: tensor a: [4611686018427387904] values of F32 are no whole number of bytes below 2^61"},
      {"{" + entry("a", "F4", "3", "0,2") + "}", "..",
       "x: tensor a: [3] values of F4 are no whole number of bytes below 2^61"},
      {"{" + entry("a", "F32", "1", "0") + "}", four,
       "x: tensor a: data_offsets has 1 numbers, want two"},
      {"{" + entry("a", "F32", "1", "0,4,4") + "}", four,
       "x: tensor a: data_offsets has more than two numbers"},
      {"{" + entry("a", "F32", "1", "4,0") + "}", four,
       "x: tensor a: data_offsets [4, 0], want 4 bytes for F32 [1]"},
      {"{" + entry("a", "F32", "2", "0,4") + "}", four,
       "x: tensor a: data_offsets [0, 4], want 8 bytes for F32 [2]"},
      {"{" + entry("a", "F32", "1", "0,5") + "}", ".....",
       "x: tensor a: data_offsets [0, 5], want 4 bytes for F32 [1]"},
      {"{" + good + "}", "...",
       "x: tensor a: its data end at 4, but the file holds 3 bytes of data"},
      {"{" + entry("a", "U8", "1", "18446744073709551614,18446744073709551615") + "}", ".",
       "x: tensor a: its data end at 18446744073709551615, but the file holds 1 bytes of data"},
      {"{" + good + "}", ".....", "x: the tensors end at 4, but the file holds 5 bytes of data"},
      {"{}", ".", "x: the tensors end at 0, but the file holds 1 bytes of data"},
      {"{" + good + "," + entry("b", "F32", "1", "2,6") + "}", "......",
       "x: tensor b: its data begin at 2, where those of another tensor go on to 4"},
      {"{" + good + "," + entry("b", "F32", "1", "0,4") + "}", four,
       "x: tensor b: its data begin at 0, where those of another tensor go on to 4"},
      {"{" + good + "," + entry("b", "F32", "0", "2,2") + "}", four,
       "x: tensor b: its data begin at 2, where those of another tensor go on to 4"},
      {"{" + good + "," + entry("b", "F32", "1", "5,9") + "}", ".........",
       "x: tensor b: its data begin at 5; bytes 4..4 belong to no tensor"},
      {"{" + good + "," + entry("a", "F32", "1", "4,8") + "}", "........",
       "x: tensor a: the name comes twice"},
      {"{\"__metadata__\":1}", "", "x: __metadata__ is a number, want an object"},
      {"{\"__metadata__\":{\"k\":1}}", "", "x: metadata k is a number, want a text"},
      {"{\"__metadata__\":{\"k\":{}}}", "", "x: metadata k is an object, want a text"},
      {"{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}", "", "x: metadata k comes twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "", "x: __metadata__ comes twice"},
  };
  for (const Bad& bad : table) {
    const std::string bytes = safetensors_bytes(bad.header, bad.data);
    const Result<Contents> contents = parse("x", as_bytes(bytes));
    BOOST_TEST_CONTEXT(bad.header) {
      BOOST_TEST((contents ? "accepted" : contents.error().message) == bad.message);
    }
  }
}

BOOST_AUTO_TEST_CASE(lengths_that_do_not_fit_are_refused) {
  const auto text = [](std::uint64_t length, std::string_view rest) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    bytes += rest;
    const Result<Contents> contents = parse("x", as_bytes(bytes));
    return contents ? "accepted" : contents.error().message;
  };
  BOOST_TEST(text(3, "{}") == "x: truncated: a header of 3 bytes, but 2 follow its length");
  BOOST_TEST(text(100'000'000, "{}") ==
             "x: truncated: a header of 100000000 bytes, but 2 follow its length");
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, ~std::uint64_t{0}}) {
    BOOST_TEST(text(length, "{}") == "x: not a safetensors file: a header of " +
                                         std::to_string(length) + " bytes, want at most 100000000");
  }
  for (std::size_t n = 0; n < 8; ++n) {
    const std::string few(n, '{');
    const Result<Contents> contents = parse("x", as_bytes(few));
    BOOST_TEST_REQUIRE(!contents);
    BOOST_TEST(contents.error().message ==
               "x: not a safetensors file: " + std::to_string(n) + " bytes, want 8 or more");
  }
}

BOOST_AUTO_TEST_CASE(deep_nesting_and_many_entries_end_early) {
  for (const std::string& inner : {std::string(50'000'000, '['), [] {
                                     std::string objects;
                                     for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
                                     return objects;
                                   }()}) {
    const std::string bytes = safetensors_bytes("{\"a\":{\"shape\":" + inner);
    const Result<Contents> contents = parse("x", as_bytes(bytes));
    BOOST_TEST_REQUIRE(!contents);
    BOOST_TEST(contents.error().message.size() < 200);
  }
  std::string many = "{\"__metadata__\":{";
  for (int i = 0; i < 70'000; ++i) many += "\"" + std::to_string(i) + "\":\"\",";
  const std::string bytes = safetensors_bytes(many);
  const Result<Contents> contents = parse("x", as_bytes(bytes));
  BOOST_TEST_REQUIRE(!contents);
  BOOST_TEST(contents.error().message == "x: more than 65536 metadata entries");
}

// Whatever is done to a good file, the answer is a file whose tensors lie within it, or a message
// fit to print.
BOOST_AUTO_TEST_CASE(damaged_files_are_read_or_refused) {
  SafetensorsFile file;
  file.add("retrievers.l0.wq_a.weight", "F32", {4, 6}, std::string(96, 'a'))
      .add("retrievers.l0.q_norm_weight", "BF16", {4}, std::string(8, 'b'))
      .add("retrievers.l0.wq_b.weight", "F16", {8, 4}, std::string(64, 'c'));
  const std::string good = file.bytes(5);
  BOOST_TEST_REQUIRE(bool(parse("x", as_bytes(good))));
  const auto judge = [](const std::string& bytes) {
    const Result<Contents> contents = parse("x", as_bytes(bytes));
    if (!contents) {
      BOOST_TEST(contents.error().message.starts_with("x: "));
      BOOST_TEST(files::is_plain_text(contents.error().message));
      return;
    }
    for (const Tensor& tensor : contents->tensors) {
      const std::byte* const begin = as_bytes(bytes).data();
      BOOST_TEST((tensor.bytes.data() >= begin &&
                  tensor.bytes.data() + tensor.bytes.size() <= begin + bytes.size()));
    }
  };
  for (std::size_t n = 0; n <= good.size(); ++n) judge(good.substr(0, n));
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    const int n_changes = 1 + static_cast<int>(random() % 3);
    for (int c = 0; c < n_changes; ++c) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "{}[],:\"0123456789"[random() % 17];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 1 + random() % 16));
      }
      if (bytes.empty()) bytes = "x";
    }
    judge(bytes);
  }
}

BOOST_AUTO_TEST_CASE(only_regular_files_are_opened) {
  const TempFolder folder;
  BOOST_TEST(message(File::open(folder / "absent"), folder) ==
             "absent: cannot open: No such file or directory");
  BOOST_TEST(message(File::open(folder.write("empty", "")), folder) ==
             "empty: the file is empty (0 bytes)");
  BOOST_TEST(message(File::open("/tmp"), folder) == "/tmp: not a regular file but a directory");
  BOOST_TEST(message(File::open("/dev/zero"), folder) ==
             "/dev/zero: not a regular file but a device");
}

}  // namespace
}  // namespace ebb::safetensors
