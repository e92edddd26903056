// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/end_words.hpp"

#include <fcntl.h>

#include <span>
#include <utility>

namespace headrace::cuda_ipc {

using host_link::Mapping;

Result<std::unique_ptr<EndWords>> EndWords::make() {
  HEADRACE_TRY(fd, host_link::create_memory_file("headrace-ends", end_words_bytes));
  HEADRACE_TRY_VOID(host_link::seal_memory_file(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  HEADRACE_TRY(words, Mapping::of_file(fd.get(), 0, end_words_bytes, Mapping::Access::read_write));
  return std::unique_ptr<EndWords>(
      new EndWords(std::make_shared<const UniqueFd>(std::move(fd)), std::move(words)));
}

std::optional<cuda::Address> EndWords::address(const gpu::WorkingGpu& gpu, std::uint32_t number) {
  if (number >= end_words) return {};
  const std::scoped_lock lock(mutex_);
  if (!pinned_)
    pinned_.emplace(gpu::PinnedMemory::pin(gpu.device, std::span(words_.data(), end_words_bytes)));
  if (!*pinned_) return {};
  return (*pinned_)->address() + number * end_word_step;
}

// ------------------------------------------------------------------ the initiator's side

EndWordsView::EndWordsView(Mapping words) : words_(std::move(words)) {
  for (std::uint32_t number = end_words; number > 0; --number) free_.push_back(number - 1);
}

Result<std::shared_ptr<EndWordsView>> EndWordsView::open(int fd) {
  HEADRACE_TRY(file, host_link::inspect_memory_file(fd));
  if (file.size_bytes != end_words_bytes || end_words_bytes % file.page_bytes != 0)
    return make_error(Code::corrupt, "the ends of posts are to be told in {} bytes, and the file has {}",
                      end_words_bytes, file.size_bytes);
  HEADRACE_TRY(words, Mapping::of_file(fd, 0, end_words_bytes, Mapping::Access::read));
  return std::shared_ptr<EndWordsView>(new EndWordsView(std::move(words)));
}

EndWordsView::Word EndWordsView::take() {
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) return {};
  const std::uint32_t number = free_.back();
  free_.pop_back();
  return {shared_from_this(), number};
}

EndWordsView::Word::~Word() {
  if (view_ == nullptr) return;
  const std::scoped_lock lock(view_->mutex_);
  view_->free_.push_back(number_);
}

std::uint64_t EndWordsView::Word::value() const {
  if (view_ == nullptr) return 0;
  const std::byte* const word = view_->words_.data() + number_ * end_word_step;
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(word)->load(std::memory_order_acquire);
}

}  // namespace headrace::cuda_ipc
