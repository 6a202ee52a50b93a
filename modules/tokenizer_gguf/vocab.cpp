// One check after the other, each on what the ones before it have established: kind of tokenizer,
// tokens, their types, ids named by keys, markup, bytes, merges.
//
// Special tokens are the control tokens (type 3), the user-defined ones (type 4) and the markup, of
// whatever type. GGUF converters differ in the type they give the markup, so it is known by its
// spelling. Control tokens print as nothing, except markup other than BOS and EOS: a reader has to
// see where the thinking ends.

#include "modules/tokenizer_gguf/vocab.h"

#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "modules/tokenizer_gguf/byte_alphabet.h"
#include "modules/tokenizer_gguf/pretokenizer.h"
#include "modules/tokenizer_gguf/utf8.h"

namespace ebb::tokenizer_gguf {
namespace {

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kPreKey = "tokenizer.ggml.pre";
constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
constexpr const char* kTypesKey = "tokenizer.ggml.token_type";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";

/// Values of tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
/// 6 byte.
constexpr std::int64_t kControl = 3;
constexpr std::int64_t kUserDefined = 4;
constexpr std::int64_t kLastType = 6;

/// `text` in quotes, for one line of a terminal: control characters and bytes that are not UTF-8 as
/// \xNN, clipped to 48 bytes.
std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 48;
  constexpr const char* kHex = "0123456789abcdef";
  std::string out = "\"";
  std::size_t position = 0;
  while (position < text.size() && position < kLongest) {
    const CodePoint here = code_point_at(text, position);
    const bool control = here.value < 0x20 || (here.value >= 0x7F && here.value < 0xA0) ||
                         here.value == 0x2028 || here.value == 0x2029;
    for (; position < here.end; ++position) {
      const auto byte = static_cast<unsigned char>(text[position]);
      if (control) {
        out += "\\x";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
      } else {
        out += text[position];
      }
    }
  }
  return out + (position < text.size() ? "...\"" : "\"");
}

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint here = code_point_at(text, position);
    if (here.value < 0) return false;
    position = here.end;
  }
  return true;
}

}  // namespace

class VocabularyReader {
 public:
  explicit VocabularyReader(const Loader& loader) : loader_(loader) {}

  Result<Vocabulary> read() && {
    EBB_TRY(check_kind());
    EBB_TRY(read_tokens());
    EBB_TRY(read_types());
    EBB_TRY(read_markup());
    EBB_TRY(check_named_ids());
    EBB_TRY(read_byte_tokens());
    EBB_TRY(read_merges());
    store_strings();
    return std::move(vocabulary_);
  }

 private:
  template <class T>
  Result<const T*> required(const char* key, const char* type) const {
    const MetaValue* value = loader_.meta(key);
    if (value == nullptr) return error(Errc::not_found, key, "missing; the tokenizer needs it");
    const T* typed = std::get_if<T>(value);
    if (typed == nullptr) {
      return error(Errc::invalid_argument, key, std::string("wrong type, want ") + type);
    }
    return typed;
  }

  Error error(Errc code, const char* key, const std::string& what) const {
    return Error{code, loader_.where_key(key) + ": " + what};
  }
  Error bad(const char* key, const std::string& what) const {
    return error(Errc::invalid_argument, key, what);
  }

  Status check_kind() const {
    EBB_ASSIGN(const std::string* model, required<std::string>(kModelKey, "a string"));
    if (*model != "gpt2") {
      return error(
          Errc::incompatible, kModelKey,
          "tokenizer " + quoted(*model) + " is not supported, only \"gpt2\" (byte-level BPE) is");
    }
    EBB_ASSIGN(const std::string* pre, required<std::string>(kPreKey, "a string"));
    if (!is_known_pretokenizer(*pre)) {
      return error(
          Errc::incompatible, kPreKey,
          "pre-tokenizer " + quoted(*pre) + " is not supported, want one of " + kPretokenizerNames);
    }
    return ok_status();
  }

