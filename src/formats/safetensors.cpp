// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.hpp"

#include "base/errors.hpp"
#include "formats/names.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

namespace headrace::formats {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t largest_header = 100'000'000;  // the limit of the format's own library
constexpr std::size_t alignment = 8;
constexpr const char* metadata_key = "__metadata__";

template <class... Args>
Error corrupt(fmt::format_string<Args...> text, Args&&... args) {
  return make_error(Code::corrupt, "safetensors: {}", fmt::format(text, std::forward<Args>(args)...));
}

/// One member of the header: a tensor, or the file's metadata.
struct Member {
  std::string name;
  Json value;
};

/// The members in their order.
///   errors  corrupt (the text is not a JSON object, or an object has a key twice)
Result<std::vector<Member>> parse(std::string_view text) {
  std::vector<Member> members;
  std::vector<std::set<std::string>> keys;
  std::string name;
  std::optional<std::string> twice;
  // A complete member leaves the document: the parser compares each key with all members of its object, and
  // goes through them again when one of them ends, which for n tensors makes n * n steps.
  const auto take = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      if (!keys.back().insert(value.get<std::string>()).second) twice = value.get<std::string>();
      if (depth == 1) name = value.get<std::string>();
    }
    if (depth != 1 || (event != Event::object_end && event != Event::array_end && event != Event::value))
      return true;
    members.push_back({name, std::move(value)});
    return false;
  };
  const Json json = Json::parse(text.begin(), text.end(), take, false);
  if (twice) return corrupt("the header has {} twice", name_text(*twice));
  if (!json.is_object()) return corrupt("the header is not JSON");
  return members;
}

/// The JSON text after the length.
Result<std::string_view> header_text(std::span<const std::byte> file, std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  if (file.size() < length_bytes || file_bytes < length_bytes)
    return corrupt("{} bytes are too few for a header", file_bytes);
  std::memcpy(&length, file.data(), sizeof length);
  if (length > largest_header)
    return corrupt("the header claims {} bytes; the limit is {}", length, largest_header);
  if (length > file_bytes - length_bytes || length > file.size() - length_bytes)
    return corrupt("the header claims {} bytes, and the file has {} in all", length, file_bytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + length_bytes, length);
  if (!text.starts_with('{'))
    return corrupt("the header does not begin with a brace: this is not a safetensors file");
  return text;
}

Result<std::map<std::string, std::string>> read_metadata(const Json& json) {
  if (!json.is_object()) return corrupt("{} is not an object", metadata_key);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return corrupt("{} has {}, which is not text", metadata_key, name_text(key));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

/// An array of numbers >= 0.
bool numbers(const Json& json, std::vector<std::uint64_t>& out) {
  if (!json.is_array()) return false;
  for (const Json& number : json) {
    if (!number.is_number_unsigned()) return false;
    out.push_back(number.get<std::uint64_t>());
  }
  return true;
}

Result<SafetensorsEntry> read_entry(const std::string& name, const Json& json, std::uint64_t data_begin,
                                    std::uint64_t data_bytes) {
  SafetensorsEntry entry;
  if (has_control_character(name)) return corrupt("the name {} has a control character", name_text(name));
  entry.info.name = name;
  if (!json.is_object()) return corrupt("tensor \"{}\" is not described by an object", name);
  const auto dtype = json.find("dtype"), shape = json.find("shape"), offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string() || shape == json.end() || offsets == json.end())
    return corrupt("tensor \"{}\" lacks dtype, shape or data_offsets", name);
  entry.info.type = element_type(dtype->get<std::string>());
  if (entry.info.type == nullptr || !entry.info.type->safetensors)
    return corrupt("tensor \"{}\" has the type {}, which is not supported", name,
                   name_text(dtype->get<std::string>()));
  std::vector<std::uint64_t> range;
  if (!numbers(*shape, entry.info.shape))
    return corrupt("tensor \"{}\" has a shape that is not a list of lengths", name);
  if (!numbers(*offsets, range) || range.size() != 2)
    return corrupt("tensor \"{}\" has data_offsets that are not two offsets", name);
  if (range[0] > range[1] || range[1] > data_bytes)
    return corrupt("tensor \"{}\" has bytes {} to {}, outside the {} bytes of data", name, range[0], range[1],
                   data_bytes);
  auto bytes = tensor_bytes(*entry.info.type, entry.info.shape);
  if (!bytes) return corrupt("tensor \"{}\": {}", name, bytes.error().message);
  if (*bytes != range[1] - range[0])
    return corrupt("tensor \"{}\" is {}, which needs {} bytes, and has {}", name, shape_text(entry.info),
                   *bytes, range[1] - range[0]);
  entry.info.bytes = *bytes;
  entry.offset = data_begin + range[0];
  return entry;
}

}  // namespace

