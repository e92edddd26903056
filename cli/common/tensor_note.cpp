// SPDX-License-Identifier: Apache-2.0
#include "cli/common/tensor_note.hpp"

#include "cli/common/checksum.hpp"
#include "cli/common/errors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<std::uint64_t> number(const Json& note, const char* key) {
  const auto at = note.find(key);
  if (at == note.end() || !at->is_number_unsigned()) return std::nullopt;
  return at->get<std::uint64_t>();
}

std::optional<std::uint64_t> sum(const Json& note) {
  const auto at = note.find("xxh3");
  if (at == note.end() || !at->is_string()) return std::nullopt;
  const auto text = at->get<std::string>();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) return std::nullopt;
  return value;
}

/// The tensor of a note that has a dtype; nullopt if the note contradicts itself or its region.
std::optional<ServedTensor> read_tensor(const Region& region, const Json& note) {
  ServedTensor tensor;
  tensor.region = region.id;
  tensor.info.name =
      note.contains("name") && note["name"].is_string() ? note["name"].get<std::string>() : region.name;
  const Json& dtype = note["dtype"];
  const auto shape = note.find("shape");
  const auto bytes = number(note, "bytes"), index = number(note, "index"), checksum = sum(note);
  if (!dtype.is_string() || shape == note.end() || !shape->is_array() || !bytes || !index || !checksum)
    return std::nullopt;
  tensor.info.type = formats::element_type(dtype.get<std::string>());
  if (tensor.info.type == nullptr || tensor.info.name.empty()) return std::nullopt;
  for (const Json& length : *shape) {
    if (!length.is_number_unsigned()) return std::nullopt;
    tensor.info.shape.push_back(length.get<std::uint64_t>());
  }
  const auto made = formats::tensor_bytes(*tensor.info.type, tensor.info.shape);
  if (!made.ok() || *made != *bytes || *bytes > region.length_bytes) return std::nullopt;
  tensor.info.bytes = *bytes;
  tensor.checksum = *checksum;
  tensor.index = *index;
  return tensor;
}

/// A server's names are printed, and become names in a file; its lengths are added up.
Result<void> check_served(std::span<const ServedTensor> tensors) {
  std::vector<formats::TensorInfo> infos;
  for (const ServedTensor& tensor : tensors) infos.push_back(tensor.info);
  if (const auto checked = formats::check_tensors(infos); !checked.ok())
    return fail(Code::corrupt, "what the peer serves cannot be in a file: {}", checked.error().message);
  return {};
}

}  // namespace

std::string write_note(const ServedTensor& tensor, bool with_name) {
  Json note{{"dtype", tensor.info.type->name},
            {"shape", tensor.info.shape},
            {"bytes", tensor.info.bytes},
            {"xxh3", hex(tensor.checksum)},
            {"index", tensor.index}};
  if (with_name) note["name"] = tensor.info.name;
  return note.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string write_header_note(std::span<const std::byte> header) {
  return Json{{"header", "safetensors"}, {"bytes", header.size()}, {"xxh3", hex(checksum(header))}}.dump();
}

Result<Served> read_notes(std::span<const Region> regions) {
  Served served;
  std::set<std::string> names;
  for (const Region& region : regions) {
    const Json note = Json::parse(region.note, nullptr, false);
    if (!note.is_object()) continue;
    if (note.contains("header") && region.name == header_region_name) {
      const auto bytes = number(note, "bytes"), checksum = sum(note);
      if (!bytes || !checksum || *bytes > region.length_bytes)
        return fail(Code::corrupt, "the note of the peer's region \"{}\" contradicts the region: {}",
                    region.name, region.note);
      served.header = region.id;
      served.header_bytes = *bytes;
      served.header_checksum = *checksum;
    } else if (note.contains("dtype")) {
      auto tensor = read_tensor(region, note);
      if (!tensor)
        return fail(Code::corrupt,
                    "the note of the peer's region \"{}\" contradicts itself or the region: {}", region.name,
                    region.note);
      if (!names.insert(tensor->info.name).second)
        return fail(Code::corrupt, "the peer serves two tensors named \"{}\"", tensor->info.name);
      served.tensors.push_back(std::move(*tensor));
    }
  }
  HEADRACE_CLI_CHECK(check_served(served.tensors));
  std::stable_sort(served.tensors.begin(), served.tensors.end(),
                   [](const auto& a, const auto& b) { return a.index < b.index; });
  return served;
}

}  // namespace headrace::cli
