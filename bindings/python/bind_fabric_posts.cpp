// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric.hpp>: posts.
#include <headrace/fabric.hpp>

#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/fabric_post.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <variant>

namespace headrace::python {
namespace {

/// Adds a post: its own arguments, then those that all have. `call(fabric, own..., FabricPostInput)`.
template <class... Own, class Call, class... Arguments>
void def_post(nb::class_<PyFabric>& fabric, const char* name, const char* own_signature, const char* doc,
              Call call, const Arguments&... arguments) {
  const std::string signature = std::string("def ") + name + "(self, " + own_signature + ", " +
                                fabric_post_signature + ") -> FabricWork";
  fabric.def(
      name,
      [call](const PyFabric& self, Own... own, nb::handle immediate, nb::handle scope,
             const std::string& count_by, const std::string& spread, const std::optional<std::uint32_t>& nic,
             const TimeLimit& timeout) {
        return PyFabricWork(
            call(self, own..., FabricPostInput{immediate, scope, count_by, spread, nic, timeout}));
      },
      arguments..., nb::arg("immediate") = nb::none(), nb::arg("scope") = 0, nb::arg("count_by") = "request",
      nb::arg("spread") = "free", nb::arg("nic") = nb::none(), nb::arg("timeout") = nb::none(),
      nb::sig(signature.c_str()), doc);
}

// ------------------------------------------------------------------ one range

/// Offsets and length of a move between memory here and there.
struct PostRange {
  std::uint64_t here_offset, there_offset, bytes;
};

std::uint64_t rest_of(std::uint64_t length, std::uint64_t offset) {
  return length - std::min(length, offset);  // an offset outside is refused by the fabric
}

PostRange to_range(const PyFabricMemory& here, nb::handle here_offset, nb::handle there_offset,
                   nb::handle length, bool here_is_source) {
  const char* const names[] = {"the source's offset", "the target's offset"};
  PostRange range{to_u64(here_offset, names[here_is_source ? 0 : 1], no_page),
                  to_u64(there_offset, names[here_is_source ? 1 : 0], no_page), 0};
  range.bytes = length.is_none() ? rest_of(here.memory.length_bytes(), range.here_offset)
                                 : to_u64(length, "the length", no_page);
  return range;
}

FabricWork post_write(const PyFabric& self, const PyFabricMemory& source, const FabricDescriptor* target,
                      nb::handle length, nb::handle source_offset, nb::handle target_offset,
                      const FabricPostInput& arguments) {
  const FabricPost post = arguments.read();
  const FabricDescriptor& to = given_descriptor(target);
  const PostRange range = to_range(source, source_offset, target_offset, length, true);
  return self.ask([&](headrace::Fabric& f) {
    return f.write(source.memory, range.here_offset, to, range.there_offset, range.bytes, post);
  });
}

FabricWork post_read(const PyFabric& self, const PyFabricMemory& target, const FabricDescriptor* source,
                     nb::handle length, nb::handle target_offset, nb::handle source_offset,
                     const FabricPostInput& arguments) {
  const FabricPost post = arguments.read();
  const FabricDescriptor& from = given_descriptor(source);
  const PostRange range = to_range(target, target_offset, source_offset, length, false);
  return self.ask([&](headrace::Fabric& f) {
    return f.read(target.memory, range.here_offset, from, range.there_offset, range.bytes, post);
  });
}

// ------------------------------------------------------------------ pages

/// The pages of one side. The array of indices stays in place while this lives.
struct PageSide {
  PageSide(nb::handle given, nb::handle stride, nb::handle offset, const char* side) {
    const std::string name(side);
    if (!given.is_none()) {
      input = to_indices(given, (name + "_indices").c_str());
      std::visit([&](auto numbers) { pages.indices = PageNumbers(numbers); }, input.indices);
      count = std::visit([](auto numbers) { return numbers.size(); }, input.indices);
    }
    pages.stride_bytes = to_u64(stride, (name + "_stride").c_str(), no_page);
    pages.offset_bytes = to_u64(offset, (name + "_offset").c_str(), no_page);
  }
  PageSide(const PageSide&) = delete;
  PageSide& operator=(const PageSide&) = delete;

