// SPDX-License-Identifier: Apache-2.0
// Walks the two sides of a request and yields runs: the longest stretches that lie in one region on each
// side.
//
// Backends move runs, not pages. Pages that touch on both sides merge into one run, so that what was cut up
// by a page table but lies together in memory costs one copy, one iovec or one range on the wire. The walk
// allocates nothing and reads each index, offset and length once; a run whose pages are random costs a few
// nanoseconds.
#pragma once

#include <headrace/plugin/backend_v1.h>

#include "memory/columns.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace headrace {

/// A stretch of bytes that is contiguous in one local and in one remote region.
struct PageRun {
  void* local_region = nullptr;   ///< the handle from the local side's `regions`
  void* remote_region = nullptr;  ///< the handle from the remote side's `regions`
  std::uint64_t local_offset = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t first_page = 0;       ///< index in the request of the page that the run begins in
  std::uint64_t first_page_skip = 0;  ///< bytes of that page that lie before the run
};

/// A place in a request: `skip` bytes into page `page`. One past the end is {count, 0}.
struct PagePosition {
  std::uint64_t page = 0;
  std::uint64_t skip = 0;
  friend constexpr bool operator==(const PagePosition&, const PagePosition&) = default;
};

/// The handle of the region of a page.
inline void* side_region(const headrace_side_v1& side, std::uint64_t page) {
  return side.regions[region_of(side.columns, page)];
}

/// The stretches that a page moves in, whatever could be merged beyond pages: 1, or the runs of its grid.
inline std::uint64_t stretches_per_page(const headrace_prepare_v1& request) {
  return request.grid != nullptr ? request.grid->runs : 1;
}
inline std::uint64_t most_stretches(const headrace_prepare_v1& request) {
  return request.count * stretches_per_page(request);
}

/// All pages of the request have this length; 0: they differ, or only a look at each could tell.
inline std::uint64_t common_page_bytes(const headrace_prepare_v1& request) {
  if (request.grid != nullptr) return request.grid->runs * request.grid->run_bytes;
  if (request.local->columns.lengths == nullptr) return request.local->columns.page_bytes;
  if (request.remote->columns.lengths == nullptr) return request.remote->columns.page_bytes;
  return 0;
}

/// Length of page `page`: the same on both sides.
inline std::uint64_t page_length(const headrace_prepare_v1& request, std::uint64_t page) {
  const std::uint64_t common = common_page_bytes(request);
  return common != 0 ? common : length_of(request.local->columns, page);
}

/// From a page's begin on the remote side to the end of its last byte there: its length, or what its runs
/// spread over.
inline std::uint64_t remote_extent(const headrace_prepare_v1& request, std::uint64_t page) {
  if (request.grid == nullptr) return page_length(request, page);
  std::uint64_t extent = request.grid->run_bytes;
  for (std::uint32_t d = 0; d < request.grid->dimensions; ++d)
    extent += (request.grid->counts[d] - 1) * request.grid->remote_strides[d];
  return extent;
}

/// Where byte `byte` of the request's payload lies, searched from `from` on (`byte` counts from there). Past
/// the end: {count, 0}. O(1) if the pages have one length, else it walks.
inline PagePosition position_at_byte(const headrace_prepare_v1& request, std::uint64_t byte,
                                     PagePosition from = {}) {
  const std::uint64_t common = common_page_bytes(request);
  std::uint64_t left = byte + from.skip;  // from the beginning of page from.page
  std::uint64_t page = from.page;
  if (common != 0) {
    page += left / common;
    if (page >= request.count) return {request.count, 0};
    return {page, left % common};
  }
  for (; page < request.count; ++page) {
    const std::uint64_t length = length_of(request.local->columns, page);
    if (left < length) return {page, left};
    left -= length;
  }
  return {request.count, 0};
}

namespace detail {

// What a side looks like to the inner loop. The cursor picks one for each side once a call, so that the loop
// over pages has no branch on the side's shape where it counts.

struct PlainSide {  // base + page * stride in regions[0]
  explicit PlainSide(const headrace_side_v1& side)
      : region_(side.regions[0]), base_(side.columns.base_offset), stride_(side.columns.stride_bytes) {}
  void read(std::uint64_t page, void*& region, std::uint64_t& offset) const {
    region = region_;
    offset = base_ + page * stride_;
  }
  [[nodiscard]] std::uint64_t stride() const { return stride_; }
  static constexpr bool one_region = true;

