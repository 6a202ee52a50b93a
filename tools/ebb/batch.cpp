// A batch may be gigabytes of prompts, so reading it keeps no parsed request: every line is parsed
// once to check it, before the model is loaded, and again when its turn comes.

#include "tools/ebb/batch.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>

#include "core/text.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/lines.h"

namespace ebb::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::size_t kMaxStops = 16;

// Keys of OpenAI bodies that do not change the answer.
constexpr std::array kIgnored{"model", "user",           "metadata",
                              "store", "stream_options", "service_tier"};
// Keys that would change it, with the one value that asks for nothing special.
struct OnlyValue {
  const char* key;
  const char* value;
};
constexpr std::array kOnlyValue{OnlyValue{"n", "1"},
                                OnlyValue{"best_of", "1"},
                                OnlyValue{"stream", "false"},
                                OnlyValue{"echo", "false"},
                                OnlyValue{"logprobs", "false"},
                                OnlyValue{"presence_penalty", "0"},
                                OnlyValue{"frequency_penalty", "0"},
                                OnlyValue{"logit_bias", "{}"},
                                OnlyValue{"tools", "[]"},
                                OnlyValue{"response_format", R"({"type":"text"})"}};

void read_stops(Fields& fields, std::vector<std::string>& stops) {
  const json* value = fields.find("stop");
  if (value == nullptr) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& stop : list) {
    if (stop.is_string() && !stop.get_ref<const std::string&>().empty()) {
      stops.push_back(stop.get<std::string>());
    } else {
      fields.mistake("stop", "text or a list of texts, none empty");
    }
  }
  if (stops.size() > kMaxStops) fields.mistake("stop", fmt::format("at most {}", kMaxStops));
}

void read_settings(Fields& fields, GenerationSettings& settings) {
  SamplingSettings& sampling = settings.sampling;
  settings.max_tokens = fields.integer("max_tokens", settings.max_tokens, 1, kMaxTokens);
  sampling.temperature = fields.number("temperature", sampling.temperature, 0, 100);
  sampling.top_p = fields.number("top_p", sampling.top_p, 0, 1);
  sampling.top_k =
      static_cast<std::int32_t>(fields.integer("top_k", sampling.top_k, 0, kMaxTokens));
  sampling.seed = static_cast<std::uint64_t>(
      fields.integer("seed", static_cast<std::int64_t>(sampling.seed), 0, INT64_MAX));
  settings.ignore_eos = fields.flag("ignore_eos", settings.ignore_eos);
  read_stops(fields, settings.stops);
}

// Content is text, or OpenAI's list of parts, of which the text parts count.
std::string read_content(Fields& fields, std::string& refusal) {
  const json* value = fields.find("content");
  if (value == nullptr) return "";
  if (!value->is_array()) return fields.text("content", "");
  std::string all;
  for (const json& part : *value) {
    Fields keys(part, "content part");
    const std::string type = keys.text("type", "");
    const std::string text = keys.text("text", "");
    if (type == "text" && keys.finish()) {
      all += text;
    } else if (refusal.empty()) {
      refusal =
          "messages: content parts other than {\"type\": \"text\", \"text\": ...} are not "
          "supported";
    }
  }
  return all;
}

Status read_messages(Fields& fields, Request& request) {
  const json* list = fields.find("messages");
  if (list == nullptr) return ok_status();
  if (!list->is_array() || list->empty()) {
    fields.mistake("messages", "a list of {\"role\", \"content\"}");
    return ok_status();
  }
  for (const json& one : *list) {
    Fields keys(one, fmt::format("messages[{}]", request.messages.size()));
    Request::Message message;
    message.role = keys.text("role", "");
    if (message.role.empty()) keys.mistake("role", "system, user or assistant");
    message.content = read_content(keys, request.refusal);
    message.reasoning = keys.text("reasoning_content", "");
    if (keys.has("name") || keys.has("tool_calls") || keys.has("tool_call_id")) {
      request.refusal = "messages: names and tool calls are not supported";
    } else if (!keys.has("content") && message.reasoning.empty()) {
      keys.mistake("content", "text");
    }
    EBB_TRY(keys.finish());
    request.messages.push_back(std::move(message));
  }
  return ok_status();
}

Status read_prompt(Fields& fields, Request& request) {
  if (const json* prompt = fields.find("prompt")) {
    std::vector<std::int32_t> ids;
    if (prompt->is_string()) {
      request.prompt = prompt->get<std::string>();
    } else if (read_ids(*prompt, ids)) {
      request.tokens = std::move(ids);
    } else {
      fields.mistake("prompt", "text or a list of token ids");
    }
  }
  if (fields.has("tokens")) request.tokens = fields.ids("tokens");
  request.specials = fields.flag("specials", false);
  request.thinking = fields.flag("thinking", false);
  EBB_TRY(read_messages(fields, request));
  const int given =
      (fields.has("prompt") ? 1 : 0) + (fields.has("tokens") ? 1 : 0) + fields.has("messages");
  if (given != 1) {
    return make_error(Errc::invalid_argument, "want one of prompt, tokens and messages, found %d",
                      given);
  }
  return ok_status();
}