  IndexInput input;
  std::optional<std::uint64_t> count;
  FabricPages pages;
};

/// The number of pages: as given, or that of the indices.
std::uint64_t page_count_of(nb::handle count, const PageSide& source, const PageSide& target) {
  if (source.count && target.count && *source.count != *target.count)
    raise_invalid(std::to_string(*source.count) + " source_indices and " + std::to_string(*target.count) +
                  " target_indices: give the same count of both");
  if (!count.is_none()) return to_u64(count, "the count of pages", no_page);
  if (source.count) return *source.count;
  if (target.count) return *target.count;
  raise_invalid("a post without indices needs `count`, the number of pages");
}

FabricWork post_write_pages(const PyFabric& self, const PyFabricMemory& source,
                            const FabricDescriptor* target, nb::handle page_bytes, nb::handle source_indices,
                            nb::handle target_indices, nb::handle count, nb::handle source_stride,
                            nb::handle target_stride, nb::handle source_offset, nb::handle target_offset,
                            const FabricPostInput& arguments) {
  const FabricPost post = arguments.read();
  const FabricDescriptor& descriptor = given_descriptor(target);
  const std::uint64_t bytes = to_u64(page_bytes, "page_bytes", no_page);
  const PageSide from(source_indices, source_stride, source_offset, "source");
  const PageSide to(target_indices, target_stride, target_offset, "target");
  const std::uint64_t pages = page_count_of(count, from, to);
  return self.ask([&](headrace::Fabric& f) {
    return f.write_pages(source.memory, from.pages, descriptor, to.pages, bytes, pages, post);
  });
}

FabricWork post_read_pages(const PyFabric& self, const PyFabricMemory& target, const FabricDescriptor* source,
                           nb::handle page_bytes, nb::handle target_indices, nb::handle source_indices,
                           nb::handle count, nb::handle target_stride, nb::handle source_stride,
                           nb::handle target_offset, nb::handle source_offset,
                           const FabricPostInput& arguments) {
  const FabricPost post = arguments.read();
  const FabricDescriptor& descriptor = given_descriptor(source);
  const std::uint64_t bytes = to_u64(page_bytes, "page_bytes", no_page);
  const PageSide from(source_indices, source_stride, source_offset, "source");
  const PageSide to(target_indices, target_stride, target_offset, "target");
  const std::uint64_t pages = page_count_of(count, from, to);
  return self.ask([&](headrace::Fabric& f) {
    return f.read_pages(target.memory, to.pages, descriptor, from.pages, bytes, pages, post);
  });
}

// ------------------------------------------------------------------ other posts

FabricWork post_scatter(const PyFabric& self, const PyFabricMemory& source,
                        const std::vector<FabricTarget>& targets, const FabricPostInput& arguments) {
  const FabricPost post = arguments.read();
  return self.ask([&](headrace::Fabric& f) { return f.scatter(source.memory, targets, post); });
}

void bind_range_posts(nb::class_<PyFabric>& fabric) {
  def_post<const PyFabricMemory&, const FabricDescriptor*, nb::handle, nb::handle, nb::handle>(
      fabric, "write",
      "source: FabricMemory, target: FabricDescriptor, length_bytes: int | None = None, *, source_offset: "
      "int = 0, target_offset: int = 0",
      "Writes a range of memory here to memory of a peer. Returns once posted.\n\n"
      "length_bytes: None: the source from source_offset on.",
      &post_write, nb::arg("source"), nb::arg("target").none(), nb::arg("length_bytes") = nb::none(),
      nb::kw_only(), nb::arg("source_offset") = 0, nb::arg("target_offset") = 0);
  def_post<const PyFabricMemory&, const FabricDescriptor*, nb::handle, nb::handle, nb::handle>(
      fabric, "read",
      "target: FabricMemory, source: FabricDescriptor, length_bytes: int | None = None, *, target_offset: "
      "int = 0, source_offset: int = 0",
      "Reads a range of a peer's memory into memory here. Returns once posted.\n\n"
      "length_bytes: None: the target from target_offset on.",
      &post_read, nb::arg("target"), nb::arg("source").none(), nb::arg("length_bytes") = nb::none(),
      nb::kw_only(), nb::arg("target_offset") = 0, nb::arg("source_offset") = 0);
}

void bind_page_posts(nb::class_<PyFabric>& fabric) {
  using H = nb::handle;
  def_post<const PyFabricMemory&, const FabricDescriptor*, H, H, H, H, H, H, H, H>(
      fabric, "write_pages",
      "source: FabricMemory, target: FabricDescriptor, page_bytes: int, *, source_indices: object = None, "
      "target_indices: object = None, count: int | None = None, source_stride: int = 0, target_stride: int "
      "= 0, source_offset: int = 0, target_offset: int = 0",
      "Writes pages of page_bytes bytes each, page i of the source to page i of the target.\n\n"
      "Page i begins at offset + k * stride, where k is indices[i], or i without indices.\n"
      "source_indices, target_indices: shape (count,), uint32, int32 or int64, by the buffer protocol or\n"
      "DLPack in host memory, or a list. They are read before the return.\n"
      "count: None: that of the indices. source_stride, target_stride: bytes; 0: page_bytes.",
      &post_write_pages, nb::arg("source"), nb::arg("target").none(), nb::arg("page_bytes"), nb::kw_only(),
      nb::arg("source_indices") = nb::none(), nb::arg("target_indices") = nb::none(),
      nb::arg("count") = nb::none(), nb::arg("source_stride") = 0, nb::arg("target_stride") = 0,
      nb::arg("source_offset") = 0, nb::arg("target_offset") = 0);
  def_post<const PyFabricMemory&, const FabricDescriptor*, H, H, H, H, H, H, H, H>(
      fabric, "read_pages",
      "target: FabricMemory, source: FabricDescriptor, page_bytes: int, *, target_indices: object = None, "
      "source_indices: object = None, count: int | None = None, target_stride: int = 0, source_stride: int "
      "= 0, target_offset: int = 0, source_offset: int = 0",
      "Reads pages of page_bytes bytes each, page i of the source to page i of the target.\n\n"
      "The arguments are those of `write_pages`.",
      &post_read_pages, nb::arg("target"), nb::arg("source").none(), nb::arg("page_bytes"), nb::kw_only(),
      nb::arg("target_indices") = nb::none(), nb::arg("source_indices") = nb::none(),
      nb::arg("count") = nb::none(), nb::arg("target_stride") = 0, nb::arg("source_stride") = 0,
      nb::arg("target_offset") = 0, nb::arg("source_offset") = 0);
}

}  // namespace

void bind_fabric_posts(nb::class_<PyFabric>& fabric) {
  bind_range_posts(fabric);
  bind_page_posts(fabric);
  def_post<const PyFabricMemory&, const std::vector<FabricTarget>&>(
      fabric, "scatter", "source: FabricMemory, targets: collections.abc.Sequence[FabricTarget], *",
      "Writes from one memory to many. Each target's peer counts the immediate after its own bytes.\n\n"
      "targets: one FabricTarget or more.",
      &post_scatter, nb::arg("source"), nb::arg("targets"), nb::kw_only());
  fabric.def(
      "post_immediate",
      [](const PyFabric& self, const FabricPeer& peer, nb::handle immediate, nb::handle scope,
         const std::string& count_by, const std::string& spread, const std::optional<std::uint32_t>& nic,
         const TimeLimit& timeout) {
        const Immediate told{to_u32(immediate, "the immediate"), to_u32(scope, "the scope")};
        const FabricPost post = FabricPostInput{nb::none(), scope, count_by, spread, nic, timeout}.read();
        return PyFabricWork(
            self.ask([&](headrace::Fabric& f) { return f.post_immediate(peer, told, post); }));
      },
      nb::arg("peer"), nb::arg("immediate"), nb::kw_only(), nb::arg("scope") = 0,
      nb::arg("count_by") = "request", nb::arg("spread") = "free", nb::arg("nic") = nb::none(),
      nb::arg("timeout") = nb::none(),
      nb::sig("def post_immediate(self, peer: FabricPeer, immediate: int, *, scope: int = 0, count_by: str = "
              "'request', spread: str = 'free', nic: int | None = None, timeout: float | datetime.timedelta "
              "| None = None) -> "
              "FabricWork"),
      "An immediate alone, without bytes.");
}

}  // namespace headrace::python