 private:
  void* region_;
  std::uint64_t base_, stride_;
};

struct IndexedSide {  // base + indices[page] * stride in regions[0]
  explicit IndexedSide(const headrace_side_v1& side)
      : region_(side.regions[0]),
        indices_(side.columns.indices),
        base_(side.columns.base_offset),
        stride_(side.columns.stride_bytes) {}
  void read(std::uint64_t page, void*& region, std::uint64_t& offset) const {
    region = region_;
    offset = base_ + indices_[page] * stride_;
  }
  static constexpr bool one_region = true;

 private:
  void* region_;
  const std::uint32_t* indices_;
  std::uint64_t base_, stride_;
};

struct AnySide {
  explicit AnySide(const headrace_side_v1& side) : side_(side) {}
  void read(std::uint64_t page, void*& region, std::uint64_t& offset) const {
    const std::uint64_t slot = slot_of(side_.columns, page);
    region = side_.regions[side_.columns.region_of != nullptr ? side_.columns.region_of[slot] : 0];
    offset = side_.columns.offsets != nullptr ? side_.columns.offsets[slot]
                                              : side_.columns.base_offset + slot * side_.columns.stride_bytes;
  }
  static constexpr bool one_region = false;

 private:
  const headrace_side_v1& side_;
};

struct OneLength {
  explicit OneLength(std::uint64_t bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t read(std::uint64_t /*page*/) const { return bytes_; }

 private:
  std::uint64_t bytes_;
};

struct OwnLengths {
  explicit OwnLengths(const headrace_side_v1& side) : side_(side) {}
  [[nodiscard]] std::uint64_t read(std::uint64_t page) const {
    return side_.columns.lengths[slot_of(side_.columns, page)];
  }

 private:
  const headrace_side_v1& side_;
};

/// Steps from run to run of a page.
class GridSteps {
 public:
  /// Begins at run `run` of a page.
  void begin(const headrace_page_grid_v1& grid, std::uint64_t run) {
    local_ = remote_ = 0;
    for (std::uint32_t d = grid.dimensions; d-- > 0;) {
      at_[d] = run % grid.counts[d];
      run /= grid.counts[d];
      local_ += at_[d] * grid.local_strides[d];
      remote_ += at_[d] * grid.remote_strides[d];
    }
  }
  /// To the next one; false: that was the page's last, and the next page's first is meant.
  bool next(const headrace_page_grid_v1& grid) {
    for (std::uint32_t d = grid.dimensions; d-- > 0;) {
      if (++at_[d] < grid.counts[d]) [[likely]] {
        local_ += grid.local_strides[d];
        remote_ += grid.remote_strides[d];
        return true;
      }
      at_[d] = 0;
      local_ -= (grid.counts[d] - 1) * grid.local_strides[d];
      remote_ -= (grid.counts[d] - 1) * grid.remote_strides[d];
    }
    return false;
  }
  /// Behind the page's begin.
  [[nodiscard]] std::uint64_t local() const { return local_; }
  [[nodiscard]] std::uint64_t remote() const { return remote_; }

 private:
  std::array<std::uint64_t, HEADRACE_GRID_MOST> at_{};
  std::uint64_t local_ = 0, remote_ = 0;
};

}  // namespace detail

/// Walks pages [from, to) of a request.
///   owns     nothing: the request (a backend copies the struct that `prepare` was given) must outlive the
///   cursor threads  one cursor a thread; any number of them over one request
class PageCursor {
 public:
  static constexpr std::uint64_t no_limit = ~std::uint64_t{0};

  /// The whole request. Runs are at most `max_run_bytes` (> 0) long: they then end between two pages, save
  /// that a page longer than that is cut.
  explicit PageCursor(const headrace_prepare_v1& request, std::uint64_t max_run_bytes = no_limit)
      : PageCursor(request, {0, 0}, {request.count, 0}, max_run_bytes) {}

