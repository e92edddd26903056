// SPDX-License-Identifier: Apache-2.0
// <headrace/pages.hpp>; what Agent.prepare takes is read in page_input.cpp.
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
                ": give the Region that register returned, or what allocate returned");
}

/// The pages that are the array's along its first dimension, and what each of them consists of.
std::pair<UniformPages, PageView> pages_of(nb::handle region_object, nb::handle array) {
  const Region& region = own_region(region_object);
  const auto view = ArrayView::open(array);
  if (view == nullptr)
    raise_invalid("array is " + shown(array) +
                  ": give a NumPy array, a torch tensor, or what else offers its memory");
  if (view->shape.empty() || view->count() == 0)
    raise_invalid("the array is a " + view->described() +
                  ": it needs a first dimension, of pages, and elements");
  const auto address = reinterpret_cast<std::uint64_t>(view->data);
  if (address < region.address || address - region.address >= region.length_bytes)
    raise_invalid("the array is a " + view->described() + " that does not lie in region " +
                  std::to_string(region.id.value) + ": give the region that its memory was registered as");
  if (view->shape[0] > 1 && view->strides_bytes[0] <= 0)
    raise_invalid("the array is a " + view->described() + " whose pages are " +
                  std::to_string(view->strides_bytes[0]) +
                  " bytes apart: pages go forward, so turn the order of its first dimension round");
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
      "What every page of a list consists of where that is not one stretch: an array of up to four "
      "dimensions, by its\n"
      "strides. A page is its elements in the order of their indices, the last one fastest, and "
      "begins where element\n"
      "0, 0, ... lies. Lists whose views have one shape go together whatever their strides are: so "
      "heads are split off or\n"
      "transposed on the way. A list without a view goes with any of as many bytes a page.")
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
          "shape: 1 to 4 extents, at least 1 each. strides_bytes: one for each, above 0, from an element to "
          "the next; "
          "None: there\nare no gaps. item_bytes: of an element.\nErrors: those of a view that cannot be come "
          "from "
          "Agent.prepare.")
      .def_prop_ro(
          "shape", [](const PageView& self) { return tuple_of(self.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Extents.")
      .def_prop_ro(
          "strides_bytes",
          [](const PageView& self) -> nb::object {
            if (self.strides_bytes.empty()) return nb::none();
            return tuple_of(self.strides_bytes);
          },
          nb::sig("def strides_bytes(self) -> tuple[int, ...] | None"),
          "From an element to the next; None: no gaps.")
      .def_ro("item_bytes", &PageView::item_bytes, "Of an element.")
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
      "An array as pages: those of its first dimension, and the view that the other dimensions are.\n\n"
      "region: of ours, in which the array lies. array: a NumPy array, a torch tensor or what else offers "
      "its memory, "
      "of shape\n"
      "(pages, ...) with at most four dimensions more, and any strides: heads[:, :, 4:8], swapaxes, permute. "
      "Nothing "
      "is copied or\n"
      "kept. For Agent.prepare(pages, view=view), here or, as both can be pickled, by a peer, with peer=our "
      "name.\n"
      "Errors: InvalidArgument (the array lies elsewhere, or its pages go backward).");
}

}  // namespace

void bind_pages(nb::module_& module) {
  nb::class_<UniformPages>(module, "UniformPages",
                           "`count` pages of one length: page i begins at base_bytes + i * stride_bytes of "
                           "one region. The cheapest\n"
                           "list to make and to keep.")
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
          "Units: bytes from the region's start; a stride_bytes of 0 means page_bytes.")
      .def_prop_ro(
          "region", [](const UniformPages& self) { return self.region.value; }, "The region's id.")
      .def_ro("base_bytes", &UniformPages::base_bytes, "Where page 0 begins.")
      .def_ro("stride_bytes", &UniformPages::stride_bytes,
              "From one page's begin to the next one's; 0: page_bytes.")
      .def_ro("page_bytes", &UniformPages::page_bytes, "The length of each.")
      .def_ro("count", &UniformPages::count, "How many.")
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
      "Pages of one region by columns: page i has lengths[i] bytes and begins at offsets[i] - origin_bytes. "
      "For tables whose\n"
      "rows hold more than pages need, and for offsets that count from elsewhere: with a region's address as "
      "origin_bytes they\n"
      "are addresses, a peer's too.")
      .def(
          "__init__",
          [](PyRegionPages* self, nb::handle region, nb::handle offsets, nb::handle lengths,
             std::uint64_t origin) { new (self) PyRegionPages(region, offsets, lengths, origin); },
          nb::arg("region"), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("origin_bytes") = 0,
          nb::sig("def __init__(self, region: Region | Memory | int, offsets: object, lengths: object, "
                  "origin_bytes: int = 0) -> None"),
          "offsets: a one-dimensional array of uint64 or int64, read without a copy; a column of a table "
          "will do. lengths: the\n"
          "same of as many, or an int for all.\n"
          "Units: bytes. Owns: keeps the arrays in place; they are read when the list is prepared.\n"
          "Errors: InvalidArgument (other arrays, counts that differ).")
      .def_prop_ro(
          "region", [](const PyRegionPages& self) { return self.pages().region.value; }, "The region's id.")
      .def_prop_ro(
          "origin_bytes", [](const PyRegionPages& self) { return self.pages().origin_bytes; },
          "The offset that stands for the region's start.")
      .def_prop_ro(
          "count", [](const PyRegionPages& self) { return self.pages().count; }, "How many.")
      .def("__len__", [](const PyRegionPages& self) { return self.pages().count; })
      .def("__repr__",
           [](const PyRegionPages& self) {
             return nb::str("RegionPages(region={}, count={}, origin_bytes={})")
                 .format(self.pages().region.value, self.pages().count, self.pages().origin_bytes);
           })
      .def("__reduce__",
           refuse_pickle("RegionPages refer to arrays of their process: send the arrays, and make them anew"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));

  nb::class_<PageList>(module, "PageList",
                       "A prepared list, as Agent.prepare gives it. Immutable, shared by any number of "
                       "requests; it keeps nothing of\n"
                       "the arrays that it was made from.")
      .def_prop_ro("count", &PageList::count, "How many pages.")
      .def_prop_ro("bytes", &PageList::bytes, "The sum of their lengths.")
      .def_prop_ro(
          "peer", [](const PageList& self) { return to_str(self.peer()); },
          "Whose memory: the peer's name, or empty for our own.")
      .def("__len__", &PageList::count)
      .def("__repr__",
           [](const PageList& self) {
             return nb::str("PageList(count={}, bytes={}, peer={!r})")
                 .format(self.count(), self.bytes(), to_str(self.peer()));
           })
      .def("__reduce__",
           refuse_pickle("a PageList belongs to its agent: send the pages that it was made from"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
