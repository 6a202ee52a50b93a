#include "tests/tokenizer/small_model.h"

#include <array>

namespace ebb::test {
namespace {

constexpr std::array<const char*, 7> kSmallMerges{"h e", "t he", "Ġ the", "i n",
                                                  "e r", "a a",  "aa aa"};

std::string symbol_of(int byte) {
  // The bytes that do not stand for themselves, in increasing order, are U+0100 and up.
  int spare = 0;
  for (int b = 0; b < byte; ++b) spare += b < 33 || (b > 126 && b < 161) || b == 173;
  const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
  const int code_point = itself ? byte : 256 + spare;
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

}  // namespace

FakeLoader small_model() {
  std::vector<std::string> tokens{"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
                                  "<｜▁pad▁｜>"};
  std::vector<std::int64_t> types(3, 3);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(symbol_of(byte));
  std::vector<std::string> merges(kSmallMerges.begin(), kSmallMerges.end());
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  types.resize(tokens.size(), 1);
  for (const char* markup : {"<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "｜DSML｜"}) {
    tokens.emplace_back(markup);
    types.push_back(4);
  }
  tokens.emplace_back("[PAD]");
  types.push_back(5);

  FakeLoader loader;
  loader.values["general.architecture"] = std::string("deepseek4");
  loader.values["deepseek4.vocab_size"] = static_cast<std::int64_t>(tokens.size());
  loader.values["tokenizer.ggml.model"] = std::string("gpt2");
  loader.values["tokenizer.ggml.pre"] = std::string("joyai-llm");
  loader.values["tokenizer.ggml.tokens"] = std::move(tokens);
  loader.values["tokenizer.ggml.token_type"] = std::move(types);
  loader.values["tokenizer.ggml.merges"] = std::move(merges);
  loader.values["tokenizer.ggml.bos_token_id"] = std::int64_t{0};
  loader.values["tokenizer.ggml.eos_token_id"] = std::int64_t{1};
  loader.values["tokenizer.ggml.padding_token_id"] = std::int64_t{2};
  return loader;
}

}  // namespace ebb::test