  /// The part from `from` up to, not including, `to`: how threads share a request, and how a walk is taken up
  /// again.
  PageCursor(const headrace_prepare_v1& request, PagePosition from, PagePosition to,
             std::uint64_t max_run_bytes = no_limit)
      : request_(&request),
        common_(common_page_bytes(request)),
        max_run_bytes_(max_run_bytes),
        shape_(shape_of(request)),
        end_(to.page),
        tail_(to.skip) {
    next_.first_page = from.page;
    next_.first_page_skip = from.skip;
    if (shape_ == Shape::grid) {
      begin_page();
      return;
    }
    const std::uint64_t bytes = common_ != 0 ? covered(from.page, detail::OneLength(common_))
                                             : covered(from.page, detail::OwnLengths(*request.local));
    if (bytes <= from.skip) {  // nothing lies between the two
      done_ = true;
      return;
    }
    next_.bytes = bytes - from.skip;
    next_.local_region = side_region(*request.local, from.page);
    next_.remote_region = side_region(*request.remote, from.page);
    next_.local_offset = offset_of(request.local->columns, from.page) + from.skip;
    next_.remote_offset = offset_of(request.remote->columns, from.page) + from.skip;
  }

  /// The next run; false at the end, with `run` untouched.
  bool next(PageRun& run) { return fill({&run, 1}) == 1; }

  /// As many of the next runs as `runs` holds; fewer only at the end. Returns how many.
  std::size_t fill(std::span<PageRun> runs) {
    using namespace detail;
    const headrace_side_v1& local = *request_->local;
    const headrace_side_v1& remote = *request_->remote;
    switch (shape_) {
      case Shape::plain_plain:
        return walk(PlainSide(local), PlainSide(remote), OneLength(common_), runs);
      case Shape::plain_indexed:
        return walk(PlainSide(local), IndexedSide(remote), OneLength(common_), runs);
      case Shape::indexed_plain:
        return walk(IndexedSide(local), PlainSide(remote), OneLength(common_), runs);
      case Shape::indexed_indexed:
        return walk(IndexedSide(local), IndexedSide(remote), OneLength(common_), runs);
      case Shape::any_one_length:
        return walk(AnySide(local), AnySide(remote), OneLength(common_), runs);
      case Shape::grid:
        return walk_grid(runs);
      case Shape::any:
        break;
    }
    return walk(AnySide(local), AnySide(remote), OwnLengths(local), runs);
  }

  [[nodiscard]] bool done() const { return done_; }
  /// Where the next run begins; meaningless once done.
  [[nodiscard]] PagePosition position() const { return {next_.first_page, next_.first_page_skip}; }

 private:
  enum class Shape : std::uint8_t {
    plain_plain,
    plain_indexed,
    indexed_plain,
    indexed_indexed,
    any_one_length,
    any,
    grid
  };

  static Shape shape_of(const headrace_prepare_v1& request) {
    const auto affine = [](const headrace_side_v1& side) {
      return side.columns.offsets == nullptr && side.columns.region_of == nullptr;
    };
    if (request.grid != nullptr) return Shape::grid;
    if (common_page_bytes(request) == 0) return Shape::any;
    if (!affine(*request.local) || !affine(*request.remote)) return Shape::any_one_length;
    if (request.local->columns.indices == nullptr)
      return request.remote->columns.indices == nullptr ? Shape::plain_plain : Shape::plain_indexed;
    return request.remote->columns.indices == nullptr ? Shape::indexed_plain : Shape::indexed_indexed;
  }

  /// Bytes of page `page` that the walk covers; 0: it ends before it. The page that is cut by `to` comes last
  /// and once.
  template <class Length>
  std::uint64_t covered(std::uint64_t page, const Length& length) {
    if (page < end_) [[likely]]
      return length.read(page);
    if (page > end_ || tail_ == 0) return 0;
    const std::uint64_t bytes = tail_;
    tail_ = 0;
    ++end_;
    return bytes;
  }

