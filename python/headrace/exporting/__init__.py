# SPDX-License-Identifier: Apache-2.0
"""The parts of `python -m headrace.export`.

request: the module to export; io_spec: the description of its inputs and outputs; archive: the io spec inside
a package; output: the check of the output path; package: compiling and writing; verify: the comparison with
PyTorch; runners: the two runners that verify compares; bare_loader: the test of PyTorch's loader without
Headrace. All but archive, output and bare_loader need torch.
"""
