// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/move_file.hpp"

#include "base/errors.hpp"
#include "memory/page_cursor.hpp"
#include "wire/packet_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

namespace headrace::cuda_ipc {
namespace {

using wire::PacketReader;
using Side = MoveList::Side;
using Shape = Side::Shape;

constexpr std::uint32_t list_magic = 0x4c435248;  // "HRCL"
constexpr std::uint64_t head_bytes = 32, side_bytes = 24, region_bytes = 24;
constexpr std::uint64_t grid_bytes = 8, dimension_bytes = 24;
constexpr std::uint64_t longest_stride = std::uint64_t{1}
                                         << 60;  // so that no sum of what they reach overflows

using Wide = unsigned __int128;

Shape shape_of(const headrace_side_v1& side, std::uint64_t page_bytes) {
  if (page_bytes == 0 || side.columns.offsets != nullptr || side.columns.region_of != nullptr)
    return Shape::listed;
  return side.columns.indices != nullptr ? Shape::indexed : Shape::regular;
}

std::uint64_t column_bytes(Shape shape, std::uint64_t count) {
  if (shape == Shape::regular) return 0;
  return count *
         (shape == Shape::indexed ? sizeof(std::uint32_t) : sizeof(std::uint64_t) + sizeof(std::uint32_t));
}

/// Writes values one after the other into memory that is large enough.
class Pen {
 public:
  explicit Pen(std::byte* at) : at_(at) {}
  template <class T>
  void put(T value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  template <class T, class Value>
  void put_column(std::uint64_t count, Value&& value) {
    for (std::uint64_t i = 0; i < count; ++i) put<T>(value(i));
  }

 private:
  std::byte* at_;
};

using Tell = std::function<ToldRegion(void* handle)>;

void write_side(Pen& pen, const headrace_side_v1& side, Shape shape, const Tell& tell) {
  pen.put(static_cast<std::uint32_t>(side.region_count));
  pen.put(static_cast<std::uint32_t>(shape));
  pen.put(side.columns.base_offset);
  pen.put(side.columns.stride_bytes);
  for (std::uint64_t i = 0; i < side.region_count; ++i) {
    const ToldRegion told = tell(side.regions[i]);
    pen.put(told.id);
    pen.put(told.kind);
    pen.put(told.length);
    pen.put(told.mark);
    pen.put(std::uint32_t{0});
  }
}

void write_columns(Pen& pen, const headrace_side_v1& side, Shape shape, std::uint64_t count) {
  if (shape == Shape::indexed)
    pen.put_column<std::uint32_t>(count, [&](std::uint64_t i) { return side.columns.indices[i]; });
  if (shape != Shape::listed) return;
  pen.put_column<std::uint64_t>(count, [&](std::uint64_t i) { return offset_of(side.columns, i); });
  pen.put_column<std::uint32_t>(count, [&](std::uint64_t i) {
    return side.columns.region_of != nullptr ? side.columns.region_of[slot_of(side.columns, i)] : 0;
  });
}

void write_grid(Pen& pen, const headrace_page_grid_v1& grid) {
  pen.put(grid.run_bytes);
  for (std::uint32_t d = 0; d < grid.dimensions; ++d) {
    pen.put(grid.counts[d]);
    pen.put(grid.local_strides[d]);
    pen.put(grid.remote_strides[d]);
  }
}

// ------------------------------------------------------------------ reading

Result<std::string> read_body(int fd, std::uint64_t bytes) {
  std::string body(bytes, '\0');
  for (std::uint64_t at = 0; at < bytes;) {
    const ssize_t got =
        ::pread(fd, body.data() + at, bytes - at, static_cast<off_t>(move_control_bytes + at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return os_error(got < 0 ? errno : EIO, "read the pages of a request of the peer's");
    at += static_cast<std::uint64_t>(got);
  }
  return body;
}

template <class T>
std::vector<T> read_column(PacketReader& in, std::uint64_t count) {
  std::vector<T> column;
  const std::string_view raw = in.bytes(count * sizeof(T));
  if (raw.size() != count * sizeof(T) || raw.empty()) return column;
  column.resize(count);
  std::memcpy(column.data(), raw.data(), raw.size());
  return column;
}

Side read_side(PacketReader& in) {
  Side side;
  const auto regions = in.number<std::uint32_t>();
  const auto shape = in.number<std::uint32_t>();
  side.base = in.number<std::uint64_t>();
  side.stride = in.number<std::uint64_t>();
  if (regions == 0 || regions > max_move_regions || shape > static_cast<std::uint32_t>(Shape::listed))
    in.fail();
  side.shape = static_cast<Shape>(shape);
  for (std::uint32_t i = 0; i < regions && in.good(); ++i) {
    ToldRegion told;
    told.id = in.number<std::uint32_t>();
    told.kind = in.number<std::int32_t>();
    told.length = in.number<std::uint64_t>();
    told.mark = in.number<std::uint32_t>();
    if (in.number<std::uint32_t>() != 0 || (told.kind != HEADRACE_DRAM && told.kind != HEADRACE_VRAM))
      in.fail();
    side.regions.push_back(told);
  }
  return side;
}

void read_columns(PacketReader& in, Side& side, std::uint64_t count) {
  if (side.shape == Shape::indexed) side.indices = read_column<std::uint32_t>(in, count);
  if (side.shape != Shape::listed) return;
  side.offsets = read_column<std::uint64_t>(in, count);
  side.region_of = read_column<std::uint32_t>(in, count);
}

bool is_stride(std::uint64_t stride) { return stride > 0 && stride <= longest_stride; }

/// Of pages of `page_bytes` bytes.
headrace_page_grid_v1 read_grid(PacketReader& in, std::uint64_t dimensions, std::uint64_t page_bytes) {
  headrace_page_grid_v1 grid{};
  if (dimensions > HEADRACE_GRID_MOST) {
    in.fail();
    return grid;
  }
  grid.dimensions = static_cast<std::uint32_t>(dimensions);
  grid.run_bytes = in.number<std::uint64_t>();
  grid.runs = 1;
  for (std::uint32_t d = 0; d < grid.dimensions && in.good(); ++d) {
    grid.counts[d] = in.number<std::uint64_t>();
    grid.local_strides[d] = in.number<std::uint64_t>();
    grid.remote_strides[d] = in.number<std::uint64_t>();
    if (grid.counts[d] < 2 || __builtin_mul_overflow(grid.runs, grid.counts[d], &grid.runs) ||
        !is_stride(grid.local_strides[d]) || !is_stride(grid.remote_strides[d]))
      in.fail();
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(grid.runs, grid.run_bytes, &bytes) || bytes == 0 || bytes != page_bytes)
    in.fail();
  return grid;
}

Error nonsense() {
  return make_error(Code::corrupt, "the pages of a request do not fit what they are said to be");
}

// ------------------------------------------------------------------ checking

/// Whether [offset, offset + extent) of page `i` lies in its region.
bool lies_within(const Side& side, std::uint64_t i, Wide extent, const std::vector<std::uint64_t>& lengths) {
  const std::uint32_t region = side.shape == Shape::listed ? side.region_of[i] : 0;
  if (region >= lengths.size()) return false;
  const std::uint64_t slot = side.shape == Shape::indexed ? side.indices[i] : i;
  // Modulo 2^64, as whoever moves them counts: pages that go backward have a stride that wraps around.
  const std::uint64_t begin = side.shape == Shape::listed ? side.offsets[i] : side.base + slot * side.stride;
  return begin + extent <= lengths[region];
}

/// What a page of `bytes` bytes spreads over on a side.
Wide extent_of(const MoveList& list, bool owners, std::uint64_t bytes) {
  if (!list.grid) return bytes;
  Wide extent = list.grid->run_bytes;
  for (std::uint32_t d = 0; d < list.grid->dimensions; ++d) {
    const std::uint64_t stride = owners ? list.grid->remote_strides[d] : list.grid->local_strides[d];
    extent += Wide{list.grid->counts[d] - 1} * stride;
  }
  return extent;
}

Error outside(const char* whose, std::uint64_t page) {
  return {Code::invalid_argument, fmt::format("page {} lies outside of the {} region", page, whose), page};
}

}  // namespace

// ------------------------------------------------------------------ the words

std::optional<std::uint64_t> MoveControl::begin() {
  const std::uint64_t seen = turn().load();
  const std::uint64_t number = seen / 4;
  if (seen % 4 != asked || !change(number, asked, running)) return {};
  return number;
}

void MoveControl::fail(std::uint64_t number, const host_link::Outcome& outcome) {
  MoveWords& shared = words();
  const std::size_t length = std::min(outcome.text.size(), max_failure_bytes);
  shared.page = outcome.status.page;
  shared.code = static_cast<std::uint32_t>(outcome.status.code);
  shared.text_bytes = static_cast<std::uint32_t>(length);
  std::memcpy(shared.text.data(), outcome.text.data(), length);
  shared.failed.store(number, std::memory_order_release);
}

host_link::Outcome MoveControl::outcome(std::uint64_t number) const {
  const MoveWords& shared = words();
  if (shared.failed.load(std::memory_order_acquire) != number) return {};
  const std::uint32_t code = shared.code;
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(Code::internal);
  const std::size_t length = std::min<std::size_t>(shared.text_bytes, max_failure_bytes);
  return {{known ? static_cast<Code>(code) : Code::corrupt, 0, shared.page},
          std::string(shared.text.data(), length)};
}

// ------------------------------------------------------------------ the pages

headrace_side_v1 Side::view(const MoveList& list, const std::vector<void*>& handles) const {
  headrace_side_v1 side{};
  side.struct_size = sizeof side;
  side.regions = handles.data();
  side.region_count = handles.size();
  side.columns.region_of = region_of.empty() ? nullptr : region_of.data();
  side.columns.offsets = offsets.empty() ? nullptr : offsets.data();
  side.columns.lengths = list.page_bytes == 0 ? list.lengths.data() : nullptr;
  side.columns.indices = indices.empty() ? nullptr : indices.data();
  side.columns.base_offset = base;
  side.columns.stride_bytes = stride;
  side.columns.page_bytes = list.page_bytes;
  return side;
}

Result<std::uint64_t> MoveList::check(
    const std::function<std::optional<std::uint64_t>(std::size_t number)>& owners_length) const {
  std::vector<std::uint64_t> theirs, ours;
  for (const ToldRegion& region : initiators.regions) theirs.push_back(region.length);
  for (std::size_t i = 0; i < owners.regions.size(); ++i) {
    const auto length = owners_length(i);
    if (!length)
      return make_error(Code::not_found, "region {} is not registered; fetch the metadata again",
                        owners.regions[i].id);
    ours.push_back(*length);
  }
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t bytes = page_bytes != 0 ? page_bytes : lengths[i];
    if (bytes == 0) return Error{Code::invalid_argument, fmt::format("page {} has no bytes", i), i};
    const Wide owners_extent = extent_of(*this, true, bytes),
               initiators_extent = extent_of(*this, false, bytes);
    if (bytes > owners_extent || bytes > initiators_extent)
      return Error{Code::invalid_argument, fmt::format("page {} has more bytes than it spreads over", i), i};
    if (!lies_within(owners, i, owners_extent, ours)) return outside("owner's", i);
    if (!lies_within(initiators, i, initiators_extent, theirs)) return outside("initiator's", i);
    if (__builtin_add_overflow(total, bytes, &total))
      return make_error(Code::invalid_argument, "{} pages hold more than 2^64 bytes", count);
  }
  return total;
}

Result<MoveFile> write_move_file(const headrace_prepare_v1& args, const Tell& tell_local,
                                 const Tell& tell_remote) {
  using host_link::Mapping;
  const headrace_side_v1 &local = *args.local, &remote = *args.remote;
  const std::uint64_t page_bytes = common_page_bytes(args);
  const Shape here = shape_of(local, page_bytes), there = shape_of(remote, page_bytes);
  const std::uint64_t lengths_bytes = page_bytes == 0 ? args.count * sizeof(std::uint64_t) : 0;
  const std::uint64_t shape_bytes =
      args.grid != nullptr ? grid_bytes + args.grid->dimensions * dimension_bytes : 0;
  const std::uint64_t body = head_bytes + 2 * side_bytes + shape_bytes +
                             (local.region_count + remote.region_count) * region_bytes +
                             column_bytes(here, args.count) + column_bytes(there, args.count) + lengths_bytes;
  if (args.count > max_move_pages || move_control_bytes + body > max_move_file_bytes ||
      std::max(local.region_count, remote.region_count) > max_move_regions)
    return make_error(
        Code::not_supported,
        "the owner of registered host memory is told of at most {} pages in {} regions a request, not of "
        "{} in {}: make several",
        max_move_pages, max_move_regions, args.count, std::max(local.region_count, remote.region_count));
  HEADRACE_TRY(fd, host_link::create_memory_file("headrace-move", move_control_bytes + body));
  HEADRACE_TRY_VOID(host_link::seal_memory_file(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  HEADRACE_TRY(written,
               Mapping::of_file(fd.get(), 0, move_control_bytes + body, Mapping::Access::read_write));
  Pen pen(written.data() + move_control_bytes);
  pen.put(list_magic);
  pen.put(static_cast<std::uint32_t>(args.op));
  pen.put(args.count);
  pen.put(page_bytes);
  pen.put(args.grid != nullptr ? std::uint64_t{args.grid->dimensions} : 0);
  write_side(pen, local, here, tell_local);
  write_side(pen, remote, there, tell_remote);
  if (args.grid != nullptr) write_grid(pen, *args.grid);
  write_columns(pen, local, here, args.count);
  write_columns(pen, remote, there, args.count);
  if (page_bytes == 0)
    pen.put_column<std::uint64_t>(args.count, [&](std::uint64_t i) { return page_length(args, i); });
  HEADRACE_TRY(control, Mapping::of_file(fd.get(), 0, move_control_bytes, Mapping::Access::read_write));
  return MoveFile{std::move(fd), MoveControl(std::move(control))};
}

Result<MoveControl> open_move_control(int fd) {
  using host_link::Mapping;
  HEADRACE_TRY(file, host_link::inspect_memory_file(fd));
  if (file.size_bytes < move_control_bytes + head_bytes || file.size_bytes > max_move_file_bytes ||
      !file.writable || move_control_bytes % file.page_bytes != 0)
    return make_error(Code::corrupt, "a request came in a memory file of {} bytes", file.size_bytes);
  HEADRACE_TRY(page, Mapping::of_file(fd, 0, move_control_bytes, Mapping::Access::read_write));
  return MoveControl(std::move(page));
}

Result<MoveList> read_move_list(int fd) {
  HEADRACE_TRY(file, host_link::inspect_memory_file(fd));
  if (file.size_bytes < move_control_bytes || file.size_bytes > max_move_file_bytes) return nonsense();
  HEADRACE_TRY(body, read_body(fd, file.size_bytes - move_control_bytes));
  return decode_move_list(body);
}

Result<MoveList> decode_move_list(std::string_view body) {
  PacketReader in(body);
  MoveList list;
  const auto magic = in.number<std::uint32_t>();
  const auto op = in.number<std::uint32_t>();
  list.count = in.number<std::uint64_t>();
  list.page_bytes = in.number<std::uint64_t>();
  const auto dimensions = in.number<std::uint64_t>();
  if (magic != list_magic || op > HEADRACE_WRITE || list.count == 0) return nonsense();
  list.op = static_cast<headrace_op_v1>(op);
  list.initiators = read_side(in);
  list.owners = read_side(in);
  if (dimensions != 0) list.grid = read_grid(in, dimensions, list.page_bytes);
  const bool all_told =
      list.page_bytes != 0 || (list.initiators.shape == Shape::listed && list.owners.shape == Shape::listed);
  if (!in.good() || !all_told || list.count > max_move_pages) return nonsense();
  read_columns(in, list.initiators, list.count);
  read_columns(in, list.owners, list.count);
  if (list.page_bytes == 0) list.lengths = read_column<std::uint64_t>(in, list.count);
  if (!in.complete()) return nonsense();
  return list;
}

}  // namespace headrace::cuda_ipc