  template <class Local, class Remote, class Length>
  std::size_t walk(const Local local, const Remote remote, const Length length, std::span<PageRun> runs) {
    // The next run in scalars, not as one struct: copied as a struct it would be loaded in wider words than
    // it was just stored in, and each page would wait for the store buffer (twice the time, measured).
    void* local_region = next_.local_region;
    void* remote_region = next_.remote_region;
    std::uint64_t local_offset = next_.local_offset, remote_offset = next_.remote_offset, bytes = next_.bytes;
    std::uint64_t page = next_.first_page, skip = next_.first_page_skip;
    std::size_t filled = 0;
    while (filled < runs.size() && !done_) {
      PageRun& run = runs[filled++];
      run.local_region = local_region;
      run.remote_region = remote_region;
      run.local_offset = local_offset;
      run.remote_offset = remote_offset;
      run.first_page = page;
      run.first_page_skip = skip;
      if (bytes > max_run_bytes_) [[unlikely]] {  // a page, or the rest of one, that must be cut
        run.bytes = max_run_bytes_;
        local_offset += max_run_bytes_;
        remote_offset += max_run_bytes_;
        bytes -= max_run_bytes_;
        skip += max_run_bytes_;
        continue;
      }
      std::uint64_t merged = bytes;
      if constexpr (std::is_same_v<Local, detail::PlainSide> && std::is_same_v<Remote, detail::PlainSide>) {
        if (local.stride() == common_ && remote.stride() == common_ &&
            page + 1 < end_) {  // all pages touch: no need to look
          const std::uint64_t more = std::min(end_ - page - 1, (max_run_bytes_ - merged) / common_);
          merged += more * common_;
          page += more;
        }
      }
      const std::uint64_t local_begin = local_offset, remote_begin = remote_offset;
      const void* const local_from = local_region;
      const void* const remote_from = remote_region;
      skip = 0;
      for (;;) {
        bytes = covered(++page, length);
        if (bytes == 0) [[unlikely]] {
          done_ = true;
          break;
        }
        local.read(page, local_region, local_offset);
        remote.read(page, remote_region, remote_offset);
        if (local_offset != local_begin + merged || remote_offset != remote_begin + merged) break;
        if (!Local::one_region && local_region != local_from) break;
        if (!Remote::one_region && remote_region != remote_from) break;
        if (bytes > max_run_bytes_ - merged) break;
        merged += bytes;
      }
      run.bytes = merged;
    }
    next_ = {local_region, remote_region, local_offset, remote_offset, bytes, page, skip};
    return filled;
  }

  /// Of a request whose pages are grids: goes to byte first_page_skip of page first_page.
  void begin_page() {
    if (next_.first_page >= request_->count) {
      done_ = true;
      return;
    }
    const std::uint64_t run_bytes = request_->grid->run_bytes;
    steps_.begin(*request_->grid, next_.first_page_skip / run_bytes);
    local_begin_ = offset_of(request_->local->columns, next_.first_page);
    remote_begin_ = offset_of(request_->remote->columns, next_.first_page);
    next_.local_region = side_region(*request_->local, next_.first_page);
    next_.remote_region = side_region(*request_->remote, next_.first_page);
    begin_run(next_.first_page_skip % run_bytes);
  }

  /// The rest of a run behind its first `skip` bytes, as far as the walk goes.
  void begin_run(std::uint64_t skip) {
    next_.local_offset = local_begin_ + steps_.local() + skip;
    next_.remote_offset = remote_begin_ + steps_.remote() + skip;
    next_.bytes = request_->grid->run_bytes - skip;
    if (next_.first_page < end_) [[likely]]
      return;
    const std::uint64_t left =
        next_.first_page > end_ || tail_ <= next_.first_page_skip ? 0 : tail_ - next_.first_page_skip;
    ends_in_run_ = left < next_.bytes;
    next_.bytes = std::min(next_.bytes, left);
    done_ = next_.bytes == 0;
  }

  /// Runs do not merge: the host has merged what is neighbours on both sides.
  std::size_t walk_grid(std::span<PageRun> runs) {
    std::size_t filled = 0;
    while (filled < runs.size() && !done_) {
      PageRun& run = runs[filled++];
      run = next_;
      run.bytes = std::min(next_.bytes, max_run_bytes_);
      next_.first_page_skip += run.bytes;
      if (run.bytes < next_.bytes) {  // a run that must be cut
        next_.local_offset += run.bytes;
        next_.remote_offset += run.bytes;
        next_.bytes -= run.bytes;
      } else if (ends_in_run_) {
        done_ = true;
      } else if (steps_.next(*request_->grid)) {
        begin_run(0);
      } else {
        ++next_.first_page;
        next_.first_page_skip = 0;
        begin_page();
      }
    }
    return filled;
  }

  const headrace_prepare_v1* request_;
  std::uint64_t common_;
  std::uint64_t max_run_bytes_;
  Shape shape_;
  bool done_ = false;
  std::uint64_t end_;   // first page that is not walked, or only up to tail_
  std::uint64_t tail_;  // bytes of page end_ that are walked
  PageRun next_;        // the page, or rest of a page, that the next run begins with
  // Of pages that are grids.
  detail::GridSteps steps_;
  bool ends_in_run_ = false;                          // `to` cuts the run that comes next
  std::uint64_t local_begin_ = 0, remote_begin_ = 0;  // of page next_.first_page
};
}  // namespace headrace
