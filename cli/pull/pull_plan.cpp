// SPDX-License-Identifier: Apache-2.0
#include "cli/pull/pull_plan.hpp"

#include "cli/common/checksum.hpp"
#include "cli/common/errors.hpp"
#include "cli/common/text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace::cli {
namespace {

std::vector<formats::TensorInfo> infos_of(const std::vector<ServedTensor>& tensors) {
  std::vector<formats::TensorInfo> infos;
  for (const ServedTensor& tensor : tensors) infos.push_back(tensor.info);
  return infos;
}

bool same(const formats::TensorInfo& a, const formats::TensorInfo& b) {
  return a.name == b.name && a.type == b.type && a.shape == b.shape && a.bytes == b.bytes;
}

/// Whether the header describes exactly these tensors, in this order.
bool describes(const formats::SafetensorsHeader& header, const std::vector<ServedTensor>& tensors) {
  return std::equal(header.tensors.begin(), header.tensors.end(), tensors.begin(), tensors.end(),
                    [](const formats::SafetensorsEntry& entry, const ServedTensor& tensor) {
                      return same(entry.info, tensor.info);
                    });
}

Error unknown_name(const std::string& name, const std::vector<std::string>& names) {
  if (is_pattern(name))
    return fail(Code::not_found, "no served tensor matches {}: there are {}, such as {}", name, names.size(),
                names.front());
  const std::vector<std::string> near = nearest(name, names);
  if (near.empty())
    return fail(Code::not_found, "no tensor \"{}\" is served: there are {}, such as \"{}\"", name,
                names.size(), names.front());
  return fail(Code::not_found, "no tensor \"{}\" is served; similar names: {}", name, fmt::join(near, ", "));
}

}  // namespace

Result<std::vector<ServedTensor>> select_tensors(const std::vector<ServedTensor>& served,
                                                 const std::vector<std::string>& wanted) {
  if (served.empty()) return fail(Code::not_found, "the peer serves no tensors");
  if (wanted.empty()) return served;
  std::vector<std::string> names;
  for (const ServedTensor& tensor : served) names.push_back(tensor.info.name);
  std::vector<bool> chosen(served.size());
  for (const std::string& want : wanted) {
    // An exact name goes before a pattern: a tensor may have the name a[0].
    const auto exact = std::find(names.begin(), names.end(), want);
    bool found = exact != names.end();
    if (found) chosen[static_cast<std::size_t>(exact - names.begin())] = true;
    for (std::size_t i = 0; !(exact != names.end()) && i < names.size(); ++i) {
      if (!matches(want, names[i])) continue;
      chosen[i] = true;
      found = true;
    }
    if (!found) return unknown_name(want, names);
  }
  std::vector<ServedTensor> tensors;
  for (std::size_t i = 0; i < served.size(); ++i)
    if (chosen[i]) tensors.push_back(served[i]);
  return tensors;
}

Result<PullPlan> PullPlan::make(std::vector<ServedTensor> tensors, formats::FileFormat format,
                                std::string_view source_header) {
  PullPlan plan;
  plan.tensors_ = std::move(tensors);
  if (format == formats::FileFormat::safetensors) {
    HEADRACE_CLI_CHECK(plan.lay_out_safetensors(source_header));
  } else {
    const std::vector<formats::TensorInfo> infos = infos_of(plan.tensors_);
    HEADRACE_CLI_TRY(layout, formats::NpzLayout::plan(infos));
    plan.offsets_ = layout.offsets();
    plan.file_bytes_ = layout.file_bytes();
    plan.npz_.emplace(std::move(layout));
  }
  return plan;
}

Result<void> PullPlan::lay_out_safetensors(std::string_view source_header) {
  const std::uint64_t data_bytes = tensor_bytes();
  std::map<std::string, std::string> metadata;
  if (!source_header.empty()) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(source_header.data()),
                                           source_header.size());
    auto whole = formats::read_safetensors(bytes, source_header.size() + data_bytes);
    if (whole.ok() && describes(*whole, tensors_)) {
      head_ = source_header;
      for (const formats::SafetensorsEntry& entry : whole->tensors) offsets_.push_back(entry.offset);
      file_bytes_ = head_.size() + data_bytes;
      return {};
    }
    metadata = formats::safetensors_metadata(bytes);
  }
  const std::vector<formats::TensorInfo> infos = infos_of(tensors_);
  HEADRACE_CLI_TRY(head, formats::write_safetensors(infos, metadata));
  head_ = std::move(head);
  std::uint64_t at = head_.size();
  for (const formats::TensorInfo& info : infos) {
    offsets_.push_back(at);
    at += info.bytes;
  }
  file_bytes_ = at;
  return {};
}

std::uint64_t PullPlan::tensor_bytes() const {
  return std::accumulate(
      tensors_.begin(), tensors_.end(), std::uint64_t{0},
      [](std::uint64_t sum, const ServedTensor& tensor) { return sum + tensor.info.bytes; });
}

std::uint64_t PullPlan::fingerprint() const {
  std::string text = fmt::format("{} {} {}\n", file_bytes_, npz_.has_value(), head_);
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    text += fmt::format("{}\n{} {:016x} {}\n", tensors_[i].info.name, formats::shape_text(tensors_[i].info),
                        tensors_[i].checksum, offsets_[i]);
  return checksum(std::as_bytes(std::span(text)));
}

bool PullPlan::has_made(const formats::TensorFile& file) const {
  const std::span<const std::byte> head = std::as_bytes(std::span(head_));
  if (!std::equal(head.begin(), head.end(), file.header().begin(), file.header().end())) return false;
  return std::equal(tensors_.begin(), tensors_.end(), file.tensors().begin(), file.tensors().end(),
                    [](const ServedTensor& wanted, const formats::TensorFile::Tensor& there) {
                      return same(wanted.info, there.info) && wanted.checksum == checksum(there.bytes);
                    });
}

void PullPlan::write_head(std::span<std::byte> file) const {
  std::memcpy(file.data(), head_.data(), head_.size());
}

void PullPlan::write_rest(std::span<std::byte> file) const {
  if (npz_) npz_->finish(file);
}

}  // namespace headrace::cli
