// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/owner_copies.hpp"

#include "backends/cuda_ipc/owner_copy.hpp"
#include "backends/cuda_ipc/remote_region.hpp"

#include <utility>
#include <vector>

namespace headrace::cuda_ipc {

OwnerCopies::~OwnerCopies() = default;

std::shared_ptr<OwnerCopy> OwnerCopies::find(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  const auto found = copies_.find(number);
  return found == copies_.end() ? nullptr : found->second;
}

Result<host_link::SharedFd> OwnerCopies::end_words() {
  const std::scoped_lock lock(mutex_);
  if (words_ == nullptr) {
    HEADRACE_TRY(made, EndWords::make());
    words_ = std::move(made);
  }
  return words_->descriptor();
}

std::optional<cuda::Address> OwnerCopies::end_word(const gpu::WorkingGpu& gpu, std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  return words_ != nullptr ? words_->address(gpu, number) : std::nullopt;
}

Result<void> OwnerCopies::take(std::uint32_t number, std::uint32_t end_word, const UniqueFd& file) {
  HEADRACE_TRY(control, open_move_control(file.get()));
  const auto copy = std::make_shared<OwnerCopy>(instance_, link_, *this, OwnerCopy::Name{number, end_word},
                                                std::move(control));
  {
    const std::scoped_lock lock(mutex_);
    if (copies_.contains(number)) return make_error(Code::corrupt, "request {} came twice", number);
    // Beyond what is kept a request is its words, by which the peer is told, and these have an end as well.
    if (copies_.size() >= 2 * most)
      return make_error(Code::corrupt, "{} requests came that were refused", most);
    if (copies_.size() >= most)
      copy->refuse(make_error(Code::exhausted,
                              "there are {} requests of agent {} on registered host memory of "
                              "agent {}: release some",
                              most, link_.peer_name(), instance_.name));
    copies_.emplace(number, copy);
  }
  copy->prepare(file);
  return {};
}

void OwnerCopies::go(std::uint32_t number) {
  if (const auto copy = find(number)) copy->go();
}

void OwnerCopies::drop(std::uint32_t number) {
  std::shared_ptr<OwnerCopy> dropped;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = copies_.find(number);
    if (found == copies_.end()) return;
    dropped = std::move(found->second);
    copies_.erase(found);
  }
  dropped->refuse(make_error(Code::canceled, "request {} was dropped", number));
}

Result<std::shared_ptr<RemoteRegion>> OwnerCopies::remote(const ToldRegion& told) {
  const std::scoped_lock lock(mutex_);
  const auto known = remotes_.find(told.id);
  if (known != remotes_.end() && known->second.first == told) return known->second.second;
  if (known == remotes_.end() && remotes_.size() >= max_move_regions)
    remotes_.clear();  // requests hold theirs
  headrace_remote_region_v1 region{};
  region.struct_size = sizeof region;
  region.region_id = told.id;
  region.kind = told.kind;
  region.length = told.length;
  region.public_data = {&told.mark, told.kind == HEADRACE_VRAM ? sizeof told.mark : 0};
  auto made = std::make_shared<RemoteRegion>(link_.shared(), region);
  remotes_.insert_or_assign(told.id, std::pair(told, made));
  return made;
}

void OwnerCopies::give_up(std::uint32_t region_id) {
  std::vector<std::shared_ptr<OwnerCopy>> all;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [number, copy] : copies_) all.push_back(copy);
  }
  for (const auto& copy : all) copy->give_up(region_id);
}

void OwnerCopies::forget(std::uint32_t peers_region_id) {
  std::shared_ptr<RemoteRegion> gone;  // destroyed outside the lock
  const std::scoped_lock lock(mutex_);
  const auto found = remotes_.find(peers_region_id);
  if (found == remotes_.end()) return;
  gone = std::move(found->second.second);
  remotes_.erase(found);
}

void OwnerCopies::clear() {
  // Destroyed outside the lock.
  decltype(copies_) copies;
  decltype(remotes_) remotes;
  std::unique_ptr<EndWords> words;
  const std::scoped_lock lock(mutex_);
  words.swap(words_);
  copies.swap(copies_);
  remotes.swap(remotes_);
}

}  // namespace headrace::cuda_ipc