Status read_body(const json& body, Request& request) {
  Fields fields(body, "body");
  if (!body.is_object()) return fields.finish();
  EBB_TRY(read_prompt(fields, request));
  read_settings(fields, request.settings);
  if (fields.has("max_completion_tokens")) {
    request.settings.max_tokens =
        fields.integer("max_completion_tokens", request.settings.max_tokens, 1, kMaxTokens);
  }
  for (const char* key : kIgnored) (void)fields.find(key);
  for (const OnlyValue& only : kOnlyValue) {
    const json* value = fields.find(only.key);
    if (value == nullptr || *value == json::parse(only.value) || !request.refusal.empty()) continue;
    request.refusal = fmt::format(
        "body.{} = {}: not supported, only {}", only.key,
        printable(value->dump(-1, ' ', false, json::error_handler_t::replace), 60), only.value);
  }
  return fields.finish();
}

Status read_batch_line(Fields& fields, Request& request) {
  request.id = fields.text("custom_id", "");
  if (request.id.empty()) fields.mistake("custom_id", "text");
  const std::string method = fields.text("method", "POST");
  if (method != "POST") fields.mistake("method", "\"POST\"");
  const std::string url = fields.text("url", "/v1/completions");
  if (url != "/v1/completions" && url != "/v1/chat/completions") {
    request.refusal =
        fmt::format("url = {}: not supported, only /v1/completions and /v1/chat/completions",
                    printable(url, 60));
  }
  const json* body = fields.find("body");
  if (body == nullptr) fields.mistake("body", "an object");
  EBB_TRY(fields.finish());
  return read_body(*body, request);
}

}  // namespace

Result<Request> parse_request(std::string_view line, const GenerationSettings& defaults) {
  EBB_ASSIGN(const json object, parse_json(line));
  Request request;
  request.settings = defaults;
  const std::string plain = object.dump();  // keys in order
  request.digest = XXH3_64bits(plain.data(), plain.size());
  Fields fields(object, "");
  if (object.is_object() && (object.contains("custom_id") || object.contains("body"))) {
    EBB_TRY(read_batch_line(fields, request));
    return request;
  }
  if (!object.is_object()) EBB_TRY(fields.finish());
  request.id = fields.text("id", "");
  if (request.id.empty()) fields.mistake("id", "text");
  EBB_TRY(read_prompt(fields, request));
  read_settings(fields, request.settings);
  EBB_TRY(fields.finish());
  return request;
}

Result<std::vector<std::int32_t>> encode_prompt(const Request& request,
                                                const Tokenizer* tokenizer) {
  if (request.tokens) return *request.tokens;
  if (tokenizer == nullptr) {
    return make_error(Errc::invalid_argument,
                      "a prompt of text needs a [tokenizer] in the manifest; \"tokens\" do not");
  }
  if (request.prompt) {
    EBB_ASSIGN(std::vector<std::int32_t> ids, tokenizer->encode(*request.prompt, request.specials));
    if (!request.specials) ids.insert(ids.begin(), tokenizer->bos());
    return ids;
  }
  std::vector<ChatMessage> messages;
  for (const Request::Message& message : request.messages) {
    messages.push_back({message.role, message.content, message.reasoning});
  }
  ChatOptions options;
  options.thinking = request.thinking;
  return tokenizer->encode_chat(messages, options);
}

Result<Batch> Batch::read(std::string_view text, const std::string& name,
                          const GenerationSettings& defaults) {
  Batch batch;
  std::unordered_map<std::string, int> line_of_id;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::string_view line = take_line(text);
    if (is_blank(line)) continue;
    const std::string where = fmt::format("{}:{}: ", printable(name), number);
    Result<Request> request = parse_request(line, defaults);
    if (!request) return Error{request.error().code, where + request.error().message};
    const auto [first, is_new] = line_of_id.emplace(request->id, number);
    if (!is_new) {
      return Error{Errc::invalid_argument, fmt::format("{}id {} stands in line {} already", where,
                                                       printable(request->id, 60), first->second)};
    }
    batch.lines_.push_back(
        {line, std::move(request->id), number, request->digest, request->settings.max_tokens});
  }
  if (batch.lines_.empty()) {
    return Error{Errc::invalid_argument, printable(name) + ": no request in it"};
  }
  return batch;
}

}  // namespace ebb::cli
