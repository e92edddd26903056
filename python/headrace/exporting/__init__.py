# SPDX-License-Identifier: Apache-2.0
"""What `python -m headrace.export` is made of. request: what to export; io_spec: what its inputs and
outputs are; archive: where a package keeps that; output: where it may be written; package: the
compiling and writing; verify: the comparison with PyTorch; runners: the two that run a package there;
bare_loader: whether PyTorch's loader works without Headrace. All but archive, output and bare_loader
need torch."""
