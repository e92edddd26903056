// SPDX-License-Identifier: Apache-2.0
// <headrace/pages.hpp>. page_input.cpp reads the arguments of Agent.prepare.
#include <headrace/pages.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/memory_handles.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/refuse_pickle.hpp"

#include <utility>

namespace headrace::python {
namespace {

std::vector<std::int64_t> integers(nb::handle object, const char* what) {
  IndexInput input = to_indices(object, what);
  input.widen();
  const auto numbers = std::get<std::span<const std::int64_t>>(input.indices);
  return {numbers.begin(), numbers.end()};
}

nb::tuple tuple_of(const std::vector<std::int64_t>& numbers) {
  nb::list list;
  for (const std::int64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

const Region& own_region(nb::handle object) {
  if (nb::isinstance<PyRegion>(object)) return nb::cast<const PyRegion&>(object).region;
  if (nb::isinstance<PyMemory>(object)) return nb::cast<const PyMemory&>(object).region.region;
  raise_invalid("region is " + shown(object) +
                ": give the Region from register, or the Memory from allocate");
}

/// The pages of an array, one for each index of its first dimension, and the view of each page.
std::pair<UniformPages, PageView> pages_of(nb::handle region_object, nb::handle array) {
  const Region& region = own_region(region_object);
  const auto view = ArrayView::open(array);
  if (view == nullptr)
    raise_invalid(
        "array is " + shown(array) +
        ": give a NumPy array, a torch tensor, or another object with the buffer protocol or DLPack");
  if (view->shape.empty() || view->count() == 0)
    raise_invalid("the array is a " + view->described() +
                  ": it needs a first dimension (the pages) and at least one element");
  const auto address = reinterpret_cast<std::uint64_t>(view->data);
  if (address < region.address || address - region.address >= region.length_bytes)
    raise_invalid("the array is a " + view->described() + " that is not in region " +
                  std::to_string(region.id.value) + ": give the region of its memory");
  if (view->shape[0] > 1 && view->strides_bytes[0] <= 0)
    raise_invalid(
        "the array is a " + view->described() + " whose pages are " + std::to_string(view->strides_bytes[0]) +
        " bytes apart: the stride of the first dimension must be positive, so reverse that dimension");
  PageView page;
  page.item_bytes = view->element_bytes;
  page.shape.assign(view->shape.begin() + 1, view->shape.end());
  page.strides_bytes.assign(view->strides_bytes.begin() + 1, view->strides_bytes.end());
  if (page.shape.empty()) page.shape = {1}, page.strides_bytes = {static_cast<std::int64_t>(page.item_bytes)};
  const auto count = static_cast<std::uint64_t>(view->shape[0]);
  const std::uint64_t bytes = static_cast<std::uint64_t>(view->count()) / count * page.item_bytes;
  const auto stride = count > 1 ? static_cast<std::uint64_t>(view->strides_bytes[0]) : bytes;
  return {UniformPages{region.id, address - region.address, stride, bytes, count}, std::move(page)};
}

void bind_page_view(nb::module_& module) {
  nb::class_<PageView>(
      module, "PageView",
      "The shape of every page of a list whose pages are not contiguous: a strided array.\n\n"
      "The array has up to four dimensions. A page is its elements in the order of their indices,\n"
      "the last index fastest; it begins at element 0, 0, ... Lists with views of the same shape fit\n"
      "together, with any strides; so a request can split off or transpose heads. A list without a\n"
      "view fits every list whose pages have the same number of bytes.")
      .def(
          "__init__",
          [](PageView* self, nb::handle shape, nb::handle strides, std::uint64_t item) {
            PageView view{integers(shape, "shape"), {}, item};
            if (!strides.is_none()) view.strides_bytes = integers(strides, "strides_bytes");
            new (self) PageView(std::move(view));
          },
          nb::arg("shape"), nb::arg("strides_bytes").none() = nb::none(), nb::arg("item_bytes") = 1,
          nb::sig("def __init__(self, shape: collections.abc.Sequence[int], strides_bytes: "
                  "collections.abc.Sequence[int] | None = None, item_bytes: int = 1) -> None"),
          "shape: 1 to 4 lengths of at least 1.\n"
          "strides_bytes: for each dimension the distance from an element to the next, above 0; None: no\n"
          "gaps.\n"
          "item_bytes: the bytes of an element.\n"
          "Errors: Agent.prepare raises those of a view that is not possible.")
      .def_prop_ro(
          "shape", [](const PageView& self) { return tuple_of(self.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The length of each dimension.")
      .def_prop_ro(
          "strides_bytes",
          [](const PageView& self) -> nb::object {
            if (self.strides_bytes.empty()) return nb::none();
            return tuple_of(self.strides_bytes);
          },
          nb::sig("def strides_bytes(self) -> tuple[int, ...] | None"),
          "The distance from an element to the next in each dimension; None: no gaps.")
      .def_ro("item_bytes", &PageView::item_bytes, "The bytes of an element.")
      .def(
          "__reduce__",
          [](nb::handle self) {
            return nb::make_tuple(self.type(), nb::make_tuple(self.attr("shape"), self.attr("strides_bytes"),
                                                              self.attr("item_bytes")));
          },
          nb::sig("def __reduce__(self) -> tuple[type[PageView], tuple[tuple[int, ...], tuple[int, ...] | "
                  "None, int]]"))
      .def("__repr__", [](nb::handle self) {
        return nb::str("PageView(shape={}, strides_bytes={}, item_bytes={})")
            .format(self.attr("shape"), self.attr("strides_bytes"), self.attr("item_bytes"));
      });
  module.def(
      "pages_of",
      [](nb::handle region, nb::handle array) {
        auto [pages, view] = pages_of(region, array);
        return nb::make_tuple(pages, std::move(view));
      },
      nb::arg("region"), nb::arg("array"),
      nb::sig("def pages_of(region: Region | Memory, array: object) -> tuple[UniformPages, PageView]"),
      "Describes an array as pages. Returns (pages, view) for Agent.prepare(pages, view=view).\n\n"
      "Each index of the first dimension is a page; the other dimensions are the view.\n"
      "region: the region of this agent that holds the array.\n"
      "array: a NumPy array, a torch tensor, or another object with the buffer protocol or DLPack,\n"
      "of shape (pages, ...) with at most four more dimensions and any strides: heads[:, :, 4:8],\n"
      "swapaxes, permute.\n"
      "Returns: both results can be pickled and sent to a peer, which prepares them with peer= this\n"
      "agent's name.\n"
      "Owns: nothing is copied or kept.\n"
      "Errors: InvalidArgument (the array is not in the region; the stride of its first dimension is\n"
      "not positive).");
}

}  // namespace

void bind_pages(nb::module_& module) {
  nb::class_<UniformPages>(module, "UniformPages",
                           "`count` pages of one length: page i begins at base_bytes + i * stride_bytes.\n\n"
                           "The cheapest list to prepare and to keep.")
      .def(
          "__init__",
          [](UniformPages* self, nb::handle region, std::uint64_t base, std::uint64_t stride,
             std::uint64_t page, std::uint64_t count) {
            new (self) UniformPages{to_region_id(region), base, stride, page, count};
          },
          nb::arg("region"), nb::arg("base_bytes"), nb::arg("stride_bytes"), nb::arg("page_bytes"),
          nb::arg("count"),
          nb::sig("def __init__(self, region: Region | Memory | int, base_bytes: int, stride_bytes: int, "
                  "page_bytes: int, count: int) -> None"),
          "Units: bytes, counted from the region's start. stride_bytes 0 means page_bytes.")
      .def_prop_ro(
          "region", [](const UniformPages& self) { return self.region.value; }, "The region's id.")
      .def_ro("base_bytes", &UniformPages::base_bytes, "The offset of page 0.")
      .def_ro("stride_bytes", &UniformPages::stride_bytes,
              "The distance from the begin of a page to the begin of the next; 0: page_bytes.")
      .def_ro("page_bytes", &UniformPages::page_bytes, "The length of each page.")
      .def_ro("count", &UniformPages::count, "The number of pages.")
      .def("__len__", [](const UniformPages& self) { return self.count; })
      .def(
          "__reduce__",
          [](nb::handle self) {
            const auto pages = nb::cast<UniformPages>(self);
            return nb::make_tuple(self.type(),
                                  nb::make_tuple(pages.region.value, pages.base_bytes, pages.stride_bytes,
                                                 pages.page_bytes, pages.count));
          },
          nb::sig("def __reduce__(self) -> tuple[type[UniformPages], tuple[int, int, int, int, int]]"))
      .def("__repr__", [](const UniformPages& self) {
        return nb::str("UniformPages(region={}, base_bytes={}, stride_bytes={}, page_bytes={}, count={})")
            .format(self.region.value, self.base_bytes, self.stride_bytes, self.page_bytes, self.count);
      });
  bind_page_view(module);

  nb::class_<PyRegionPages>(
      module, "RegionPages",
      "Pages of one region by columns: a column of offsets and a column of lengths.\n\n"
      "Page i has lengths[i] bytes and begins at offsets[i] - origin_bytes. For tables that have\n"
      "more columns than pages need, and for offsets that do not count from the region's start: with\n"
      "a region's address as origin_bytes they are addresses, also those of a peer.")
      .def(
          "__init__",
          [](PyRegionPages* self, nb::handle region, nb::handle offsets, nb::handle lengths,
             std::uint64_t origin) { new (self) PyRegionPages(region, offsets, lengths, origin); },
          nb::arg("region"), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("origin_bytes") = 0,
          nb::sig("def __init__(self, region: Region | Memory | int, offsets: object, lengths: object, "
                  "origin_bytes: int = 0) -> None"),
          "offsets: a one-dimensional array of uint64 or int64, read without a copy; may be a column of\n"
          "a table. lengths: an array of the same form and length, or an int for all pages.\n"
          "Units: bytes. Owns: keeps the arrays in place; they are read when the list is prepared.\n"
          "Errors: InvalidArgument (other arrays, counts that differ).")
      .def_prop_ro(
          "region", [](const PyRegionPages& self) { return self.pages().region.value; }, "The region's id.")
      .def_prop_ro(
          "origin_bytes", [](const PyRegionPages& self) { return self.pages().origin_bytes; },
          "The offset of the region's start.")
      .def_prop_ro(
          "count", [](const PyRegionPages& self) { return self.pages().count; }, "The number of pages.")
      .def("__len__", [](const PyRegionPages& self) { return self.pages().count; })
      .def("__repr__",
           [](const PyRegionPages& self) {
             return nb::str("RegionPages(region={}, count={}, origin_bytes={})")
                 .format(self.pages().region.value, self.pages().count, self.pages().origin_bytes);
           })
      .def("__reduce__",
           refuse_pickle("RegionPages cannot be pickled: send the arrays, and make RegionPages in the other "
                         "process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));

  nb::class_<PageList>(
      module, "PageList",
      "A prepared list of pages, from Agent.prepare.\n\n"
      "Immutable; any number of requests can share it. It does not keep the arrays that it was made\n"
      "from.")
      .def_prop_ro("count", &PageList::count, "The number of pages.")
      .def_prop_ro("bytes", &PageList::bytes, "The sum of the pages' lengths.")
      .def_prop_ro(
          "peer", [](const PageList& self) { return to_str(self.peer()); },
          "The owner of the pages: the peer's name, or empty for this agent.")
      .def("__len__", &PageList::count)
      .def("__repr__",
           [](const PageList& self) {
             return nb::str("PageList(count={}, bytes={}, peer={!r})")
                 .format(self.count(), self.bytes(), to_str(self.peer()));
           })
      .def("__reduce__", refuse_pickle("a PageList cannot be pickled: send the pages that it was made from"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
