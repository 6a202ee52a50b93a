#define BOOST_TEST_MODULE gguf_loader
#define BOOST_TEST_DYN_LINK
#include "modules/loader_gguf/gguf_loader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "modules/loader_gguf/split.h"
#include "tests/loader/gguf_bytes.h"

namespace ebb::gguf {
namespace {

using test::error_of;
using test::GgufBytes;
namespace fs = std::filesystem;

/// A folder of its own for each test.
struct Folder {
  fs::path path;

  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ebb-gguf-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

using Loaded = Result<std::unique_ptr<GgufLoader>>;

void refuses(const Loaded& loader, Errc code, std::string_view text) {
  BOOST_REQUIRE_MESSAGE(!loader, "accepted, want an error with: " << text);
  const std::string& message = loader.error().message;
  BOOST_TEST(message.find(text) != std::string::npos, message << "\n  lacks: " << text);
  BOOST_TEST((loader.error().code == code), message);
}

GgufBytes part(int number, int parts, int tensors) {
  GgufBytes file;
  if (number == 0) file.text("general.name", "in two parts");
  file.scalar("split.no", test::kU16, static_cast<std::uint16_t>(number))
      .scalar("split.count", test::kU16, static_cast<std::uint16_t>(parts))
      .scalar("split.tensors.count", test::kI32, std::int32_t{tensors});
  return file;
}

BOOST_FIXTURE_TEST_CASE(finds_keys_and_tensors_by_name, Folder) {
  std::string bytes = GgufBytes()
                          .text("general.name", "x")
                          .scalar("n", test::kU32, std::uint32_t{3})
                          .tensor("a", {2}, 0, 8)
                          .tensor("b", {3}, 0, 12)
                          .bytes();
  bytes[bytes.size() - 32] = 42;  // first byte of b
  const Loaded loader = GgufLoader::open(write("m.gguf", bytes), false);
  BOOST_REQUIRE_MESSAGE(loader, error_of(loader));
  const Loader& model = **loader;
  BOOST_REQUIRE(model.meta("n") != nullptr);
  BOOST_TEST(std::get<std::int64_t>(*model.meta("n")) == 3);
  BOOST_TEST(model.meta("absent") == nullptr);
  BOOST_REQUIRE_EQUAL(model.keys().size(), 2u);
  BOOST_TEST(model.keys()[0] == "general.name");
  BOOST_TEST(model.tensor("absent") == nullptr);
  BOOST_REQUIRE(model.tensor("b") != nullptr);
  BOOST_TEST(std::to_integer<int>(model.tensor("b")->data[0]) == 42);
  BOOST_TEST(model.tensors().size() == 2u);
  BOOST_TEST(model.data_bytes() == 20u);
  BOOST_TEST(model.source() == file("m.gguf"));
  BOOST_TEST(model.where_key("n") == file("m.gguf") + ": key n at offset 57");
  BOOST_TEST(model.where_key("no\nne") == file("m.gguf") + ": key no\\x0ane");
  BOOST_TEST(model.where_tensor("b") == file("m.gguf") + ": tensor b at offset 107, data at 192");
  BOOST_TEST(model.where_tensor("c") == file("m.gguf") + ": tensor c");
}

BOOST_FIXTURE_TEST_CASE(digest_covers_metadata_a_sample_and_with_verify_all_data, Folder) {
  const auto model = [](const char* value) {
    return GgufBytes().text("k", value).tensor("t", {64}, 0, 256).bytes();
  };
  std::string bytes = model("1");
  const std::string path = write("m.gguf", bytes);
  const auto digest = [&](bool verify) {
    const Loaded loader = GgufLoader::open(path, verify);
    BOOST_REQUIRE_MESSAGE(loader, error_of(loader));
    return std::string((*loader)->digest());
  };
  const std::string sampled = digest(false);
  const std::string all = digest(true);
  BOOST_TEST(sampled.size() == 32u);
  BOOST_TEST(sampled != all);
  BOOST_TEST(digest(false) == sampled);

  // The tensor is 256 bytes long; samples are its first, middle and last 64.
  const auto with_change_at = [&](std::size_t place) {
    std::string other = bytes;
    other[other.size() - 256 + place] ^= 1;
    write("m.gguf", other);
  };
  for (const std::size_t place : {0, 63, 96, 159, 192, 255}) {
    with_change_at(place);
    BOOST_TEST(digest(false) != sampled);
    BOOST_TEST(digest(true) != all);
  }
  for (const std::size_t place : {64, 95, 160, 191}) {
    with_change_at(place);
    BOOST_TEST(digest(false) == sampled);
    BOOST_TEST(digest(true) != all);
  }

  write("m.gguf", model("2"));
  BOOST_TEST(digest(false) != sampled);
}

BOOST_FIXTURE_TEST_CASE(opens_only_regular_files_and_never_blocks, Folder) {
  refuses(GgufLoader::open(file("absent.gguf"), false), Errc::not_found,
          "absent.gguf: cannot open: No such file");
  refuses(GgufLoader::open(path.string(), false), Errc::invalid_argument, "but a directory");
  BOOST_REQUIRE(::mkfifo(file("fifo.gguf").c_str(), 0600) == 0);
  refuses(GgufLoader::open(file("fifo.gguf"), false), Errc::invalid_argument, "but a FIFO");
  refuses(GgufLoader::open("/dev/null", false), Errc::invalid_argument, "but a device");
  refuses(GgufLoader::open(write("empty.gguf", ""), false), Errc::invalid_argument, "is empty");
  refuses(GgufLoader::open(write("li\nne.gguf", "text"), false), Errc::invalid_argument,
          "li\\x0ane.gguf: not a GGUF file");
  refuses(GgufLoader::open(std::string("a\0b", 3), false), Errc::invalid_argument, "NUL");
  fs::create_symlink("loop.gguf", path / "loop.gguf");
  refuses(GgufLoader::open(file("loop.gguf"), false), Errc::invalid_argument, "cannot open");
}

BOOST_FIXTURE_TEST_CASE(joins_the_parts_of_a_split_model, Folder) {
  const std::string first =
      write("m-00001-of-00002.gguf", part(0, 2, 3).tensor("a", {2}, 0, 8).bytes());
  const std::string second =
      write("m-00002-of-00002.gguf",
            part(1, 2, 3).tensor("b", {2}, 0, 8).tensor("c", {3}, 0, 12).bytes());
  const Loaded loader = GgufLoader::open(first, true);
  BOOST_REQUIRE_MESSAGE(loader, error_of(loader));
  const Loader& model = **loader;
  BOOST_TEST(model.tensors().size() == 3u);
  BOOST_TEST(model.data_bytes() == 28u);
  BOOST_TEST(model.meta("general.name") != nullptr);
  BOOST_TEST(model.where_tensor("a").starts_with(first));
  BOOST_TEST(model.where_tensor("c").starts_with(second));
  BOOST_TEST(model.tensor("c")->data - model.tensor("b")->data == 32);

  refuses(GgufLoader::open(second, false), Errc::invalid_argument, "name the first part");
}

BOOST_FIXTURE_TEST_CASE(refuses_parts_that_do_not_belong_together, Folder) {
  const std::string one = "m-00001-of-00002.gguf";
  const std::string two = "m-00002-of-00002.gguf";
  const auto a = [](GgufBytes file) { return file.tensor("a", {2}, 0, 8).bytes(); };
  const auto b = [](GgufBytes file) { return file.tensor("b", {2}, 0, 8).bytes(); };
  const auto with = [&](const std::string& first, const std::string& second) {
    write(one, first);
    write(two, second);
    return GgufLoader::open(file(one), false);
  };
  BOOST_REQUIRE(with(a(part(0, 2, 2)), b(part(1, 2, 2))).has_value());
  refuses(with(a(part(0, 3, 2)), b(part(1, 3, 2))), Errc::invalid_argument, "file name says 2");
  refuses(with(a(part(0, 2, 2)), b(part(0, 2, 2))), Errc::invalid_argument, "file name says 2");
  refuses(with(a(part(0, 2, 2)), b(part(1, 3, 2))), Errc::invalid_argument, "part 1 says 2");
  refuses(with(a(part(0, 2, 2)), b(part(1, 2, 5))), Errc::invalid_argument, "part 1 says 2");
  refuses(with(a(part(0, 2, 7)), b(part(1, 2, 7))), Errc::invalid_argument,
          "should have 7 tensors");
  refuses(with(a(part(0, 2, 2)), a(part(1, 2, 2))), Errc::invalid_argument, "duplicate tensor");
  refuses(with(a(part(0, 2, 2)), b(GgufBytes())), Errc::invalid_argument, "split.no is missing");
  refuses(with(a(part(2, 2, 2)), b(part(1, 2, 2))), Errc::invalid_argument, "out of range 0..1");
  refuses(with(a(part(0, 0, 2)), b(part(1, 2, 2))), Errc::invalid_argument, "split.count");
  refuses(with(a(part(0, 2, 2)), b(part(1, 2, 2).text("general.name", "other"))),
          Errc::invalid_argument, "differs from that in part 1");
  BOOST_TEST(
      with(a(part(0, 2, 2)), b(part(1, 2, 2).text("general.name", "in two parts"))).has_value());
  fs::remove(file(two));
  refuses(GgufLoader::open(file(one), false), Errc::not_found,
          two + ": cannot open: No such file or directory (part 2 of the split model");
  refuses(GgufLoader::open(write("renamed.gguf", a(part(0, 2, 2))), false), Errc::invalid_argument,
          "does not end in -00001-of-00002.gguf");
  BOOST_TEST(GgufLoader::open(write("single.gguf", a(part(0, 1, 1))), false).has_value());
}

BOOST_AUTO_TEST_CASE(parses_names_of_parts) {
  const auto name = parse_part_name("dir/m-00002-of-00012.gguf");
  BOOST_REQUIRE(name.has_value());
  BOOST_TEST(name->stem == "dir/m");
  BOOST_TEST(name->part == 2);
  BOOST_TEST(name->parts == 12);
  BOOST_TEST(name->path_of(12) == "dir/m-00012-of-00012.gguf");
  for (const char* other :
       {"m.gguf", "-00001-of-00002.gguf", "m-0001-of-00002.gguf", "m-0000x-of-00002.gguf",
        "m-00001-of-00002.bin", "m_00001-of-00002.gguf"}) {
    BOOST_TEST(!parse_part_name(other).has_value(), other);
  }
}

}  // namespace
}  // namespace ebb::gguf