  Status read_tokens() {
    EBB_ASSIGN(tokens_, required<std::vector<std::string>>(kTokensKey, "an array of strings"));
    const std::size_t n = tokens_->size();
    if (n == 0 || n > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      return bad(kTokensKey, std::to_string(n) + " tokens, want 1.." +
                                 std::to_string(std::numeric_limits<std::int32_t>::max()));
    }
    EBB_TRY(check_count());
    ids_.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::string& token = (*tokens_)[i];
      if (token.empty()) return bad(kTokensKey, "token " + std::to_string(i) + " is empty");
      if (!is_utf8(token)) {
        return bad(kTokensKey, token_name(i) + " is not valid UTF-8");
      }
      const auto [first, is_new] = ids_.emplace(token, static_cast<std::int32_t>(i));
      if (!is_new) {
        return bad(kTokensKey, token_name(i) + " is already token " +
                                   std::to_string(first->second) + ": a duplicate");
      }
    }
    return ok_status();
  }

  /// The number of tokens against what else the model says about it, where it does.
  Status check_count() const {
    const auto n = static_cast<std::int64_t>(tokens_->size());
    const MetaValue* architecture = loader_.meta("general.architecture");
    if (architecture != nullptr && std::holds_alternative<std::string>(*architecture)) {
      const std::string key = std::get<std::string>(*architecture) + ".vocab_size";
      const MetaValue* value = loader_.meta(key);
      const std::int64_t* size = value == nullptr ? nullptr : std::get_if<std::int64_t>(value);
      if (size != nullptr && *size != n) {
        return bad(kTokensKey, std::to_string(n) + " tokens, but " + quoted(key) + " is " +
                                   std::to_string(*size));
      }
    }
    const TensorView* embedding = loader_.tensor("token_embd.weight");
    if (embedding != nullptr && embedding->ne[1] != n) {
      return bad(kTokensKey, std::to_string(n) + " tokens, but token_embd.weight has " +
                                 std::to_string(embedding->ne[1]) + " rows");
    }
    return ok_status();
  }

  Status read_types() {
    EBB_ASSIGN(types_, required<std::vector<std::int64_t>>(kTypesKey, "an array of integers"));
    const std::size_t n = tokens_->size();
    if (types_->size() != n) {
      return bad(kTypesKey, std::to_string(types_->size()) +
                                " types, expected one for each of the " + std::to_string(n) +
                                " tokens");
    }
    is_special_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t type = (*types_)[i];
      if (type < 1 || type > kLastType) {
        return bad(kTypesKey, token_name(i) + " has type " + std::to_string(type) + ", want 1.." +
                                  std::to_string(kLastType));
      }
      is_special_[i] = type == kControl || type == kUserDefined;
    }
    return ok_status();
  }

  Status read_markup() {
    for (std::size_t i = 0; i < kMarkupCount; ++i) {
      const auto found = ids_.find(kMarkupText[i]);
      if (found == ids_.end()) {
        return error(Errc::not_found, kTokensKey,
                     "the vocabulary has no token " + quoted(kMarkupText[i]) +
                         ", which the chat form needs");
      }
      vocabulary_.markup_[i] = found->second;
      is_special_[static_cast<std::size_t>(found->second)] = true;
    }
    return ok_status();
  }

  /// Keys that name an id are optional, but they have to be right.
  Status check_named_ids() const {
    EBB_TRY(check_named_id("tokenizer.ggml.bos_token_id", Markup::bos));
    EBB_TRY(check_named_id("tokenizer.ggml.eos_token_id", Markup::eos));
    return check_named_id("tokenizer.ggml.padding_token_id", std::nullopt);
  }

  Status check_named_id(const char* key, std::optional<Markup> expected) const {
    const MetaValue* value = loader_.meta(key);
    if (value == nullptr) return ok_status();
    const std::int64_t* id = std::get_if<std::int64_t>(value);
    if (id == nullptr) return bad(key, "wrong type or too large, want a token id");
    const auto n = static_cast<std::int64_t>(tokens_->size());
    if (*id < 0 || *id >= n) {
      return bad(key, std::to_string(*id) + " is out of range, want a token id in 0.." +
                          std::to_string(n - 1));
    }
    if (expected && *id != vocabulary_.id(*expected)) {
      return bad(key, std::to_string(*id) + " names token " +
                          quoted((*tokens_)[static_cast<std::size_t>(*id)]) + ", want " +
                          std::to_string(vocabulary_.id(*expected)) + ", " +
                          quoted(text_of(*expected)));
    }
    return ok_status();
  }

  Status read_byte_tokens() {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::string symbol = alphabet_.symbol(static_cast<std::uint8_t>(byte));
      const auto found = ids_.find(symbol);
      if (found == ids_.end()) {
        return error(Errc::not_found, kTokensKey,
                     "the vocabulary has no token " + quoted(symbol) + " for byte " +
                         std::to_string(byte) + "; all 256 bytes need one");
      }
      if (is_special_[static_cast<std::size_t>(found->second)]) {
        return bad(kTypesKey, token_name(static_cast<std::size_t>(found->second)) +
                                  " stands for byte " + std::to_string(byte) +
                                  " and cannot be a control or user-defined token");
      }
      vocabulary_.byte_tokens_[byte] = found->second;
    }
    return ok_status();
  }

  Status read_merges() {
    EBB_ASSIGN(const auto* lines,
               required<std::vector<std::string>>(kMergesKey, "an array of strings"));
    if (lines->size() > std::numeric_limits<std::uint32_t>::max()) {
      return bad(kMergesKey, std::to_string(lines->size()) + " merges are too many");
    }
    vocabulary_.merges_.reserve(lines->size());
    std::string joined;
    for (std::size_t i = 0; i < lines->size(); ++i) {
      const std::string_view line = (*lines)[i];
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
          line.find(' ', space + 1) != std::string_view::npos) {
        return bad_merge(i, line, "want two tokens with one space between them");
      }
      const std::string_view left = line.substr(0, space);
      const std::string_view right = line.substr(space + 1);
      joined.assign(left).append(right);
      const std::int32_t left_id = id_of(left);
      const std::int32_t right_id = id_of(right);
      const std::int32_t joined_id = id_of(joined);
      if (left_id < 0) return bad_merge(i, line, "no token is " + quoted(left));
      if (right_id < 0) return bad_merge(i, line, "no token is " + quoted(right));
      if (joined_id < 0) return bad_merge(i, line, "no token is " + quoted(joined));
      if (is_special_[static_cast<std::size_t>(joined_id)]) {
        return bad_merge(i, line, "it makes a control or user-defined token out of plain text");
      }
      vocabulary_.merges_.push_back({left_id, right_id, joined_id});
    }
    return ok_status();
  }

  void store_strings() {
    std::vector<SpecialStrings::String> specials;
    vocabulary_.ends_.reserve(tokens_->size());
    for (std::size_t i = 0; i < tokens_->size(); ++i) {
      const std::string& token = (*tokens_)[i];
      const auto id = static_cast<std::int32_t>(i);
      if (is_special_[i]) {
        specials.push_back({token, id});
        if (!is_hidden(id)) vocabulary_.bytes_ += token;
      } else {
        // A normal token that the alphabet cannot spell is plain text already (padding, for one).
        vocabulary_.bytes_ += alphabet_.bytes_of(token).value_or(token);
      }
      vocabulary_.ends_.push_back(vocabulary_.bytes_.size());
    }
    vocabulary_.specials_ = SpecialStrings(std::move(specials));
  }

  bool is_hidden(std::int32_t id) const noexcept {
    if (id == vocabulary_.id(Markup::bos) || id == vocabulary_.id(Markup::eos)) return true;
    for (const std::int32_t markup : vocabulary_.markup_) {
      if (id == markup) return false;
    }
    return (*types_)[static_cast<std::size_t>(id)] == kControl;
  }

  std::int32_t id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  std::string token_name(std::size_t i) const {
    return "token " + std::to_string(i) + ", " + quoted((*tokens_)[i]) + ",";
  }
  Error bad_merge(std::size_t i, std::string_view line, const std::string& why) const {
    return bad(kMergesKey, "merge " + std::to_string(i) + ", " + quoted(line) + ": " + why);
  }

  const Loader& loader_;
  const ByteAlphabet alphabet_;
  const std::vector<std::string>* tokens_ = nullptr;
  const std::vector<std::int64_t>* types_ = nullptr;
  std::unordered_map<std::string_view, std::int32_t> ids_;  ///< its keys are the loader's strings
  std::vector<bool> is_special_;
  Vocabulary vocabulary_;
};

Result<Vocabulary> Vocabulary::read(const Loader& loader) {
  return VocabularyReader(loader).read();
}

}  // namespace ebb::tokenizer_gguf
