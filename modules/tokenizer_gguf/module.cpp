// Text goes to ids in three steps: special strings are cut out if the caller allows it, the text
// between them is cut into pieces, and in each piece byte pairs merge by rank. Nothing is kept
// between calls, so any number of threads may use one object.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/api/host.h"
#include "core/api/loader.h"
#include "core/api/tokenizer.h"
#include "modules/tokenizer_gguf/bpe.h"
#include "modules/tokenizer_gguf/chat.h"
#include "modules/tokenizer_gguf/pretokenizer.h"
#include "modules/tokenizer_gguf/special_strings.h"
#include "modules/tokenizer_gguf/vocab.h"

namespace ebb::tokenizer_gguf {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 31;

/// Calls `body`, whose memory use follows its input, and turns what it throws into an Error.
template <class Body>
auto guarded(Body body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory, "the tokenizer ran out of memory");
  } catch (const std::exception& thrown) {
    return make_error(Errc::internal, "the tokenizer failed: %s", thrown.what());
  }
}

class GgufTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<GgufTokenizer>> create(Host& host, Options& options) {
    EBB_TRY(options.finish());
    const Loader* loader = host.loader();
    if (loader == nullptr) {
      return make_error(Errc::invalid_argument,
                        "tokenizer_gguf needs a [loader], and there is none");
    }
    EBB_ASSIGN(Vocabulary vocabulary, Vocabulary::read(*loader));
    return std::make_unique<GgufTokenizer>(std::move(vocabulary));
  }

  explicit GgufTokenizer(Vocabulary vocabulary)
      : vocabulary_(std::move(vocabulary)), bpe_(vocabulary_) {}

  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           bool specials) const noexcept override {
    return guarded([&] { return encode_text(text, specials); });
  }

  Result<std::string> decode(std::span<const std::int32_t> ids) const noexcept override {
    return guarded([&] { return decode_ids(ids); });
  }

  Result<std::vector<std::int32_t>> encode_chat(
      std::span<const ChatMessage> messages, const ChatOptions& options) const noexcept override {
    return guarded([&] { return encode_messages(messages, options); });
  }

  Result<std::string> render_chat(std::span<const ChatMessage> messages,
                                  const ChatOptions& options) const noexcept override {
    return guarded([&] { return render_messages(messages, options); });
  }

  std::int32_t vocab_size() const noexcept override { return vocabulary_.size(); }
  std::int32_t bos() const noexcept override { return vocabulary_.id(Markup::bos); }
  std::int32_t eos() const noexcept override { return vocabulary_.id(Markup::eos); }
  std::int32_t think_open() const noexcept override { return vocabulary_.id(Markup::think_open); }
  std::int32_t think_close() const noexcept override { return vocabulary_.id(Markup::think_close); }

 private:
  using Ids = std::vector<std::int32_t>;

  Result<Ids> encode_text(std::string_view text, bool specials) const {
    EBB_TRY(check_size(text));
    Ids ids;
    Bpe::Scratch scratch;
    std::size_t done = 0;
    if (specials) {
      for (const SpecialStrings::Hit& hit : vocabulary_.specials().find(text)) {
        append_plain(text.substr(done, hit.begin - done), scratch, ids);
        ids.push_back(hit.id);
        done = hit.end;
      }
    }
    append_plain(text.substr(done), scratch, ids);
    return ids;
  }

  Result<std::string> decode_ids(std::span<const std::int32_t> ids) const {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocabulary_.size()) {
        return make_error(Errc::invalid_argument, "token id %d: want 0..%d", id,
                          vocabulary_.size() - 1);
      }
      text += vocabulary_.bytes(id);
    }
    return text;
  }

  Result<Ids> encode_messages(std::span<const ChatMessage> messages,
                              const ChatOptions& options) const {
    EBB_ASSIGN(const std::vector<ChatPart> parts, chat_parts(messages, options));
    Ids ids;
    Bpe::Scratch scratch;
    for (const ChatPart& part : parts) {
      EBB_TRY(check_size(part.text));
      append_plain(part.text, scratch, ids);
      if (part.has_markup) ids.push_back(vocabulary_.id(part.markup));
    }
    return ids;
  }

  Result<std::string> render_messages(std::span<const ChatMessage> messages,
                                      const ChatOptions& options) const {
    EBB_ASSIGN(const std::vector<ChatPart> parts, chat_parts(messages, options));
    std::string text;
    for (const ChatPart& part : parts) {
      text += part.text;
      if (part.has_markup) text += text_of(part.markup);
    }
    return text;
  }

  static Status check_size(std::string_view text) {
    if (text.size() <= kMaxTextBytes) return ok_status();
    return make_error(Errc::invalid_argument, "text of %zu bytes: want at most %zu", text.size(),
                      kMaxTextBytes);
  }

  void append_plain(std::string_view text, Bpe::Scratch& scratch, Ids& ids) const {
    PieceCutter cutter(text);
    for (auto piece = cutter.next(); !piece.empty(); piece = cutter.next()) {
      bpe_.merge_piece(piece, scratch, ids);
    }
  }

  Vocabulary vocabulary_;
  Bpe bpe_;
};

}  // namespace
}  // namespace ebb::tokenizer_gguf

EBB_MODULE(ebb::Tokenizer, ebb::tokenizer_gguf::GgufTokenizer, "tokenizer_gguf", "0.1.0");
