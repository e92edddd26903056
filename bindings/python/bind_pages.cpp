// SPDX-License-Identifier: Apache-2.0
// <headrace/pages.hpp>; what Agent.prepare takes is read in page_input.cpp.
#include <headrace/pages.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/refuse_pickle.hpp"

namespace headrace::python {

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