Result<SafetensorsHeader> read_safetensors(std::span<const std::byte> file, std::uint64_t file_bytes) {
  HEADRACE_TRY(text, header_text(file, file_bytes));
  HEADRACE_TRY(members, parse(text));

  SafetensorsHeader header;
  header.bytes = length_bytes + text.size();
  const std::uint64_t data_bytes = file_bytes - header.bytes;
  for (const auto& [name, value] : members) {
    if (name == metadata_key) {
      HEADRACE_TRY(metadata, read_metadata(value));
      header.metadata = std::move(metadata);
      continue;
    }
    HEADRACE_TRY(entry, read_entry(name, value, header.bytes, data_bytes));
    header.tensors.push_back(std::move(entry));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.info.bytes) < std::pair(b.offset, b.info.bytes);
  });
  std::uint64_t expected = header.bytes;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.offset != expected)
      return corrupt("tensor \"{}\" begins at {} and the one before ends at {}: there is {}", entry.info.name,
                     entry.offset, expected, entry.offset < expected ? "an overlap" : "a hole");
    expected += entry.info.bytes;
  }
  if (expected != file_bytes)
    return corrupt("{} bytes at the end belong to no tensor", file_bytes - expected);
  return header;
}

std::map<std::string, std::string> safetensors_metadata(std::span<const std::byte> header) {
  const auto text = header_text(header, header.size());
  if (!text) return {};
  const auto members = parse(*text);
  if (!members) return {};
  const auto found = std::find_if(members->begin(), members->end(),
                                  [](const Member& member) { return member.name == metadata_key; });
  if (found == members->end()) return {};
  auto metadata = read_metadata(found->value);
  return metadata.ok() ? std::move(*metadata) : std::map<std::string, std::string>{};
}

Result<std::string> write_safetensors(std::span<const TensorInfo> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  HEADRACE_TRY_VOID(check_tensors(tensors));
  // At the end of the list: an ordered object compares a new key with all that it has.
  Json::object_t members;
  if (!metadata.empty()) members.emplace_back(metadata_key, metadata);
  std::set<std::string_view> names{metadata_key};
  std::uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.type->safetensors)
      return make_error(Code::invalid_argument,
                        "tensor \"{}\" is {}, which safetensors cannot hold: write an .npz", tensor.name,
                        tensor.type->name);
    if (!names.insert(tensor.name).second)
      return make_error(Code::invalid_argument,
                        "a safetensors file cannot hold the tensor \"{}\": the name is taken", tensor.name);
    members.emplace_back(tensor.name, Json{{"dtype", tensor.type->name},
                                           {"shape", tensor.shape},
                                           {"data_offsets", {offset, offset + tensor.bytes}}});
    offset += tensor.bytes;
  }
  std::string text;
  try {
    text = Json(std::move(members)).dump();
  } catch (const Json::type_error&) {
    return make_error(Code::invalid_argument, "a tensor's name is not UTF-8, which safetensors requires");
  }
  text.resize((text.size() + alignment - 1) / alignment * alignment, ' ');
  const std::uint64_t length = text.size();
  std::string header(reinterpret_cast<const char*>(&length), sizeof length);
  return header + text;
}

}  // namespace headrace::formats
